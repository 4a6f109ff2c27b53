"""Running the application: in an event loop that is there already, so that workers can share the process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import uvicorn

from toril.errors import InvalidValue, TorilError
from toril.server.access import is_loopback
from toril.server.app import Parts, create_app
from toril.server.protocol import BoundedHttp

HOST, PORT = "127.0.0.1", 8000
BACKLOG = 2048


class ServerFailed(TorilError):
    """The server could not be started, or ended by itself."""


class Server:
    """Serves while it is entered.

    ::

        async with Server(parts, port=0) as server:
            print(server.url)
            await server.wait()

    ``port`` 0 takes any that is free. When it is left, it takes no more connections, lets requests in flight
    end for ``grace`` seconds, and cuts off what is left: whoever sent that was not told that it is recorded.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        host: str = HOST,
        port: int = PORT,
        grace: float = 10.0,
        access_log: bool = False,
    ) -> None:
        if parts.open_tenant is not None and not is_loopback(host):
            rule = "only this machine may be let in without a key: 127.0.0.1, ::1 or localhost"
            raise InvalidValue("host", host, rule)
        if type(port) is not int or not 0 <= port <= 65535:
            raise InvalidValue("port", port, "a whole number from 0 to 65535")
        self.app = create_app(parts)
        self.host = host
        self.port = port
        """Once it is entered, the real one."""
        self._inner = _Inner(
            uvicorn.Config(
                self.app,
                host=host,
                port=port,
                http=BoundedHttp,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=access_log,
                server_header=False,
                proxy_headers=False,  # or anyone could say to come from this machine
                timeout_graceful_shutdown=max(1, round(grace)),
            )
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where it is reached."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        listening = self._bind()
        self.port = listening.getsockname()[1]
        self._task = asyncio.create_task(self._serve(listening))
        ready = asyncio.create_task(self._inner.up.wait())
        try:
            await asyncio.wait({ready, self._task}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        finally:
            ready.cancel()
        if not self._inner.started:
            await self._task
            raise ServerFailed("the server ended before it had begun: its log says why")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def wait(self) -> None:
        """Return when it was closed; raises where it ended by itself."""
        assert self._task is not None, "it was not entered"
        await asyncio.shield(self._task)
        if not self.app.state.gate.closing:
            raise ServerFailed("the server ended by itself: its log says why")

    async def close(self) -> None:
        """End in order."""
        self.app.state.gate.closing = True
        self._inner.should_exit = True
        if self._task is not None:
            await self._task

    async def _serve(self, listening: socket.socket) -> None:
        try:
            await self._inner.serve([listening])
        except SystemExit:  # uvicorn's way to say that the application could not begin
            raise ServerFailed("the application could not be started: its log says why") from None
        finally:
            listening.close()

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((self.host, self.port))
            made.listen(BACKLOG)
        except OSError as problem:
            made.close()
            raise ServerFailed(f"nothing can be served at {self.host}:{self.port}: {problem}") from None
        made.setblocking(False)
        return made


class _Inner(uvicorn.Server):
    """Leaves signals to whoever runs the event loop, and says when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()
