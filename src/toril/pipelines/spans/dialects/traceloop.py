"""OpenLLMetry, the instrumentation of Traceloop."""

from __future__ import annotations

from typing import Any

from toril.pipelines.spans.dialects.reading import (
    Dialect,
    Reading,
    count,
    data,
    first_event,
    last_event,
    numbered_messages,
    of_kind,
    one_of,
    rule,
    text,
    texts,
    total,
)

_OF = "traceloop.association.properties"
_OPERATIONS = {
    "chat": "chat",
    "completion": "text_completion",
    "embedding": "embeddings",
    "rerank": "rerank",
}


def operation(reading: Reading, name: str) -> Any:
    """As the GenAI conventions name it."""
    said = text(reading, name)
    return None if said is None else _OPERATIONS.get(said)


TRACELOOP = Dialect(
    "traceloop",
    (
        (
            "traceloop.span.kind",
            one_of({"workflow": "workflow", "task": "task", "agent": "agent", "tool": "tool"}),
        ),
        (
            "llm.request.type",
            one_of({"chat": "llm", "completion": "llm", "embedding": "embedding", "rerank": "rerank"}),
        ),
    ),
    (
        rule("operation", operation, "llm.request.type"),
        rule("cache_read_tokens", count, "llm.usage.cache_read_input_tokens"),
        rule("cache_write_tokens", count, "llm.usage.cache_creation_input_tokens"),
        rule("reasoning_tokens", count, "llm.usage.reasoning_tokens"),
        rule("input_tokens", total, "llm.usage.total_tokens", "gen_ai.usage.total_tokens"),
        rule("first_token", first_event, "llm.content.completion.chunk"),
        rule("last_token", last_event, "llm.content.completion.chunk"),
        rule("input", numbered_messages("user"), "gen_ai.prompt"),
        rule("input", data, "traceloop.entity.input"),
        rule("output", numbered_messages("assistant"), "gen_ai.completion"),
        rule("output", data, "traceloop.entity.output"),
        rule("tool", of_kind("tool", text), "traceloop.entity.name"),
        rule("agent", of_kind("agent", text), "traceloop.entity.name"),
        rule(
            "conversation",
            text,
            f"{_OF}.conversation_id",
            f"{_OF}.thread_id",
            f"{_OF}.session_id",
            f"{_OF}.chat_id",
        ),
        rule("user", text, f"{_OF}.user_id", "llm.user"),
        rule("customer", text, f"{_OF}.customer_id"),
        rule("labels", texts, f"{_OF}.labels", f"{_OF}.tags"),
    ),
)
