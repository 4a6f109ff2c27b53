"""OTLP as real senders send it, and what is refused."""

from __future__ import annotations

import base64
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource as SdkResource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from tests.pipelines.otlp_parts import FORMS, SPAN, TRACE, Form, attribute, from_json, request, sent, text
from toril.pipelines.spans.otlp import (
    Decoded,
    decode_json,
    decode_protobuf,
    encode_protobuf,
)
from toril.pipelines.spans.span import Resource, Scope, Span

DATA = Path(__file__).parent / "data" / "otlp"


def test_the_example_of_the_specification() -> None:
    decoded = decode_json((DATA / "trace.json").read_bytes())
    assert decoded.refused == []
    assert decoded.spans == [
        Span(
            trace_id="5b8efff798038103d269b633813fc60c",
            span_id="eee19b7ec3c1b174",
            parent_span_id="eee19b7ec3c1b173",
            name="I'm a server span",
            kind=2,
            start=1544712660000000000,
            end=1544712661000000000,
            status=0,
            attributes={"my.span.attr": "some value"},
            resource=Resource(attributes={"service.name": "my.service"}),
            scope=Scope(
                name="my.library",
                version="1.0.0",
                attributes={"my.scope.attribute": "some scope attribute"},
            ),
        )
    ]


def test_what_the_sdk_sends() -> None:
    exporter = InMemorySpanExporter()
    resource = SdkResource({"service.name": "shop", "zero": 0}, schema_url="https://schemas.test/1")
    provider = TracerProvider(resource=resource, span_limits=SpanLimits(max_events=2, max_links=1))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("lib", "2.1", "https://schemas.test/lib", {"scoped": True})
    remote = SpanContext(
        7, 9, is_remote=True, trace_flags=TraceFlags(1), trace_state=TraceState([("k", "v")])
    )
    attributes: dict[str, Any] = {
        "text": "täxt 🙂",
        "empty": "",
        "yes": True,
        "no": False,
        "int": 2**63 - 1,
        "least": -(2**63),
        "zero": 0,
        "double": 0.1,
        "zero double": 0.0,
        "not a number": math.nan,
        "endless": -math.inf,
        "texts": ["a", ""],
        "ints": [0, 1],
        "doubles": [0.5, math.inf],
        "booleans": [False, True],
        "nothing": [],
        "bytes": b"\x00\xff",
    }
    with tracer.start_as_current_span(
        "parent",
        context=set_span_in_context(NonRecordingSpan(remote)),
        kind=SpanKind.SERVER,
        attributes=attributes,
        links=[Link(SpanContext(1, 2, is_remote=False), {"n": 1}), Link(remote, {"reason": "retry"})],
        start_time=1_700_000_000_123_456_789,
        end_on_exit=False,
    ) as span:
        for number in range(3):
            span.add_event(
                f"event {number}", {"number": number}, timestamp=1_700_000_000_123_456_790 + number
            )
        span.set_status(Status(StatusCode.ERROR, "went wrong"))
        with tracer.start_as_current_span("child"):
            pass
        span.end(1_700_000_001_987_654_321)
    provider.shutdown()
    child, parent = exporter.get_finished_spans()
    body = encode_spans([child, parent]).SerializeToString()
    decoded = decode_protobuf(body)
    assert decoded.refused == []
    got_child, got = decoded.spans

    assert got.trace_id == f"{7:032x}" == got_child.trace_id
    assert got.span_id == f"{parent.context.span_id:016x}"
    assert got.parent_span_id == f"{9:016x}"
    assert got_child.parent_span_id == got.span_id
    assert got.trace_state == "k=v"
    assert got.flags == 0x300  # that it is known whether the parent is remote, and that it is
    assert got_child.flags == 0x100
    assert (got.name, got.kind, got_child.kind) == ("parent", 2, 1)
    assert (got.start, got.end) == (1_700_000_000_123_456_789, 1_700_000_001_987_654_321)
    assert (got_child.start, got_child.end) == (child.start_time, child.end_time)
    assert (got.status, got.status_message) == (2, "went wrong")
    assert (got_child.status, got_child.status_message) == (0, "")
    expected = attributes | {
        "not a number": {"$double": "NaN"},
        "endless": {"$double": "-Infinity"},
        "doubles": [0.5, {"$double": "Infinity"}],
        "bytes": {"$bytes": "AP8="},
    }
    assert got.attributes == expected
    assert {name: type(value) for name, value in got.attributes.items()} == {
        name: type(value) for name, value in expected.items()
    }
    assert [(event.name, event.time, event.attributes) for event in got.events] == [
        ("event 1", 1_700_000_000_123_456_791, {"number": 1}),
        ("event 2", 1_700_000_000_123_456_792, {"number": 2}),
    ]
    [link] = got.links
    assert (link.trace_id, link.span_id) == (f"{7:032x}", f"{9:016x}")
    assert (link.attributes, link.flags) == ({"reason": "retry"}, 0x300)
    assert (got.dropped_attributes, got.dropped_events, got.dropped_links) == (0, 1, 1)
    assert got.resource.attributes == dict(resource.attributes)
    assert got.resource.schema_url == "https://schemas.test/1"
    assert got.scope == Scope(
        name="lib", version="2.1", schema_url="https://schemas.test/lib", attributes={"scoped": True}
    )

    # The same as protobuf's own JSON has it: ids in base64, names of enums, 64-bit numbers as text.
    canonical = json.dumps(MessageToDict(encode_spans([child, parent]))).encode()
    assert decode_json(canonical) == decoded
    original = MessageToDict(encode_spans([child, parent]), preserving_proto_field_name=True)
    assert decode_json(json.dumps(original).encode()) == decoded


@FORMS
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"traceId": TRACE[2:]}, "trace_id"),
        ({"traceId": ""}, "trace_id '' is not valid: 16 bytes, not all of them zero"),
        ({"traceId": "0" * 32}, "trace_id"),
        ({"spanId": SPAN + "00"}, "span_id"),
        ({"spanId": "0" * 16}, "span_id '0000000000000000' is not valid: 8 bytes, not all of them zero"),
        ({"parentSpanId": "ab"}, "parent_span_id"),
        ({"startTimeUnixNano": str(2**63)}, "start_time_unix_nano"),
        ({"endTimeUnixNano": str(2**64 - 1)}, "end_time_unix_nano"),
        ({"kind": 6}, "kind 6 is not valid"),
        ({"kind": -1}, "kind -1 is not valid"),
        ({"status": {"code": 3}}, "status.code 3 is not valid"),
        ({"events": [{"name": "e", "timeUnixNano": str(2**63)}]}, "events[0]: time_unix_nano"),
        ({"links": [{"traceId": TRACE, "spanId": "ab"}]}, "links[0]: span_id"),
    ],
)
def test_a_bad_span_is_refused_and_the_others_are_taken(decoded: Form, fields: Any, says: str) -> None:
    made = decoded(sent(name="before"), sent(**fields), sent(name="after"))
    assert [span.name for span in made.spans] == ["before", "after"]
    [reason] = made.refused
    assert reason.startswith(f"resource_spans[0].scope_spans[0].spans[1]: {says}")


@pytest.mark.parametrize(
    "fields",
    [
        {"startTimeUnixNano": -1},
        {"startTimeUnixNano": "-1"},
        {"startTimeUnixNano": 1.5},
        {"startTimeUnixNano": "1e3"},
        {"startTimeUnixNano": "١"},
        {"startTimeUnixNano": "9" * 5000},
        {"startTimeUnixNano": {"high": -1, "low": 0}},
        {"startTimeUnixNano": {}},
        {"traceId": "zz" * 16},
        {"traceId": " " * 32},
        {"traceId": [1, 2]},
        {"traceId": [300] * 16},
        {"traceId": [2**80] * 16},
        {"traceId": {"0": 1, "2": 2}},
        {"traceId": "W47/95gDgQPSabYzgT/GD"},
        {"kind": "SERVER"},
        {"status": {"code": "STATUS_CODE_MAYBE"}},
        {"flags": 2**32},
        {"droppedEventsCount": -1},
        {"attributes": attribute({"intValue": str(2**63)})},
        {"attributes": attribute({"intValue": "12 apples"})},
        {"attributes": attribute({"doubleValue": "much"})},
        {"attributes": attribute({"doubleValue": 10**400 // 10**70})},
        {"attributes": attribute({"bytesValue": "%"})},
        {"attributes": attribute({"arrayValue": {"values": [{"bytesValue": "a"}]}})},
    ],
)
def test_bad_values_of_json_are_refused(fields: dict[str, Any]) -> None:
    made = from_json(sent(**fields), sent(name="after"))
    assert [span.name for span in made.spans] == ["after"]
    [reason] = made.refused
    assert len(reason) < 400
    assert "apples" not in reason  # values of attributes are no one's business
    assert "much" not in reason


@FORMS
def test_a_root_has_no_parent(decoded: Form) -> None:
    roots = decoded(sent(), sent(parentSpanId=""), sent(parentSpanId="0" * 16)).spans
    assert [span.parent_span_id for span in roots] == [None, None, None]
    assert roots[0].is_root


@FORMS
def test_an_end_before_the_start_is_kept(decoded: Form) -> None:
    [span] = decoded(sent(startTimeUnixNano="10", endTimeUnixNano="3")).spans
    assert (span.start, span.end, span.duration) == (10, 3, 0)


@FORMS
def test_a_link_to_nowhere_is_kept(decoded: Form) -> None:
    links = [{"traceId": "", "spanId": ""}, {"traceId": "0" * 32, "spanId": "0" * 16}]
    [span] = decoded(sent(links=links)).spans
    assert [(link.trace_id, link.span_id) for link in span.links] == [("0" * 32, "0" * 16)] * 2


@FORMS
def test_values_that_look_like_marks_are_none(decoded: Form) -> None:
    def objects(*keys: str) -> dict[str, Any]:
        return {"kvlistValue": {"values": [{"key": key, "value": text("AP8=")} for key in keys]}}

    attributes = [
        *attribute(objects("$bytes"), "one"),
        *attribute(objects("$$double"), "two"),
        *attribute(objects("$ref"), "other"),
        *attribute(objects("$bytes", "more"), "several"),
        *attribute({"bytesValue": "AP8="}, "bytes"),
        *attribute(text("itself"), "$bytes"),
    ]
    [span] = decoded(sent(attributes=attributes)).spans
    assert span.attributes == {
        "one": {"$$bytes": "AP8="},
        "two": {"$$$double": "AP8="},
        "other": {"$ref": "AP8="},
        "several": {"$bytes": "AP8=", "more": "AP8="},
        "bytes": {"$bytes": "AP8="},
        "$bytes": "itself",
    }


@FORMS
def test_the_last_of_two_attributes_counts_and_none_is_a_value(decoded: Form) -> None:
    twice = [*attribute(text("first")), *attribute({"intValue": "0"}), *attribute({}, "nothing")]
    [span] = decoded(sent(attributes=twice)).spans
    assert span.attributes == {"a": 0, "nothing": None}


@pytest.mark.parametrize(
    "fields",
    [
        {"traceId": TRACE.upper(), "spanId": SPAN.upper()},
        {"traceId": base64.b64encode(bytes.fromhex(TRACE)).decode()},
        {"traceId": base64.urlsafe_b64encode(bytes.fromhex(TRACE)).decode().rstrip("=")},
        {"spanId": base64.b64encode(bytes.fromhex(SPAN)).decode()},
        {"traceId": list(bytes.fromhex(TRACE))},
        {"traceId": {str(index): byte for index, byte in enumerate(bytes.fromhex(TRACE))}},
        {"startTimeUnixNano": 1, "endTimeUnixNano": 2.0},
        {"startTimeUnixNano": {"high": 0, "low": 1, "unsigned": True}},
        {"status": None, "attributes": None, "events": None, "kind": None, "flags": None},
        {"kind": "SPAN_KIND_UNSPECIFIED", "status": {"code": "STATUS_CODE_UNSET", "message": None}},
        {"someNewField": {"of": ["a", "later", "version"]}},
    ],
)
def test_json_as_senders_write_it(fields: dict[str, Any]) -> None:
    plain = Span(trace_id=TRACE, span_id=SPAN, name="n", kind=0, start=1, end=2, status=0)
    assert from_json(sent(**fields)) == Decoded([plain], [])


def test_names_of_enums() -> None:
    [span] = from_json(sent(kind="SPAN_KIND_CONSUMER", status={"code": "STATUS_CODE_ERROR"})).spans
    assert (span.kind, span.status) == (5, 2)


def test_halves_of_large_numbers() -> None:
    start = 1_544_712_660_000_000_123
    halves = {"high": start >> 32, "low": (start & 0xFFFFFFFF) - 2**32}  # as JavaScript has it: signed
    [span] = from_json(sent(startTimeUnixNano=halves, endTimeUnixNano=start)).spans
    assert (span.start, span.end) == (start, start)


def test_original_names_also_where_only_some_are() -> None:
    whole = json.dumps(request(sent(attributes=attribute(text("x"))))).encode()
    for names in [("resourceSpans",), ("scopeSpans",), ("traceId", "spanId"), ("stringValue",)]:
        body = whole
        for name in names:
            snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
            body = body.replace(f'"{name}"'.encode(), f'"{snake}"'.encode())
        assert body != whole
        assert decode_json(body) == decode_json(whole), names


def test_half_characters_become_one_that_says_so() -> None:
    body = json.dumps(request(sent(name=r"NAME"))).encode()
    sent_name = rb"a\ud83d b\\ud83d c\ud83d\ude42\n\u00e9 \ud83d\ud83d\ude42 d\ude42\\\ud83d"
    [span] = decode_json(body.replace(b"NAME", sent_name)).spans
    assert span.name == "a\ufffd b\\ud83d c🙂\né \ufffd🙂 d\ufffd\\\ufffd"


def test_a_bad_resource_or_scope_refuses_its_spans() -> None:
    good = {"scopeSpans": [{"spans": [sent(name="good")]}]}
    spans = [sent(), sent()]
    bad = {"resource": {"droppedAttributesCount": -1}, "scopeSpans": [{"spans": spans}]}
    scope = {"scopeSpans": [{"scope": {"name": "x" * 300_000}, "spans": spans[:1]}]}
    made = decode_json(json.dumps({"resourceSpans": [bad, good, scope]}).encode())
    assert [span.name for span in made.spans] == ["good"]
    assert [reason.split(": ")[0] for reason in made.refused] == [
        "resource_spans[0].scope_spans[0].spans[0]",
        "resource_spans[0].scope_spans[0].spans[1]",
        "resource_spans[2].scope_spans[0].spans[0]",
    ]
    assert "resource: dropped_attributes_count '-1'" in made.refused[0]
    assert "scope: the size of name 300000" in made.refused[2]


def test_an_empty_request_is_one() -> None:
    assert decode_protobuf(b"") == decode_json(b"{}") == Decoded([], [])


def test_what_cannot_be_sent_says_so() -> None:
    plain = {"trace_id": TRACE, "span_id": SPAN, "name": "n", "kind": 0, "start": 1, "end": 2, "status": 0}
    for fields, says in (
        ({"attributes": {"a": 2**63}}, r"attributes\['a'\]: value 9223372036854775808 is not valid"),
        ({"attributes": {"a": [object()]}}, r"attributes\['a'\]: value 'object' is not valid"),
        ({"attributes": {"a": {"$bytes": "%"}}}, r"attributes\['a'\]: \$bytes"),
        ({"attributes": {"a": {"$double": "1"}}}, r"attributes\['a'\]: \$double"),
        ({"trace_id": "x"}, "trace_id 'x' is not valid"),
    ):
        with pytest.raises(ValueError, match=says):
            encode_protobuf([Span(**(plain | fields))])  # type: ignore[arg-type]


def test_protobuf_is_imported_when_it_is_needed() -> None:
    code = (
        "import sys; from toril.pipelines.spans import otlp; otlp.decode_json(b'{}'); "
        "otlp.encode_response(['x'], json=False); assert 'google.protobuf' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
