"""Whatever is sent, it is understood without an error, and always the same."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import SCALE
from tests.pipelines.dialect_parts import START, span
from toril.pipelines.spans.dialects import DIALECTS, understand
from toril.pipelines.spans.span import Span, SpanEvent

NAMES = sorted({name for dialect in DIALECTS for rule in dialect.rules for name in rule.names})
KIND_NAMES = sorted({name for dialect in DIALECTS for name, _ in dialect.kinds})
KINDS = ["chat", "embeddings", "invoke_agent", "LLM", "TOOL", "rag", "ai.embed.doEmbed", "ai.generateText"]
OBJECTS = ["metadata", "langwatch.metrics", "langwatch.timestamps", "llm.invocation_parameters"]
PREFIXES = [
    "llm.input_messages",
    "gen_ai.prompt",
    "retrieval.documents",
    "embedding.embeddings",
    "llm.prompts",
]

numbers = st.integers() | st.integers(10**300, 10**400) | st.floats(allow_nan=False, allow_infinity=False)
texts = (
    st.text(max_size=8)
    | st.sampled_from(
        ["[", '{"a":', '[{"role": "user"}]', '{"type": "text", "value": [1]}', "1e999", "\ud800"]
    )
    | st.integers(0, 3000).map(lambda depth: "[" * depth + "]" * depth)
)
words = st.sampled_from(
    ["role", "content", "parts", "type", "tool_calls", "message", "text", "tool_call", "function", "value"]
)
anything = st.recursive(
    st.none()
    | st.booleans()
    | numbers
    | texts
    | st.sampled_from(["user", "text", "tool_call", "tool-result"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(words | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
as_sent = anything | anything.map(lambda value: json.dumps(value))
numbered = st.builds(
    lambda prefix, at, rest: ".".join([prefix, str(at), *rest]),
    st.sampled_from(PREFIXES),
    st.integers(0, 3),
    st.lists(words | st.sampled_from(["0", "1", "", "document", "prompt", "embedding"]), max_size=5),
)
attribute_sets = st.builds(
    lambda kinds, rest: {**rest, **kinds},
    st.dictionaries(st.sampled_from(KIND_NAMES), st.sampled_from(KINDS), max_size=2),
    st.dictionaries(st.sampled_from(NAMES + OBJECTS + KIND_NAMES) | numbered, as_sent, max_size=12),
)
event_lists = st.lists(
    st.builds(
        SpanEvent,
        name=st.sampled_from(
            [
                "gen_ai.user.message",
                "gen_ai.choice",
                "gen_ai.content.prompt",
                "gen_ai.client.inference.operation.details",
                "gen_ai.content.completion.chunk",
                "First Token Stream Event",
            ]
        ),
        time=st.integers(START - 5, START + 5),
        attributes=st.dictionaries(
            st.sampled_from(["role", "content", "message", "tool_calls", "gen_ai.event.content", *NAMES]),
            as_sent,
            max_size=4,
        ),
    ),
    max_size=3,
)


def _is_json(value: Any) -> bool:
    """Half a character is no text that can be written."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return False
    return True


@pytest.mark.promise
@settings(max_examples=int(100 * SCALE))
@given(attribute_sets, event_lists, st.randoms(use_true_random=False))
def test_whatever_is_sent_it_is_understood_the_same(
    attributes: dict[str, Any], events: list[SpanEvent], shuffle: random.Random
) -> None:
    given_span = span(attributes, events=events)
    understood = understand(given_span)
    assert understand(understood) == understood
    assert msgspec.structs.replace(understood, ai=None, rules=[]) == given_span
    names = list(attributes)
    shuffle.shuffle(names)
    again = understand(span({name: attributes[name] for name in names}, events=events))
    assert (again.ai, again.rules) == (understood.ai, understood.rules)
    assert len(set(understood.rules)) == len(understood.rules)
    if _is_json(given_span):
        assert msgspec.json.decode(msgspec.json.encode(understood), type=Span) == understood
    ai = understood.ai
    if ai is None:
        return
    assert ai.cost is None or 0 <= ai.cost < 2**63
    for count in (ai.input_tokens, ai.output_tokens, ai.first_token, ai.last_token):
        assert count is None or (type(count) is int and 0 <= count < 2**63)
    told = (ai.operation, ai.provider, ai.request_model, ai.response_model, ai.tool, ai.agent, ai.user)
    assert all(text is None or (isinstance(text, str) and text) for text in told)
    assert all(isinstance(label, str) for label in ai.labels)
