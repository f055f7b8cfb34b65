#!/bin/sh
# tools/check_abi.sh OURS THEIRS: the two builds of tests/abi_facts.c. Every fact that NVIDIA's header gives must be ours; an older
# toolkit gives fewer.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" >"$work/ours"
"$2" >"$work/theirs"
if grep -Fxvf "$work/ours" "$work/theirs" >"$work/differ"; then
    echo "include/gvmm/cuda_abi.h disagrees with cuda.h, which says:"
    cat "$work/differ"
    exit 1
fi
echo "ABI: $(wc -l <"$work/theirs") facts agree with cuda.h"
