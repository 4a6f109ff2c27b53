#!/bin/sh
# Install the parts of the system that are missing, or say what to install.
#
#   tools/parts.sh run        what every command needs
#   tools/parts.sh demo       that, and what the demo needs
#   tools/parts.sh test       that, and what the tests need
#   tools/parts.sh bench-log  that, and what the benchmark of the event log needs
#
# A part that is there is used as it is; nothing is asked, and nothing is upgraded.
set -eu

# use: run, demo, test, bench-log or bench-lake.  weight: `must` stops the command when the part cannot be had, `may` does not.
#
# use   part          Debian package           weight  why
PARTS='
run     venv          python3-venv             must    every command runs in a Python environment of its own
test    redis-server  redis-server             must    the compatibility matrix runs against it
test    strace        strace                   must    the durability tests delay fdatasync with it
test    node          nodejs                   must    the conformance tests compare with the Node.js clients
test    npm           npm                      must    it installs the packages of the conformance tests
bench-log postgresql postgresql                must    the event log is compared with a library on PostgreSQL
demo    java          openjdk-17-jre-headless  must    Spark runs on it
test    java          openjdk-17-jre-headless  must    Spark runs on it
test    chromium      chromium                 must    the waiting page is tested in a browser
bench-lake java       openjdk-17-jre-headless  must    Spark runs on it
'

PYTHON=${PYTHON:-python3}
POLICY=/usr/sbin/policy-rc.d
POLICY_MARK='# of the Toril set-up, while it installs packages: safe to delete'

present() {
    case $1 in
        # Debian ships `venv` with Python, and what it needs to bring pip along (ensurepip) apart.
        venv) "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ;;
        node) at_least 18 "$(node --version 2>/dev/null)" ;;
        postgresql) ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 ;;
        java) at_least 17 "$(java -version 2>&1 | grep ' version "')" ;;
        *) command -v "$1" >/dev/null ;;
    esac
}

# Whether the first number in a version's text (v20.20.2, openjdk version "17.0.15") is that or more.
at_least() {
    number=$(printf '%s\n' "$2" | sed -n '1s/^[^0-9]*\([0-9][0-9]*\).*/\1/p')
    [ "${number:-0}" -ge "$1" ]
}

# Debian starts a server as soon as its package is installed. The tests start their own, on free ports,
# and nobody asked for one on the usual port: a policy-rc.d that says 101 ("not allowed") prevents it.
hold_services() {
    if [ -e "$POLICY" ] && ! grep -qxF "$POLICY_MARK" "$POLICY"; then
        return # the machine has a policy of its own
    fi
    trap 'rm -f "$POLICY"' EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    printf '#!/bin/sh\n%s\nexit 101\n' "$POLICY_MARK" >"$POLICY"
    chmod 755 "$POLICY"
}

# Nor shall it start with the next boot, or run because the machine's own policy allowed it.
quieten() {
    if [ -e "/etc/init.d/$1" ]; then
        update-rc.d "$1" disable >/dev/null 2>&1 || :
        invoke-rc.d "$1" stop >/dev/null 2>&1 || :
    fi
}

# apt-get, silent unless it fails. The standard input is closed, for it holds the table of parts.
apt() {
    if ! output=$(DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" 2>&1 </dev/null)
    then
        printf '%s\n' "$output" | tail -n 20 >&2
        return 1
    fi
}

updated=no
install() { # part, package, why
    if [ "$updated" = no ]; then
        hold_services
        apt update || echo "parts: apt-get update failed; going on with the lists that are here" >&2
        updated=yes
    fi
    # 5:7.0.15-1~deb12u6 is Debian's way to say 7.0.15
    version=$(apt-cache policy "$2" | sed -n 's/^ *Candidate: \([0-9]*:\)\{0,1\}\([0-9][^-+~]*\).*/\2/p')
    echo "parts: installing $2${version:+ $version} (Debian): $3"
    apt install --no-install-recommends "$2" || return 1
    quieten "$2"
    present "$1"
}

case ${1-} in
    run | demo | test | bench-log | bench-lake) wanted=$1 ;;
    *)
        echo "usage: tools/parts.sh run | demo | test | bench-log | bench-lake" >&2
        exit 2
        ;;
esac

if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "parts: $PYTHON is missing or older than 3.11; install Python 3.11 or later, or name one: make PYTHON=..." >&2
    exit 1
fi

if ! command -v apt-get >/dev/null; then
    cannot="no apt-get here to install it with"
elif [ "$(id -u)" -ne 0 ]; then
    cannot="only root may install it"
else
    cannot=
fi

stop=0
while read -r use part package weight why; do
    case $use in
        run) ;;
        "$wanted") ;;
        *) continue ;;
    esac
    if present "$part"; then
        continue
    fi
    if [ -z "$cannot" ] && install "$part" "$package" "$why"; then
        continue
    fi
    if [ "$weight" = must ]; then
        stop=1
        needed=needed
    else
        needed="useful, not needed"
    fi
    echo "parts: $part is missing or too old: install $package (Debian's name); $needed: $why" \
        "(${cannot:-installing it failed})" >&2
done <<END
$PARTS
END
exit $stop
