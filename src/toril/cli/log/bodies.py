"""The events of a log as people read them, whatever their bodies are."""

from __future__ import annotations

import base64
import json
from typing import Any

from toril.log import Entry


def read_body(body: bytes) -> Any:
    """A JSON value, a text, or where it is neither, its bytes in base64."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def event_type(value: Any) -> str | None:
    """The type of an event whose body is a JSON object that says it."""
    said = value.get("type") if isinstance(value, dict) else None
    return said if isinstance(said, str) else None


def as_value(entry: Entry) -> dict[str, Any]:
    """An event, for programs."""
    body, aggregate = read_body(entry.body), entry.aggregate
    return {
        "epoch": entry.partition.epoch,
        "partition": entry.partition.number,
        "ordinal": entry.ordinal,
        "id": entry.id,
        "recorded_at": entry.recorded_at,
        "tenant": aggregate.tenant,
        "aggregate_type": aggregate.type,
        "aggregate_id": aggregate.id,
        "version": entry.version,
        "type": event_type(body),
        "size": len(entry.body),
        "body": body,
    }
