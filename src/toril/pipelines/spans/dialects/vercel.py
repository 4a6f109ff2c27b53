"""The Vercel AI SDK.

Its spans come in pairs: the call of the SDK (``ai.generateText``), and within it each call of a model
(``ai.generateText.doGenerate``). Both say tokens; those of the outer one are the sum of the inner ones.
"""

from __future__ import annotations

from typing import Any

from toril.pipelines.spans.dialects import messages, values
from toril.pipelines.spans.dialects.reading import (
    Dialect,
    Reading,
    count,
    data,
    first_event,
    last_event,
    milliseconds,
    rule,
    text,
    texts,
    total,
)
from toril.pipelines.spans.span import AiKind

_OF = "ai.telemetry.metadata"
_INNER: dict[str, AiKind] = {"doembed": "embedding", "dorerank": "rerank"}
_OPERATIONS = {"llm": "chat", "embedding": "embeddings", "rerank": "rerank", "tool": "execute_tool"}


def kind_of(operation: str) -> AiKind | None:
    """``ai.generateText.doGenerate`` is a call of a model, ``ai.generateText`` what holds such calls."""
    if operation == "ai.toolcall":
        return "tool"
    _, _, inner = operation.removeprefix("ai.").partition(".")
    if not inner.startswith("do"):
        return "chain" if operation.startswith("ai.") else None
    return _INNER.get(inner, "llm")


def operation(reading: Reading, name: str) -> Any:
    """As the GenAI conventions name it."""
    return _OPERATIONS.get(str(reading.kind)) if name in reading.attributes else None


def provider(reading: Reading, name: str) -> Any:
    """Who was asked: ``openai.chat`` is OpenAI by its chat API."""
    said = reading.attributes.get(name)
    return said.partition(".")[0].lower() or None if isinstance(said, str) else None


def prompt(reading: Reading, name: str) -> Any:
    """What the SDK was called with: ``{"system": …, "prompt": …}`` or ``{"messages": …}``."""
    said = values.json(reading.attributes.get(name))
    if not isinstance(said, dict):
        return said
    asked = said.get("messages", said.get("prompt"))
    if isinstance(asked, str):
        asked = [{"role": "user", "content": asked}]
    found = messages.conversation(asked)
    return said if found is None else [*messages.instructions(said.get("system")), *found]


def answer(reading: Reading, name: str) -> Any:
    """What came back as text, and as calls of tools."""
    said, (prefix, _, _) = reading.attributes.get, name.rpartition(".")
    return messages.answer(said(f"{prefix}.text"), values.json_list(said(f"{prefix}.toolCalls")))


def each(reading: Reading, name: str) -> Any:
    """A list whose items are JSON text."""
    said = reading.attributes.get(name)
    return [values.json(item) for item in said] if isinstance(said, list) else None


VERCEL = Dialect(
    "vercel",
    (("ai.operationId", kind_of),),
    (
        rule("operation", operation, "ai.operationId"),
        rule("provider", provider, "ai.model.provider"),
        rule("request_model", text, "ai.model.id"),
        rule("response_model", text, "ai.response.model"),
        rule("input_tokens", count, "ai.usage.inputTokens", "ai.usage.promptTokens"),
        rule("output_tokens", count, "ai.usage.outputTokens", "ai.usage.completionTokens"),
        rule(
            "cache_read_tokens",
            count,
            "ai.usage.inputTokenDetails.cacheReadTokens",
            "ai.usage.cachedInputTokens",
        ),
        rule("cache_write_tokens", count, "ai.usage.inputTokenDetails.cacheWriteTokens"),
        rule(
            "reasoning_tokens",
            count,
            "ai.usage.outputTokenDetails.reasoningTokens",
            "ai.usage.reasoningTokens",
        ),
        rule("input_tokens", total, "ai.usage.tokens"),
        rule("first_token", milliseconds, "ai.response.msToFirstChunk", "ai.stream.msToFirstChunk"),
        rule("first_token", first_event, "ai.stream.firstChunk"),
        rule("last_token", milliseconds, "ai.response.msToFinish"),
        rule("last_token", last_event, "ai.stream.finish"),
        rule("input", data, "ai.prompt.messages"),
        rule("input", prompt, "ai.prompt"),
        rule("input", data, "ai.toolCall.args", "ai.value"),
        rule("input", each, "ai.values"),
        rule("output", answer, "ai.response.text", "ai.response.toolCalls"),
        rule("output", data, "ai.response.object", "ai.toolCall.result"),
        rule("output", answer, "ai.result.text", "ai.result.toolCalls"),
        rule("output", data, "ai.result.object"),
        rule("tool", text, "ai.toolCall.name"),
        rule("agent", text, "ai.telemetry.functionId"),
        rule(
            "conversation",
            text,
            f"{_OF}.conversationId",
            f"{_OF}.threadId",
            f"{_OF}.sessionId",
            f"{_OF}.chatId",
        ),
        rule("user", text, f"{_OF}.userId"),
        rule("customer", text, f"{_OF}.customerId"),
        rule("labels", texts, f"{_OF}.labels", f"{_OF}.tags"),
    ),
)
