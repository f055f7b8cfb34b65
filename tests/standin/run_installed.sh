#!/bin/sh
# tests/standin/run_installed.sh PREFIX: a project that tests a CUDA program of its own on the installed stand-in, found through
# CMake and through pkg-config. Environment: WORK a directory to build in; CC, CMAKE.
set -eu
prefix=$1
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$WORK"
mkdir -p "$WORK"
cd "$WORK"

"$CMAKE" -S "$here/installed" -B . -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$CC"
"$CMAKE" --build .
"$(dirname "$CMAKE")/ctest" --output-on-failure

if ! command -v pkg-config >/dev/null; then
    echo "skip: pkg-config: it is not installed"
    exit 0
fi
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name gvmm.pc)")
export PKG_CONFIG_PATH
standin=$(pkg-config --variable=standindir gvmm)
# shellcheck disable=SC2046
"$CC" -std=c11 "$here/vmm_add.c" -o plain $(pkg-config --cflags gvmm) -L"$standin" -lcuda
LD_LIBRARY_PATH=$standin ./plain
