r"""OTLP: spans as OpenTelemetry sends them, as protobuf and as JSON, to and from :class:`Span`.

What the specification says is followed to the letter; where it says nothing:

- A span that breaks a rule is refused with a text that says which and why; the others are taken.
- A span that ends before it starts is kept as it was sent: clocks do that. Its ``duration`` is 0.
- Of attributes with the same name, the last counts, as in a map. One without a value is None.
- Nothing is shortened. A value over the limit refuses its span (:class:`Limits`).
- A link may be to nowhere (ids that are empty or all zero): its ids are then all zero.

JSON is taken as real senders write it, where nothing is lost by that: names of enums, ids as base64 or as
lists of bytes (their length tells), 64-bit numbers as text, number or two halves, the original names of
fields (``trace_id``), and half characters (``\ud83d`` alone), which become U+FFFD.
"""

from __future__ import annotations

from collections.abc import Iterable

from toril.pipelines.spans.otlp.answers import encode_response, encode_status
from toril.pipelines.spans.otlp.reading import DEFAULT_LIMITS, BadRequest, Decoded, Limits, TooManySpans
from toril.pipelines.spans.span import Span

__all__ = [
    "DEFAULT_LIMITS",
    "BadRequest",
    "Decoded",
    "Limits",
    "TooManySpans",
    "decode_json",
    "decode_protobuf",
    "encode_json",
    "encode_protobuf",
    "encode_response",
    "encode_status",
]


def decode_protobuf(body: bytes, limits: Limits = DEFAULT_LIMITS) -> Decoded:
    """The spans of an ``ExportTraceServiceRequest``; a :class:`BadRequest` where it cannot be read."""
    from toril.pipelines.spans.otlp import as_protobuf

    return as_protobuf.decode(body, limits)


def decode_json(body: bytes, limits: Limits = DEFAULT_LIMITS) -> Decoded:
    """The spans of an ``ExportTraceServiceRequest``; a :class:`BadRequest` where it cannot be read."""
    from toril.pipelines.spans.otlp import as_json

    return as_json.decode(body, limits)


def encode_protobuf(spans: Iterable[Span]) -> bytes:
    """An ``ExportTraceServiceRequest`` with these spans, in this order.

    What was sent, not what was made of it: :attr:`Span.ai` and :attr:`Span.rules` have no place in it.
    """
    from toril.pipelines.spans.otlp import as_protobuf

    return as_protobuf.encode(spans)


def encode_json(spans: Iterable[Span]) -> bytes:
    """The same as :func:`encode_protobuf`, as JSON."""
    from toril.pipelines.spans.otlp import as_json

    return as_json.encode(spans)
