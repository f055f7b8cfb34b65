#!/bin/sh
# tools/check_exports.sh LIBRARY PATTERN ...: each shared library shows only names that match its pattern, and at least one.
set -eu
nm=${NM:-nm}
bad=0
while [ $# -ge 2 ]; do
    names=$("$nm" -D --defined-only "$1" | awk '$2 != "A" { print $3 }')
    if [ -z "$names" ]; then
        echo "$1 shows no names"
        bad=1
    elif echo "$names" | grep -Ev "$2"; then
        echo "^ shown by $1 without matching $2"
        bad=1
    fi
    shift 2
done
exit $bad
