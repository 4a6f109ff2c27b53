#!/bin/sh
# Write requirements/dev.lock anew: the exact version and hashes of every package of the core, of the
# extras that the tests run, and of the dev group, for every platform and every Python from 3.11 on.
#
#   tools/lock.sh [--upgrade]    without it, a version that still fits stays
set -eu
cd "$(dirname "$0")/.."

lock=requirements/dev.lock
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The environment may be the very thing that a bad lock keeps from being made, so uv is also had apart.
if [ -x .venv/bin/uv ]; then
    uv=.venv/bin/uv
else
    "${PYTHON:-python3}" -m venv "$work/venv"
    "$work/venv/bin/python" -m pip install -q uv
    uv=$work/venv/bin/uv
fi

# Versions that still fit are read from the output file. The new lock is put in place only when it is whole.
if [ -e "$lock" ]; then
    cp "$lock" "$work/dev.lock"
fi
"$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header "$@" \
    --group dev --extra clickhouse --extra client --extra connect --extra room --extra server --extra simulate --extra spark --extra telemetry -o "$work/dev.lock" pyproject.toml
{
    echo "# Made by \`make lock\` from pyproject.toml: do not edit."
    sed '/^# Made by/d' "$work/dev.lock"
} >"$work/headed.lock"
cp "$work/headed.lock" "$lock"
echo "lock: $(grep -c == "$lock") packages in $lock"
