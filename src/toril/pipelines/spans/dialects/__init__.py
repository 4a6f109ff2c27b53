"""What a span says of an AI application, in one form whatever the dialect it says it in.

Dialects are asked in order, the GenAI conventions first; the first that says a field wins, and each rule that
applied is recorded as ``dialect:name``. One that was not obeyed says why: ``dialect:name:not-a-count``.
Which names say what, and what is not counted, is in docs/dialects.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from toril.pipelines.spans.dialects import values
from toril.pipelines.spans.dialects.common import COMMON
from toril.pipelines.spans.dialects.genai import GENAI
from toril.pipelines.spans.dialects.langwatch import LANGWATCH
from toril.pipelines.spans.dialects.openinference import OPENINFERENCE
from toril.pipelines.spans.dialects.reading import Dialect, Reading
from toril.pipelines.spans.dialects.traceloop import TRACELOOP
from toril.pipelines.spans.dialects.vercel import VERCEL
from toril.pipelines.spans.span import Ai, Span

__all__ = ["DIALECTS", "understand"]

DIALECTS: tuple[Dialect, ...] = (GENAI, OPENINFERENCE, TRACELOOP, VERCEL, LANGWATCH, COMMON)
"""In the order in which they are asked."""

_MODELS = tuple(rule for dialect in DIALECTS for rule in dialect.rules if rule.field.endswith("_model"))
_SAY_AI = (
    "gen_ai.",
    "llm.",
    "openinference.",
    "embedding.",
    "reranker.",
    "input.value",
    "output.value",
    "traceloop.",
    "ai.operationId",
    "langwatch.",
)
"""How names of attributes and events begin in spans that say something of AI."""
_OBJECTS = (
    "langwatch.metrics",
    "langwatch.timestamps",
    "llm.invocation_parameters",
    "embedding.invocation_parameters",
    "metadata",
)
"""Attributes that are objects, often as JSON text: what is in them is read like attributes below them."""


def understand(span: Span) -> Span:
    """The span with ``ai`` and ``rules`` filled by what it says; nothing else in it changes."""
    if not _says_ai(span):
        untouched = span.ai is None and not span.rules
        return span if untouched else msgspec.structs.replace(span, ai=None, rules=[])
    reading = Reading(span, _opened(span.attributes))
    for dialect in DIALECTS:
        if reading.kind is None:
            dialect.read_kind(reading)
    if reading.kind is None and _names_a_model(reading):
        reading.kind = "llm"
        reading.take("kind", "llm", "common:names-a-model")
    for dialect in DIALECTS:
        dialect.read(reading)
    if "cost" in reading.fields:
        reading.fields["cost_from"] = "span"
    ai = Ai(**reading.fields) if reading.fields else None
    return msgspec.structs.replace(span, ai=ai, rules=reading.rules)


def _says_ai(span: Span) -> bool:
    for name in span.attributes:  # almost all spans end here, so it is a loop
        if name.startswith(_SAY_AI):
            return True
    return any(event.name.startswith(_SAY_AI) for event in span.events)


def _opened(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The attributes, and what is in those that are objects. What is said directly wins."""
    opened: dict[str, Any] = {}
    for name in _OBJECTS:
        for inner, value in (values.json_object(attributes.get(name)) or {}).items():
            opened[f"{name}.{inner}"] = value
    return {**opened, **attributes} if opened else attributes


def _names_a_model(reading: Reading) -> bool:
    """A span of no known kind that asks for a model is a call of it."""
    return any(
        rule.read(reading, name) is not None
        for rule in _MODELS
        for name in rule.names
        if name in reading.named
    )
