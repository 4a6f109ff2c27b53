"""What dialects say that the fixtures do not, and what is not taken from them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.pipelines.dialect_parts import START, said, span
from toril.pipelines.spans.dialects import understand
from toril.pipelines.spans.span import Ai, SpanEvent

# Names that the fixtures do not have.


def test_older_conventions_have_their_messages_in_events() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}
    events = [
        SpanEvent(name="gen_ai.system.message", time=START, attributes={"content": "Be short."}),
        SpanEvent(
            name="gen_ai.user.message", time=START, attributes={"gen_ai.event.content": '{"content": "Hi"}'}
        ),
        SpanEvent(name="gen_ai.assistant.message", time=START, attributes={"tool_calls": json.dumps([call])}),
        SpanEvent(name="gen_ai.tool.message", time=START, attributes={"id": "c1", "content": "2"}),
        SpanEvent(
            name="gen_ai.choice",
            time=START,
            attributes={"index": 0, "finish_reason": "stop", "message": '{"content": "Two."}'},
        ),
    ]
    ai = said({"gen_ai.operation.name": "chat"}, events=events)
    assert ai.input == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [{"id": "c1", "name": "find", "arguments": {"q": 1}}]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
    ]
    assert ai.output == [{"role": "assistant", "content": "Two."}]


def test_messages_in_the_event_with_the_details_and_what_the_model_was_told() -> None:
    details = SpanEvent(
        name="gen_ai.client.inference.operation.details",
        time=START,
        attributes={
            "gen_ai.system_instructions": [{"type": "text", "content": "Be short."}],
            "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}],
            "gen_ai.output.messages": '[{"role": "assistant", "parts": [{"type": "blob", "data": "x"}]}]',
        },
    )
    ai = said({"gen_ai.operation.name": "chat"}, events=[details])
    assert ai.input == [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    assert ai.output == [{"role": "assistant", "content": [{"type": "blob", "data": "x"}]}]


def test_prompt_and_completion_in_events_of_2024() -> None:
    events = [
        SpanEvent(
            name="gen_ai.content.prompt",
            time=START,
            attributes={"gen_ai.prompt": '[{"role": "user", "content": "Hi"}]'},
        ),
        SpanEvent(name="gen_ai.content.completion", time=START, attributes={"gen_ai.completion": "Hello."}),
    ]
    ai = said({"gen_ai.system": "openai"}, events=events)
    assert (ai.input, ai.output) == ([{"role": "user", "content": "Hi"}], "Hello.")


def test_langwatch_says_metrics_as_an_object_and_ids_in_two_ways() -> None:
    metrics = '{"promptTokens": 3, "completionTokens": 0, "cost": 0.25, "tokensEstimated": true}'
    base = {"langwatch.span.type": "llm", "langwatch.metrics": metrics, "langwatch.labels": '["a", "b", "a"]'}
    dotted = {"langwatch.thread.id": "t", "langwatch.user.id": 7, "langwatch.customer.id": "c"}
    scored = {"langwatch.thread_id": "t", "langwatch.user_id": "7", "langwatch.customer_id": "c"}
    expected = Ai(
        kind="llm",
        input_tokens=3,
        output_tokens=0,
        tokens_estimated=True,
        cost=250_000_000,
        cost_from="span",
        conversation="t",
        user="7",
        customer="c",
        labels=["a", "b"],
    )
    assert said(base | dotted) == said(base | scored) == expected


def test_langwatch_wraps_values_in_their_types() -> None:
    listed = '{"type": "list", "value": [{"type": "text", "value": "a"}, {"type": "json", "value": 0}]}'
    ai = said({"langwatch.input": listed, "langwatch.output": {"type": "json", "value": False}})
    assert (ai.input, ai.output) == (["a", 0], False)


def test_the_cost_of_the_span_itself_comes_before_that_of_its_metrics() -> None:
    ai = said({"langwatch.span.type": "llm", "langwatch.span.cost": 0, "langwatch.metrics": '{"cost": 1.5}'})
    assert (ai.cost, ai.cost_from) == (0, "span")


def test_openinference_reranks() -> None:
    ai = said(
        {
            "openinference.span.kind": "RERANKER",
            "reranker.model_name": "rank-1",
            "reranker.query": "city",
            "reranker.output_documents.0.document.id": "7",
            "reranker.output_documents.0.document.score": 0.5,
            "llm.token_count.prompt": 4,
            "llm.cost.total": "0.000000001",
        }
    )
    assert ai == Ai(
        kind="rerank",
        response_model="rank-1",
        input="city",
        output=[{"id": "7", "score": 0.5}],
        input_tokens=4,
        cost=1,
        cost_from="span",
    )


def test_parts_of_messages_that_are_numbered_attributes() -> None:
    of = "llm.input_messages.0.message"
    ai = said(
        {
            "openinference.span.kind": "LLM",
            f"{of}.role": "user",
            f"{of}.contents.0.message_content.type": "text",
            f"{of}.contents.0.message_content.text": "What is this?",
            f"{of}.contents.1.message_content.type": "image",
            f"{of}.contents.1.message_content.image.image.url": "https://example.com/a.png",
        }
    )
    image = {"type": "image", "image": {"image": {"url": "https://example.com/a.png"}}}
    assert ai.input == [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]}]


def test_names_from_before_the_conventions() -> None:
    ai = said(
        {
            "llm.vendor": "OpenAI",
            "llm.request.model": "gpt-3",
            "llm.response.model": "gpt-3-b",
            "llm.usage.prompt_tokens": 5,
            "llm.usage.completion_tokens": 6,
            "enduser.id": "u",
        }
    )
    assert ai == Ai(
        kind="llm",
        provider="openai",
        request_model="gpt-3",
        response_model="gpt-3-b",
        input_tokens=5,
        output_tokens=6,
        user="u",
    )


# Rules.


def test_the_first_dialect_that_says_a_field_wins() -> None:
    everything = {
        "langwatch.span.type": "agent",
        "ai.operationId": "ai.toolCall",
        "traceloop.span.kind": "workflow",
        "openinference.span.kind": "CHAIN",
        "gen_ai.operation.name": "chat",
        "llm.token_count.prompt": 2,
        "gen_ai.usage.input_tokens": 1,
    }
    seen = []
    for name in ("gen_ai.operation.name", "openinference.span.kind", "traceloop.span.kind", "ai.operationId"):
        seen.append(said(everything).kind)
        if name == "gen_ai.operation.name":
            assert said(everything).input_tokens == 1
        del everything[name]
    assert [*seen, said(everything).kind] == ["llm", "chain", "workflow", "tool", "agent"]


def test_a_value_that_is_not_valid_leaves_the_field_to_the_next_and_is_recorded() -> None:
    understood = understand(
        span({"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": -1, "llm.token_count.prompt": 4})
    )
    assert understood.ai == Ai(kind="llm", operation="chat", input_tokens=4)
    assert understood.rules == [
        "genai:gen_ai.operation.name",
        "genai:gen_ai.usage.input_tokens:not-a-count",
        "openinference:llm.token_count.prompt",
    ]


@pytest.mark.parametrize("kind", ["agent", "workflow", "chain", "task", "span"])
def test_what_holds_others_counts_neither_tokens_nor_cost(kind: str) -> None:
    understood = understand(
        span(
            {"langwatch.span.type": kind, "langwatch.span.cost": 1, "langwatch.metrics": {"promptTokens": 1}}
        )
    )
    found = understood.ai or Ai()
    assert (found.input_tokens, found.cost, found.cost_from) == (None, None, None)
    assert [rule for rule in understood.rules if rule.endswith(":not-counted")] == [
        "langwatch:langwatch.metrics.promptTokens:not-counted",
        "langwatch:langwatch.span.cost:not-counted",
    ]


def test_a_tool_or_an_evaluation_can_cost_but_uses_no_tokens() -> None:
    for kind in ("tool", "evaluation", "guardrail", "rag"):
        ai = said({"langwatch.span.type": kind, "langwatch.span.cost": 1, "gen_ai.usage.input_tokens": 5})
        assert (ai.input_tokens, ai.cost) == (None, 1_000_000_000)


@pytest.mark.parametrize("operation", ["ai.generateImage", "ai.someNewThing"])
def test_a_new_operation_of_vercel_is_not_counted_twice(operation: str) -> None:
    outer = {"ai.operationId": operation, "ai.model.id": "m", "ai.usage.inputTokens": 5}
    inner = outer | {"ai.operationId": f"{operation}.doIt"}
    assert [(ai.kind, ai.input_tokens) for ai in (said(outer), said(inner))] == [("chain", None), ("llm", 5)]


def test_a_span_of_no_kind_that_names_a_model_is_a_call_of_it() -> None:
    understood = understand(span({"gen_ai.request.model": "m", "gen_ai.usage.input_tokens": 5}))
    assert understood.ai == Ai(kind="llm", request_model="m", input_tokens=5)
    assert understood.rules[0] == "common:names-a-model"


def test_a_response_that_is_fetched_again_is_not_counted_again() -> None:
    fetched = {"gen_ai.operation.name": "fetch_response", "gen_ai.response.model": "m"}
    assert said(fetched | {"gen_ai.usage.input_tokens": 5}).input_tokens is None


@pytest.mark.parametrize(
    "names",
    [
        ["llm.input_messages.1.message.role"],
        ["llm.input_messages.0.message.role", "llm.input_messages.2.message.role"],
        ["llm.input_messages.00.message.role"],
        ["llm.input_messages.first.message.role"],
        ["llm.input_messages.0" + ".message" * 100],
    ],
)
def test_numbered_names_with_gaps_are_no_list(names: list[str]) -> None:
    attributes: dict[str, Any] = dict.fromkeys(names, "user")
    assert said(attributes | {"openinference.span.kind": "LLM", "input.value": "Hi"}).input == "Hi"


@pytest.mark.parametrize("turn", [1, -1])
def test_what_is_below_a_name_wins_over_its_own_value(turn: int) -> None:
    names = [("gen_ai.prompt.0.content.0", "a"), ("gen_ai.prompt.0.content", "b"), ("gen_ai.prompt.0", "c")]
    assert said(dict(names[::turn])).input == [{"role": "user", "content": "a"}]


def test_what_is_said_directly_wins_over_what_is_in_an_object() -> None:
    metrics = {"langwatch.metrics": '{"promptTokens": 1}', "langwatch.metrics.promptTokens": 2}
    assert said({"langwatch.span.type": "llm", **metrics}).input_tokens == 2


def test_a_message_with_what_several_tools_gave_is_several() -> None:
    parts = [
        {"type": "text", "content": "Here:"},
        {"type": "tool_call_response", "id": "c1", "response": 1},
        {"type": "tool-result", "toolCallId": "c2", "output": {"type": "json", "value": {"b": 2}}},
    ]
    given = [
        {"role": "tool", "content": 1, "tool_call_id": "c1"},
        {"role": "tool", "content": {"b": 2}, "tool_call_id": "c2"},
    ]
    both = said({"gen_ai.input.messages": [{"role": "tool", "parts": parts}]}).input
    assert both == [{"role": "tool", "content": "Here:"}, *given]
    assert said({"gen_ai.input.messages": [{"role": "tool", "parts": parts[1:]}]}).input == given


def test_more_than_nine_messages_stay_in_order() -> None:
    of = "gen_ai.prompt"
    attributes = {f"{of}.{at}.content": f"message {at}" for at in range(12)}
    texts = [message["content"] for message in said(attributes).input]
    assert texts == [f"message {at}" for at in range(12)]


@pytest.mark.parametrize(
    ("event", "field"),
    [
        ("First Token Stream Event", "first_token"),
        ("ai.stream.firstChunk", "first_token"),
        ("llm.first_token", "first_token"),
        ("ai.stream.finish", "last_token"),
    ],
)
def test_the_time_of_an_event_counts_from_the_start(event: str, field: str) -> None:
    marked = {"gen_ai.operation.name": "chat"}
    events = [SpanEvent(name=event, time=START + 5)]
    assert getattr(said(marked, events=events), field) == 5
    before = understand(span(marked, events=[SpanEvent(name=event, time=START - 1)]))
    assert getattr(before.ai, field) is None
    assert before.rules[-1].endswith(f"{event}:not-a-time")


def test_the_first_and_the_last_of_several_chunks() -> None:
    times = [START + 30, START + 10, START + 20]
    events = [SpanEvent(name="llm.content.completion.chunk", time=time) for time in times]
    ai = said({"llm.request.type": "chat"}, events=events)
    assert (ai.first_token, ai.last_token) == (10, 30)


def test_a_first_token_in_the_millisecond_of_the_start_is_at_the_start() -> None:
    moment = {"first_token_at": START // 10**6}
    late = msgspec.structs.replace(
        span({"langwatch.span.type": "llm", "langwatch.timestamps": moment}), start=START + 999_999
    )
    ai = understand(late).ai
    assert ai is not None
    assert ai.first_token == 0


# Spans that say nothing of AI.


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"http.request.method": "GET", "url.path": "/", "session.id": "s", "user.id": "u"},
        {"ai.cloud.role": "front", "input.size": 3, "generate": "gen_ai.", "metadata": '{"user_id": "u"}'},
    ],
)
def test_a_span_that_says_nothing_of_ai_is_not_touched(attributes: dict[str, Any]) -> None:
    plain = span(attributes)
    assert understand(plain) is plain
    wrong = msgspec.structs.replace(plain, ai=Ai(kind="llm"), rules=["made up"])
    assert understand(wrong) == plain
