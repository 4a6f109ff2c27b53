"""Spans as real instrumentations emit them, in one form.

The fixtures are made by tools/fixtures. ``*.expected.json`` has all that is made of them; whether that is
what was said to the model, and what it answered, is compared with the facts, which stand here by hand.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from toril.pipelines.spans.dialects import DIALECTS, understand
from toril.pipelines.spans.otlp import decode_json
from toril.pipelines.spans.span import Span

DATA = Path(__file__).parent / "data" / "dialects"
DOCS = Path(__file__).parents[2] / "docs" / "dialects.md"
FIXTURES = sorted(path.stem for path in DATA.glob("*.json") if not path.name.endswith(".expected.json"))


def emitted(fixture: str) -> list[Span]:
    """The spans of a fixture, in the order in which they were exported."""
    exports = json.loads((DATA / f"{fixture}.json").read_text())["exports"]
    decoded = [decode_json(json.dumps(export).encode()) for export in exports]
    assert [refused for each in decoded for refused in each.refused] == []
    return [span for each in decoded for span in each.spans]


# What real instrumentations say.


def test_there_is_a_fixture_of_each_dialect() -> None:
    assert FIXTURES == [
        "genai",
        "genai_current",
        "genai_old",
        "langwatch",
        "openinference",
        "traceloop",
        "traceloop_old",
        "vercel",
    ]
    for fixture in FIXTURES:
        packages = json.loads((DATA / f"{fixture}.json").read_text())["packages"]
        assert len(packages) >= 3
        assert all(re.match(r"\d+\.\d+", version) for version in packages.values())


@pytest.mark.parametrize("fixture", FIXTURES)
def test_all_that_is_made_of_a_fixture(fixture: str) -> None:
    expected = json.loads((DATA / f"{fixture}.expected.json").read_text())
    made = []
    for each in emitted(fixture):
        understood = understand(each)
        assert msgspec.structs.replace(understood, ai=None, rules=[]) == each
        assert understand(understood) == understood
        made.append(
            {
                "span_id": each.span_id,
                "name": each.name,
                "ai": msgspec.to_builtins(understood.ai),
                "rules": understood.rules,
            }
        )
    assert made == expected


SYSTEM = {"role": "system", "content": "Answer in one sentence."}
WEATHER = {"role": "user", "content": "What is the weather in Paris?"}
CALL = {
    "role": "assistant",
    "tool_calls": [{"id": "call_weather_1", "name": "get_weather", "arguments": {"city": "Paris"}}],
}
GIVEN = {"role": "tool", "content": "18 degrees in Paris", "tool_call_id": "call_weather_1"}
AFTER = {"role": "assistant", "content": "It is 18 degrees in Paris."}

ASK = (
    [SYSTEM, {"role": "user", "content": "What is the capital of France?"}],
    [{"role": "assistant", "content": "Paris is the capital of France."}],
)
STREAM = ([{"role": "user", "content": "Hello!"}], [{"role": "assistant", "content": "Nice to meet you."}])
FAIL = ([{"role": "user", "content": "Now!"}], None)
TOOL = ([WEATHER], [CALL])
ANSWER = ([WEATHER, CALL, GIVEN], [AFTER])
OBJECT = ([{"role": "user", "content": "Which city?"}], {"city": "Paris"})
OWN = ([{"role": "user", "content": "Is it warm?"}], "Yes.")

TALKS = {
    "genai": [ASK, STREAM, FAIL, TOOL, ANSWER],
    "genai_current": [ASK, STREAM, FAIL, TOOL, ANSWER],
    "genai_old": [(None, None)] * 5,
    "langwatch": [ASK, STREAM, FAIL, TOOL, ANSWER, OWN],
    "openinference": [ASK, STREAM, FAIL, TOOL, ANSWER],
    "traceloop": [ASK, STREAM, FAIL, TOOL, ANSWER],
    "traceloop_old": [ASK, STREAM, FAIL, TOOL, ANSWER],
    "vercel": [ASK, STREAM, TOOL, ANSWER, FAIL, OBJECT],
}


@pytest.mark.parametrize("fixture", FIXTURES)
def test_the_same_talk_is_the_same_in_every_dialect(fixture: str) -> None:
    spans = sorted(map(understand, emitted(fixture)), key=lambda each: each.start)
    talks = [(each.ai.input, each.ai.output) for each in spans if each.ai and each.ai.kind == "llm"]
    assert talks == TALKS[fixture]


USED = {
    # asked 21 + 9, streamed 13 + 7, tool 40 + 11 and 60 + 12, texts to vectors 6
    "genai": (140, 39),
    "genai_current": (140, 39),
    "genai_old": (134, 39),  # without vectors
    "langwatch": (142, 39),  # without vectors, with the own model's 8 + 0
    "openinference": (140, 39),
    "traceloop": (140, 39),
    "traceloop_old": (127, 32),  # it does not say what was used by what was streamed
    "vercel": (173, 47),  # with the object's 33 + 8
}


@pytest.mark.parametrize("fixture", FIXTURES)
def test_tokens_are_counted_once(fixture: str) -> None:
    found = [ai for each in emitted(fixture) if (ai := understand(each).ai)]
    assert (sum(ai.input_tokens or 0 for ai in found), sum(ai.output_tokens or 0 for ai in found)) == USED[
        fixture
    ]


@pytest.mark.parametrize("fixture", sorted(set(FIXTURES) - {"genai_old", "traceloop_old"}))
def test_the_tool_is_called_by_name_with_what_the_model_asked_for(fixture: str) -> None:
    (tool,) = [ai for each in emitted(fixture) if (ai := understand(each).ai) and ai.kind == "tool"]
    city = {"city": "Paris"}
    assert tool.tool == "get_weather"
    assert tool.input == ({"args": [], "kwargs": city} if fixture == "traceloop" else city)
    assert tool.output == "18 degrees in Paris"


# What users are told.


def test_the_documentation_has_every_name() -> None:
    documented = DOCS.read_text()
    missing = [
        f"{dialect.name}: {name}"
        for dialect in DIALECTS
        for name in [*(name for name, _ in dialect.kinds), *(n for rule in dialect.rules for n in rule.names)]
        if f"`{name}`" not in documented
    ]
    assert missing == []
