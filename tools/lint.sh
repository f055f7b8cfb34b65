#!/bin/sh
# tools/lint.sh [--fix]: source format (with --fix: rewrites it), include direction, and ruff on the Python files (with --fix: mends
# what it can).
set -eu
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

bad=0
if sh tools/clang_format.sh --version >/dev/null 2>&1; then
    for file in $(find include src sim python tests examples bench tools -name '*.[ch]' -o -name '*.cpp' | sort); do
        sh tools/clang_format.sh "$file" >"$work/formatted"
        cmp -s "$file" "$work/formatted" && continue
        if [ "${1:-}" = --fix ]; then
            cp "$work/formatted" "$file"
            echo "lint: rewrote $file"
        else
            diff -u "$file" "$work/formatted" | sed 1,2d | head -n 20 >"$work/diff" || true
            echo "lint: $file is not formatted (make format); it begins"
            cat "$work/diff"
            bad=1
        fi
    done
    [ $bad -eq 1 ] || echo "lint: the format is right"
else
    echo "lint: clang-format 14 is not installed: the format was not checked"
fi
sh tools/check_includes.sh || bad=1

ruff=
for candidate in build/venv/bin/ruff ruff; do
    if "$candidate" --version >/dev/null 2>&1; then ruff=$candidate && break; fi
done
if [ -n "$ruff" ]; then
    "$ruff" check --no-cache --quiet ${1:+"$1"} . && echo "lint: ruff finds nothing" || bad=1
else
    echo "lint: ruff is not installed: the Python files were not checked"
fi
exit $bad
