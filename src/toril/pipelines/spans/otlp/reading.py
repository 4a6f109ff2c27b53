"""Reading a request, whether it was protobuf or JSON: both have the same fields, by the same names.

What differs is how ids and values are written: each form has a :class:`Reader` of its own for that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NoReturn

import msgspec

from toril.errors import InvalidValue, TorilError
from toril.pipelines.spans.otlp.values import size
from toril.pipelines.spans.span import LATEST, Attributes, Link, Resource, Scope, Span, SpanEvent

SPAN_KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
STATUS_CODES = ("UNSET", "OK", "ERROR")
NO_TRACE, NO_SPAN = bytes(16), bytes(8)


class BadRequest(TorilError, ValueError):
    """A body that cannot be read at all. Nothing of it was taken."""


class TooManySpans(BadRequest):
    """A request with more spans than may be sent at a time. In parts, it is taken."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How large a request may be in its parts. The body as a whole is limited by who receives it."""

    spans: int = 50_000
    """Of a request. More are :class:`TooManySpans`."""
    attributes: int = 1024
    """Of a span, event, link, scope or resource; and from here on: more refuse the span."""
    events: int = 16_384
    """Of a span: one per token is not unheard of."""
    links: int = 1024
    """Of a span."""
    value: int = 256 * 1024
    """Bytes of an attribute's value, or of any other text."""
    depth: int = 30
    """How deep lists and objects may lie in each other; protobuf has no room for more than 31."""


DEFAULT_LIMITS = Limits()


class Decoded(msgspec.Struct, frozen=True):
    """What came of a request."""

    spans: list[Span]
    refused: list[str]
    """For each span that was refused: which, and why. Values of attributes are not shown."""


class Reader(ABC):
    """Makes spans of a request."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.surely_short = limits.value // 4
        """A text of so many characters is not over the limit, whatever the characters."""

    @abstractmethod
    def ident(self, field: str, raw: Any, length: int) -> bytes:
        """The bytes of an id: ``length``, or none at all."""

    @abstractmethod
    def whole(self, field: str, raw: Any, most: int) -> int:
        """A number from 0 to ``most`` of what is not just that."""

    @abstractmethod
    def enum(self, field: str, raw: Any, prefix: str, names: tuple[str, ...]) -> int:
        """One of the numbers of an enum, of what is not just that."""

    @abstractmethod
    def attributes(self, pairs: Any) -> Attributes:
        """Names and values, within the limits."""

    def read(self, request: Any) -> Decoded:
        """All spans of a request."""
        self._check_number(request)
        spans: list[Span] = []
        refused: list[str] = []
        for r, of_resource in enumerate(request.resource_spans or ()):
            resource = self._resource(of_resource)
            for s, of_scope in enumerate(of_resource.scope_spans or ()):
                scope = self._scope(of_scope)
                for i, sent in enumerate(of_scope.spans or ()):
                    made = self._span_or_problem(sent, resource, scope)
                    if isinstance(made, Span):
                        spans.append(made)
                    else:
                        refused.append(f"resource_spans[{r}].scope_spans[{s}].spans[{i}]: {made}")
        return Decoded(spans, refused)

    def _check_number(self, request: Any) -> None:
        of_scopes = (s for r in request.resource_spans or () for s in r.scope_spans or ())
        number = sum(len(of_scope.spans or ()) for of_scope in of_scopes)
        if number > self.limits.spans:
            raise TooManySpans(f"{number} spans are too many for a request: send at most {self.limits.spans}")

    def _resource(self, sent: Any) -> Resource | InvalidValue:
        """A resource; or what is wrong with it, and so with all of its spans."""
        try:
            raw = sent.resource
            url = self.text("schema_url", sent.schema_url)
            if raw is None:
                return Resource(schema_url=url)
            return Resource(
                attributes=self.attributes(raw.attributes),
                dropped_attributes=self._count("dropped_attributes_count", raw.dropped_attributes_count),
                schema_url=url,
            )
        except InvalidValue as problem:
            return _inside("resource", problem)

    def _scope(self, sent: Any) -> Scope | InvalidValue:
        """A scope; or what is wrong with it, and so with all of its spans."""
        try:
            raw = sent.scope
            url = self.text("schema_url", sent.schema_url)
            if raw is None:
                return Scope(schema_url=url)
            return Scope(
                name=self.text("name", raw.name),
                version=self.text("version", raw.version),
                attributes=self.attributes(raw.attributes),
                dropped_attributes=self._count("dropped_attributes_count", raw.dropped_attributes_count),
                schema_url=url,
            )
        except InvalidValue as problem:
            return _inside("scope", problem)

    def _span_or_problem(
        self, raw: Any, resource: Resource | InvalidValue, scope: Scope | InvalidValue
    ) -> Span | InvalidValue:
        if isinstance(resource, InvalidValue):
            return resource
        if isinstance(scope, InvalidValue):
            return scope
        try:
            return self._span(raw, resource, scope)
        except InvalidValue as problem:
            return problem

    def _span(self, raw: Any, resource: Resource, scope: Scope) -> Span:
        trace_id = self.ident("trace_id", raw.trace_id, 16)
        if not trace_id or trace_id == NO_TRACE:
            raise InvalidValue("trace_id", trace_id.hex(), "16 bytes, not all of them zero")
        span_id = self.ident("span_id", raw.span_id, 8)
        if not span_id or span_id == NO_SPAN:
            raise InvalidValue("span_id", span_id.hex(), "8 bytes, not all of them zero")
        parent = self.ident("parent_span_id", raw.parent_span_id, 8)
        kind, status = raw.kind, raw.status
        if type(kind) is not int or not 0 <= kind <= 5:
            kind = self.enum("kind", kind, "SPAN_KIND_", SPAN_KINDS)
        code, message = (0, "") if status is None else (status.code, status.message)
        if type(code) is not int or not 0 <= code <= 2:
            code = self.enum("status.code", code, "STATUS_CODE_", STATUS_CODES)
        events, links = raw.events, raw.links
        return Span(
            trace_id=trace_id.hex(),
            span_id=span_id.hex(),
            parent_span_id=parent.hex() if parent and parent != NO_SPAN else None,
            trace_state=self.text("trace_state", raw.trace_state),
            flags=self._count("flags", raw.flags),
            name=self.text("name", raw.name),
            kind=kind,
            start=self._time("start_time_unix_nano", raw.start_time_unix_nano),
            end=self._time("end_time_unix_nano", raw.end_time_unix_nano),
            status=code,
            status_message=self.text("status.message", message),
            attributes=self.attributes(raw.attributes),
            events=self._events(events) if events else [],
            links=self._links(links) if links else [],
            dropped_attributes=self._count("dropped_attributes_count", raw.dropped_attributes_count),
            dropped_events=self._count("dropped_events_count", raw.dropped_events_count),
            dropped_links=self._count("dropped_links_count", raw.dropped_links_count),
            resource=resource,
            scope=scope,
        )

    def _events(self, sent: Any) -> list[SpanEvent]:
        self.check_length("events", sent, self.limits.events)
        events: list[SpanEvent] = []
        try:
            for raw in sent:
                event = SpanEvent(
                    name=self.text("name", raw.name),
                    time=self._time("time_unix_nano", raw.time_unix_nano),
                    attributes=self.attributes(raw.attributes),
                    dropped_attributes=self._count("dropped_attributes_count", raw.dropped_attributes_count),
                )
                events.append(event)
        except InvalidValue as problem:
            raise _inside(f"events[{len(events)}]", problem) from None
        return events

    def _links(self, sent: Any) -> list[Link]:
        self.check_length("links", sent, self.limits.links)
        links: list[Link] = []
        try:
            for raw in sent:
                link = Link(
                    trace_id=(self.ident("trace_id", raw.trace_id, 16) or NO_TRACE).hex(),
                    span_id=(self.ident("span_id", raw.span_id, 8) or NO_SPAN).hex(),
                    trace_state=self.text("trace_state", raw.trace_state),
                    flags=self._count("flags", raw.flags),
                    attributes=self.attributes(raw.attributes),
                    dropped_attributes=self._count("dropped_attributes_count", raw.dropped_attributes_count),
                )
                links.append(link)
        except InvalidValue as problem:
            raise _inside(f"links[{len(links)}]", problem) from None
        return links

    def _time(self, field: str, raw: Any) -> int:
        if type(raw) is int and 0 <= raw <= LATEST:
            return raw
        return self.whole(field, raw, LATEST)

    def _count(self, field: str, raw: Any) -> int:
        if type(raw) is int and 0 <= raw < 2**32:
            return raw
        return self.whole(field, raw, 2**32 - 1)

    def text(self, field: str, raw: str | None) -> str:
        """A text within the limit."""
        if not raw:
            return ""
        if len(raw) > self.surely_short:
            self.check_size(field, raw)
        return raw

    def check_size(self, field: str, text: str) -> None:
        """A text within the limit."""
        if (bytes_ := size(text)) > self.limits.value:
            self._refuse_size(field, bytes_)

    def check_value(self, name: str, value: Any) -> None:
        """The value of an attribute within the limit."""
        if (bytes_ := size(value)) > self.limits.value:
            self._refuse_size(shown(name), bytes_)

    def check_length(self, field: str, values: Any, most: int) -> None:
        """A list within its limit."""
        if len(values) > most:
            raise InvalidValue(f"the number of {field}", len(values), f"at most {most}")

    def checked_names(self, attributes: Attributes) -> Attributes:
        """The same, when all names are within the limit."""
        if len("".join(attributes)) > self.surely_short:
            for name in attributes:
                self.check_size("the name of an attribute", name)
        return attributes

    def check_depth(self, name: str, depth: int) -> None:
        """A list or an object in the value of an attribute that may lie so deep."""
        if depth >= self.limits.depth:
            raise InvalidValue(f"the depth of {shown(name)}", depth + 1, f"at most {self.limits.depth}")

    def _refuse_size(self, field: str, bytes_: int) -> NoReturn:
        raise InvalidValue(f"the size of {field}", bytes_, f"at most {self.limits.value} bytes")


def shown(name: str) -> str:
    """An attribute, as messages name it."""
    return f"attributes[{name[:100]!r}]"


def _inside(where: str, problem: InvalidValue) -> InvalidValue:
    """The same problem, seen from further out."""
    return InvalidValue(f"{where}: {problem.field}", problem.value, problem.rule)
