"""A span: one step of a trace, in the one form that all of Toril knows.

It is what an event records, so all of it is JSON. Times are whole nanoseconds since 1970, money is whole
nano-USD, ids are lower-case hex text. What was sent is kept as it was sent (``attributes``); what it means
is said once more in one form, whatever dialect it was said in (:class:`Ai`), with the rules that applied.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal

import msgspec

from toril.errors import InvalidValue

Attributes = dict[str, Any]
"""Names and values as they were sent: text, booleans, whole numbers, fractions, lists and objects.

What JSON does not have is an object with one name: bytes are ``{"$bytes": "<base64>"}``, and fractions that
are no numbers ``{"$double": "NaN"}`` (or ``Infinity``, ``-Infinity``). An object that was sent with just such
a name, ``$bytes`` or ``$double`` with any number of ``$``, has one ``$`` more here: nothing looks like a mark
that is none. The names of attributes themselves are as they were sent.
"""

AiKind = Literal[
    "llm",
    "agent",
    "workflow",
    "chain",
    "tool",
    "retrieval",
    "embedding",
    "rerank",
    "guardrail",
    "evaluation",
    "task",
]
"""What a step of an AI application does."""


class SpanEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Something that happened at one moment of a span."""

    name: str
    time: int
    attributes: Attributes = {}
    dropped_attributes: int = 0


class Link(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Another span that this one has to do with."""

    trace_id: str
    span_id: str
    trace_state: str = ""
    flags: int = 0
    attributes: Attributes = {}
    dropped_attributes: int = 0


class Resource(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the span comes from: a service, a process, a machine."""

    attributes: Attributes = {}
    dropped_attributes: int = 0
    schema_url: str = ""


class Scope(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The instrumentation that made the span."""

    name: str = ""
    version: str = ""
    attributes: Attributes = {}
    dropped_attributes: int = 0
    schema_url: str = ""


class Ai(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a span says of an AI application, in one form whatever the dialect. None: it does not say.

    Zero is a value: a model that was asked for nothing has 0 tokens, and one that does not say has None.
    """

    kind: AiKind | None = None
    operation: str | None = None
    """As GenAI conventions name it: ``chat``, ``embeddings``, ``execute_tool``, …"""
    provider: str | None = None
    """Who was asked: ``openai``, ``anthropic``, …"""
    request_model: str | None = None
    response_model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    """Of the input tokens, those that were read from a cache."""
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    """Of the output tokens, those that were not shown."""
    tokens_estimated: bool | None = None
    first_token: int | None = None
    """Nanoseconds from the start of the span to the first token."""
    last_token: int | None = None
    """Nanoseconds from the start of the span to the last token."""
    input: Any = None
    """Messages (``[{"role": …, "content": …}]``), or text, or any JSON."""
    output: Any = None
    tool: str | None = None
    agent: str | None = None
    conversation: str | None = None
    """The thread or session that it belongs to."""
    user: str | None = None
    customer: str | None = None
    labels: list[str] = []
    cost: int | None = None
    """Nano-USD: as the span says, else from a price table."""
    cost_from: str | None = None
    """``span``, or the version of the price table."""

    @property
    def models(self) -> list[str]:
        """The models that it names, each once."""
        return [model for model in dict.fromkeys((self.response_model, self.request_model)) if model]


class Span(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One step of a trace. See the module's text."""

    trace_id: str
    span_id: str
    parent_span_id: str | None = None
    """None for a root."""
    trace_state: str = ""
    flags: int = 0
    name: str
    kind: int
    """0 to 5: unspecified, internal, server, client, producer, consumer."""
    start: int
    end: int
    status: int
    """0 to 2: unset, ok, error."""
    status_message: str = ""
    attributes: Attributes = {}
    events: list[SpanEvent] = []
    links: list[Link] = []
    dropped_attributes: int = 0
    dropped_events: int = 0
    dropped_links: int = 0
    resource: Resource = Resource()
    scope: Scope = Scope()
    ai: Ai | None = None
    rules: list[str] = []
    """The rules by which :attr:`ai` was made, in the order in which they applied."""

    @property
    def is_root(self) -> bool:
        """Whether no span of the trace is above it."""
        return self.parent_span_id is None

    @property
    def duration(self) -> int:
        """Nanoseconds from start to end; 0 where the end is before the start, as clocks sometimes have it."""
        return max(0, self.end - self.start)

    def record_id(self, tenant: str) -> str:
        """The same for the same span of a tenant, however often and by whomever it is sent."""
        text = f"{tenant}\x00{self.trace_id}\x00{self.span_id}"
        return f"span_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


LATEST = 2**63 - 1
"""The last nanosecond that a span can name."""

_TRACE_ID = re.compile("(?!0{32})[0-9a-f]{32}")
_SPAN_ID = re.compile("(?!0{16})[0-9a-f]{16}")


def check_span(span: Span) -> None:
    """Refuse a span that cannot be what it says, by field, value and rule."""
    if not _TRACE_ID.fullmatch(span.trace_id):
        raise InvalidValue("trace_id", span.trace_id[:100], "32 lower-case hex digits, not all of them 0")
    ids = [("span_id", span.span_id)]
    if span.parent_span_id is not None:
        ids.append(("parent_span_id", span.parent_span_id))
    for field, ident in ids:
        if not _SPAN_ID.fullmatch(ident):
            raise InvalidValue(field, ident[:100], "16 lower-case hex digits, not all of them 0")
    for field, time in (("start", span.start), ("end", span.end)):
        if not 0 <= time <= LATEST:
            raise InvalidValue(field, time, "nanoseconds since 1970, from 0 to 2**63 - 1")
    if not 0 <= span.kind <= 5:
        raise InvalidValue("kind", span.kind, "0 to 5")
    if not 0 <= span.status <= 2:
        raise InvalidValue("status", span.status, "0 (unset), 1 (ok) or 2 (error)")
