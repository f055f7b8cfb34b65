#!/bin/sh
# tests/consume/run.sh cmake|pkgconfig|readme|subdirectory PREFIX: builds a consumer of gvmm in one way and runs it.
# Environment: WORK a directory to build in; CC, CMAKE.
set -eu
way=$1
prefix=$2
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$WORK"
mkdir -p "$WORK"
cd "$WORK"

pkgconfig() { # source
    if ! command -v pkg-config >/dev/null; then
        echo "skip: pkg-config: it is not installed"
        exit 0
    fi
    PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name gvmm.pc)")
    export PKG_CONFIG_PATH
    libdir=$(pkg-config --variable=libdir gvmm)
    # shellcheck disable=SC2046
    "$CC" -std=c11 -Wall -Wextra -Werror "$1" -o shared $(pkg-config --cflags --libs gvmm) -Wl,-rpath,"$libdir"
    ./shared
    # shellcheck disable=SC2046
    "$CC" -std=c11 -Wall -Wextra -Werror "$1" -o static $(pkg-config --cflags gvmm) "$libdir/libgvmm.a" \
        $(pkg-config --static --libs-only-other --libs-only-l gvmm | sed 's/-lgvmm//')
    ./static
    # Static altogether, where there is such a libc; the linker says that dlopen needs a shared one all the same.
    echo 'int main(void) { return 0; }' >probe.c
    if "$CC" -static probe.c -o probe 2>/dev/null; then
        # shellcheck disable=SC2046
        "$CC" -std=c11 -Wall -Wextra -Werror -static "$1" -o all_static $(pkg-config --static --cflags --libs gvmm)
        ./all_static
    fi
}

case $way in
cmake)
    "$CMAKE" -S "$here/cmake" -B . -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release
    "$CMAKE" --build .
    ./consumer_shared
    ./consumer_static
    ;;
pkgconfig)
    pkgconfig "$here/consumer.c"
    ;;
readme) # its first C example
    awk '/^```c$/ { inside = 1; next } /^```$/ && inside { exit } inside' "$here/../../README.md" >readme.c
    pkgconfig readme.c
    ;;
subdirectory)
    "$CMAKE" -S "$here/subdirectory" -B . -DGVMM_SOURCE="$here/../.." -DCMAKE_BUILD_TYPE=Debug
    "$CMAKE" --build . --parallel 2
    ./consumer_shared
    ./consumer_static
    ;;
esac
