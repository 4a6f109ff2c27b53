"""The load: requests made beforehand, sent over connections that stay open.

The client is plain: it writes a request, reads the answer, writes the next. A library for HTTP would need as
much of the machine as the collector.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from toril.simulate import bodies

CONNECTIONS = 8
PER_REQUEST = 100
"""Spans in a request: of 692 bytes each, about."""
TENANT = "bench"


class NotTaken(RuntimeError):
    """A request was not answered with 200, or not all of its spans were taken."""


@dataclass(frozen=True, slots=True)
class Sent:
    """When spans were on their way, by the monotonic clock of the machine."""

    spans: int
    began: float
    ended: float

    @property
    def per_second(self) -> float:
        """Spans that were accepted in a second."""
        return self.spans / (self.ended - self.began)


class Load:
    """Requests with different spans, for as long as they are asked for."""

    def __init__(self, seed: int, spans: int) -> None:
        self._bodies = bodies(seed, spans, PER_REQUEST)

    def take(self, spans: int) -> list[bytes]:
        """The next ones, made now."""
        found = list(islice(self._bodies, spans // PER_REQUEST))
        if len(found) * PER_REQUEST != spans:
            raise ValueError(f"there are no {spans} spans left")
        return found

    def lazily(self) -> Iterator[bytes]:
        """All that are left, each made when it is sent."""
        return self._bodies


async def send(
    port: int, requests: Iterable[bytes], *, turn: Callable[[], Awaitable[None]] | None = None
) -> Sent:
    """Send requests, each once, and return when all are answered. ``turn`` is awaited after each."""
    waiting = iter(requests)
    spans = 0

    async def one() -> None:
        nonlocal spans
        while (body := next(waiting, None)) is not None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                while body is not None:
                    writer.write(_head(port, body))
                    writer.write(body)
                    await _answered(reader)
                    spans += PER_REQUEST
                    if turn is not None and await _long(turn()):
                        break
                    body = next(waiting, None)
            finally:
                writer.close()

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(one())
    return Sent(spans, began, time.monotonic())


async def _long(turn: Awaitable[None]) -> bool:
    """Whether it took so long that the server may have closed the connection meanwhile."""
    began = time.monotonic()
    await turn
    return time.monotonic() - began > 1.0


def _head(port: int, body: bytes) -> bytes:
    return (
        f"POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/x-protobuf\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()


async def _answered(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    said = await reader.readexactly(int(length))
    if not head.startswith(b"HTTP/1.1 200 ") or said:  # an answer that says more is a partial success
        raise NotTaken(f"{head.splitlines()[0]!r}: {said[:500]!r}")
