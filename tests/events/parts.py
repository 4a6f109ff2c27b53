"""Events for tests, by hand and by chance."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from toril.events import (
    Aggregate,
    AnyEvent,
    Count,
    DeclaredProjection,
    Derived,
    Event,
    FirstBy,
    Flag,
    LastBy,
    Maximum,
    Minimum,
    SetOf,
    Sum,
    path,
)

TRACE = Aggregate("tenant-one", "trace", "t:1")
FOREIGN = Aggregate("tenant-two", "trace", "t:1")
SPAN, NOTE, ODD = "span.recorded", "note.added", "odd.happened"


def event(version: int = 1, data: Any = None, aggregate: Aggregate = TRACE, **more: Any) -> AnyEvent:
    given: dict[str, Any] = {
        "id": f"e{version:04}",
        "tenant": aggregate.tenant,
        "aggregate_type": aggregate.type,
        "aggregate_id": aggregate.id,
        "version": version,
        "type": SPAN,
        "schema_version": 1,
        "occurred_at": version,
        "recorded_at": version,
        "data": {} if data is None else data,
    }
    return Event(**{**given, **more})


class TraceSummary(DeclaredProjection):
    """One field of every kind, with and without conditions, types and defaults."""

    version = 3

    started_at = Minimum("data.start", int)
    ended_at = Maximum("data.end", int, default=-1)
    slowest = Maximum(path("data.end") - path("data.start"), int, of=SPAN)
    best_score = Maximum("data.score", float)
    first_model = Minimum("data.model", str)
    cost = Sum("data.cost", of=[SPAN])
    tokens = Sum("data.tokens", default=None)
    spans = Count(of=SPAN)
    free_spans = Count(of=SPAN, where=path("data.cost").equals(0))
    models = SetOf("data.model", str, where=path("data.model").differs(""))
    few_starts = SetOf("data.start", int, limit=3)
    input = FirstBy("data.input", object, order="data.start")
    output = LastBy("data.output", object, order="data.end", where=~path("data.status").equals("error"))
    note = LastBy("data.text", str, of=NOTE, default="none")
    failed = Flag(where=path("data.status").equals("error") | (path("data.cost") > 90))
    duration = Derived(path("ended_at") - path("started_at"), int)

    @Derived
    def has_notes(self) -> bool:
        return self.note != "none"


small = st.integers(-5, 100) | st.sampled_from([2**63, -(2**70), 1_790_000_000_000_000_000])
words = st.sampled_from(["", "a", "b", "gpt", "ü", "😀"])
payloads = st.fixed_dictionaries(
    {},
    optional={
        "start": st.none() | small,
        "end": st.none() | small,
        "score": st.sampled_from([None, 0.0, -0.0, 0, 1.5, 2, -1e300])
        | st.floats(allow_nan=False, allow_infinity=False),
        "cost": st.none() | small,
        "tokens": st.none() | small,
        "model": st.none() | words,
        "status": st.none() | st.sampled_from(["ok", "error", "", 0, False]),
        "input": st.none() | words | st.just({"b": [1, None], "a": 0}) | st.just(0) | st.just(False),
        "output": st.none() | words | st.lists(st.integers(0, 3), max_size=2),
        "text": st.none() | words,
    },
)


@st.composite
def histories(draw: st.DrawFn, most: int = 12) -> list[AnyEvent]:
    """Events of one aggregate in order, with times that say otherwise, and with ties."""
    parts = draw(
        st.lists(
            st.tuples(payloads, st.sampled_from([SPAN, SPAN, NOTE, ODD]), st.integers(0, 4)), max_size=most
        )
    )
    ids = draw(st.permutations(range(len(parts))))
    return [
        event(version, data, id=f"e{ident:02}", type=kind, occurred_at=occurred_at)
        for version, ((data, kind, occurred_at), ident) in enumerate(zip(parts, ids, strict=True), 1)
    ]
