"""Writing a request, as protobuf or as JSON: both have classes with the same names and fields.

What differs is how ids, 64-bit numbers, fractions and bytes are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from toril.errors import InvalidValue
from toril.pipelines.spans.otlp.reading import shown
from toril.pipelines.spans.otlp.values import sent_object
from toril.pipelines.spans.span import Attributes, Link, Resource, Scope, Span, SpanEvent, check_span

Origin = TypeVar("Origin", Resource, Scope)


@dataclass(frozen=True, slots=True)
class Classes:
    """The messages of a request."""

    request: Callable[..., Any]
    resource_spans: Callable[..., Any]
    resource: Callable[..., Any]
    scope_spans: Callable[..., Any]
    scope: Callable[..., Any]
    span: Callable[..., Any]
    event: Callable[..., Any]
    link: Callable[..., Any]
    status: Callable[..., Any]
    pair: Callable[..., Any]
    value: Callable[..., Any]
    array: Callable[..., Any]
    pairs: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Writer:
    """Makes a request of spans."""

    of: Classes
    ident: Callable[[str], Any]
    """An id, of lower-case hex."""
    whole: Callable[[int], Any]
    """A number of 64 bits."""
    fraction: Callable[[float], Any]
    bytes_: Callable[[bytes], Any]

    def request(self, spans: Iterable[Span]) -> Any:
        """A request with these spans, in their order."""
        made = [
            self.of.resource_spans(
                resource=self._resource(resource),
                scope_spans=[
                    self.of.scope_spans(
                        scope=self._scope(scope),
                        spans=[self._span(span) for span in of_scope],
                        schema_url=scope.schema_url,
                    )
                    for scope, of_scope in _runs(of_resource, lambda span: span.scope)
                ],
                schema_url=resource.schema_url,
            )
            for resource, of_resource in _runs(spans, lambda span: span.resource)
        ]
        return self.of.request(resource_spans=made)

    def _resource(self, resource: Resource) -> Any:
        return self.of.resource(
            attributes=self._attributes(resource.attributes),
            dropped_attributes_count=resource.dropped_attributes,
        )

    def _scope(self, scope: Scope) -> Any:
        return self.of.scope(
            name=scope.name,
            version=scope.version,
            attributes=self._attributes(scope.attributes),
            dropped_attributes_count=scope.dropped_attributes,
        )

    def _span(self, span: Span) -> Any:
        check_span(span)
        return self.of.span(
            trace_id=self.ident(span.trace_id),
            span_id=self.ident(span.span_id),
            parent_span_id=self.ident(span.parent_span_id or ""),
            trace_state=span.trace_state,
            flags=span.flags,
            name=span.name,
            kind=span.kind,
            start_time_unix_nano=self.whole(span.start),
            end_time_unix_nano=self.whole(span.end),
            attributes=self._attributes(span.attributes),
            dropped_attributes_count=span.dropped_attributes,
            events=[self._event(event) for event in span.events],
            dropped_events_count=span.dropped_events,
            links=[self._link(link) for link in span.links],
            dropped_links_count=span.dropped_links,
            status=self.of.status(code=span.status, message=span.status_message),
        )

    def _event(self, event: SpanEvent) -> Any:
        return self.of.event(
            name=event.name,
            time_unix_nano=self.whole(event.time),
            attributes=self._attributes(event.attributes),
            dropped_attributes_count=event.dropped_attributes,
        )

    def _link(self, link: Link) -> Any:
        return self.of.link(
            trace_id=self.ident(link.trace_id),
            span_id=self.ident(link.span_id),
            trace_state=link.trace_state,
            flags=link.flags,
            attributes=self._attributes(link.attributes),
            dropped_attributes_count=link.dropped_attributes,
        )

    def _attributes(self, attributes: Attributes) -> list[Any]:
        pairs = []
        for name, value in attributes.items():
            try:
                pairs.append(self.of.pair(key=name, value=self._value(value)))
            except InvalidValue as problem:
                raise InvalidValue(f"{shown(name)}: {problem.field}", problem.value, problem.rule) from None
        return pairs

    def _value(self, value: Any) -> Any:
        """A value, as it was before it was recorded."""
        if isinstance(value, dict):
            value = sent_object(value)
        if isinstance(value, str):
            return self.of.value(string_value=value)
        if isinstance(value, bool):
            return self.of.value(bool_value=value)
        if isinstance(value, int):
            if not -(2**63) <= value < 2**63:
                raise InvalidValue("value", value, "a whole number of 64 bits")
            return self.of.value(int_value=self.whole(value))
        if isinstance(value, float):
            return self.of.value(double_value=self.fraction(value))
        if isinstance(value, bytes):
            return self.of.value(bytes_value=self.bytes_(value))
        if isinstance(value, list):
            return self.of.value(array_value=self.of.array(values=[self._value(one) for one in value]))
        if isinstance(value, dict):
            pairs = [self.of.pair(key=name, value=self._value(one)) for name, one in value.items()]
            return self.of.value(kvlist_value=self.of.pairs(values=pairs))
        if value is None:
            return self.of.value()
        raise InvalidValue(
            "value", type(value).__name__, "text, a number, a boolean, a list, an object or None"
        )


def _runs(spans: Iterable[Span], origin: Callable[[Span], Origin]) -> Iterator[tuple[Origin, list[Span]]]:
    """Spans that follow each other and come from the same. Only those: the order is kept."""
    run: list[Span] = []
    for span in spans:
        if run and not _same(origin(run[-1]), origin(span)):
            yield origin(run[0]), run
            run = []
        run.append(span)
    if run:
        yield origin(run[0]), run


def _same(one: Resource | Scope, other: Resource | Scope) -> bool:
    """Whether they are the same to the byte: to Python, 1 and 1.0 and True are equal."""
    return one is other or msgspec.json.encode(one) == msgspec.json.encode(other)
