"""One server: a wire that all tasks share, and wires of their own for calls that block or listen."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from toril.connection.url import Address, Credentials
from toril.connection.wire import QUIET, Command, NotSent, Wire, pack_all

CLOSED = "the connection was closed by its owner"

IDLE_WIRES_KEPT = 64
"""Own wires kept open for the next blocking call, per server."""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How to talk to a server; the same for all servers of a connection."""

    credentials: Credentials | None = None
    tls: ssl.SSLContext | None = None
    database: int = 0
    client_name: str = "toril"
    """How the shared wire is called in CLIENT LIST; the others are plainly ``toril``."""
    connect_timeout: float = 5.0
    silence: float = 15.0
    """How long a server may leave a request without a reply before its connection counts as broken."""


class Node:
    """See the module's text. Raises only ``NotSent``, ``Broken`` and what authentication raises."""

    def __init__(
        self,
        address: Address,
        options: NodeOptions,
        *,
        read_only: bool = False,
        on_quiet: Callable[[], None] | None = None,
    ) -> None:
        self.address = address
        self.dials = 0
        """How often the shared wire was opened."""
        self.silence = options.silence
        self._options = options
        self._read_only = read_only
        self._shared: Wire | None = None
        self._dialling: asyncio.Task[Wire] | None = None
        self._idle: list[Wire] = []
        self._busy: set[Wire] = set()
        self._retired: set[Wire] = set()
        self._on_quiet = on_quiet
        self._closed = False

    def __repr__(self) -> str:
        return f"Node({self.address})"

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Replies to commands sent together over the shared wire."""
        wire = self._shared
        if wire is None or wire.closed is not None:
            wire = await self._share()
        return await wire.send(pack_all(commands), len(commands), self.silence)

    async def ask_alone(self, commands: Sequence[Command], blocks_for: float) -> list[Any]:
        """The same over a wire of its own, for commands that block up to ``blocks_for`` seconds.

        The server ends the wait itself. Only when it stays silent beyond that is the wire given up, so
        the client never cuts a blocking command short.
        """
        wire = self._idle.pop() if self._idle else None
        if wire is None or wire.closed is not None:
            wire = await self._open()
        self._busy.add(wire)
        if self._closed:
            wire.close(ConnectionError(CLOSED))
        try:
            replies = await wire.ask(commands, blocks_for + self.silence)
        except BaseException as problem:
            wire.close(problem)  # also when cancelled: its reply would meet the next call
            raise
        finally:
            self._busy.discard(wire)
        if len(self._idle) < IDLE_WIRES_KEPT:
            self._idle.append(wire)
        else:
            wire.close()
        return replies

    @asynccontextmanager
    async def listen(
        self, on_push: Callable[[Any], bool], on_closed: Callable[[], None]
    ) -> AsyncIterator[Wire]:
        """A wire of its own on which the server may also speak unasked."""
        wire = await self._open()
        self._busy.add(wire)
        wire.on_push, wire.on_closed, wire.on_quiet = on_push, on_closed, self._on_quiet
        if self._closed:
            wire.close(ConnectionError(CLOSED))
        try:
            yield wire
        finally:
            self._busy.discard(wire)
            wire.close()

    async def _share(self) -> Wire:
        if self._closed:
            raise NotSent(f"{self.address}: {CLOSED}")
        if self._dialling is None:
            self._dialling = asyncio.create_task(self._open(self._options.client_name))
            self._dialling.add_done_callback(self._dialled)
        dialling = self._dialling
        try:
            # A task that waits here may be cancelled without taking the dial from the others.
            return await asyncio.shield(dialling)
        except asyncio.CancelledError:
            if dialling.cancelled():  # by close(): nobody else does that
                raise NotSent(f"{self.address}: {CLOSED}") from None
            raise

    def _dialled(self, task: asyncio.Task[Wire]) -> None:
        self._dialling = None
        if not task.cancelled() and task.exception() is None:
            self._shared = task.result()
            self._shared.on_quiet = self._on_quiet
            self.dials += 1

    async def _open(self, client_name: str = "toril") -> Wire:
        options = self._options
        return await Wire.open(
            self.address,
            credentials=options.credentials,
            tls=options.tls,
            database=options.database,
            client_name=client_name,
            read_only=self._read_only,
            timeout=options.connect_timeout,
        )

    def redial(self) -> None:
        """Use new wires from now on (so the host's name is resolved anew); old ones end their work."""
        for wire in self._idle:
            wire.close()
        self._idle.clear()
        if self._shared is not None:
            self._retired = {wire for wire in self._retired if wire.closed is None} | {self._shared}
            self._shared.retire()
            self._shared = None

    def give_up_quiet(self) -> None:
        """Close wires on which the server has left calls without a reply: it is not in charge any more.

        It may yet answer them, before it learns that it was replaced, and those answers would be lies.
        """
        for wire in (self._shared, *self._retired):
            if wire is not None and wire.quiet_for >= QUIET:
                wire.close(ConnectionError("it is silent, and another server has taken over"))

    async def close(self) -> None:
        """Close all wires for good; calls under way end with an error."""
        self._closed = True
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait([self._dialling])
        for wire in (self._shared, *self._idle, *self._busy, *self._retired):
            if wire is not None:
                wire.close(ConnectionError(CLOSED))
