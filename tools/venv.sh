#!/bin/sh
# tools/venv.sh DIRECTORY REQUIREMENTS: makes a Python virtual environment with what the file lists. Does nothing if the directory
# has it already; fetches with pip otherwise, and fails where that has no network.
set -eu
venv=$1
requirements=$2

if [ -x "$venv/bin/python" ] && cmp -s "$requirements" "$venv/made-from"; then exit 0; fi
rm -rf "$venv"
echo "venv: making $venv from $requirements"
python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --retries 1 --timeout 15 \
    --only-binary :all: -r "$requirements"
cp "$requirements" "$venv/made-from"
