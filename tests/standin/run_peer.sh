#!/bin/sh
# tests/standin/run_peer.sh STANDIN VENV: cuda.core on the stand-in driver. It must show what it showed on an H200, and the leak
# report must name what it leaks. Exit status 77: skipped.
set -eu
standin=$1
venv=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! sh "$here/../../tools/venv.sh" "$venv" "$here/requirements.txt" >"$work/venv.log" 2>&1; then
    cat "$work/venv.log"
    echo "skip: cuda.core: no virtual environment with it, and it could not be made"
    exit 77
fi

# Times and addresses differ from machine to machine.
plain() { sed -E 's/[0-9]+(\.[0-9]+)? ?us/N us/g; s/0x[0-9a-f]+/ADDRESS/g' "$1"; }

unset GVMM_DRIVER GVMM_SIM GVMM_FAULTS GVMM_TRACE
LD_LIBRARY_PATH=$standin PYTHONUNBUFFERED=1 PYTHONNOUSERSITE=1 GVMM_SIM_REPORT="$work/report.json" \
    "$venv/bin/python" "$here/peer_cudacore.py" >"$work/shown" 2>&1 || { cat "$work/shown"; exit 1; }

plain "$here/peer_cudacore.expected" >"$work/expected.plain"
plain "$work/shown" >"$work/shown.plain"
diff "$work/expected.plain" "$work/shown.plain"
grep -q 'leak after 8x64MiB allocate/close: 512.0 MiB' "$work/shown"

# 30 of each size timed, then 8 of 64 MiB: physical memory, for every mapping and address was given back.
"$venv/bin/python" - "$work/report.json" <<'END'
import collections, json, sys

report = json.load(open(sys.argv[1]))
leaked = collections.Counter((i["kind"], i["made_by"], i["size"] >> 20) for i in report["items"])
print(*(f"{count} x {kind} of {mib} MiB, made by {call}" for (kind, call, mib), count in sorted(leaked.items())), sep="\n")
for mib, count in {32: 30, 64: 8, 512: 30}.items():
    assert leaked["memory", "cuMemCreate", mib] == count, (mib, count)
assert not any(kind == "mapping" and mib >= 32 for kind, _, mib in leaked), leaked
assert report["findings"] == [], report["findings"]
END
echo "cuda.core: as on an H200, and its leaks are named"
