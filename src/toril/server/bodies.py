"""Receiving the body of a request, within limits: never more of it is in memory than may be taken."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator

from starlette.requests import Request

from toril.server.flight import Hold
from toril.server.limits import Limits
from toril.server.refusals import Refused

STEP = 256 * 1024
"""Bytes inflated at a time; between two steps, others have their turn."""

GZIP = 16 + zlib.MAX_WBITS


class Inflating:
    """A gzip file, inflated as it comes. It may consist of several parts."""

    def __init__(self) -> None:
        self._part = zlib.decompressobj(GZIP)
        self._fresh = True

    def steps(self, chunk: bytes) -> Iterator[bytes]:
        """What the next bytes of the file add, in steps of bounded size."""
        while chunk:
            if self._part.eof:
                self._part = zlib.decompressobj(GZIP)
            self._fresh = False
            try:
                made = self._part.decompress(chunk, STEP)
            except zlib.error as problem:
                raise Refused(400, f"the body is not valid gzip: {problem}") from None
            chunk = self._part.unused_data if self._part.eof else self._part.unconsumed_tail
            yield made

    def end(self) -> None:
        """Nothing more comes; raises where something is missing."""
        if not self._part.eof and not self._fresh:
            raise Refused(400, "the body is not valid gzip: its end is missing")


async def receive(request: Request, limits: Limits, hold: Hold, *, gzip: bool) -> tuple[bytes, int]:
    """The body as it is when it is not compressed, and how many bytes were received.

    Raises :class:`Refused` where it is too large, too slow or broken, or where there is no room for it.
    """
    _check_length(request, limits, hold, gzip)
    try:
        async with asyncio.timeout(limits.receive):
            return await _receive(request, limits, hold, Inflating() if gzip else None)
    except TimeoutError:
        raise Refused(408, f"the body was not received within {limits.receive:g} seconds") from None


async def _receive(
    request: Request, limits: Limits, hold: Hold, inflating: Inflating | None
) -> tuple[bytes, int]:
    body = bytearray()
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received > limits.body:
            raise _too_large("as it is sent", limits.body)
        for part in (chunk,) if inflating is None else inflating.steps(chunk):
            if len(body) + len(part) > limits.inflated:
                raise _too_large("when it is not compressed", limits.inflated)
            hold.grow_to(len(body) + len(part))
            body += part
            if len(part) >= STEP:
                await asyncio.sleep(0)
    if inflating is not None:
        inflating.end()
    return bytes(body), received


def _check_length(request: Request, limits: Limits, hold: Hold, gzip: bool) -> None:
    """What is known to be too large need not be received."""
    said = request.headers.get("content-length")
    if said is None:
        return
    size = int(said)  # the HTTP parser takes nothing but digits
    if size > limits.body:
        raise _too_large("as it is sent", limits.body)
    if not gzip and size > limits.inflated:
        raise _too_large("when it is not compressed", limits.inflated)
    hold.grow_to(size)


def _too_large(which: str, most: int) -> Refused:
    return Refused(413, f"the body has more than {most:,} bytes {which}: send fewer spans at a time")
