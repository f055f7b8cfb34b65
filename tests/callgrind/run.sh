#!/bin/sh
# tests/callgrind/run.sh COUNT TABLE COMPILER [--update]: counts gvmm's own instructions and compares them with the table.
#
# COUNT is the program built from count.c, COMPILER what it was built with. Whatever the compiler, an operation on a long range must
# cost what it costs on a short one. The table holds for the compiler that it names; with --update it is written anew.
set -eu
count=$1
table=$2
compiler=$3
update=${4:-}
allowed=5 # percent

if ! command -v valgrind >/dev/null 2>&1; then
    echo "skip: instruction counts: valgrind is not installed"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# ---- count: callgrind writes a file each time that a measure_ function returns, with what happened in it ----

names=$("$count" --names)
dumps=
for name in $names; do dumps="$dumps --dump-after=measure_$name"; done
# shellcheck disable=SC2086
if ! valgrind --tool=callgrind --toggle-collect='measure_*' $dumps --callgrind-out-file="$work/out" "$count" >"$work/log" 2>&1; then
    cat "$work/log"
    exit 1
fi
for file in "$work"/out.*; do
    echo "${file##*.} $(awk '/^desc: Trigger: --dump-after=measure_/ { sub(/.*measure_/, ""); name = $0 }
                              /^totals:/ { total = $2 } END { print name, total }' "$file")"
done | sort -n | awk '{ last[$2] = $3 } END { for (name in last) print name, last[name] }' >"$work/unordered"
for name in $names; do
    grep "^$name " "$work/unordered" || { echo "callgrind counted nothing for $name" >&2; exit 1; }
done >"$work/counts"

# ---- flatness, whatever the compiler ----

bad=0
awk -v allowed=$allowed '
    { n[$1] = $2 }
    function flat(what, short, long) {
        far = 100 * (long / short - 1)
        printf "%-32s %9.1f %9.1f  %+.1f %%\n", what, short, long, far
        if (far > allowed || far < -allowed) { print "  this depends on the length of the range"; bad = 1 }
    }
    END {
        flat("grow in place, 1 and 32768", n["grow_in_place_1"], n["grow_in_place_32768"])
        flat("release by chunk, 1024 and 8192", n["release_1024"] / 1024, n["release_8192"] / 8192)
        flat("release by chunk, 1024 and 32768", n["release_1024"] / 1024, n["release_32768"] / 32768)
        exit bad
    }' "$work/counts" || bad=1

# ---- the table ----

if [ "$update" = --update ]; then
    {
        echo "# Host instructions of gvmm itself for one operation: the driver below does nothing, the allocator next to nothing."
        echo "# tests/callgrind/run.sh compares; cmake --build build/dev --target update_instructions writes it anew."
        echo "compiler $compiler"
        awk '{ printf "%-20s %9d\n", $1, $2 }' "$work/counts"
    } >"$work/table"
    cp "$work/table" "$table"
    cat "$table"
    exit $bad
fi
made_with=$(sed -n 's/^compiler //p' "$table")
if [ "$made_with" != "$compiler" ]; then
    cat "$work/counts"
    echo "skip: comparison with the table: it was made with $made_with, this is $compiler"
    exit $bad
fi
awk -v allowed=$allowed '
    /^#/ || $1 == "compiler" { next }
    NR == FNR { expected[$1] = $2; next }
    {
        if (!($1 in expected)) { print $1 ": not in the table; update it"; bad = 1; next }
        rise = 100 * ($2 / expected[$1] - 1)
        printf "%-20s %9d, in the table %9d  %+.1f %%\n", $1, $2, expected[$1], rise
        if (rise > allowed) { print "  more than the table allows"; bad = 1 }
        if (rise < -allowed) print "  better than the table: update it"
    }
    END { exit bad }' "$table" "$work/counts" || bad=1
exit $bad
