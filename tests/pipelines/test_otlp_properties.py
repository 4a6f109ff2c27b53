"""What holds of OTLP whatever is sent: nothing changes on the way, and nothing breaks what reads it."""

from __future__ import annotations

import base64
import json
import math
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from toril.pipelines.spans.otlp import (
    BadRequest,
    decode_json,
    decode_protobuf,
    encode_json,
    encode_protobuf,
)
from toril.pipelines.spans.span import Link, Resource, Scope, Span, SpanEvent

pytestmark = pytest.mark.promise

texts = st.text(max_size=8)
marks = st.sampled_from(["$bytes", "$double", "$$bytes", "$$$double", "$", "$ref", "bytes", ""])
counts = st.sampled_from([0, 0, 1, 2**32 - 1])
times = st.sampled_from([0, 1, 1_700_000_000_123_456_789, 2**63 - 1]) | st.integers(0, 2**63 - 1)
int64 = st.sampled_from([0, -1, -(2**63), 2**63 - 1, 2**53 + 1]) | st.integers(-(2**63), 2**63 - 1)
sent_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | int64 | st.floats() | texts | st.binary(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(marks | texts, inner, max_size=2),
    max_leaves=5,
)
"""Values as Python has them: nothing is marked yet."""


def recorded(value: Any) -> Any:
    """A value as it is to be recorded."""
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$double": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, list):
        return [recorded(one) for one in value]
    if isinstance(value, dict):
        names = list(value)
        marked = len(names) == 1 and names[0][:1] == "$" and names[0].strip("$") in ("bytes", "double")
        return {("$" + name if marked else name): recorded(content) for name, content in value.items()}
    return value


def put(made: AnyValue, value: Any) -> None:
    """A value as it is sent, in protobuf."""
    if isinstance(value, str):
        made.string_value = value
    elif isinstance(value, bool):
        made.bool_value = value
    elif isinstance(value, int):
        made.int_value = value
    elif isinstance(value, float):
        made.double_value = value
    elif isinstance(value, bytes):
        made.bytes_value = value
    elif isinstance(value, list):
        made.array_value.SetInParent()
        for one in value:
            put(made.array_value.values.add(), one)
    elif isinstance(value, dict):
        made.kvlist_value.SetInParent()
        for name, one in value.items():
            put(made.kvlist_value.values.add(key=name).value, one)


attributes = st.dictionaries(marks | texts, sent_values.map(recorded), max_size=3)


def hexes(digits: int) -> st.SearchStrategy[str]:
    return st.integers(1, 16**digits - 1).map(lambda number: f"{number:0{digits}x}")


events = st.builds(SpanEvent, name=texts, time=times, attributes=attributes, dropped_attributes=counts)
links = st.builds(
    Link,
    trace_id=hexes(32) | st.just("0" * 32),
    span_id=hexes(16) | st.just("0" * 16),
    trace_state=texts,
    flags=counts,
    attributes=attributes,
    dropped_attributes=counts,
)
resources = st.builds(Resource, attributes=attributes, dropped_attributes=counts, schema_url=texts)
scopes = st.builds(
    Scope, name=texts, version=texts, attributes=attributes, dropped_attributes=counts, schema_url=texts
)


@st.composite
def requests(draw: st.DrawFn) -> list[Span]:
    """Spans of a few resources and scopes, in any order; some of which differ only by 1 and 1.0 and True."""
    alike = [Resource(attributes={"a": value}) for value in (1, 1.0, True)]
    of_resources = st.sampled_from([*alike, draw(resources), Resource()])
    of_scopes = st.sampled_from([draw(scopes), Scope()])
    span = st.builds(
        Span,
        trace_id=hexes(32),
        span_id=hexes(16),
        parent_span_id=st.none() | hexes(16),
        trace_state=texts,
        flags=counts,
        name=texts,
        kind=st.integers(0, 5),
        start=times,
        end=times,
        status=st.integers(0, 2),
        status_message=texts,
        attributes=attributes,
        events=st.lists(events, max_size=2),
        links=st.lists(links, max_size=2),
        dropped_attributes=counts,
        dropped_events=counts,
        dropped_links=counts,
        resource=of_resources,
        scope=of_scopes,
        ai=st.none(),
        rules=st.just([]),
    )
    return draw(st.lists(span, max_size=4))


def exactly(spans: list[Span]) -> bytes:
    """So that 1 is not 1.0, and 0.0 is not -0.0."""
    return msgspec.json.encode(spans)


@given(requests())
def test_what_is_written_is_read_again(spans: list[Span]) -> None:
    as_protobuf = decode_protobuf(encode_protobuf(spans))
    as_json = decode_json(encode_json(spans))
    assert as_protobuf.refused == as_json.refused == []
    assert exactly(as_protobuf.spans) == exactly(spans) == exactly(as_json.spans)
    assert as_protobuf.spans == spans == as_json.spans


@given(sent_values)
def test_values_are_recorded_as_they_were_sent(value: Any) -> None:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(trace_id=b"t" * 16, span_id=b"s" * 8)
    put(span.attributes.add(key="a").value, value)
    decoded = decode_protobuf(request.SerializeToString())
    [made] = decoded.spans
    assert msgspec.json.encode(made.attributes) == msgspec.json.encode({"a": recorded(value)})
    # What is recorded is JSON: it is the same after it was stored.
    assert msgspec.json.decode(msgspec.json.encode(made), type=Span) == made


def valid_bodies(spans: list[Span]) -> list[bytes]:
    return [encode_protobuf(spans), encode_json(spans)]


def read(body: bytes) -> None:
    """Both readers read it, or say that they cannot."""
    for decode in (decode_protobuf, decode_json):
        try:
            decoded = decode(body)
        except BadRequest:
            continue
        assert all(len(reason) < 1000 for reason in decoded.refused)
        encode_protobuf(decoded.spans)  # what was taken can be sent on


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    read(body)


@given(requests(), st.randoms(use_true_random=False))
def test_damaged_requests_are_read_or_refused(spans: list[Span], rng: random.Random) -> None:
    for body in valid_bodies(spans):
        read(body[: rng.randrange(len(body) + 1)])
        damaged = bytearray(body)
        for _ in range(rng.randrange(1, 6) if body else 0):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        read(bytes(damaged))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)


@given(requests().filter(bool), json_values, st.randoms(use_true_random=False))
def test_any_json_in_any_place_is_read_or_refused(spans: list[Span], value: Any, rng: random.Random) -> None:
    request = json.loads(encode_json(spans))
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key, content in node.items() if isinstance(node, dict) else enumerate(node):
            places.append((node, key))
            if isinstance(content, dict | list):
                walk(content)

    walk(request)
    node, key = rng.choice(places)
    node[key] = value
    read(json.dumps(request).encode())
