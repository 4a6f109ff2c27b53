"""The GenAI semantic conventions of OpenTelemetry, current and past."""

from __future__ import annotations

from typing import Any

from toril.pipelines.spans.dialects import messages, values
from toril.pipelines.spans.dialects.reading import (
    Dialect,
    Reading,
    count,
    data,
    dollars,
    first_event,
    last_event,
    one_of,
    rule,
    seconds,
    small_text,
    text,
)
from toril.pipelines.spans.span import SpanEvent

DETAILS = "gen_ai.client.inference.operation.details"
"""An event that has the messages as attributes."""

_ASKED = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}


def input_messages(reading: Reading, _: str) -> Any:
    """The messages, after what the model was told beforehand."""
    told = messages.instructions(_attribute(reading, "gen_ai.system_instructions"))
    found = _attribute(reading, "gen_ai.input.messages")
    asked = [] if found is None else messages.conversation(found)
    return found if asked is None else [*told, *asked] or None


def output_messages(reading: Reading, name: str) -> Any:
    """The messages that came back."""
    return messages.one_form(_attribute(reading, name))


def asked_in_events(reading: Reading, _: str) -> Any:
    """The messages of older conventions: an event each."""
    found = [
        {"role": _ASKED[event.name], **_body(event)} for event in reading.span.events if event.name in _ASKED
    ]
    return messages.conversation(found)


def answered_in_events(reading: Reading, name: str) -> Any:
    """The choices of older conventions: an event each."""
    bodies = [_body(event) for event in reading.span.events if event.name == name]
    found = [{"role": "assistant", **(values.json_object(body.get("message")) or body)} for body in bodies]
    return messages.conversation(found)


def or_in_event(event: str) -> Any:
    """Reads an attribute of the span, or of its event of that name: the conventions of 2024."""

    def read(reading: Reading, name: str) -> Any:
        return messages.one_form(_attribute(reading, name, event))

    return read


def provider(reading: Reading, name: str) -> Any:
    """Who was asked. The Vercel AI SDK writes its own id here, which is that dialect's to read."""
    said = reading.attributes.get(name)
    return None if said == reading.attributes.get("ai.model.provider") else small_text(reading, name)


def _attribute(reading: Reading, name: str, event: str = DETAILS) -> Any:
    """A value of the span, or of its event of that name."""
    said = reading.attributes.get(name)
    if said is None:
        said = next((e.attributes.get(name) for e in reading.span.events if e.name == event), None)
    return values.json(said)


def _body(event: SpanEvent) -> dict[str, Any]:
    """What an event says: its attributes, or the JSON in one of them."""
    body = values.json_object(event.attributes.get("gen_ai.event.content")) or event.attributes
    return {name: values.json(value) if name == "tool_calls" else value for name, value in body.items()}


GENAI = Dialect(
    "genai",
    (
        (
            "gen_ai.operation.name",
            one_of(
                {
                    "chat": "llm",
                    "text_completion": "llm",
                    "generate_content": "llm",
                    "embeddings": "embedding",
                    "rerank": "rerank",
                    "retrieval": "retrieval",
                    "execute_tool": "tool",
                    "create_agent": "agent",
                    "invoke_agent": "agent",
                    "invoke_workflow": "workflow",
                    "fetch_response": "task",
                }
            ),
        ),
    ),
    (
        rule("operation", text, "gen_ai.operation.name"),
        rule("provider", provider, "gen_ai.provider.name", "gen_ai.system"),
        rule("request_model", text, "gen_ai.request.model"),
        rule("response_model", text, "gen_ai.response.model"),
        rule("input_tokens", count, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
        rule("output_tokens", count, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
        rule(
            "cache_read_tokens",
            count,
            "gen_ai.usage.cache_read.input_tokens",
            "gen_ai.usage.cache_read_input_tokens",
        ),
        rule(
            "cache_write_tokens",
            count,
            "gen_ai.usage.cache_write.input_tokens",
            "gen_ai.usage.cache_creation.input_tokens",
            "gen_ai.usage.cache_creation_input_tokens",
        ),
        rule(
            "reasoning_tokens",
            count,
            "gen_ai.usage.reasoning.output_tokens",
            "gen_ai.usage.reasoning_tokens",
        ),
        rule("cost", dollars, "gen_ai.usage.cost"),
        rule("first_token", seconds, "gen_ai.response.time_to_first_chunk"),
        rule("first_token", first_event, "gen_ai.content.completion.chunk", "gen_ai.first_token"),
        rule("last_token", last_event, "gen_ai.content.completion.chunk", "gen_ai.last_token"),
        rule("input", input_messages, "gen_ai.input.messages", "gen_ai.system_instructions"),
        rule("input", data, "gen_ai.tool.call.arguments", "gen_ai.retrieval.query.text"),
        rule("input", asked_in_events, *_ASKED),
        rule("input", or_in_event("gen_ai.content.prompt"), "gen_ai.prompt"),
        rule("output", output_messages, "gen_ai.output.messages"),
        rule("output", data, "gen_ai.tool.call.result", "gen_ai.retrieval.documents"),
        rule("output", answered_in_events, "gen_ai.choice"),
        rule("output", or_in_event("gen_ai.content.completion"), "gen_ai.completion"),
        rule("tool", text, "gen_ai.tool.name"),
        rule("agent", text, "gen_ai.agent.name"),
        rule("conversation", text, "gen_ai.conversation.id"),
        rule("user", text, "gen_ai.user"),
    ),
)
