"""One real server, and ways to hurt it."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from toril.connection.errors import EmbeddedServerError
from toril.connection.server import Kept, ask, find_binary, free_port, settings_line
from toril.connection.url import Address
from toril.connection.wire import Argument

Settings = Mapping[str, str | int]


class Server:
    """A server process on a loopback port, with a folder of its own."""

    def __init__(
        self,
        folder: Path,
        settings: Settings | None = None,
        *,
        binary: Path | None = None,
        wrapper: tuple[str, ...] = (),
        mode: tuple[str, ...] = (),
    ) -> None:
        self.folder = folder
        self.binary = binary or find_binary()
        self.address = Address("127.0.0.1", free_port())
        self.pid = 0
        self._wrapper = wrapper
        self._mode = mode
        self._settings: dict[str, str | int] = {
            "dir": str(folder),
            "logfile": str(folder / "server.log"),
            "bind": "127.0.0.1",
            "save": "",
            "enable-debug-command": "local",
            **(settings or {}),
        }
        self._kept: Kept | None = None

    def __repr__(self) -> str:
        return f"Server({self.address})"

    @property
    def url(self) -> str:
        """What :func:`toril.connect` takes."""
        password = self._settings.get("requirepass")
        return f"redis://:{password}@{self.address}" if password else f"redis://{self.address}"

    def ask(self, *command: Argument, timeout: float = 10.0) -> Any:
        """One command, straight to this server."""
        password = str(self._settings.get("requirepass", ""))
        return ask(self.address, *command, password=password, timeout=timeout)

    def start(self) -> None:
        """Start it and wait until it answers; its data is what its folder holds."""
        config: list[str] = []
        if self._mode:  # a sentinel insists on a file that it can write to
            file = self.folder / "server.conf"
            file.touch()
            config = [str(file), *self._mode]
        port = {"port": self.address.port, **self._settings}
        self._kept = Kept.start([*self._wrapper, str(self.binary), *config, *settings_line(port)])
        password = str(self._settings.get("requirepass", ""))
        self.pid = self._kept.wait_until_up(self.address, self.folder / "server.log", password=password)

    def stop(self) -> None:
        """Stop it in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it, as ``kill -9`` does, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start it again with its data, after :meth:`kill` or :meth:`stop` (or stop it first)."""
        if self.pid:
            self.stop()
        self.start()

    def pause(self) -> None:
        """Stop the process where it stands: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self._kept is None:
            return
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, how)
                os.kill(self.pid, signal.SIGCONT)
        self._kept.let_go()
        self._kept.keeper.wait(30)
        self.pid, self._kept = 0, None


@contextmanager
def standalone(
    settings: Settings | None = None, *, binary: Path | None = None, wrapper: tuple[str, ...] = ()
) -> Iterator[Server]:
    """A standalone server. ``wrapper`` is put in front of its command line (``strace``, say)."""
    with _folder() as folder:
        server = _start_on_free_port(lambda: Server(folder, settings, binary=binary, wrapper=wrapper))
        try:
            yield server
        finally:
            server.kill()


@contextmanager
def sentinel(primary: Server, *, quorum: int = 1, service: str = "mymaster") -> Iterator[Server]:
    """A sentinel that watches a server; it finds the replicas by itself."""
    with _folder() as folder:
        server = _start_on_free_port(
            lambda: Server(folder, {"daemonize": "no"}, binary=primary.binary, mode=("--sentinel",))
        )
        try:
            where = primary.address
            server.ask("SENTINEL", "MONITOR", service, where.host, where.port, quorum)
            server.ask("SENTINEL", "SET", service, "down-after-milliseconds", 500)
            server.ask("SENTINEL", "SET", service, "failover-timeout", 5000)
            yield server
        finally:
            server.kill()


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="toril-test-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def _start_on_free_port(make: Any, tries: int = 5) -> Server:
    """A port that was free may be taken before the server has it; then another one is tried."""
    for left in range(tries - 1, -1, -1):
        server: Server = make()
        try:
            server.start()
            return server
        except EmbeddedServerError as problem:
            if left == 0 or "in use" not in str(problem):
                raise
    raise AssertionError
