"""LangWatch."""

from __future__ import annotations

from typing import Any

from toril.pipelines.spans.dialects import messages, values
from toril.pipelines.spans.dialects.reading import (
    NOT_A_TIME,
    Dialect,
    Reading,
    count,
    data,
    dollars,
    flag,
    milliseconds,
    named_by_span,
    one_of,
    rule,
    text,
    texts,
)


def typed(reading: Reading, name: str) -> Any:
    """``{"type": …, "value": …}``, and lists of such."""
    said = values.json(reading.attributes.get(name))
    value = _value(said)
    if isinstance(said, dict) and said.get("type") == "list" and isinstance(value, list):
        value = [_value(item) for item in value]
    return messages.one_form(value)


def moment(reading: Reading, name: str) -> Any:
    """A time in milliseconds since 1970. It can be in the millisecond in which the span started."""
    said = reading.attributes.get(name)
    if said is None:
        return None
    time = values.scaled(said, 6)
    since = None if time is None else time - reading.span.start
    return NOT_A_TIME if since is None or since <= -1_000_000 else max(since, 0)


def _value(said: Any) -> Any:
    return said["value"] if isinstance(said, dict) and said.keys() >= {"type", "value"} else said


LANGWATCH = Dialect(
    "langwatch",
    (
        (
            "langwatch.span.type",
            one_of(
                {
                    "llm": "llm",
                    "chain": "chain",
                    "module": "chain",
                    "component": "chain",
                    "tool": "tool",
                    "agent": "agent",
                    "guardrail": "guardrail",
                    "evaluation": "evaluation",
                    "rag": "retrieval",
                    "workflow": "workflow",
                    "task": "task",
                }
            ),
        ),
    ),
    (
        rule("input_tokens", count, "langwatch.metrics.promptTokens", "langwatch.metrics.prompt_tokens"),
        rule(
            "output_tokens",
            count,
            "langwatch.metrics.completionTokens",
            "langwatch.metrics.completion_tokens",
        ),
        rule(
            "reasoning_tokens",
            count,
            "langwatch.metrics.reasoningTokens",
            "langwatch.metrics.reasoning_tokens",
        ),
        rule(
            "tokens_estimated",
            flag,
            "langwatch.metrics.tokensEstimated",
            "langwatch.metrics.tokens_estimated",
        ),
        rule("cost", dollars, "langwatch.span.cost", "langwatch.metrics.cost"),
        rule("first_token", moment, "langwatch.timestamps.first_token_at"),
        rule("first_token", milliseconds, "langwatch.metrics.first_token_ms"),
        rule("input", typed, "langwatch.input"),
        rule("output", typed, "langwatch.output"),
        rule("output", data, "langwatch.rag_contexts"),
        rule("tool", named_by_span("tool", "langwatch.span.type"), "span.name"),
        rule("agent", named_by_span("agent", "langwatch.span.type"), "span.name"),
        rule("conversation", text, "langwatch.thread.id", "langwatch.thread_id", "langwatch.session.id"),
        rule("user", text, "langwatch.user.id", "langwatch.user_id"),
        rule("customer", text, "langwatch.customer.id", "langwatch.customer_id"),
        rule("labels", texts, "langwatch.labels"),
    ),
)
