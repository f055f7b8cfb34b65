#!/bin/sh
# tools/demo.sh PROGRAM [FILE]: runs the demo on FILE; without one on what is piped in; if nothing is, on a large file of the system.
set -eu
program=$1
file=${2:-}

if [ -n "$file" ]; then exec "$program" "$file"; fi

# A pipe is no proof of input: under CI it is often empty, or idle for ever. The first byte is.
if [ -p /dev/stdin ] || [ -f /dev/stdin ]; then
    first=$(mktemp)
    trap 'rm -f "$first"' EXIT
    timeout 10 dd bs=1 count=1 of="$first" 2>/dev/null || true
    if [ -s "$first" ]; then
        cat "$first" - | "$program" -
        exit
    fi
fi

file=$(find /usr/bin /usr/lib /usr/libexec -type f -size +1000k -size -1000000k -printf '%s %p\n' 2>/dev/null |
    sort -rn | sed -n '1s/^[0-9]* //p')
echo "demo: nothing was piped in and no FILE=path given, so it reads the largest file of this system"
exec "$program" "$file" </dev/null
