"""What a span costs: exact, by a table that says which it was, and never guessed."""

from __future__ import annotations

import json
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toril.errors import InvalidValue
from toril.pipelines.spans.prices import Price, PriceTable, default_prices, priced
from toril.pipelines.spans.prices.matching import LONGEST_NAME, candidates
from toril.pipelines.spans.prices.table import REMEMBERED, UNIT
from toril.pipelines.spans.span import Ai, Span


def span(**ai: Any) -> Span:
    return Span(trace_id="a" * 32, span_id="b" * 16, name="x", kind=0, start=1, end=2, status=0, ai=Ai(**ai))


def cost(**ai: Any) -> tuple[int | None, str | None]:
    made = priced(span(**ai), default_prices()).ai
    assert made is not None
    return made.cost, made.cost_from


# ---------------------------------------------------------------------- amounts


def test_a_known_model_with_tokens_has_a_cost_and_its_source() -> None:
    version = default_prices().version
    assert cost(request_model="gpt-4o", input_tokens=1000, output_tokens=100) == (3_500_000, version)
    assert cost(request_model="gpt-4o", input_tokens=1) == (2500, version)
    assert cost(response_model="text-embedding-3-small", input_tokens=7) == (140, version)


def test_cached_tokens_cost_their_own_price_and_not_that_of_input_too() -> None:
    usage = {"request_model": "claude-sonnet-4-5", "input_tokens": 1000, "output_tokens": 0}
    assert cost(**usage)[0] == 3_000_000
    assert cost(**usage, cache_read_tokens=1000)[0] == 300_000
    assert cost(**usage, cache_read_tokens=600, cache_write_tokens=400)[0] == 600 * 300 + 400 * 3750
    assert cost(**usage, cache_read_tokens=2000)[0] == 600_000  # more than there were: none is below zero


def test_a_cache_without_a_price_costs_what_input_does() -> None:
    price = Price(input=10, output=0)
    assert price.cost(3_000_000, 0, 1_000_000, 1_000_000) == 30


def test_zero_tokens_cost_zero_and_none_cost_nobody_knows_what() -> None:
    assert cost(request_model="gpt-4o", input_tokens=0, output_tokens=0)[0] == 0
    for unknown in (
        {"request_model": "gpt-4o"},
        {"request_model": "gpt-4o", "cache_read_tokens": 5},
        {"request_model": "gpt-4o", "input_tokens": -1},
        {"request_model": "my-own-model", "input_tokens": 5},
        {"input_tokens": 5},
    ):
        assert cost(**unknown) == (None, None)
    bare = msgspec.structs.replace(span(), ai=None)
    assert priced(bare, default_prices()) is bare


def test_a_cost_that_the_span_states_is_kept_zero_too() -> None:
    for stated in (0, 17):
        given = span(request_model="gpt-4o", input_tokens=9, cost=stated, cost_from="span")
        assert priced(given, default_prices()) is given


def test_the_model_that_answered_goes_before_the_one_that_was_asked_for() -> None:
    both = {"response_model": "gpt-4o-mini-2024-07-18", "request_model": "gpt-4o", "input_tokens": 1000}
    assert cost(**both)[0] == 150_000
    assert cost(**{**both, "response_model": "deployment-7"})[0] == 2_500_000


@given(
    st.tuples(*[st.integers(0, 10**12)] * 4),
    st.tuples(*[st.integers(0, 10**11)] * 4),
)
def test_a_cost_is_exact_and_rounded_once(tokens: tuple[int, ...], prices: tuple[int, ...]) -> None:
    asked, answered, read, written = tokens
    price = Price(input=prices[0], output=prices[1], cache_read=prices[2], cache_write=prices[3])
    exact = (
        Decimal(max(0, asked - read - written)) * prices[0]
        + Decimal(answered) * prices[1]
        + Decimal(read) * prices[2]
        + Decimal(written) * prices[3]
    ).scaleb(-6)
    assert price.cost(*tokens) == int(exact.quantize(Decimal(1), rounding=ROUND_HALF_EVEN))


@pytest.mark.parametrize(("tokens", "expected"), [(1, 0), (3, 2), (5, 2), (7, 4), (2, 1)])
def test_a_half_goes_to_the_even_one(tokens: int, expected: int) -> None:
    assert Price(input=500_000, output=0).cost(tokens, 0) == expected


# ---------------------------------------------------------------------- names

SAME = {
    "gpt-4o": [
        "gpt-4o",
        " GPT-4o ",
        "gpt-4o-2024-08-06",
        "openai/gpt-4o",
        "openrouter/openai/gpt-4o-2024-11-20",
        "azure/gpt-4o",
    ],
    "claude-3-5-sonnet": [
        "claude-3-5-sonnet-20241022",
        "claude-3-5-sonnet-latest",
        "claude-3-5-sonnet@20240620",
        "anthropic/claude-3.5-sonnet",
        "anthropic.claude-3-5-sonnet-20240620-v1:0",
        "us.anthropic.claude-3-5-sonnet-20241022-v2:0",
        "bedrock/eu.anthropic.claude-3-5-sonnet-20241022-v2:0",
        "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-3-5-sonnet-20241022-v2:0",
    ],
    "gemini-2.5-flash": [
        "models/gemini-2.5-flash",
        "gemini-2.5-flash-preview-05-20",
        "gemini-2.5-flash-preview-09-2025",
        "gemini-2.5-flash-001",
    ],
    "gpt-4": ["gpt-4-0613"],
    "gpt-4-turbo": ["gpt-4-1106-preview", "gpt-4-turbo-2024-04-09"],
    "titan-embed-text-v2": ["amazon.titan-embed-text-v2:0"],
    "nova-pro": ["us.amazon.nova-pro-v1:0"],
    "gpt-3.5-turbo": ["gpt-35-turbo"],
}


@pytest.mark.parametrize("name", [(known, said) for known, names in SAME.items() for said in names])
def test_a_model_is_known_by_the_names_that_providers_give_it(name: tuple[str, str]) -> None:
    known, said = name
    table = default_prices()
    assert table.price(known) is not None
    assert table.price(said) is table.price(known)


def test_an_exact_name_goes_before_a_shortened_one() -> None:
    table = default_prices()
    assert table.price("gpt-4o-2024-05-13") != table.price("gpt-4o")
    assert table.price("claude-opus-4-1") != table.price("claude-opus-4-5")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-",
        "/",
        "latest",
        "gpt",
        "gpt-4o-realtime-preview",
        "gpt-4o:free",
        "ft:gpt-4o:me::1",
        "claude-opus-4-99",
        "llama3:70b",
        "x" * 300,
    ],
)
def test_a_model_that_is_not_known_has_no_price(name: str) -> None:
    assert default_prices().price(name) is None


def test_a_price_of_a_provider_is_for_that_provider_only() -> None:
    table = default_prices()
    assert table.price("openai/gpt-oss-120b", "groq") is not None
    assert table.price("groq/openai/gpt-oss-120b") is not None
    assert table.price("gpt-oss-120b", "ollama") is None
    assert table.price("gpt-oss-120b") is None
    assert table.price("meta.llama3-3-70b-instruct-v1:0", "aws.bedrock") is not None  # an alias of bedrock


@given(st.text("-0123456789v.:/@al", max_size=LONGEST_NAME))
def test_no_name_takes_long(name: str) -> None:
    found = candidates(name)
    assert len(found) <= LONGEST_NAME
    assert len(set(found)) == len(found)


def test_what_is_remembered_is_bounded() -> None:
    table = PriceTable("1", {"a": Price(input=1, output=1)})
    for number in range(REMEMBERED + 100):
        table.price(f"model-{number}")
    assert table._remembered.cache_info().currsize == REMEMBERED


# ---------------------------------------------------------------------- tables


def written(**change: Any) -> bytes:
    table: dict[str, Any] = {
        "version": "acme-7",
        "currency": "USD",
        "unit": UNIT,
        "models": {"gpt-4o": {"input": 1_000_000_000, "output": 0}},
    }
    return json.dumps({**table, **change}).encode()


def test_a_table_of_ones_own_goes_before_that_of_toril(tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    file.write_bytes(
        written(
            models={
                "GPT-4o": {"input": 1_000_000_000, "output": 0},
                "our/llama": {"input": 5, "output": 5, "aliases": ["llama-at-home"]},
                "azure/gpt-4o-mini": {"input": 7, "output": 7},
            },
            providers={"az": "azure"},
        )
    )
    table = PriceTable.load(file)
    assert table.version == f"acme-7+{default_prices().version}"
    made = priced(span(request_model="gpt-4o-2024-08-06", input_tokens=1000), table).ai
    assert made is not None
    assert (made.cost, made.cost_from) == (1_000_000, table.version)
    assert table.price("llama-at-home") == Price(input=5, output=5)
    assert table.price("o3") == default_prices().price("o3")
    assert table.price("gpt-4o-mini", "az") == Price(input=7, output=7)
    assert table.price("gpt-4o-mini", "openai") == default_prices().price("gpt-4o-mini")


PLAIN = {"input": 1, "output": 1}
WRONG: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"{", "price table .* JSON, which this is not"),
    "no object": (b"[]", "price table .* an object"),
    "no version": (b'{"currency": "USD"}', "price table .* must have models, unit, version"),
    "a name too many": (written(model={}), r"price table \['model'\] .* it can have currency, models, note"),
    "a number as version": (written(version=7), "version 7 .* printable"),
    "the version span": (written(version="span"), "version 'span'"),
    "another currency": (written(currency="EUR"), "currency 'EUR' .* 'USD'"),
    "another unit": (written(unit="USD per token"), "unit 'USD per token'"),
    "models in a list": (written(models=[]), "models .* an object"),
    "a price of 2.5": (
        written(models={"a": {**PLAIN, "input": 2.5}}),
        "models.a.input 2.5 .* whole nano-USD",
    ),
    "a price of true": (written(models={"a": {**PLAIN, "cache_read": True}}), "models.a.cache_read True"),
    "a price below zero": (written(models={"a": {**PLAIN, "output": -1}}), "models.a.output -1"),
    "a price beyond": (written(models={"a": {**PLAIN, "output": 10**16}}), "models.a.output 10000"),
    "no output": (written(models={"a": {"input": 1}}), r"models.a \['input'\] .* must have output"),
    "a misspelt price": (written(models={"a": {**PLAIN, "cached": 1}}), r"models.a \['cached'\]"),
    "an alias as text": (written(models={"a": {**PLAIN, "aliases": "b"}}), "models.a.aliases 'b'"),
    "an empty alias": (written(models={"a": {**PLAIN, "aliases": [""]}}), "models.a ''"),
    "a name twice": (written(models={"a.b": PLAIN, "A-b": {**PLAIN}}), "models.A-b 'A-b' .* each name once"),
    "a provider as number": (written(providers={"az": 5}), "providers.az 5"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_table_that_is_wrong_says_where_and_why(what: str) -> None:
    raw, words = WRONG[what]
    with pytest.raises(InvalidValue, match=words):
        PriceTable.parse(raw)


def test_the_list_prices_are_plausible() -> None:
    """No typing errors by a factor: a cache is cheaper to read than input, and output dearer than it."""
    table = default_prices()
    assert len(table) > 150
    for name, price in table._prices.items():
        assert 0 < price.input <= 150 * 10**9, name
        assert price.output == 0 or price.input <= price.output <= 10 * price.input, name
        assert price.cache_read is None or price.input // 60 <= price.cache_read <= price.input // 2, name
        assert price.cache_write is None or price.input <= price.cache_write <= 2 * price.input, name
