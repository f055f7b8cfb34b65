#!/bin/sh
# tests/nccl/run.sh PROGRAM one|two|mpirun [argument...]: the NCCL example in one process, or as two that are started by hand or by
# mpirun. With the stand-in (GVMM_NCCL_STANDIN=1) it must also have seen what the example says that it registered.
set -eu
program=$1
how=$2
shift 2

# Multicast is left out: a program that dies with it can take the machine's other GPUs along.
export NCCL_NVLS_ENABLE=0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A rank that fails leaves the others waiting, but not for ever.
limit="timeout 120"

status=0
case $how in
one) $limit "$program" "$@" >"$work/out" 2>&1 || status=$? ;;
two)
    $limit "$program" --rank 0 --size 2 --id "$work/id" "$@" >"$work/out" 2>&1 &
    first=$!
    $limit "$program" --rank 1 --size 2 --id "$work/id" "$@" >"$work/out1" 2>&1 || status=$?
    wait $first || status=$?
    cat "$work/out1" >>"$work/out"
    ;;
mpirun)
    command -v mpirun >/dev/null || { echo "skip (hardware): nccl: there is no mpirun"; exit 77; }
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 $limit mpirun -np 2 "$program" "$@" >"$work/out" 2>&1 || status=$?
    ;;
esac
cat "$work/out"
[ $status -eq 0 ] || exit $status

[ -n "${GVMM_NCCL_STANDIN:-}" ] || exit 0
# Two pieces, both renewed by the restore: 2 + 2 registrations; the probes are gathered over memory that is not registered.
case "$*" in
*--by-piece*) seen="4 registered, 4 deregistered, 5 of 6 operations registered" ;;
*) seen="4 registered, 4 deregistered, 3 of 4 operations registered" ;;
esac
for rank in 0 1; do
    grep -q "rank $rank: $seen" "$work/out" || { echo "rank $rank has not: $seen"; exit 1; }
done
grep -q '^registrations  *4 a rank' "$work/out"
