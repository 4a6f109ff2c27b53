"""A projection gives the same live, as a fold on Spark, and by Spark's own expressions: to the byte."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.conftest import SCALE, SEED
from tests.lake.rows import at_most_sent_round
from tests.lake.span_parts import Row, assert_same, chance_events, collected, frame, live, row_of
from toril.errors import InvalidValue
from toril.events import (
    AnyEvent,
    Condition,
    Count,
    DeclaredProjection,
    FirstBy,
    FirstPerKey,
    Flag,
    FoldProjection,
    LastBy,
    Maximum,
    Minimum,
    NewEvent,
    SetOf,
    Sum,
    Upcasters,
    Value,
    first_of,
    literal,
    members,
    path,
    size,
    text,
)
from toril.events.expressions import Evaluate, Path
from toril.lake.engine import (
    SPANS_TYPED,
    NotNative,
    compiled,
    encoded,
    engine_for,
    explain,
    fold,
    folded,
    states,
)
from toril.lake.lake import Record
from toril.lake.replay import typing_for
from toril.lake.shown import with_shown
from toril.lake.spans import spans_of
from toril.lake.subjects import subjects_of
from toril.pipelines.spans.aggregation import SettledTrace
from toril.pipelines.spans.recording import SPAN_RECORDED
from toril.pipelines.spans.summary import SPAN_AGGREGATE, TraceSummary
from toril.runtime import EventSourcing

Data = tuple[list[Row], DataFrame, DataFrame]


@pytest.fixture(scope="module")
def data(spark: SparkSession) -> Iterator[Data]:
    rows = chance_events(random.Random(SEED), int(250 * SCALE))
    events = frame(spark, rows).repartition(4).cache()
    spans = spans_of(events).cache()
    assert spans.count() == len(rows)
    yield rows, events, spans
    spans.unpersist()
    events.unpersist()


@pytest.mark.promise
def test_live_is_batch_for_trace_summaries_by_both_engines(data: Data) -> None:
    rows, events, spans = data
    expected = live(TraceSummary, rows)
    assert engine_for(TraceSummary).engine == "native"
    assert_same(expected, collected(folded(TraceSummary, events)))
    assert_same(expected, collected(states(TraceSummary, events, spans)))


@pytest.mark.promise
def test_parts_merged_are_what_one_piece_is(data: Data) -> None:
    rows, _, spans = data
    native = compiled(TraceSummary, SPANS_TYPED)
    parts = [native.gather(spans.where(f"pmod(hash(event_id, version), 3) = {part}")) for part in range(3)]
    two = native.merge(parts[0].union(parts[1]))
    assert_same(live(TraceSummary, rows), collected(encoded(native, native.merge(two.union(parts[2])))))
    # The same of two columns, from what is shown and kept.
    one = two.selectExpr("tenant", "trace_id", "struct(*) AS a")
    other = parts[2].selectExpr("tenant", "trace_id", "struct(*) AS b")
    kept = one.join(other, ["tenant", "trace_id"], "full").selectExpr(
        *("tenant", "trace_id", "b", "greatest(a.version, b.version) AS version"),
        *(f"{shown} AS `{name}`" for name, shown in native.show("a.").items()),
        f"{native.rest('a.')} AS rest",
    )
    restored = (f"{made} AS {native.columns[n]}" for n, made in native.restored("", "rest").items())
    again = kept.selectExpr("tenant", "trace_id", "version", "b", f"struct({', '.join(restored)}) AS a")
    of_both = (f"{made} AS {native.columns[n]}" for n, made in native.join("a", "b").items())
    joined = again.selectExpr("tenant", "trace_id", "version", *of_both)
    assert_same(live(TraceSummary, rows), collected(encoded(native, joined)))


# ---------------------------------------------------------------------- projections by chance

ATTRIBUTES = ["metadata", "metadata.001", "langwatch.annotated", "url.full", "it's"]
INTS = [
    "data.start",
    "data.end",
    "data.status",
    "data.ai.cost",
    "data.ai.input_tokens",
    "recorded_at",
    "version",
]
STRS = [
    "data.name",
    "data.span_id",
    "data.parent_span_id",
    "data.ai.user",
    "data.status_message",
    "data.scope.name",
    "id",
]
BOOLS = ["data.ai.tokens_estimated"]
LISTS = ["data.ai.labels", "data.rules"]


class Maker:
    """Declarations by chance, over what the table of spans has."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.pick = chance, chance.choice

    def json(self) -> Value:
        return self.pick(
            [path("data.ai.input"), path("data.ai.output"), path("data", "attributes", self.pick(ATTRIBUTES))]
        )

    def value(self, kind: type) -> Value:
        roll = self.chance.random()
        if kind is int:
            whole = path(self.pick(INTS))
            if roll < 0.2:
                return whole - path(self.pick(INTS))
            return (
                size(self.anything())
                if roll < 0.3
                else first_of(whole, self.pick(INTS))
                if roll < 0.4
                else whole
            )
        if kind is bool:
            return self.json() if roll < 0.2 else path(self.pick(BOOLS))
        if kind is str:
            if roll < 0.5:
                return text(self.anything(), self.pick([None, 1, 2, 3, 4, 5, 7, 300]))
            return self.json() if roll < 0.6 else path(self.pick(STRS))
        return self.value(int) if kind is float else self.anything()

    def anything(self) -> Value:
        plain = path(self.pick([*INTS, *STRS, *BOOLS, *LISTS]))
        return self.pick([plain, self.json(), first_of(self.json(), self.json())])

    def condition(self, depth: int = 0) -> Condition:
        roll = self.chance.random()
        if depth < 2 and roll < 0.3:
            one, other = self.condition(depth + 1), self.condition(depth + 1)
            return self.pick([one & other, one | other, ~one])
        if roll < 0.5:
            return self.anything().exists()
        number = self.pick([0, 1, 2, 1.5, -0.5, 1e30, 2**80, -(2**80), "1", True, 1_790_000_000_000_000_001])
        left: Value = path(self.pick(INTS))
        right: Any = self.pick([number, path(self.pick(INTS)), path(self.pick(STRS))])
        if roll > 0.75:
            left, right = (
                self.pick([path(self.pick(STRS)), self.json()]),
                self.pick(["a", "", "ü", True, "\n", "${name}"]),
            )
        made = self.pick(
            [
                left.equals(right),
                left.differs(right),
                left < right,
                left <= right,
                left > right,
                left >= right,
            ]
        )
        return literal(1) < left if self.chance.random() < 0.1 else made

    def order(self) -> dict[str, Any]:
        kinds = tuple(self.chance.choices([int, str, bool, float], k=self.pick([1, 2, 3])))
        parts = tuple(self.condition() if kind is bool else self.value(kind) for kind in kinds)
        return self.pick(
            [{}, {"order": parts, "order_kind": kinds}, {"order": parts[0], "order_kind": kinds[0]}]
        )

    def field(self) -> Any:
        where = self.pick([None, None, self.condition()])
        kind = self.pick([int, str, bool, float])
        several = members(*self.chance.choices([*STRS, *LISTS], k=2), most=self.pick([None, 2, 5]))
        what = self.chance.randrange(9)
        if what == 0:
            return Count(where=where)
        if what == 1:
            return Flag(where=where)
        if what == 2:
            return Sum(self.value(int), where=where, default=self.pick([None, 0, 7]))
        if what in (3, 4):
            made = Minimum if what == 3 else Maximum
            if kind is str and self.chance.random() < 0.5:
                return made(several, str, where=where)
            default = self.pick([None, {int: -1, str: "it's", bool: True, float: 0.5}[kind]])
            return made(self.value(kind), kind, where=where, default=default)
        if what == 5:
            limit = self.pick([None, 1, 3])
            value = several if kind is str and self.chance.random() < 0.5 else self.value(kind)
            return SetOf(value, kind, where=where, limit=limit)
        if what in (6, 7):
            by = FirstBy if what == 6 else LastBy
            kind = self.pick([kind, object])
            return by(self.value(kind), kind, where=where, **self.order())
        named = {self.pick(["a", "metadata.002", "it's", "${x}"]): self.anything() for _ in range(2)}
        return FirstPerKey(
            named,
            prefixes=self.pick([None, {"metadata.": "data.attributes"}, {"m": "data.attributes"}]),
            limit=self.pick([1, 3, 64]),
            most=self.pick([3, 256]),
            where=where,
            **self.order(),
        )


def declared(chance: random.Random, number: int) -> type[DeclaredProjection]:
    maker = Maker(chance)
    parts: dict[str, Any] = {"event_types": frozenset({SPAN_RECORDED}), "__module__": "by_chance"}
    while len(parts) < 14:
        field = maker.field()
        one: Any = type("One", (DeclaredProjection,), {"event_types": frozenset({SPAN_RECORDED}), "f": field})
        if engine_for(one).engine == "native":
            parts[f"f{len(parts)}"] = field
    return type(f"Chance{number}", (DeclaredProjection,), parts)


@pytest.mark.promise
def test_live_is_batch_for_projections_by_chance(data: Data) -> None:
    rows, events, spans = data
    for number in range(int(3 * SCALE)):
        seed = SEED + number
        projection = declared(random.Random(seed), number)
        expected = live(projection, rows)
        try:
            assert_same(expected, collected(states(projection, events, spans)))
            if number == 0:
                assert_same(expected, collected(folded(projection, events)))
        except Exception as problem:
            raise AssertionError(f"seed {seed}: {projection.describe()}") from problem


# ---------------------------------------------------------------------- errors, skips, other events


class Costs(DeclaredProjection):
    """Some of its fields are called as columns are, or as each other but for case."""

    event_types = frozenset({SPAN_RECORDED})
    first_note = FirstBy(path("data", "attributes", "metadata"), str, order="version")
    spans = Count()
    said = FirstPerKey(
        {"failed": path("data.status").equals(2), "long": size("data.ai.input") > 3}, limit=2, most=9
    )
    events = Count(where=text(size("data.ai.output")).equals("2"))
    tenant = SetOf("data.kind", int)
    trace_id = Sum("data.status")
    Spans = Flag(where=path("data.kind").equals(1))
    aggregate_id = Minimum("data.end", int)
    first_version = Maximum("data.start", int)
    named = Count(where=path("data.name").equals("${name}"))


def test_an_event_that_stops_its_aggregate_live_does_so_in_both_engines(data: Data) -> None:
    rows, events, spans = data
    expected = live(Costs, rows)
    stopped = [key for key, (version, _) in expected.items() if version < sum(_is(row, key) for row in rows)]
    assert stopped
    assert len(stopped) < len(expected)
    assert engine_for(Costs).engine == "native"
    assert "the class itself" in explain(Costs)
    found = states(Costs, events, spans).cache()
    assert_same(expected, collected(found))
    failed = {(row.tenant, row.aggregate_id): row for row in found.where("failed IS NOT NULL").collect()}
    assert failed.keys() == set(stopped)
    assert all(row.failed_version == row.version + 1 for row in failed.values())
    assert "ProjectionError" in next(iter(failed.values())).failed
    assert_same(expected, collected(folded(Costs, events)))
    # Names of columns have no case: what differs by that alone is in the state, and not beside it.
    shown = with_shown(found, Costs)
    names = sorted(set(Costs.fields) - {"spans", "Spans"})
    assert sorted(shown.select("shown.*").columns) == names
    row = shown.select("state", "shown").first()
    assert row is not None
    assert row["shown"].aggregate_id == Costs.decode(bytes(row["state"])).aggregate_id
    found.unpersist()


def _is(row: Row, key: tuple[str, str]) -> bool:
    return (row["tenant"], row["aggregate_id"]) == key


class Latest(FoldProjection[list[Any]]):
    """Order matters to it, and so does each event."""

    name = "latest"
    state_type = list

    def initial(self) -> list[Any]:
        return []

    def apply(self, state: list[Any], event: AnyEvent) -> list[Any]:
        if event.type == "bad":
            raise ValueError("bad")
        return [*state, [event.version, event.type, event.data]][-5:]


def test_events_come_in_order_upcasted_across_batches_and_skipped_ones_do_not(spark: SparkSession) -> None:
    upcasters = Upcasters()
    upcasters.register("noted", 1, 2, lambda data: {"new": data["old"]})
    made = []
    for ident in ("a", "b", "c"):
        for version in range(1, 1001):
            event: NewEvent[Any] = NewEvent(type="noted", data={"old": version})
            made.append(row_of(event, "acme", "note", ident, version, version))
    made[1500] = {**made[1500], "body": b"{"}  # b is unreadable at version 501
    made[2500] = {
        **made[2500],
        **dict(row_of(NewEvent(type="bad", data=0), "acme", "note", "c", 501, 1).items()),
    }
    random.Random(SEED).shuffle(made)
    events = frame(spark, made).withColumn("skipped", _skips())
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "64")
    try:
        rows = {row.aggregate_id: row for row in folded(Latest(), events, upcasters).collect()}
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    whole = [[version, "noted", {"new": version}] for version in range(996, 1001)]
    assert Latest().decode(rows["a"].state) == whole
    assert rows["a"].version == 1000
    assert (rows["b"].version, rows["b"].failed_version) == (500, 501)
    assert Latest().decode(rows["b"].state)[-1][0] == 500
    assert "StoreError" in rows["b"].failed
    assert Latest().decode(rows["c"].state) == whole
    assert rows["c"].failed is None


def _skips() -> Any:
    from pyspark.sql.functions import expr

    return expr("aggregate_id = 'c' AND version = 501")


class Odd(FoldProjection[list[Any]]):
    """There is an event that it cannot take, and one from which on it cannot be stored."""

    name = "odd"
    state_type = list

    def initial(self) -> list[Any]:
        return []

    def apply(self, state: list[Any], event: AnyEvent) -> list[Any]:
        if event.data == "refused":
            raise ValueError("refused")
        return state if 1j in state else [*state[-3:], 1j if event.data == "odd" else event.data]


def test_a_state_that_cannot_be_stored_stops_its_aggregate_at_the_event_that_made_it_so(
    spark: SparkSession,
) -> None:
    said: dict[str, list[Any]] = {
        "good": [1, 2, 3],
        "odd": [1, 2, "odd", 4, 5],
        "long": [*range(1, 1501), "odd", *range(1502, 2300)],
        "first": ["odd", 2],
        "both": [1, "odd", 3, "refused", 5],
        "refused": [1, "refused", "odd"],
    }
    rows = [
        row_of(NewEvent(type="noted", data=data), "acme", "note", ident, version, version)
        for ident, all_of_it in said.items()
        for version, data in enumerate(all_of_it, 1)
    ]
    found = {row.aggregate_id: row for row in folded(Odd(), frame(spark, rows)).collect()}
    assert {ident: (row.version, row.failed_version) for ident, row in found.items()} == {
        "good": (3, None),
        "odd": (2, 3),
        "long": (1500, 1501),
        "first": (0, 1),
        "both": (1, 2),
        "refused": (1, 2),
    }
    kept = {ident: Odd().decode(bytes(row.state)) for ident, row in found.items()}
    assert kept["long"] == [1497, 1498, 1499, 1500]
    assert (kept["odd"], kept["first"], kept["both"]) == ([1, 2], [], [1])
    assert found["odd"].failed.startswith("ProjectionError: a state of odd version 1 cannot be stored: ")
    assert found["refused"].failed == "ValueError: refused"


class Sealed(Odd):
    """Not even the first state can be stored."""

    def encode(self, state: list[Any]) -> bytes:
        raise ValueError(f"no bytes of {state}")


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize(
    ("projection", "said", "version", "failed"),
    [
        (Odd(), [1, 2, "odd", 4, 5, 6, 7, 8, 9], 2, 3),
        (Odd(), ["odd", 2, 3, 4, 5], 0, 1),
        (Odd(), [1, 2, 3, "refused", "odd", 6, 7, 8], 3, 4),
        (Odd(), [1, 2, 3, 4, 5, 6], 6, None),
        (Sealed(), [1, 2, 3, 4, 5, 6], 0, 1),
    ],
)
def test_a_fold_stops_at_the_same_event_wherever_a_batch_ends(
    projection: Odd, said: list[Any], version: int, failed: int | None, size: int
) -> None:
    rows = [
        (f"acme:note:{ident}", number, number, NewEvent(type="noted", data=data).to_bytes())
        for ident in "ab"
        for number, data in enumerate(said, 1)
    ]
    kinds = (pa.string(), pa.int64(), pa.int64(), pa.binary())
    batches = []
    for first in range(0, len(rows), size):
        columns = zip(*rows[first : first + size], strict=True)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        batches.append(pa.RecordBatch.from_arrays(arrays, names=["key", "version", "recorded_at", "body"]))
    made = fold._fold(fold._Way(projection, None, True), batches)
    found = [row for batch in made for row in batch.to_pylist()]
    assert [(row["aggregate_id"], row["version"], row["failed_version"]) for row in found] == [
        ("a", version, failed),
        ("b", version, failed),
    ]
    if not isinstance(projection, Sealed):
        assert Odd().decode(found[0]["state"]) == said[:version][-4:]


def test_aggregates_with_other_events_are_folded_and_their_versions_count(
    data: Data, spark: SparkSession
) -> None:
    rows, _, _ = data
    some = [row for row in rows if row["aggregate_id"] <= f"{20:032x}" and row["tenant"] == "acme"]
    last = {row["aggregate_id"]: 0 for row in some}
    for row in some:
        last[row["aggregate_id"]] = max(last[row["aggregate_id"]], row["version"])
    # The summary takes no events of another type: one that cannot be read stops it all the same.
    bodies = {f"{2:032x}": None, f"{3:032x}": b'{"type":"other","id":"e","occurred_at":1}'}
    for ident, body in bodies.items():
        other = row_of(NewEvent(type="other", data=1), "acme", SPAN_AGGREGATE, ident, last[ident] + 1, 1)
        some.append({**other, "body": body or other["body"]})
    events = frame(spark, some)
    expected = live(TraceSummary, some)
    assert [expected["acme", ident][0] - last[ident] for ident in bodies] == [1, 0]
    for most, times in ((1000, 1), (0, 0)):
        with at_most_sent_round(most) as sent:
            assert_same(expected, collected(states(TraceSummary, events, spans_of(events))))
        assert len(sent) == times


# ---------------------------------------------------------------------- which engine


class ByHand(DeclaredProjection):
    event_types = frozenset({SPAN_RECORDED})
    spans = Sum(lambda event: event.version)


class Nested(DeclaredProjection):
    event_types = frozenset({SPAN_RECORDED})
    inner = SetOf(path("data", "attributes", "metadata", "inner"), str)


class Everything(DeclaredProjection):
    events = Count()


class Rounded(DeclaredProjection):
    event_types = frozenset({SPAN_RECORDED})
    spans = Count()

    @classmethod
    def apply(cls, state: Any, event: AnyEvent) -> Any:
        return state if event.version % 2 else super().apply(state, event)


class Largest(Sum[int]):
    def combine(self, one: int, other: int) -> int:
        return max(one, other)


class Peak(DeclaredProjection):
    event_types = frozenset({SPAN_RECORDED})
    cost = Largest("data.ai.cost")


class Longest(Count):
    what = "longest"


class Unknown(DeclaredProjection):
    event_types = frozenset({SPAN_RECORDED})
    length = Longest()


class Doubled(Path, frozen=True):
    def compiled(self) -> Evaluate:
        inner = super().compiled()
        return lambda event: inner(event) * 2


class Costlier(DeclaredProjection):
    event_types = frozenset({SPAN_RECORDED})
    cost = Count(where=Doubled(("data", "ai", "cost")) > 3)


@pytest.mark.parametrize(
    ("projection", "reason"),
    [
        (Latest(), "written in Python"),
        (ByHand, "spans has Python in it"),
        (Nested, "no column holds data.attributes.metadata.inner"),
        (Everything, "takes other events"),
        (SettledTrace, "takes other events"),
        (Rounded, "its apply is its own"),
        (Peak, "cost has Python in it"),
        (Unknown, "length has Python in it"),
        (Costlier, "cost has Python in it"),
    ],
)
def test_the_engine_is_chosen_from_the_class_and_says_why(projection: Any, reason: str) -> None:
    choice = engine_for(projection)
    assert choice.engine == "fold"
    assert reason in choice.reason
    assert f"{projection.name} version 1: fold ({choice.reason})" in explain(projection)
    with pytest.raises(NotNative, match=f"{projection.name} cannot run natively: .*{reason}"):
        engine_for(projection, force="native")


def test_an_engine_can_be_forced_and_explained() -> None:
    assert engine_for(TraceSummary, force="fold").engine == "fold"
    assert engine_for(TraceSummary, None).engine == "fold"
    said = explain(TraceSummary)
    assert said.startswith("trace_summary version 1: native")
    assert "started_at" in said
    assert "duration" in said
    with pytest.raises(InvalidValue, match="engine"):
        engine_for(TraceSummary, force="fast")


def test_a_table_in_a_form_that_a_projection_does_not_see_is_not_used_for_it() -> None:
    """Two pipelines over the same aggregates: one has upcasters, and the other sees what was recorded."""
    upcasters = Upcasters()
    upcasters.register(SPAN_RECORDED, 1, 2, dict)
    sourcing = EventSourcing("memory://")
    definitions = []
    for name, by in (("collecting", upcasters), ("billing", None), ("selling", None)):
        builder = sourcing.register_pipeline().with_name(name)
        typed = builder.with_aggregate_type("order" if name == "selling" else SPAN_AGGREGATE)
        made = typed.with_projection("summary", None, TraceSummary)
        definitions.append((made if by is None else made.with_upcasters(by)).build().definition)
    known = subjects_of(definitions)
    alone = subjects_of(definitions[1:])["billing/summary"]

    def typed_by(name: str, upcast: bool | None) -> bool:
        subject = alone if name == "alone" else known[f"{name}/summary"]
        lake: Any = SimpleNamespace(exists=lambda _: True, last=lambda _: Record(batch=1, upcast=upcast))
        return typing_for(lake, subject) is not None

    assert [typed_by("billing", upcast) for upcast in (True, False, None)] == [False, True, False]
    assert [typed_by("alone", upcast) for upcast in (True, False, None)] == [False, True, True]
    assert not any(typed_by(name, False) for name in ("collecting", "selling"))
