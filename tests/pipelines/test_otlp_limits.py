"""What is too much, and what is no request at all."""

from __future__ import annotations

import base64
import json

import pytest

from tests.pipelines.otlp_parts import FORMS, SPAN, TRACE, Form, attribute, request, sent, text
from toril.pipelines.spans.otlp import BadRequest, Limits, decode_json, decode_protobuf


@FORMS
def test_a_value_over_the_limit_refuses_its_span(decoded: Form) -> None:
    limit = Limits().value
    largest = [*attribute(text("x" * limit), "ascii"), *attribute(text("é" * (limit // 2)), "accents")]
    assert decoded(sent(attributes=largest)).refused == []
    large = text("secret" * (10 * 2**20 // 6))
    for value in (
        large,
        text("é" * (limit // 2 + 1)),
        {"arrayValue": {"values": [text("x" * 1000)] * 300}},
        {"kvlistValue": {"values": attribute(large)}},
        {"bytesValue": base64.b64encode(bytes(limit)).decode()},
    ):
        made = decoded(sent(name="before"), sent(attributes=attribute(value, "prompt")))
        assert [span.name for span in made.spans] == ["before"]
        [reason] = made.refused
        assert "the size of attributes['prompt']" in reason
        assert reason.endswith("is not valid: at most 262144 bytes")
        assert "secret" not in reason
        assert len(reason) < 300
    [reason] = decoded(sent(name="x" * (limit + 1))).refused
    assert "the size of name 262145 is not valid" in reason
    [reason] = decoded(sent(attributes=attribute(text(""), "x" * (limit + 1)))).refused
    assert "the size of the name of an attribute 262145 is not valid" in reason


@FORMS
def test_limits_of_number_and_depth(decoded: Form) -> None:
    limits = Limits(spans=2, attributes=2, events=1, links=1, depth=2)
    two = attribute(text("x"), "a") + attribute(text("x"), "b")
    events = [{"name": "e", "timeUnixNano": "1"}] * 2
    links = [{"traceId": TRACE, "spanId": SPAN}] * 2
    assert decoded(sent(attributes=two, events=events[:1], links=links[:1]), limits=limits).refused == []
    for fields in ({"attributes": two + attribute(text("x"), "c")}, {"events": events}, {"links": links}):
        [reason] = decoded(sent(**fields), limits=limits).refused
        assert f"the number of {next(iter(fields))}" in reason
    with pytest.raises(BadRequest, match="3 spans are too many for a request: send at most 2"):
        decoded(sent(), sent(), sent(), limits=limits)
    nested = {"arrayValue": {"values": [{"kvlistValue": {"values": attribute(text("x"))}}]}}
    assert decoded(sent(attributes=attribute(nested)), limits=limits).spans[0].attributes == {
        "a": [{"a": "x"}]
    }
    deeper = {"arrayValue": {"values": [nested]}}
    [reason] = decoded(sent(attributes=attribute(deeper)), limits=limits).refused
    assert "the depth of attributes['a'] 3 is not valid: at most 2" in reason


@FORMS
def test_as_deep_as_protobuf_goes(decoded: Form) -> None:
    value = text("x")
    for _ in range(Limits().depth):
        value = {"kvlistValue": {"values": attribute(value)}}
    assert decoded(sent(attributes=attribute(value))).refused == []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "JSON: Input data was truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"resourceSpans": [{"scopeSpans": 5}]}', "$.resourceSpans[0].scopeSpans"),
        (b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": 5}]}]}]}', "spans[0].name"),
        (b'{"resourceSpans": NaN}', "JSON is malformed"),
        (b'{"resourceSpans": [{"schemaUrl": "\xff"}]}', "the body is no UTF-8"),
        (b'{"x": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"resource_spans": ' + b'[{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_a_body_that_is_no_request_in_json(body: bytes, says: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode_json(body)
    assert says in str(caught.value)


def test_values_that_are_nested_without_end() -> None:
    for depth in (31, 100, 400, 5_000, 100_000):
        value = b'{"arrayValue":{"values":[' * depth + b"]}}" * depth
        body = json.dumps(request(sent(attributes=attribute({"x": 1})))).encode().replace(b'{"x": 1}', value)
        try:
            made = decode_json(body)
        except BadRequest:
            assert depth > 100
        else:
            assert (made.spans, len(made.refused)) == ([], 1)


@pytest.mark.parametrize("body", [b"\x0a", b"\x0a\x05abc", b"<html>", b'{"resourceSpans": []}'])
def test_a_body_that_is_no_request_in_protobuf(body: bytes) -> None:
    with pytest.raises(BadRequest, match="the body is no ExportTraceServiceRequest in protobuf"):
        decode_protobuf(body)
