"""The messages of OTLP as JSON. Every field may be missing or null, as protobuf's JSON has it."""

from __future__ import annotations

import msgspec

Number = int | float | str | dict[str, int | bool] | None
"""A whole number: also as text, and as the two halves that ``Long`` of JavaScript has."""
Ident = str | list[int] | dict[str, int] | None
"""An id: hex, base64, or its bytes in a list or by their index."""


class Message(msgspec.Struct, rename="camel", gc=False, omit_defaults=True):
    """Any message."""


class Value(Message):
    """An ``AnyValue``: one of these, or none."""

    string_value: str | None = None
    int_value: Number = None
    double_value: int | float | str | None = None
    bool_value: bool | None = None
    array_value: Values | None = None
    kvlist_value: Pairs | None = None
    bytes_value: str | None = None


class Values(Message):
    """An ``ArrayValue``."""

    values: list[Value | None] | None = None


class Pair(Message):
    """A ``KeyValue``."""

    key: str | None = ""
    value: Value | None = None


class Pairs(Message):
    """A ``KeyValueList``."""

    values: list[Pair] | None = None


class EventMessage(Message):
    """A ``Span.Event``."""

    time_unix_nano: Number = 0
    name: str | None = ""
    attributes: list[Pair] | None = None
    dropped_attributes_count: Number = 0


class LinkMessage(Message):
    """A ``Span.Link``."""

    trace_id: Ident = None
    span_id: Ident = None
    trace_state: str | None = ""
    attributes: list[Pair] | None = None
    dropped_attributes_count: Number = 0
    flags: Number = 0


class StatusMessage(Message):
    """A ``Status``."""

    message: str | None = ""
    code: int | str | None = 0


class SpanMessage(Message):
    """A ``Span``."""

    trace_id: Ident = None
    span_id: Ident = None
    trace_state: str | None = ""
    parent_span_id: Ident = None
    flags: Number = 0
    name: str | None = ""
    kind: int | str | None = 0
    start_time_unix_nano: Number = 0
    end_time_unix_nano: Number = 0
    attributes: list[Pair] | None = None
    dropped_attributes_count: Number = 0
    events: list[EventMessage] | None = None
    dropped_events_count: Number = 0
    links: list[LinkMessage] | None = None
    dropped_links_count: Number = 0
    status: StatusMessage | None = None


class ScopeMessage(Message):
    """An ``InstrumentationScope``."""

    name: str | None = ""
    version: str | None = ""
    attributes: list[Pair] | None = None
    dropped_attributes_count: Number = 0


class ScopeSpans(Message):
    """The spans of a scope."""

    scope: ScopeMessage | None = None
    spans: list[SpanMessage] | None = None
    schema_url: str | None = ""


class ResourceMessage(Message):
    """A ``Resource``."""

    attributes: list[Pair] | None = None
    dropped_attributes_count: Number = 0


class ResourceSpans(Message):
    """The spans of a resource."""

    resource: ResourceMessage | None = None
    scope_spans: list[ScopeSpans] | None = None
    schema_url: str | None = ""


class Request(Message):
    """An ``ExportTraceServiceRequest``."""

    resource_spans: list[ResourceSpans] | None = None


CAMEL = {
    field.name: field.encode_name
    for message in (
        Value,
        EventMessage,
        LinkMessage,
        SpanMessage,
        ScopeMessage,
        ScopeSpans,
        ResourceSpans,
        Request,
    )
    for field in msgspec.structs.fields(message)
    if field.name != field.encode_name
}
"""The names of fields as JSON has them, by their original names."""
