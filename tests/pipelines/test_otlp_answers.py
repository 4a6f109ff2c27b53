"""What a collector answers, read by the classes that senders have."""

from __future__ import annotations

import json

import pytest
from google.rpc.status_pb2 import Status as RpcStatus  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from toril.pipelines.spans.otlp import encode_response, encode_status


def test_answers() -> None:
    assert encode_response([], json=True) == b"{}"
    assert encode_response([], json=False) == b""
    reasons = ["spans[0]: bad", "spans[1]: worse"]
    assert json.loads(encode_response(reasons, json=True)) == {
        "partialSuccess": {"rejectedSpans": "2", "errorMessage": "spans[0]: bad\nspans[1]: worse"}
    }
    made = ExportTraceServiceResponse.FromString(encode_response(reasons, json=False, note="Mind: ü"))
    assert made.partial_success.rejected_spans == 2
    assert made.partial_success.error_message == "Mind: ü\nspans[0]: bad\nspans[1]: worse"
    note = ExportTraceServiceResponse.FromString(encode_response([], json=False, note="Slow down"))
    assert note.HasField("partial_success")
    assert (note.partial_success.rejected_spans, note.partial_success.error_message) == (0, "Slow down")


def test_many_reasons_are_cut() -> None:
    reasons = ["y" * 3000] + ["x" * 100] * 70_000
    made = ExportTraceServiceResponse.FromString(encode_response(reasons, json=False))
    assert made.partial_success.rejected_spans == 70_001
    lines = made.partial_success.error_message.split("\n")
    assert lines[0] == "y" * 499 + "…"
    assert lines[-1] == f"… and {70_001 - (len(lines) - 1)} more"
    assert 3000 < len(made.partial_success.error_message) < 4096


@pytest.mark.parametrize("code", [0, 3, 14, 300])
def test_statuses(code: int) -> None:
    made = RpcStatus.FromString(encode_status(code, "no such thing: ü", json=False))
    assert (made.code, made.message) == (code, "no such thing: ü")
    as_json = json.loads(encode_status(code, "no such thing: ü", json=True))
    assert as_json == {"code": code, "message": "no such thing: ü"}
