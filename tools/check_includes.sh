#!/bin/sh
# tools/check_includes.sh [OBJECT...]: the one direction of the tree (src/internal.h draws it).
#
# Includes are checked in the sources; with the objects of src/ and sim/ given, uses too: a file of src/ may use what is defined in
# itself or in a file to its right in `order`.
set -eu

# Left uses right; those joined by commas may use one another. A new file of src/ takes its place here.
order="exchange share graph,compose,evict,torch contents buffer,pool grow resource order stock,retire,reuse,prepare,heap blocks worker ranks options probe range residence mapping memory reservation,backup,placement stream device stats driver,faults,trace wire,socket host,seats error"

# Constant tables of names, which whoever writes a message may use; and how the simulator reports through gvmm_last_error.
names='^gvmm_(driver_call|driver_status|result)_(name|text)$'
sim_reports='^gvmm__fail$'
# What a resource hands down to its kept memory, to be called back.
called_back='^gvmm__buffer_drop$'

cd "$(dirname "$0")/.."
nm=${NM:-nm}
bad=0
complain() {
    echo "$*"
    bad=1
}

# ---- includes: name of the set, files, what they may include beside <system> headers ----

check() {
    set_name=$1
    allowed=$2
    shift 2
    for file in "$@"; do
        [ -f "$file" ] || continue
        for name in $(sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*"\([^"]*\)".*/\1/p' "$file"); do
            echo "$name" | grep -Eqx "$allowed" || complain "$file includes \"$name\": not for $set_name"
        done
        if grep -Eq '^[[:space:]]*#[[:space:]]*include[[:space:]]*<(cuda|gvmm)' "$file"; then
            complain "$file: gvmm needs no CUDA header, and includes its own with quotes"
        fi
    done
}

public='gvmm\.h|gvmm/[a-z_]+\.h'
check "public headers" "$public" include/*.h include/gvmm/*.h
check "src/" "$public|internal\.h|ref\.h" src/*.c src/*.h
check "sim/" "gvmm/[a-z_]+\.h|[a-z_]+\.h" sim/*.c sim/*.h
for file in sim/*.c sim/*.h; do
    [ -f "$file" ] || continue
    for name in $(sed -n 's/^#include "\([^"/]*\)".*/\1/p' "$file"); do
        [ -f "sim/$name" ] || complain "$file includes \"$name\", which is not of sim/"
    done
done

# ---- uses: what an object needs from which other ----

if [ $# -gt 0 ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    for object in "$@"; do
        part=$(basename "$(dirname "$object")") # .../src/buffer.c.o
        file=$(basename "$object" .c.o)
        "$nm" "$object" | awk -v part="$part" -v file="$file" '
            $1 == "U" || $1 == "w" { print part, file, "uses", $2; next }
            $2 ~ /^[TDBRVWC]$/ { print part, file, "has", $3 }'
    done >"$work/symbols"
    awk -v order="$order" -v names="$names" -v sim_reports="$sim_reports" -v called_back="$called_back" '
        BEGIN {
            count = split(order, groups, " ")
            for (i = 1; i <= count; i++) {
                size = split(groups[i], files, ",")
                for (k = 1; k <= size; k++) place[files[k]] = i
            }
        }
        $1 == "src" && !($2 in place) && !($2 in told) {
            told[$2] = 1
            print "src/" $2 ".c has no place in the order of tools/check_includes.sh"
        }
        $3 == "has" { home[$4] = $1 " " $2 }
        $3 == "uses" { use[++uses] = $1 " " $2 " " $4 }
        END {
            for (i = 1; i <= uses; i++) {
                split(use[i], u, " ")
                if (!(u[3] in home) || u[3] ~ names || u[3] ~ called_back) continue
                split(home[u[3]], h, " ")
                if (u[1] == "src" && h[1] == "src" && place[h[2]] < place[u[2]])
                    print "src/" u[2] ".c uses " u[3] " of src/" h[2] ".c, which is to its left"
                if (u[1] == "src" && h[1] == "sim" && u[3] !~ /^gvmm_[^_]/)
                    print "src/" u[2] ".c uses " u[3] " of sim/" h[2] ".c: only its public names are for src/"
                if (u[1] == "sim" && h[1] == "src" && u[3] !~ /^gvmm_[^_]/ && u[3] !~ sim_reports)
                    print "sim/" u[2] ".c uses " u[3] " of src/" h[2] ".c: only public names are for sim/"
            }
        }' "$work/symbols" >"$work/wrong"
    if [ -s "$work/wrong" ]; then
        sort -u "$work/wrong"
        bad=1
    fi
fi

[ $bad -eq 0 ] && echo "includes: one direction"
exit $bad
