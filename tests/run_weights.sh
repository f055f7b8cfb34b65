#!/bin/sh
# tests/run_weights.sh PROGRAM: the server of examples/weights.c and its clients, of which some are killed with SIGKILL.
set -eu
program=$1
work=$(mktemp -d)
trap 'kill -9 $pids 2>/dev/null || true; rm -rf "$work"' EXIT
pids=

# The line with the word comes, or the process ends.
wait_for() {
    while read -r line; do
        case $line in *"$1"*) return 0 ;; esac
    done
    echo "'$1' was never said"
    return 1
}

mkfifo "$work/server" "$work/says1" "$work/says2" "$work/hears1" "$work/hears2"
"$program" serve "$work/socket" --mib 8 >"$work/server" &
server=$!
pids=$server
exec 3<"$work/server"
wait_for serving <&3

# Two that stay, until what they hear ends.
"$program" use "$work/socket" <"$work/hears1" >"$work/says1" &
first=$!
exec 4>"$work/hears1" 5<"$work/says1"
"$program" use "$work/socket" <"$work/hears2" >"$work/says2" 4>&- &
second=$!
exec 6>"$work/hears2" 7<"$work/says2"
pids="$server $first $second"
wait_for right <&5
wait_for right <&7

# One is killed: the server takes no notice, and another is served.
kill -9 $first
"$program" use "$work/socket" </dev/null >/dev/null

# The server is killed: the other client still has it all, and a new one is told.
kill -9 $server
wait $server || true
exec 6>&-
wait_for still <&7
wait $second
if "$program" use "$work/socket" </dev/null >/dev/null 2>&1; then
    echo "served by nobody"
    exit 1
fi

# A new server takes the old one's place.
"$program" serve "$work/socket" --mib 4 >"$work/server" &
server=$!
pids=$server
exec 3<"$work/server"
wait_for serving <&3
"$program" use "$work/socket" </dev/null >/dev/null
kill -9 $server
pids=
