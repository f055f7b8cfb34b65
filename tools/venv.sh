#!/bin/sh
# tools/venv.sh DIRECTORY REQUIREMENTS...: makes a Python virtual environment with what the files list. Does nothing for a file whose
# packages the directory has already; fetches with pip otherwise, and fails where that has no network.
set -eu
venv=$1
shift

if [ ! -x "$venv/bin/python" ]; then
    echo "venv: making $venv"
    rm -rf "$venv"
    python3 -m venv "$venv"
fi
for requirements; do
    stamp=$venv/has-$(basename "$(dirname "$requirements")")
    if cmp -s "$requirements" "$stamp"; then continue; fi
    echo "venv: installing $requirements"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --retries 1 --timeout 15 \
        --only-binary :all: -r "$requirements"
    cp "$requirements" "$stamp"
done
