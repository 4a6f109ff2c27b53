"""Requests for benchmarks: from the SDK's own encoder, and faster than any collector takes them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan

from toril.errors import InvalidValue
from toril.simulate.planning import plan
from toril.simulate.sdk import SpanMaker

POOL = 5_000
"""So many spans are planned and encoded, about; what is more than that are the same in other traces."""


@dataclass(frozen=True, slots=True)
class _Body:
    """An encoded request, and where its ids and times are."""

    data: bytes
    traces: list[tuple[int, int]]
    spans: list[tuple[int, int]]
    times: list[tuple[int, int]]

    def stamped(self, trace_mask: int, span_mask: int, shift: int) -> bytes:
        """The same, with ids of its own and at another time."""
        made = bytearray(self.data)
        for place, value in self.traces:
            made[place : place + 16] = (value ^ trace_mask).to_bytes(16, "big")
        for place, value in self.spans:
            made[place : place + 8] = (value ^ span_mask).to_bytes(8, "big")
        for place, value in self.times:
            made[place : place + 8] = (value + shift).to_bytes(8, "little")
        return bytes(made)


def bodies(seed: int, spans: int, per_request: int = 500, *, base: int | None = None) -> Iterator[bytes]:
    """``ExportTraceServiceRequest`` messages with so many different spans, all but the last equally many.

    The same for the same arguments; ``base`` is when it all begins (ns since 1970; None: now).
    """
    if per_request < 1:
        raise InvalidValue("per_request", per_request, "at least 1")
    if spans < 1:
        return
    base = time.time_ns() if base is None else base
    requests = -(-POOL // per_request)
    wanted = min(spans, requests * per_request)
    maker = SpanMaker(base)
    pool = [span for trace in plan(seed, spans=wanted, largest=wanted // 4) for span in maker.spans(trace)]
    length = max(span.end_time or 0 for span in pool) - min(span.start_time or 0 for span in pool)
    made: list[_Body] = []
    for start in range(0, len(pool), per_request):
        made.append(_encoded(pool[start : start + per_request]))
        yield made[-1].data
    left, number = spans - wanted, 0
    while left > 0:
        number += 1
        rng = random.Random(f"toril/{seed}/bodies/{number}")
        stamp = rng.getrandbits(128), rng.getrandbits(64), number * length
        for place, body in enumerate(made):
            if left <= 0:
                return
            if left < per_request:
                start = place * per_request
                body = _encoded(pool[start : start + left])
            yield body.stamped(*stamp)
            left -= per_request


def _encoded(spans: Sequence[ReadableSpan]) -> _Body:
    data = encode_spans(spans).SerializeToString()
    body = _Body(data, [], [], [])
    for resource in _fields(data, 0, len(data), 1):
        for scope in _fields(data, *resource[1:], 2):
            for _, start, end in _fields(data, *scope[1:], 2):
                _note_span(body, start, end)
    return body


def _note_span(body: _Body, start: int, end: int) -> None:
    """Where the ids and times of a span are; the numbers are those of OTLP's ``Span``."""
    data = body.data
    for number, at, until in _fields(data, start, end):
        if number == 1:
            body.traces.append((at, int.from_bytes(data[at:until], "big")))
        elif number in (2, 4) and until > at:  # a root has an empty parent
            body.spans.append((at, int.from_bytes(data[at:until], "big")))
        elif number in (7, 8):
            body.times.append((at, int.from_bytes(data[at:until], "little")))
        elif number == 11:
            body.times.extend(
                (place, int.from_bytes(data[place:last], "little"))
                for _, place, last in _fields(data, at, until, 1)
            )


def _fields(data: bytes, start: int, end: int, only: int | None = None) -> Iterator[tuple[int, int, int]]:
    """The fields of a message in Protocol Buffers' wire format: their number, and from where to where."""
    while start < end:
        tag, start = _varint(data, start)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            _, after = _varint(data, start)
        elif kind == 2:
            length, start = _varint(data, start)
            after = start + length
        else:
            after = start + (8 if kind == 1 else 4)
        if only in (None, number):
            yield number, start, after
        start = after


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A whole number, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
