#!/bin/sh
# Make a Python environment that holds exactly what the lock says, and this project.
#
#   tools/venv.sh DIRECTORY [REQUIREMENTS]
#
# REQUIREMENTS is a file of packages on top of the lock. When all is as the last run left it, this does
# nothing; when anything has changed, the environment is made anew, for a changed one keeps what was dropped.
set -eu
cd "$(dirname "$0")/.."

venv=$1
extra=${2-}
lock=requirements/dev.lock
PYTHON=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

# Two commands at once shall not both build. A script can be locked without being written to.
if command -v flock >/dev/null; then
    exec 9<tools/venv.sh
    flock 9
fi

# An environment knows its place and its Python, so a moved checkout or a new Python makes a new one.
key=$({
    pwd -P
    "$PYTHON" -VV
    cat "$lock" pyproject.toml tools/venv.sh ${extra:+"$extra"}
} | sha256sum)

stamp=$venv/made-from
if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$key" ]; then
    exit 0
fi

fail() {
    echo "venv: $1" >&2
    exit 1
}

echo "venv: making $venv from $lock${extra:+ and $extra}"
rm -rf "$venv"
"$PYTHON" -m venv "$venv" || fail "$PYTHON cannot make an environment in $venv"

pip="$venv/bin/python -m pip"
$pip install -q --require-hashes -r "$lock" ||
    fail "the packages of $lock could not be installed as locked (see above); nothing was run"
# The builder of this project is in the lock too: without isolation pip takes that one, and fetches none.
$pip install -q --no-deps --no-build-isolation -e . ||
    fail "this project could not be installed into $venv (see above)"
$pip check >/dev/null || {
    $pip check >&2 || :
    fail "$lock does not hold what pyproject.toml asks for: run make lock"
}
if [ -n "$extra" ]; then
    $pip install -q -r "$extra" || fail "the packages of $extra could not be installed (see above)"
fi

printf '%s\n' "$key" >"$stamp"
