"""Requests for tests, made by hand."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from toril.pipelines.spans.otlp import Decoded, Limits, decode_json, decode_protobuf

TRACE, SPAN = "5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174"


def request(*spans: dict[str, Any], **resource: Any) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": list(spans)}]}]}


def sent(**fields: Any) -> dict[str, Any]:
    times = {"startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    return {"traceId": TRACE, "spanId": SPAN, "name": "n", **times, **fields}


def from_json(*spans: dict[str, Any], limits: Limits | None = None) -> Decoded:
    return decode_json(json.dumps(request(*spans)).encode(), limits or Limits())


def from_protobuf(*spans: dict[str, Any], limits: Limits | None = None) -> Decoded:
    """The same, by way of a protobuf message that is made by hand."""
    made = ExportTraceServiceRequest()
    scope_spans = made.resource_spans.add().scope_spans.add()
    for span in spans:
        one = scope_spans.spans.add(name=span["name"])
        one.trace_id, one.span_id = bytes.fromhex(span["traceId"]), bytes.fromhex(span["spanId"])
        one.parent_span_id = bytes.fromhex(span.get("parentSpanId", ""))
        one.start_time_unix_nano = int(span["startTimeUnixNano"])
        one.end_time_unix_nano = int(span["endTimeUnixNano"])
        one.kind = span.get("kind", 0)
        one.status.code = span.get("status", {}).get("code", 0)
        for pair in span.get("attributes", ()):
            put(one.attributes.add(key=pair["key"]).value, pair["value"])
        for event in span.get("events", ()):
            one.events.add(name=event["name"], time_unix_nano=int(event["timeUnixNano"]))
        for link in span.get("links", ()):
            one.links.add(trace_id=bytes.fromhex(link["traceId"]), span_id=bytes.fromhex(link["spanId"]))
    return decode_protobuf(made.SerializeToString(), limits or Limits())


def put(made: Any, value: dict[str, Any]) -> None:
    for name, content in value.items():
        if name == "stringValue":
            made.string_value = content
        elif name == "intValue":
            made.int_value = int(content)
        elif name == "doubleValue":
            made.double_value = float(content)
        elif name == "boolValue":
            made.bool_value = content
        elif name == "bytesValue":
            made.bytes_value = base64.b64decode(content)
        elif name == "arrayValue":
            made.array_value.SetInParent()
            for one in content["values"]:
                put(made.array_value.values.add(), one)
        else:
            assert name == "kvlistValue"
            made.kvlist_value.SetInParent()
            for pair in content["values"]:
                put(made.kvlist_value.values.add(key=pair["key"]).value, pair["value"])


FORMS = pytest.mark.parametrize("decoded", [from_json, from_protobuf])
Form = Callable[..., Decoded]


def text(value: str) -> dict[str, Any]:
    return {"stringValue": value}


def attribute(value: dict[str, Any], key: str = "a") -> list[dict[str, Any]]:
    return [{"key": key, "value": value}]
