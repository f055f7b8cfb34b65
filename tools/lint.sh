#!/bin/sh
# tools/lint.sh [--fix]: source format (with --fix: rewrites it) and include direction.
set -eu
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

bad=0
if sh tools/clang_format.sh --version >/dev/null 2>&1; then
    for file in $(find include src sim tests examples bench -name '*.[ch]' | sort); do
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
exit $bad
