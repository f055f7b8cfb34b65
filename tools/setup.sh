#!/bin/sh
# Makes sure that what a make target needs is there: looks first, installs only what is missing, asks nothing.
#
#   tools/setup.sh library   C compiler, CMake: for the library alone
#   tools/setup.sh tests     those and Check
#   tools/setup.sh build     those and a C++ compiler: the headers are tried as C++ too
#   tools/setup.sh lint      clang-format, and ruff in build/venv (not having them is no failure)
#   tools/setup.sh python    Python's headers, and build/venv with what the Python tests need (not having them is no failure)
#
# Nothing is fetched when everything is there already.
set -eu

say() { echo "setup: $*"; }

# ---- what is there ----

compiles() { # compiler language text [libraries]
    printf '%s\n' "$3" | "$1" -x "$2" - -o /dev/null ${4:-} >/dev/null 2>&1
}

has_cc() { compiles "${CC:-cc}" c '#include <pthread.h>
int main(void) { return 0; }'; }

has_cxx() { compiles "${CXX:-c++}" c++ '#include <cstddef>
int main() { return 0; }'; }

has_cmake() { # 3.22 or newer
    version=$(cmake --version 2>/dev/null | sed -n 's/^cmake version \([0-9]*\.[0-9]*\).*/\1/p')
    [ -n "$version" ] || return 1
    [ "${version%%.*}" -gt 3 ] || { [ "${version%%.*}" -eq 3 ] && [ "${version#*.}" -ge 22 ]; }
}

has_check() { # as tests/CMakeLists.txt looks for it
    if pkg-config --exists check 2>/dev/null; then return 0; fi
    for prefix in $(echo "${CMAKE_PREFIX_PATH:-}" | tr ':;' '  ') /usr/local /usr; do
        [ -f "$prefix/include/check.h" ] && return 0
    done
    return 1
}

has_valgrind() { command -v valgrind >/dev/null 2>&1; }

has_clang_format() { sh "$(dirname "$0")/clang_format.sh" --version >/dev/null 2>&1; }

has_venv() { python3 -c 'import ensurepip, venv' 2>/dev/null; }

has_python_headers() { python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null; }

# ---- what to install for it ----

missing=

need() { # test, Debian packages
    if ! "$1"; then missing="$missing $2"; fi
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

install_missing() {
    [ -n "$missing" ] || return 0
    say "missing:$missing"
    if ! command -v apt-get >/dev/null 2>&1; then
        say "there is no apt-get here; please install these yourself (the names are Debian's):$missing"
        return 1
    fi
    if [ "$(id -u)" -ne 0 ] && ! sudo -n true 2>/dev/null; then
        say "neither root nor able to use sudo without a password; please run: sudo apt-get update && sudo apt-get install$missing"
        return 1
    fi
    say "installing them with apt-get"
    export DEBIAN_FRONTEND=noninteractive
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q update </dev/null >&2 || say "apt-get update failed; trying with the lists that are there"
    # shellcheck disable=SC2086
    if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install $missing </dev/null >&2; then
        say "apt-get could not install:$missing"
        return 1
    fi
}

need_library() {
    need has_cc "gcc libc6-dev"
    need has_cmake "cmake"
}

need_tests() {
    need_library
    need has_check "check pkg-config"
}

case "${1:-}" in
library)
    need_library
    install_missing
    ;;
tests)
    need_tests
    install_missing
    ;;
build)
    need_tests
    need has_cxx "g++"
    need has_valgrind "valgrind"
    install_missing
    ;;
lint)
    need has_clang_format "clang-format-14"
    need has_venv "python3 python3-venv"
    install_missing || say "going on without clang-format"
    mkdir -p build
    if ! sh tools/venv.sh build/venv tools/requirements.txt >build/venv-lint.log 2>&1; then
        say "going on without ruff"
    fi
    ;;
python)
    need has_venv "python3 python3-venv"
    need has_python_headers "python3-dev"
    mkdir -p build
    if ! install_missing ||
        ! sh tools/venv.sh build/venv tests/standin/requirements.txt tests/python/requirements.txt bench/requirements.txt \
            >build/venv.log 2>&1; then
        say "going on without Python packages; their tests are skipped"
    fi
    ;;
*)
    echo "usage: $0 library|tests|build|lint|python" >&2
    exit 2
    ;;
esac
