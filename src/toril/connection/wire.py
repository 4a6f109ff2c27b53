"""One socket to one server: requests go out in order, replies come back in order.

Many tasks share a wire. A request is one or more commands whose replies belong together (``ASKING``
with its command, a write with its ``WAIT``); nothing can come between them. What a caller must know
when a wire breaks is whether its request was sent: see :class:`NotSent` and :class:`Broken`.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from hiredis import ProtocolError, Reader, pack_command

from toril.connection.errors import AuthenticationFailed
from toril.connection.url import Address, Credentials
from toril.errors import InvalidValue

Argument = str | bytes | int | float
Command = tuple[Argument, ...]


class ErrorReply(Exception):
    """A server's error reply. It is handed on as a value, also inside of arrays."""


class NotSent(Exception):
    """The request never left: it was not executed."""


class Broken(Exception):
    """The request was sent and no reply came: it may have been executed."""


def pack(command: Command) -> bytes:
    """One command as it goes over the wire."""
    whole: Any = command  # hiredis' type stub has a tuple of one
    try:
        return cast("bytes", pack_command(whole))
    except (TypeError, UnicodeEncodeError):
        whole = tuple([_plain(arg, whole[0]) for arg in whole])
        return cast("bytes", pack_command(whole))


def pack_all(commands: Sequence[Command]) -> bytes:
    """Commands that go over the wire together."""
    return b"".join([pack(command) for command in commands])


def _plain(arg: object, name: object) -> Argument:
    """An argument that hiredis takes: it knows no subclasses of numbers, such as IntEnum."""
    if isinstance(arg, str) and arg == arg.encode(errors="replace").decode():
        return str(arg)
    if isinstance(arg, int) and not isinstance(arg, bool):
        return int(arg)
    if isinstance(arg, float):
        return float(arg)
    if isinstance(arg, bytes):
        return bytes(arg)
    raise InvalidValue(
        f"argument of {name!s}", arg, "it must be str that UTF-8 can encode, bytes, int or float"
    )


class _Request:
    """One request on its way: how many replies it waits for, and who waits for them."""

    __slots__ = ("done", "expected", "limit", "replies", "sent_at")

    def __init__(self, done: asyncio.Future[list[Any]], expected: int, limit: float, sent_at: float) -> None:
        self.done = done
        self.expected = expected
        self.limit = limit
        self.sent_at = sent_at
        self.replies: list[Any] = []


_INCOMPLETE = object()

QUIET = 1.0
"""Seconds without a reply after which a wire tells whoever wants to know (``on_quiet``)."""

_HUNG_UP: int = getattr(select, "POLLRDHUP", select.POLLHUP)
"""What poll says of a socket whose other end was closed (macOS knows only the second)."""


class Wire(asyncio.Protocol):
    """See the module's text. Made by :meth:`open`."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.closed: BaseException | None = None
        self.on_quiet: Callable[[], None] | None = None
        self.on_push: Callable[[Any], bool] | None = None
        """Gets all that comes in, and says whether it was no reply, but something the server says unasked."""
        self.on_closed: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(replyError=ErrorReply, notEnoughData=_INCOMPLETE)
        self._requests: deque[_Request] = deque()
        self._transport: asyncio.Transport | None = None
        self._heard_at = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None
        self._outbox: list[bytes] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._retired = False
        self._poll = select.poll()

    @classmethod
    async def open(
        cls,
        address: Address,
        *,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        database: int = 0,
        client_name: str = "toril",
        read_only: bool = False,
        timeout: float = 5.0,
    ) -> Wire:
        """Connect and introduce ourselves; :class:`NotSent` where that fails."""
        wire = cls(address)
        try:
            async with asyncio.timeout(timeout):
                await wire._dial(tls)
                await wire._greet(credentials, database, client_name, read_only, timeout)
        except BaseException as problem:
            wire.close(problem)
            if isinstance(problem, TimeoutError):
                raise NotSent(f"{address} did not answer within {timeout:g} s") from None
            if isinstance(problem, OSError | Broken):
                raise NotSent(f"{address}: {problem}") from None
            raise
        return wire

    async def _dial(self, tls: ssl.SSLContext | None) -> None:
        if self.address.path:
            await self._loop.create_unix_connection(lambda: self, self.address.path)
            return
        await self._loop.create_connection(lambda: self, self.address.host, self.address.port, ssl=tls)
        assert self._transport is not None
        raw = self._transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    async def _greet(
        self,
        credentials: Credentials | None,
        database: int,
        client_name: str,
        read_only: bool,
        timeout: float,
    ) -> None:
        commands: list[Command] = []
        if credentials:
            user = (credentials.username,) if credentials.username else ()
            commands.append(("AUTH", *user, credentials.password))
        if database:
            commands.append(("SELECT", database))
        if read_only:
            commands.append(("READONLY",))
        commands.append(("CLIENT", "SETNAME", client_name))
        for command, reply in zip(commands, await self.ask(commands, timeout), strict=True):
            if not isinstance(reply, ErrorReply):
                continue
            text = str(reply)
            if command[0] == "AUTH" or text.startswith(("NOAUTH", "WRONGPASS", "NOPERM")):
                raise AuthenticationFailed(
                    f"{self.address} refused to let us in: {text} "
                    "(user and password go into the URL: redis://user:password@host)"
                )
            if command[0] == "SELECT":
                raise InvalidValue("database", database, f"{self.address} answered: {text}")
            raise NotSent(f"{self.address} answered {command[0]!s} with: {text}")

    @property
    def quiet_for(self) -> float:
        """For how many seconds the server has left a request without a reply; 0 when none waits."""
        if not self._requests:
            return 0.0
        return self._loop.time() - max(self._requests[0].sent_at, self._heard_at)

    async def ask(self, commands: Sequence[Command], limit: float) -> list[Any]:
        """Send commands as one request and wait for their replies, errors among them as values.

        ``limit`` is how long the server may be silent before the wire counts as broken.
        """
        return await self.send(pack_all(commands), len(commands), limit)

    async def send(self, packed: bytes, expected: int, limit: float) -> list[Any]:
        """As :meth:`ask`, for commands that are packed already."""
        if not self._writable.is_set():
            await self._writable.wait()
        if self.closed is not None:
            raise NotSent(f"{self.address}: {self.closed}")
        request = _Request(self._loop.create_future(), expected, limit, self._loop.time())
        self._requests.append(request)
        if self._watch is None:
            self._watch = self._loop.call_later(min(QUIET, limit), self._check_silence)
        if not self._outbox:
            # Whatever other tasks send in this turn of the loop goes out in the same write.
            self._loop.call_soon(self._flush)
        self._outbox.append(packed)
        return await request.done

    def _flush(self) -> None:
        if self._transport is None or not self._outbox or self.closed is not None:
            return
        if len(self._requests) == len(self._outbox) and self._poll.poll(0):
            # An idle wire whose other end is gone: asyncio would notice in its next turn. Noticing it
            # now, before anything is sent, means that these requests can safely go elsewhere.
            self.close(ConnectionError("the server closed the connection"))
            return
        packed, self._outbox = b"".join(self._outbox), []
        self._transport.write(packed)

    def _check_silence(self) -> None:
        self._watch = None
        if not self._requests:
            return
        limit, quiet = self._requests[0].limit, self.quiet_for
        if quiet >= limit:
            self.close(TimeoutError(f"no reply within {limit:g} s"))
            return
        if quiet >= QUIET and self.on_quiet is not None:
            self.on_quiet()
        pause = QUIET - quiet if quiet < QUIET else QUIET
        self._watch = self._loop.call_later(min(pause, limit - quiet), self._check_silence)

    def retire(self) -> None:
        """Close the socket as soon as the requests under way have their replies."""
        self._retired = True
        if not self._requests:
            self.close()

    def close(self, reason: BaseException | None = None) -> None:
        """Close the socket; requests under way end with :class:`Broken`."""
        if self.closed is not None:
            return
        self.closed = reason or ConnectionError("the connection was closed")
        if self._watch is not None:
            self._watch.cancel()
        self._writable.set()
        unsent = len(self._outbox)
        self._outbox.clear()
        if self._transport is not None:
            self._transport.abort()
        problem = f"{self.address}: {self.closed}"
        while self._requests:
            # The last `unsent` requests were still in the outbox: the server never saw them.
            kind = NotSent if len(self._requests) <= unsent else Broken
            request = self._requests.popleft()
            if not request.done.done():
                request.done.set_exception(kind(problem))
        if self.on_closed is not None:
            self.on_closed()

    # ------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._poll.register(transport.get_extra_info("socket").fileno(), _HUNG_UP)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _INCOMPLETE:
                if self.on_push is not None and self.on_push(reply):
                    continue
                request = self._requests[0]
                request.replies.append(reply)
                if len(request.replies) == request.expected:
                    self._requests.popleft()
                    if not request.done.done():
                        request.done.set_result(request.replies)
        except (ProtocolError, IndexError) as problem:
            self.close(ConnectionError(f"not a reply a Redis server would give ({problem})"))
        if self._retired and not self._requests:
            self.close()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(exc or ConnectionError("the server closed the connection"))
