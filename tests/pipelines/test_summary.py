"""A trace's summary is the same however its spans come, and is what plain Python says of them."""

from __future__ import annotations

import cProfile
import json
import pstats
import random
import time
from collections.abc import Callable, Iterable
from fractions import Fraction
from math import floor
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import SCALE
from toril.events import Aggregate, AnyEvent, Event, NewEvent, VersionConflict, fold, state_at, use_clock
from toril.pipelines.spans.recording import SPAN_RECORDED
from toril.pipelines.spans.span import Ai, Resource, Span
from toril.pipelines.spans.summary import (
    MANY,
    MESSAGE,
    PREVIEW,
    SPAN_AGGREGATE,
    WORD,
    TraceSummary,
    recompute,
)
from toril.pipelines.spans.tables import SpanRow
from toril.stores import MemoryEventStore, MemoryProjectionStore

TENANT = "acme"
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACE = Aggregate(TENANT, SPAN_AGGREGATE, TRACE_ID)
S = 1_000_000_000
T0 = 1_790_000_000 * S


def span(number: int = 1, *, ai: dict[str, Any] | None = None, **more: Any) -> Span:
    given: dict[str, Any] = {
        "trace_id": TRACE_ID,
        "span_id": f"{number:016x}",
        "parent_span_id": f"{99:016x}",
        "name": f"step {number}",
        "kind": 1,
        "start": T0 + number * S,
        "end": T0 + number * S + S,
        "status": 0,
        "ai": None if ai is None else Ai(**ai),
    }
    return Span(**{**given, **more})


def row(made: Span, version: int = 1, recorded_at: int | None = None) -> SpanRow:
    return SpanRow(
        tenant=TENANT,
        record_id=made.record_id(TENANT),
        version=version,
        recorded_at=version if recorded_at is None else recorded_at,
        span=made,
    )


def event(stored: SpanRow) -> AnyEvent:
    """As it comes out of the log: its data is what JSON makes of a span."""
    return Event(
        id=stored.record_id,
        tenant=TENANT,
        aggregate_type=TRACE.type,
        aggregate_id=TRACE.id,
        version=stored.version,
        type=SPAN_RECORDED,
        schema_version=1,
        occurred_at=0,
        recorded_at=stored.recorded_at,
        data=msgspec.json.decode(msgspec.json.encode(stored.span)),
    )


def summary(*spans: Span) -> TraceSummary:
    """Of these spans, once in this order, and once the other way round."""
    events = [event(row(one, version)) for version, one in enumerate(spans, 1)]
    made = fold(TraceSummary, events)
    assert TraceSummary.encode(fold(TraceSummary, events[::-1])) == TraceSummary.encode(made)
    return made


# ---------------------------------------------------------------------- spans by chance

words = st.sampled_from(["", "a", "b", "gpt-4o", "ü😀", "x" * 300, '\x00\x1f"\\'])
texts = words | st.sampled_from(["ü" * 3000, "y" * PREVIEW, "z" * (PREVIEW + 1), "€" * 400])
json_values = (
    words
    | st.booleans()
    | st.integers(-3, 3)
    | st.just(0.5)
    | st.lists(words, max_size=2)
    | st.just({"ü": 1, "b": {"d": [None], "c": 2}, "a": "x"})
)
names = st.sampled_from(
    [
        "metadata",
        "metadata.",
        "metadata." + "k" * 300,
        "langwatch.topic_id",
        "langwatch.subtopic_id",
        "langwatch.annotated",
        "langgraph.thread_id",
        "url.full",
        "url.path",
        "http.target",
        "http.status_code",
        "http.response.status_code",
        "exception.message",
        "error.type",
        "other",
        *(f"metadata.{number:03}" for number in range(MANY)),
    ]
)
counts = st.none() | st.integers(0, 5) | st.just(2**62)
ais = st.builds(
    Ai,
    kind=st.sampled_from([None, "llm", "agent", "evaluation", "guardrail"]),
    request_model=st.none() | words,
    response_model=st.none() | words,
    input_tokens=counts,
    output_tokens=counts,
    cache_read_tokens=counts,
    cache_write_tokens=counts,
    reasoning_tokens=counts,
    tokens_estimated=st.sampled_from([None, True, False]),
    first_token=counts,
    last_token=counts,
    input=st.none() | texts | json_values,
    output=st.none() | texts | json_values,
    conversation=st.none() | words,
    user=st.none() | words,
    customer=st.none() | words,
    labels=st.lists(words, max_size=3),
    cost=counts,
)
times = st.sampled_from([0, 1, T0, T0 + 1, T0 + 2, T0 + S, T0 + 7 * S])
resources = st.builds(
    Resource,
    attributes=st.dictionaries(
        st.sampled_from(["service.name", "telemetry.sdk.name", "telemetry.sdk.version"]), words
    ),
)


@st.composite
def traces(draw: st.DrawFn, most: int = 12) -> list[SpanRow]:
    """The spans of a trace, each once, as they were recorded."""
    numbers = draw(st.lists(st.integers(1, 40), max_size=most, unique=True))
    return [
        row(
            msgspec.structs.replace(
                span(number),
                parent_span_id=draw(st.sampled_from([None, f"{1:016x}", f"{99:016x}"])),
                name=draw(words),
                start=draw(times),
                end=draw(times),
                status=draw(st.integers(0, 2)),
                status_message=draw(texts),
                attributes=draw(st.dictionaries(names, st.none() | json_values, max_size=8)),
                resource=draw(resources),
                ai=draw(st.none() | ais),
            ),
            version,
            draw(st.integers(0, 5)),
        )
        for version, number in enumerate(numbers, 1)
    ]


# ---------------------------------------------------------------------- what plain Python says


def as_text(value: Any, most: int) -> str:
    text = (
        value
        if isinstance(value, str)
        else json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    )
    return text.encode()[:most].decode(errors="ignore")


def by_hand(rows: list[SpanRow]) -> dict[str, Any]:
    """The rules of docs/trace-summaries.md once more, over a list of spans, without a mergeable field."""
    spans = [one.span for one in rows]
    nothing = Ai()

    def ai(one: Span) -> Ai:
        return one.ai or nothing

    def root_first(one: Span) -> tuple[Any, ...]:
        return (one.parent_span_id is not None, one.start, one.span_id)

    def first(value: Callable[[Span], Any], most: int = WORD, among: Iterable[Span] = spans) -> str | None:
        for one in sorted(among, key=root_first):
            if value(one) is not None:
                return as_text(value(one), most)
        return None

    def total(name: str) -> int | None:
        found = [getattr(ai(one), name) for one in spans if getattr(ai(one), name) is not None]
        return sum(found) if found else None

    def smallest(found: Iterable[str]) -> list[str]:
        return sorted({as_text(one, WORD) for one in found})[:MANY]

    def preview(
        said: Callable[[Span], Any], instead: tuple[str, ...], order: Callable[[Span], tuple[Any, ...]]
    ) -> tuple[str | None, int | None]:
        open_to = [one for one in spans if ai(one).kind not in ("evaluation", "guardrail")]
        for one in sorted(open_to, key=order):
            if said(one) is not None:
                return as_text(said(one), PREVIEW), len(as_text(said(one), 10**9).encode())
        for one in sorted((one for one in open_to if one.is_root), key=order):
            for name in instead:
                if (found := one.attributes.get(name)) is not None:
                    return as_text(found, PREVIEW), len(as_text(found, 10**9).encode())
        return None, None

    def from_the_end(one: Span) -> tuple[Any, ...]:
        return (not one.is_root, -one.end, -int(one.span_id, 16))

    def message_of(one: Span) -> Any:
        if one.status_message:
            return one.status_message
        said = [one.attributes.get(f) for f in ("exception.message", "error.message", "error.type")]
        return next((found for found in said if found is not None), None)

    failures = sorted(
        (one for one in spans if one.status == 2), key=lambda one: (not one.is_root, one.end, one.span_id)
    )
    messages = [message_of(one) for one in failures if message_of(one) is not None]
    starts = [one.start for one in spans if one.start > 0]
    ends = [max(one.start, one.end) for one in spans if max(one.start, one.end) > 0]
    duration = max(ends) - min(starts) if starts else None
    tokens = total("output_tokens")
    roots = sorted((one for one in spans if one.is_root), key=root_first)
    asked, asked_bytes = preview(
        lambda one: ai(one).input, ("url.full", "http.url", "url.path", "http.target"), root_first
    )
    answered, answered_bytes = preview(
        lambda one: ai(one).output, ("http.response.status_code", "http.status_code"), from_the_end
    )
    named: dict[str, Callable[[Span], Any]] = {
        "sdk.name": lambda one: one.resource.attributes.get("telemetry.sdk.name"),
        "sdk.language": lambda one: one.resource.attributes.get("telemetry.sdk.language"),
        "sdk.version": lambda one: one.resource.attributes.get("telemetry.sdk.version"),
        "service.name": lambda one: one.resource.attributes.get("service.name"),
        "gen_ai.conversation.id": lambda one: ai(one).conversation,
        "langwatch.user_id": lambda one: ai(one).user,
        "langwatch.customer_id": lambda one: ai(one).customer,
        "langwatch.labels": lambda one: ai(one).labels or None,
        "langgraph.thread_id": lambda one: one.attributes.get("langgraph.thread_id"),
        "metadata": lambda one: one.attributes.get("metadata"),
    }
    keys = {key for one in spans for key in one.attributes if key.startswith("metadata.") and len(key) < 256}
    for key in keys:
        named[key] = lambda one, key=key: one.attributes.get(key)  # type: ignore[misc]
    attributes = {key: first(value) for key, value in sorted(named.items())}
    known = [(key, text) for key, text in attributes.items() if text is not None]
    return {
        "spans": len(spans),
        "has_root": bool(roots),
        "root_span_id": roots[0].span_id if roots else None,
        "trace_name": first(lambda one: one.name),
        "service": first(lambda one: one.resource.attributes.get("service.name")),
        "started_at": min(starts, default=None),
        "ended_at": max(ends, default=None),
        "duration": duration,
        "first_token": min((t for one in spans if (t := ai(one).first_token) is not None), default=None),
        "last_token": max((t for one in spans if (t := ai(one).last_token) is not None), default=None),
        "input_tokens": total("input_tokens"),
        "output_tokens": tokens,
        "cache_read_tokens": total("cache_read_tokens"),
        "cache_write_tokens": total("cache_write_tokens"),
        "reasoning_tokens": total("reasoning_tokens"),
        "tokens_estimated": any(ai(one).tokens_estimated for one in spans),
        "tokens_per_second": (
            floor(Fraction(tokens * S, duration) + Fraction(1, 2))
            if tokens is not None and duration
            else None
        ),
        "models": smallest(
            model
            for one in spans
            for model in (ai(one).response_model, ai(one).request_model)
            if model is not None
        ),
        "cost": total("cost"),
        "failed": any(one.status == 2 for one in spans),
        "ok": any(one.status == 1 for one in spans),
        "errors": sum(one.status == 2 for one in spans),
        "error_message": as_text(messages[0], MESSAGE) if messages else None,
        "input": asked,
        "input_bytes": asked_bytes,
        "output": answered,
        "output_bytes": answered_bytes,
        "conversation": first(lambda one: ai(one).conversation),
        "user": first(lambda one: ai(one).user),
        "customer": first(lambda one: ai(one).customer),
        "labels": smallest(label for one in spans for label in ai(one).labels),
        "topic": first(lambda one: one.attributes.get("langwatch.topic_id")),
        "subtopic": first(lambda one: one.attributes.get("langwatch.subtopic_id")),
        "annotated": any(one.attributes.get("langwatch.annotated") is True for one in spans),
        "attributes": dict(known[:MANY]),
        "created_at": min((one.recorded_at for one in rows), default=None),
        "updated_at": max((one.recorded_at for one in rows), default=None),
    }


many = settings(max_examples=int(50 * SCALE))


@pytest.mark.promise
@many
@given(traces())
def test_live_is_batch_a_summary_is_what_plain_python_says(rows: list[SpanRow]) -> None:
    made = fold(TraceSummary, map(event, rows)).as_dict()
    expected = by_hand(rows)
    for name in expected:
        assert made[name] == expected[name], name
    assert made.keys() == expected.keys()


@pytest.mark.promise
@many
@given(traces(), st.randoms(use_true_random=False))
def test_live_is_batch_any_order_any_split_any_tree_of_merges(
    rows: list[SpanRow], chance: random.Random
) -> None:
    raw = TraceSummary.encode(fold(TraceSummary, map(event, rows)))
    parts: list[list[AnyEvent]] = [[] for _ in range(chance.randint(1, 6))]
    for one in chance.sample(rows, len(rows)):
        chance.choice(parts).append(event(one))
    states = [fold(TraceSummary, part) for part in parts]
    while len(states) > 1:
        chance.shuffle(states)
        merged = TraceSummary.merge(states.pop(), states.pop())
        states.append(TraceSummary.decode(TraceSummary.encode(merged)) if chance.random() < 0.5 else merged)
    assert TraceSummary.encode(states[0]) == raw
    assert TraceSummary.decode(raw) == states[0]


@pytest.mark.promise
@many
@given(traces(), st.randoms(use_true_random=False))
def test_a_recomputation_from_stored_spans_is_the_same(rows: list[SpanRow], chance: random.Random) -> None:
    live = fold(TraceSummary, map(event, rows))
    stored = chance.sample(rows * 2, len(rows) * 2)  # a table may give a row twice, in any order
    assert TraceSummary.encode(recompute(stored)) == TraceSummary.encode(live)


@pytest.mark.promise
async def test_once_per_state_what_is_delivered_again_is_in_the_summary_once(rng: random.Random) -> None:
    """Sent again: dropped by its record id. Processed again: refused by the version of the state."""
    for _ in range(int(5 * SCALE)):
        events, states, clock = MemoryEventStore(), MemoryProjectionStore(), iter(range(10**6))
        spans = [span(n, ai={"cost": n, "labels": [f"l{n}"]}, status=n % 3) for n in range(1, 30)]
        rows: dict[str, SpanRow] = {}
        with use_clock(lambda clock=clock: next(clock)):  # type: ignore[misc]
            for made in rng.sample(spans * 3, len(spans) * 3):
                ident = made.record_id(TENANT)
                new = NewEvent(type=SPAN_RECORDED, id=ident, data=made)
                done = await events.append(TRACE, [new], idempotency_key=ident)
                if not done.repeated:
                    rows[ident] = row(made, done.last_version, done.recorded_at)
                if rng.random() < 0.3:
                    await process(events, states, rng)
            await process(events, states, rng)
        found = await states.load(TraceSummary, TRACE)
        assert found is not None
        assert (found.version, found.state.spans) == (len(spans), len(spans))
        assert found.state.cost == sum(range(1, 30))
        expected = TraceSummary.encode(recompute(rows.values()))
        assert TraceSummary.encode(found.state) == expected
        again = await state_at(events, TraceSummary, TRACE)
        assert TraceSummary.encode(again.state) == expected


async def process(events: MemoryEventStore, states: MemoryProjectionStore, rng: random.Random) -> None:
    """Bring the stored summary up to date, now and then by two that know nothing of each other."""
    held = await states.load(TraceSummary, TRACE)
    version, state = (held.version, held.state) if held else (0, TraceSummary.initial())
    new = (await events.read(TRACE, from_version=version + 1)).events
    if not new:
        return
    for attempt in range(rng.choice([1, 2])):
        made = fold(TraceSummary, new, state)
        try:
            await states.save(TraceSummary, TRACE, made, version=new[-1].version, expected_version=version)
        except VersionConflict:
            assert attempt == 1


# ---------------------------------------------------------------------- size and time


def long_trace(number: int) -> AnyEvent:
    """A span that gives every field something new."""
    return event(
        row(
            span(
                number,
                parent_span_id=None if number == 70_000 else f"{1:016x}",
                status=number % 3,
                status_message=f"broken {number}",
                attributes={f"metadata.{number}": number, "langwatch.topic_id": f"t{number}"},
                ai={
                    "request_model": f"model-{number}",
                    "labels": [f"l{number}", f"m{number}"],
                    "input": f"question {number}",
                    "output": f"answer {number}",
                    "input_tokens": number,
                    "cost": number,
                    "user": f"user {number}",
                },
            ),
            number,
        )
    )


@pytest.mark.promise
def test_a_trace_of_100_000_spans_costs_linear_time_and_no_more_room() -> None:
    order = list(range(1, 100_001))
    random.Random(7).shuffle(order)
    state, per_chunk, room, calls = TraceSummary.initial(), [], [], []
    for begin in range(0, len(order), 10_000):
        events = [long_trace(number) for number in order[begin : begin + 10_000]]
        started = time.thread_time()
        state = fold(TraceSummary, events, state)
        per_chunk.append(time.thread_time() - started)
        room.append(len(TraceSummary.encode(state)))
        calls.append(calls_of(lambda state=state: TraceSummary.apply(state, long_trace(200_000))))  # type: ignore[misc]
    assert (state.spans, state.cost) == (100_000, sum(order))
    assert max(calls) <= min(calls) * 1.02  # an apply does as much at the end as at the beginning
    assert max(room) - min(room) < 500  # numbers get longer, nothing else grows
    assert min(per_chunk[-3:]) < 2 * min(per_chunk[:3])


def calls_of(work: Callable[[], object]) -> int:
    profile = cProfile.Profile()
    profile.runcall(work)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_a_state_is_bounded_in_bytes_whatever_spans_say() -> None:
    """Bytes, not only numbers: every text at its longest, more of each than is kept."""
    big = "ü" * 5000
    spans = [
        span(
            number,
            parent_span_id=None,
            name=big,
            status=2,
            status_message=big,
            attributes={f"metadata.{number}.{n}": f"{n}{big}" for n in range(50)}
            | {"langwatch.topic_id": big, "langwatch.subtopic_id": big, "metadata": big},
            resource=Resource(attributes={"service.name": big, "telemetry.sdk.name": big}),
            ai={
                "request_model": f"{number}{big}",
                "labels": [f"{number}.{n}{big}" for n in range(50)],
                "input": [big],
                "output": {"text": big},
                "conversation": big,
                "user": big,
                "customer": big,
            },
        )
        for number in range(1, 100)
    ]
    made = fold(TraceSummary, (event(row(one, version)) for version, one in enumerate(spans, 1)))
    assert len(made.models) == len(made.labels) == len(made.attributes) == MANY
    texts_in_it = 2 * PREVIEW + MESSAGE + 8 * WORD + 3 * MANY * WORD
    assert len(TraceSummary.encode(made)) < texts_in_it + 16 * 1024


# ---------------------------------------------------------------------- rule by rule


def test_the_declaration_is_data_that_an_engine_can_compute() -> None:
    assert TraceSummary.compilable
    assert TraceSummary.name == "trace_summary"
    assert TraceSummary.event_types == {SPAN_RECORDED}
    described = TraceSummary.describe()
    assert msgspec.json.decode(msgspec.json.encode(described)) == described


def test_nothing_said_is_none_and_zero_is_zero() -> None:
    bare = summary(span())
    assert (bare.cost, bare.input_tokens, bare.first_token, bare.input) == (None, None, None, None)
    zero = summary(span(ai={"cost": 0, "input_tokens": 0, "first_token": 0, "input": 0}))
    assert (zero.cost, zero.input_tokens, zero.first_token, zero.input) == (0, 0, 0, "0")


def test_the_root_speaks_first_even_when_it_comes_last() -> None:
    child = span(1, ai={"input": "from the child", "output": "child's", "user": "u1"})
    root = span(5, parent_span_id=None, name="root", ai={"input": "from the root", "output": "root's"})
    later = span(9, ai={"output": "of the last to end", "user": "u9"})
    made = summary(child, later, root)
    assert (made.input, made.output) == ("from the root", "root's")
    assert (made.trace_name, made.root_span_id, made.has_root) == ("root", root.span_id, True)
    assert made.user == "u1"  # the root says nothing of it, and this is the earliest that does


def test_without_a_root_the_earliest_asks_and_the_last_to_end_answers() -> None:
    early = span(1, end=T0 + 9 * S, ai={"input": "first", "output": "ends last"})
    late = span(2, end=T0 + 3 * S, ai={"input": "second", "output": "ends first"})
    made = summary(late, early)
    assert (made.input, made.output, made.trace_name) == ("first", "ends last", "step 1")
    assert (made.has_root, made.root_span_id) == (False, None)


def test_what_judges_neither_asks_nor_answers() -> None:
    judge = span(1, parent_span_id=None, ai={"kind": "evaluation", "input": "is it good?", "output": "yes"})
    guard = span(2, ai={"kind": "guardrail", "input": "is it safe?", "output": "no"})
    model = span(3, ai={"kind": "llm", "input": "hello", "output": "world"})
    assert (summary(judge, guard, model).input, summary(judge, guard, model).output) == ("hello", "world")
    assert summary(judge, guard).input is None


def test_a_request_speaks_where_no_model_does() -> None:
    http = {"url.path": "/chat", "http.response.status_code": 200}
    root = span(1, parent_span_id=None, attributes=http)
    call = span(2, attributes={"url.full": "https://models.example/v1", "http.response.status_code": 429})
    made = summary(root, call)
    assert (made.input, made.output) == ("/chat", "200")
    asked = span(3, ai={"input": [{"role": "user", "content": "hi"}]})
    assert summary(root, call, asked).input == '[{"content":"hi","role":"user"}]'
    assert summary(root, call, asked).output == "200"


def test_a_preview_is_cut_and_says_how_much_there_was() -> None:
    made = summary(span(ai={"input": "ü" * 5000, "output": "short"}))
    assert made.input == "ü" * (PREVIEW // 2)
    assert (made.input_bytes, made.output_bytes) == (10_000, 5)


def test_times_that_are_none_and_ends_before_starts() -> None:
    unset = summary(span(start=0, end=0))
    assert (unset.started_at, unset.ended_at, unset.duration) == (None, None, None)
    backwards = summary(span(start=T0 + 5, end=T0))
    assert (backwards.started_at, backwards.ended_at, backwards.duration) == (T0 + 5, T0 + 5, 0)
    no_start = summary(span(1, start=0, end=T0), span(2, start=T0 + 5, end=T0 + 3))
    assert (no_start.started_at, no_start.duration) == (T0 + 5, 0)
    unended = summary(span(1, start=T0, end=0), span(2, start=T0 + 5, end=T0 + 8))
    assert unended.duration == 8


def test_tokens_per_second_are_of_the_whole_trace_and_rounded_half_up() -> None:
    assert summary(span(start=T0, end=T0 + 2 * S, ai={"output_tokens": 5})).tokens_per_second == 3
    assert summary(span(start=T0, end=T0, ai={"output_tokens": 5})).tokens_per_second is None
    assert summary(span(start=T0, end=T0 + S, ai={"input_tokens": 5})).tokens_per_second is None


def test_the_error_of_the_root_goes_before_the_first_to_fail() -> None:
    inner = span(3, status=2, status_message="no route", end=T0 + 4 * S)
    outer = span(2, status=2, status_message="call failed", end=T0 + 5 * S)
    root = span(1, parent_span_id=None, status=2, end=T0 + 9 * S, attributes={"exception.message": "gave up"})
    fine = span(4, status=1, status_message="not an error")
    made = summary(outer, fine, inner)
    assert (made.error_message, made.errors, made.failed, made.ok) == ("no route", 2, True, True)
    assert summary(outer, inner, root).error_message == "gave up"
    assert summary(fine).error_message is None


def test_attributes_are_first_wins_from_the_root() -> None:
    root = span(5, parent_span_id=None, attributes={"metadata.env": "prod", "other": 1})
    child = span(1, attributes={"metadata.env": "test", "metadata.n": 5}, ai={"labels": ["x"], "user": "u"})
    assert summary(root, child).attributes == {
        "langwatch.labels": '["x"]',
        "langwatch.user_id": "u",
        "metadata.env": "prod",
        "metadata.n": "5",
    }
