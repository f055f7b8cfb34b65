#!/bin/sh
# tests/standin/run_env.sh STANDIN PROGRAMS: what the environment asks of the stand-in, and what it says on standard error.
set -eu
LD_LIBRARY_PATH=$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
programs=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset GVMM_DRIVER GVMM_SIM GVMM_FAULTS GVMM_TRACE GVMM_SIM_REPORT

fail() {
    echo "$*:"
    cat "$work/out" "$work/err"
    exit 1
}
try() { # environment and program; never fails
    status=0
    env "$@" >"$work/out" 2>"$work/err" || status=$?
}
says() { grep -Eq "$1" "$work/err" || fail "no \"$1\""; }
says_times() { [ "$(grep -Ec "$2" "$work/err")" -eq "$1" ] || fail "not $1 times \"$2\""; }

try GVMM_SIM_REPORT=- "$programs/vmm_add"
[ $status -eq 0 ] || fail "vmm_add failed"
says '0 items, 0 findings'

# A fault: the program ends where it is told to, and what it had is in the report.
try GVMM_FAULTS=cuMemCreate:2 GVMM_SIM_REPORT=- "$programs/vmm_add"
[ $status -eq 1 ] || fail "the fault was not injected"
says 'cuMemCreate.*CUDA_ERROR_OUT_OF_MEMORY'
says 'memory .*made by cuMemCreate'
says 'reservation .*made by cuMemAddressReserve'
says 'mapping .*made by cuMemMap'
try GVMM_FAULTS=cuMemMap:1=NOT_PERMITTED "$programs/vmm_add"
says 'cuMemMap.*CUDA_ERROR_NOT_PERMITTED'
try GVMM_FAULTS=1 "$programs/vmm_add"
says 'cuInit.*CUDA_ERROR_OUT_OF_MEMORY'

# Plans and settings that cannot be read: no start, and why.
try GVMM_FAULTS=cuNoSuchCall:1 "$programs/vmm_add"
[ $status -eq 1 ] || fail "started without the plan"
says 'GVMM_FAULTS: .*cuNoSuchCall'
says 'cuInit.*CUDA_ERROR_INVALID_VALUE'
try GVMM_SIM=devices=99 "$programs/vmm_add"
says 'GVMM_SIM: devices is .*99'

try GVMM_TRACE=1 "$programs/vmm_add"
says '^gvmm: cuInit\(flags=0x0\) = CUDA_SUCCESS'
says_times 2 '^gvmm: cuMemMap\('

# The machine as asked for.
try GVMM_SIM=granularity=1M "$programs/vmm_add"
says 'do not span the chunks'
try GVMM_SIM=memory=2M "$programs/vmm_add"
says 'cuMemCreate.*CUDA_ERROR_OUT_OF_MEMORY'

# What is missing says so once.
try GVMM_SIM=devices=2 "$programs/spellings"
[ $status -eq 0 ] || fail "spellings failed"
for name in cuTexRefCreate cuLibraryLoadData cuModuleLoadData; do says_times 1 "$name is not simulated"; done
says_times 3 'is not simulated'
echo "the stand-in obeys its environment"
