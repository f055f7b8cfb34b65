#!/bin/sh
# tools/demo.sh PROGRAM [FILE]: runs the demo on FILE; without one on what is piped in; if nothing is, on data made here.
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

echo "demo: nothing was piped in and no FILE=path given, so it reads the numbers 1 to 30000000"
seq 1 30000000 | "$program" -
