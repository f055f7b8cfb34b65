#!/bin/sh
# Runs clang-format 14, the version the sources are formatted with: others differ in details.
for tool in clang-format-14 clang-format; do
    if "$tool" --version 2>/dev/null | grep -q 'version 14\.'; then exec "$tool" "$@"; fi
done
echo "clang-format 14 is not installed" >&2
exit 127
