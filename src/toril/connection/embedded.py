"""The embedded server: a real Valkey in a data directory, started by whoever needs it first.

Each server has a folder with three small files beside its data:

- ``alive.lock`` is locked by the server and its keeper for as long as they live. Whoever gets the lock
  starts a server; whoever does not joins the one that runs. No process ids are compared.
- ``server.json`` says how to reach it. It is written when the server is up.
- ``kept`` exists when the server is to outlive the process that started it (``toril embedded up``).

When the process that started it is gone, however it went, its keeper stops the server. Processes that
had joined it find their connection closed, and the next call starts the server anew, with all data.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toril.connection.errors import EmbeddedServerError, ForeignDataDirectory
from toril.connection.server import (
    LONGEST_SOCKET_PATH,
    Kept,
    ask,
    binary_version,
    find_binary,
    form_cluster,
    free_port,
    settings_line,
)
from toril.connection.url import Address, Credentials
from toril.connection.wire import ErrorReply

FORMAT = 1
"""The layout of the data directory. A directory of a later layout is left alone."""

CLUSTER_MASTERS = 3

Fsync = Literal["always", "everysec"]

_owned: dict[Path, Kept] = {}
"""The servers this process started. Their lifelines close with it, at the latest."""


@dataclass(frozen=True, slots=True)
class Running:
    """How to reach an embedded server, as its folder says."""

    address: Address
    password: str
    pid: int

    @property
    def credentials(self) -> Credentials | None:
        """What to show the server; nothing is needed on a socket that only this user can open."""
        return Credentials(password=self.password) if self.password else None


def default_home() -> Path:
    """``TORIL_HOME``, or ``~/.local/share/toril``."""
    return Path(os.environ.get("TORIL_HOME") or "~/.local/share/toril").expanduser()


def ensure_server(home: Path, fsync: Fsync = "always", *, kept: bool = False) -> Running:
    """Join the embedded server of a data directory, or start it."""
    return _Folder(home, "server", fsync).ensure(kept=kept)


def ensure_cluster(home: Path, fsync: Fsync = "always", *, kept: bool = False) -> list[Running]:
    """Join the embedded cluster of a data directory, or start it."""
    folders = [_Folder(home, f"cluster/{index}", fsync, clustered=True) for index in range(CLUSTER_MASTERS)]
    running = [folder.ensure(kept=kept) for folder in folders]
    password = running[0].password
    with (home / "cluster" / "forming.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        infos = [ask(node.address, "CLUSTER", "INFO", password=password) for node in running]
        if all(b"cluster_slots_assigned:0\r" in info for info in infos):
            form_cluster([node.address for node in running], {}, password=password)
    return running


def stop(home: Path) -> list[Path]:
    """Stop whatever runs in a data directory, with all data written; the folders where something ran."""
    folders = ["server", *(f"cluster/{index}" for index in range(CLUSTER_MASTERS))]
    return [home / name for name in folders if _Folder(home, name, "always").stop()]


class _Folder:
    """One server's folder in the data directory."""

    def __init__(self, home: Path, name: str, fsync: Fsync, *, clustered: bool = False) -> None:
        self.home = home
        self.folder = home / name
        self.fsync = fsync
        self.clustered = clustered

    def ensure(self, *, kept: bool, timeout: float = 30.0) -> Running:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as problem:
            raise EmbeddedServerError(
                f"the data directory {self.home} cannot be used: {problem.strerror}. "
                "TORIL_HOME names another one"
            ) from None
        if kept:
            (self.folder / "kept").touch()
        until = time.monotonic() + timeout
        while True:
            if running := self._join():
                return running
            if (lock := self._take_lock()) is not None:
                try:
                    return self._start(lock, timeout)
                finally:
                    os.close(lock)  # the server and its keeper have it now
            if time.monotonic() > until:
                raise EmbeddedServerError(
                    f"a server holds {self.folder / 'alive.lock'} but did not answer in {timeout:g} s; "
                    f"see {self.folder / 'server.log'}"
                )
            time.sleep(0.01)

    def stop(self, timeout: float = 30.0) -> bool:
        with suppress(OSError):
            (self.folder / "kept").unlink(missing_ok=True)
        if not self.folder.is_dir():
            return False
        found, until = False, time.monotonic() + timeout
        while (lock := self._take_lock()) is None:
            found = True
            if running := self._join():
                with suppress(OSError, ErrorReply):
                    ask(running.address, "SHUTDOWN", password=running.password)
            if time.monotonic() > until:
                raise EmbeddedServerError(f"the server in {self.folder} did not stop in {timeout:g} s")
            time.sleep(0.01)
        os.close(lock)
        self._let_go()
        return found

    def _join(self) -> Running | None:
        try:
            said = json.loads((self.folder / "server.json").read_bytes())
            running = Running(Address(**said["address"]), said["password"], said["pid"])
            ask(running.address, "PING", password=running.password, timeout=2.0)
        except (OSError, ErrorReply, ValueError, KeyError, TypeError):
            return None
        return running

    def _take_lock(self) -> int | None:
        lock = os.open(self.folder / "alive.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    def _start(self, lock: int, timeout: float) -> Running:
        binary = find_binary()
        self._check_version(*binary_version(binary))
        (self.folder / "server.json").unlink(missing_ok=True)
        address, password = self._where()
        command = [str(binary), *settings_line(self._settings(address, password))]
        self._let_go()
        server = Kept.start(command, kept=self.folder / "kept", lock=lock)
        pid = server.wait_until_up(address, self.folder / "server.log", password=password, timeout=timeout)
        _owned[self.folder] = server
        running = Running(address, password, pid)
        self._write_down(running)
        return running

    def _write_down(self, running: Running) -> None:
        where = running.address
        said = {
            "address": {"host": where.host, "port": where.port, "path": where.path},
            "password": running.password,
            "pid": running.pid,
        }
        fresh = self.folder / "server.json.new"
        fresh.touch(mode=0o600)
        fresh.write_text(json.dumps(said))
        fresh.replace(self.folder / "server.json")

    def _let_go(self) -> None:
        """Forget a server of ours that has ended."""
        if (former := _owned.pop(self.folder, None)) is not None:
            former.let_go()
            former.keeper.wait()

    def _where(self) -> tuple[Address, str]:
        """A socket that only this user can open; a loopback port with a password where it must be TCP."""
        path = str(self.folder / "server.sock")
        if not self.clustered and len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
            return Address(path=path), ""
        remembered = self.folder / "port"
        try:
            port = int(remembered.read_text())
        except (OSError, ValueError):
            port = free_port()
            remembered.write_text(str(port))
        # The servers of a cluster know each other by one password.
        secret = (self.folder.parent if self.clustered else self.folder) / "password"
        if not secret.exists():
            secret.touch(mode=0o600)
            secret.write_text(secrets.token_urlsafe(32))
        return Address("127.0.0.1", port), secret.read_text()

    def _settings(self, address: Address, password: str) -> dict[str, str | int]:
        settings: dict[str, str | int] = {
            "dir": str(self.folder),
            "logfile": str(self.folder / "server.log"),
            "port": address.port,
            "appendonly": "yes",
            "appendfsync": self.fsync,
            "no-appendfsync-on-rewrite": "no",
            "save": "",
            "maxmemory-policy": "noeviction",
        }
        if address.path:
            settings |= {"unixsocket": address.path, "unixsocketperm": 700}
        else:
            settings |= {"bind": "127.0.0.1", "requirepass": password, "masterauth": password}
        if self.clustered:
            settings |= {"cluster-enabled": "yes", "cluster-node-timeout": 3000}
        return settings

    def _check_version(self, product: str, version: str) -> None:
        """Refuse a data directory that this Toril, or this server, could not take over unharmed."""
        stamp = self.home / "toril.json"
        if stamp.exists():
            try:
                written = json.loads(stamp.read_bytes())
                layout, by, wrote = written["format"], written["product"], written["version"]
            except (ValueError, KeyError, TypeError):
                raise ForeignDataDirectory(f"{stamp} is not a file that Toril wrote") from None
            if layout != FORMAT:
                raise ForeignDataDirectory(
                    f"the data directory {self.home} has layout {layout}, and this Toril knows layout "
                    f"{FORMAT}: use the Toril that wrote it, or another directory (TORIL_HOME)"
                )
            if not _can_read(product, version, by, wrote):
                raise ForeignDataDirectory(
                    f"the data directory {self.home} was written by {by} {wrote}, and {product} {version} "
                    f"cannot read that: install {by} {wrote} or later, or use another directory (TORIL_HOME)"
                )
        stamp.write_text(json.dumps({"format": FORMAT, "product": product, "version": version}))


def _can_read(product: str, version: str, by: str, wrote: str) -> bool:
    """Whether a server reads the files of another: later ones of its kind do; Valkey also reads Redis 7.2."""
    mine, theirs = _release(version), _release(wrote)
    if product == by:
        return mine >= theirs
    return product == "valkey" and by == "redis" and theirs <= (7, 2)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
