#!/bin/sh
# tools/bench.sh DIRECTORY sim|gpu OUT: runs every benchmark program in DIRECTORY, a build's bench/, then those in Python beside the
# sources. JSON lines go to OUT/NAME-DRIVER.jsonl; what cannot be run says why. PYTHON: the interpreter, else python3.
#
# The Python package is that of the build, else the installed one. Allocation traces (docs/traces.md) are replayed too: those of
# tests/traces, or TRACES, a directory.
set -eu
directory=$1
driver=$2
out=$3
sources=$(cd "$(dirname "$0")/../bench" && pwd)
traces=${TRACES:-$(dirname "$sources")/tests/traces}

if [ "$driver" = sim ]; then export GVMM_DRIVER=sim; fi
mkdir -p "$out"

run() { # name command...
    lines="$out/$1-$driver.jsonl"
    shift
    echo "bench: $* -> $lines"
    "$@" >"$lines" || { echo "bench: $1 failed"; failed=yes; }
    cat "$lines"
}

found=no
failed=no
for program in "$directory"/bench_*; do
    if [ ! -f "$program" ] || [ ! -x "$program" ]; then continue; fi
    found=yes
    run "$(basename "$program")" "$program"
done
if [ $found = no ]; then echo "bench: no benchmark programs yet"; fi

python=${PYTHON:-python3}
package=$(cd "$directory/.." && pwd)/python
if [ -d "$package/gvmm" ] && PYTHONPATH=$package "$python" -c 'import gvmm' 2>/dev/null; then
    export PYTHONPATH="$package${PYTHONPATH:+:$PYTHONPATH}"
fi
if ! why=$("$python" -c 'import gvmm, gvmm._gvmm' 2>&1); then
    echo "bench: skip: the benchmarks in Python: $python: $(echo "$why" | tail -n 1)"
else
    if [ -f "$directory/libgvmm_peers.so" ]; then export GVMM_PEERS_LIBRARY="$directory/libgvmm_peers.so"; fi
    export PYTHONDONTWRITEBYTECODE=1
    run bench_python "$python" "$sources/bench_python.py"
    run bench_peers "$python" "$sources/bench_peers.py"
    set -- "$traces"/*.trace
    if [ -f "$1" ]; then
        run replay "$python" "$sources/replay.py" "$@"
    else
        echo "bench: skip: replay: no traces in $traces (bench/make_traces.py)"
    fi
fi
[ $failed = no ]
