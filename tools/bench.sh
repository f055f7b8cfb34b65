#!/bin/sh
# tools/bench.sh DIRECTORY sim|gpu OUT: runs every benchmark program in DIRECTORY; its JSON lines go to OUT/NAME-DRIVER.jsonl.
set -eu
directory=$1
driver=$2
out=$3

if [ "$driver" = sim ]; then export GVMM_DRIVER=sim; fi
mkdir -p "$out"
found=no
for program in "$directory"/bench_*; do
    if [ ! -f "$program" ] || [ ! -x "$program" ]; then continue; fi
    found=yes
    lines="$out/$(basename "$program")-$driver.jsonl"
    echo "bench: $program -> $lines"
    "$program" >"$lines"
    cat "$lines"
done
if [ $found = no ]; then echo "bench: no benchmark programs yet"; fi
