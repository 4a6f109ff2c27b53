"""OpenInference, the conventions of Arize."""

from __future__ import annotations

from typing import Any

from toril.pipelines.spans.dialects import messages, values
from toril.pipelines.spans.dialects.reading import (
    Dialect,
    Reading,
    count,
    dollars,
    first_event,
    named_by_span,
    numbered_messages,
    one_of,
    rule,
    small_text,
    text,
    texts,
)


def value(reading: Reading, name: str) -> Any:
    """``input.value`` or ``output.value``: JSON if its type says so, else text. Vectors say nothing."""
    said = reading.attributes.get(name)
    if reading.kind == "embedding" and name == "output.value":
        return None
    if reading.attributes.get(name.replace("value", "mime_type")) == "application/json":
        said = values.json(said)
    return messages.one_form(said)


def each(wrapped: str, inner: str) -> Any:
    """Reads a list of texts that are said as ``name.0.wrapped.inner``."""

    def read(reading: Reading, name: str) -> Any:
        found = values.numbered(reading.attributes, name) or []
        items = [item.get(wrapped) if isinstance(item, dict) else None for item in found]
        said = [item.get(inner) if isinstance(item, dict) else None for item in items]
        return said if said and all(isinstance(text, str) for text in said) else None

    return read


def documents(reading: Reading, name: str) -> Any:
    """What was found."""
    said = reading.attributes.get(name)
    found = values.json_list(said) if said is not None else values.numbered(reading.attributes, name)
    return messages.documents(found)


OPENINFERENCE = Dialect(
    "openinference",
    (
        (
            "openinference.span.kind",
            one_of(
                {
                    "llm": "llm",
                    "chain": "chain",
                    "agent": "agent",
                    "tool": "tool",
                    "retriever": "retrieval",
                    "embedding": "embedding",
                    "reranker": "rerank",
                    "guardrail": "guardrail",
                    "evaluator": "evaluation",
                    "prompt": "task",
                    "decision": "llm",
                }
            ),
        ),
    ),
    (
        rule("provider", small_text, "llm.provider", "llm.system", "decision.provider", "decision.system"),
        rule(
            "request_model",
            text,
            "llm.request.model_name",
            "decision.request.model_name",
            "llm.invocation_parameters.model",
            "embedding.invocation_parameters.model",
        ),
        rule(
            "response_model",
            text,
            "llm.response.model_name",
            "decision.response.model_name",
            "llm.model_name",
            "embedding.model_name",
            "reranker.model_name",
            "decision.model_name",
        ),
        rule("input_tokens", count, "llm.token_count.prompt", "decision.token_count.input"),
        rule("output_tokens", count, "llm.token_count.completion", "decision.token_count.output"),
        rule(
            "cache_read_tokens",
            count,
            "llm.token_count.prompt_details.cache_read",
            "llm.token_count.prompt_details.cache_input",
        ),
        rule("cache_write_tokens", count, "llm.token_count.prompt_details.cache_write"),
        rule("reasoning_tokens", count, "llm.token_count.completion_details.reasoning"),
        rule("cost", dollars, "llm.cost.total"),
        rule("first_token", first_event, "First Token Stream Event"),
        rule("input", numbered_messages("user"), "llm.input_messages"),
        rule("input", each("prompt", "text"), "llm.prompts"),
        rule("input", each("embedding", "text"), "embedding.embeddings"),
        rule("input", text, "reranker.query"),
        rule("input", value, "input.value"),
        rule("output", numbered_messages("assistant"), "llm.output_messages"),
        rule("output", each("completion", "text"), "llm.choices"),
        rule("output", documents, "retrieval.documents", "reranker.output_documents"),
        rule("output", value, "output.value"),
        rule("tool", text, "tool.name"),
        rule("tool", named_by_span("tool", "openinference.span.kind"), "span.name"),
        rule("agent", text, "agent.name"),
        rule("agent", named_by_span("agent", "openinference.span.kind"), "span.name"),
        rule("labels", texts, "tag.tags"),
    ),
)
