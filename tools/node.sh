#!/bin/sh
# Install the packages of the conformance tests as their package-lock.json says; nothing when it is done.
set -eu
cd "$(dirname "$0")/../tests/conformance/node" 2>/dev/null || exit 0
[ -e package-lock.json ] || exit 0

key=$({
    node --version
    cat package.json package-lock.json
} | sha256sum)

stamp=node_modules/.made-from
if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$key" ]; then
    exit 0
fi

echo "node: installing the packages of tests/conformance/node"
# None of them needs its install script, and what does not run cannot surprise.
npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
printf '%s\n' "$key" >"$stamp"
