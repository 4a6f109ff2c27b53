"""Which values are counts, amounts and JSON, and which are not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.pipelines.dialect_parts import said, span
from toril.pipelines.spans.dialects import understand


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (0, 0),
        (12, 12),
        (12.0, 12),
        ("12", 12),
        ("0", 0),
        (2**63 - 1, 2**63 - 1),
        (-1, None),
        (2**63, None),
        (1.5, None),
        (True, None),
        ("", None),
        ("twelve", None),
        ("1" * 100, None),
        ("²", None),
        ([12], None),
        ({"$double": "NaN"}, None),
        (1e300, None),
    ],
)
def test_tokens_are_whole_numbers(value: Any, count: int | None) -> None:
    understood = understand(span({"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": value}))
    assert understood.ai is not None
    assert understood.ai.input_tokens == count
    refused = "genai:gen_ai.usage.input_tokens:not-a-count"
    assert (refused in understood.rules) == (count is None)


@pytest.mark.parametrize(
    ("value", "nanos"),
    [
        (0, 0),
        (0.0, 0),
        (-0.0, 0),
        (3, 3_000_000_000),
        (0.1, 100_000_000),
        (1e-9, 1),
        (0.5e-9, 0),
        (1.5e-9, 2),
        (2.5e-9, 2),
        (0.000123456789, 123_457),
        ("0.30", 300_000_000),
        ("1e-12", 0),
        ("1e-999999", 0),
        (9_000_000_000, 9_000_000_000_000_000_000),
        (10_000_000_000, None),
        (10**400, None),
        (-0.01, None),
        ("1e999999", None),
        ("1e" + "9" * 40, None),
        ("NaN", None),
        ("Infinity", None),
        ("free", None),
        ("9" * 100, None),
        (True, None),
        ({"$double": "Infinity"}, None),
    ],
)
def test_money_is_exact(value: Any, nanos: int | None) -> None:
    understood = understand(span({"langwatch.span.type": "llm", "langwatch.span.cost": value}))
    assert understood.ai is not None
    assert understood.ai.cost == nanos
    assert understood.ai.cost_from == (None if nanos is None else "span")
    assert ("langwatch:langwatch.span.cost:not-an-amount" in understood.rules) == (nanos is None)


def test_text_too_large_or_too_deep_stays_text() -> None:
    large = json.dumps([{"role": "user", "content": "x" * 1_000_000}])
    deep = "[" * 65 + "]" * 65
    broken = '[{"role": "user"'
    for text in (large, deep, broken, "[" * 100_000):
        assert said({"gen_ai.input.messages": text}).input == text
    assert said({"gen_ai.input.messages": "[" * 64 + "]" * 64}).input != "[" * 64 + "]" * 64
