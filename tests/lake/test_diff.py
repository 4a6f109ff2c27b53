"""Two generations compared: what differs is counted, shown, and has a reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.lake.shop import Basket, BasketInCents, Shop
from toril.cli.lake.diff import show
from toril.events import AnyEvent, DeclaredProjection, FirstBy, FoldProjection, Maximum, Sum
from toril.lake import keysets
from toril.lake.diff import VERSION, Diff, Difference, Found, Held, Side, Tally, diff_of, differences
from toril.lake.keysets import Keysets
from toril.lake.subjects import code_of, version_said

COLUMNS = (
    "tenant string, aggregate_type string, aggregate_id string, version bigint, state binary, "
    "failed_version bigint, failed string"
)


class Cart(DeclaredProjection):
    name = "cart"
    total = Sum("data.price")
    last = Maximum("data.at", int)
    first = FirstBy("data.item", str, order="data.at")


class Mutated(DeclaredProjection):
    name = "cart"
    total = Sum("data.gross")
    last = Maximum("data.at", int)
    first = FirstBy("data.item", str, order="data.at")


class Mean(FoldProjection[float]):
    name = "mean"
    state_type = float

    def initial(self) -> float:
        return 0.0

    def apply(self, state: float, event: AnyEvent) -> float:
        return state + float(event.data["price"])


CUT = {"00": (10, "5-0"), "01": (7, "5-1")}
LATER = {**CUT, "01": (9, "6-0")}


def stored(**fields: Any) -> bytes:
    return msgspec.json.encode({"projection": "cart", "version": 1, "state": fields})


def rows(spark: SparkSession, said: Mapping[str, tuple[Any, ...]]) -> DataFrame:
    """By aggregate: version and state, and where it failed, at which version and why."""
    made = [
        ("acme", "cart", ident, version, state, *(failed or (None, None)))
        for ident, (version, state, *failed) in said.items()
    ]
    return spark.createDataFrame(made, COLUMNS)


def test_each_kind_of_difference_is_counted_and_has_a_reason(spark: SparkSession) -> None:
    same = stored(total=7, last=3, first=[[3], "e1", "tea"])
    one = {
        "equal-1": (2, same),
        "equal-2": (2, same),
        "mutated-1": (2, stored(total=7, last=3, first=None)),
        "mutated-2": (2, stored(total=8, last=3, first=None)),
        "newer": (2, same),
        "gone": (1, same),
        "failing": (2, same, 3, "ProjectionError: no"),
        "damaged": (2, b"\xff"),
        "kind": (2, stored(total=7, last=3, first=None)),
        "field": (2, stored(total=7, last=3)),
        "event": (2, stored(total=7, last=3, first=[[3], "e1", "tea"])),
        "float": (2, stored(total=0.1 + 0.2, last=3, first=None)),
    }
    other = {
        **one,
        "mutated-1": (2, stored(total=9, last=3, first=None)),
        "mutated-2": (2, stored(total=9, last=3, first=None)),
        "newer": (4, same),
        "failing": (2, same),
        "damaged": (2, same),
        "kind": (2, stored(total=7, last="3", first=None)),
        "field": (2, stored(total=7, last=3, first=None)),
        "event": (2, stored(total=7, last=3, first=[[3], "e2", "tea"])),
        "float": (2, stored(total=0.3, last=3, first=None)),
        "new": (1, same),
    }
    del other["gone"]
    side = Side("generation 1", code_of(Cart, "v1"), CUT)
    found = diff_of(rows(spark, one), rows(spark, other), side, Side("generation 2", code_of(Mutated), LATER))
    assert (found.compared, found.equal) == (13, 2)
    by = {(its.kind, its.field): its for its in found.differences}
    assert {key: its.count for key, its in by.items()} == {
        ("other value", "total"): 2,
        ("only in one", ""): 1,
        ("only in other", ""): 1,
        ("other version", ""): 1,
        ("failed", ""): 1,
        ("unreadable", ""): 1,
        ("other kind", "last"): 1,
        ("field missing", "first"): 1,
        ("other event", "first"): 1,
        ("rounding", "total"): 1,
    }
    assert found.differences[0] is by["other value", "total"], "the most frequent first"
    mutated = by["other value", "total"]
    assert "declared otherwise: value data.price → data.gross" in mutated.reason
    assert [(one.aggregate_id, one.one, one.other) for one in mutated.samples] == [
        ("mutated-1", "7", "9"),
        ("mutated-2", "8", "9"),
    ]
    assert by["other event", "first"].samples[0].one == '"tea"'
    assert "different cuts (in 1 of 2 partitions)" in by["other version", ""].reason
    assert "version 3 failed: ProjectionError: no" in by["failed", ""].samples[0].one
    assert all(its.reason for its in found.differences)
    assert msgspec.json.encode(found.as_value())


def test_states_that_are_not_equal_to_the_byte_are_different() -> None:
    """To Python 1, 1.0 and true are equal, and 0.0 and -0.0, wherever they are in a value."""

    def found(one: bytes, other: bytes, **forms: str) -> list[Found]:
        return list(differences(Held(2, one), Held(2, other), forms, forms))

    values: list[tuple[object, object, str]] = [
        (5, 5.0, "other kind"),
        (1, True, "other kind"),
        (0.0, -0.0, "rounding"),
        ([5], [5.0], "other value"),
        ({"a": [1]}, {"a": [True]}, "other value"),
        ({"a": 0.0}, {"a": -0.0}, "other value"),
    ]
    for a, b, kind in values:
        assert [(its.kind, its.field) for its in found(stored(v=a), stored(v=b))] == [(kind, "v")]
    (value, order) = (
        found(stored(f=[0, "e", 5]), stored(f=later), f="first_by")
        for later in ([0, "e", 5.0], [0.0, "e", 5])
    )
    assert value == [Found("other kind", "f", "5", "5.0")]
    assert order == [Found("other event", "f", "5", "5")]
    # In other words, and in another order: it is no state of Toril's.
    other = b'{"version": 1, "state": {"b": 1e1, "a": "\\u0061"}, "projection": "cart"}'
    assert [its.kind for its in found(stored(a="a", b=10.0), other)] == ["other bytes"]
    assert [its.kind for its in found(stored(a="a", b=10), other)] == ["other kind"]
    for damaged in (b'{"state":[1', stored(a=1).replace(b"1}}", b'"\xff"}}')):
        assert [its.kind for its in found(damaged, stored(a=1))] == ["unreadable"]
    header = found(stored(a=1), stored(a=1).replace(b'"version":1', b'"version":2'))
    assert header == [Found("other value", "projection and version", '["cart",1]', '["cart",2]')]
    side = Side("generation 1", code_of(Cart), CUT)
    tally = Tally(side, Side("live", code_of(Cart)))
    tally.compare(("acme", "cart", "1"), Held(2, stored(a=[1])), Held(2, stored(a=[1.0])))
    tally.compare(("acme", "cart", "2"), Held(2, stored(a="a", b=10.0)), Held(2, other))
    tally.compare(("acme", "cart", "3"), Held(2, other), Held(2, other))
    done = tally.finished()
    assert (done.compared, done.equal, len(done.differences)) == (3, 1, 2)
    assert all(its.reason for its in done.differences)


def test_what_live_has_not_read_is_counted_and_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    sides = Side("generation 2", code_of(Cart), CUT), Side("live", code_of(Cart))
    found = Diff(*sides, compared=5, equal=5, differences=[], not_read=1200, waiting=1)
    assert not found
    assert (found.as_value()["not_read"], found.as_value()["waiting"]) == (1200, 1)
    show(found)
    show(Diff(*sides, compared=5, equal=4, differences=[Difference(VERSION, "", 1)], not_read=7))
    said = " ".join(capsys.readouterr().out.split())  # a narrow terminal breaks lines
    assert said.startswith(
        "no difference between generation 2 and live: 5 states not compared: 1,200 aggregates: live has not "
        "read so far not compared: 1 aggregates: an event waits live: to be tried again, "
    )
    assert "1 of 5 aggregates differ between generation 2 and live" in said
    assert said.endswith("not compared: 7 aggregates: live has not read so far")
    nothing = Diff(*sides, compared=0, equal=0, differences=[], waiting=3)
    assert nothing.proves_nothing
    assert not Diff(*sides, compared=0, equal=0, differences=[]).proves_nothing, "there is none to compare"
    show(nothing)
    assert capsys.readouterr().out.startswith("nothing could be compared of generation 2 and live")


def test_samples_are_few_and_always_the_same(spark: SparkSession) -> None:
    one = {f"{n:04}": (1, stored(total=n)) for n in range(300)}
    other = {f"{n:04}": (1, stored(total=-n)) for n in range(300)}
    side, beside = Side("generation 1", code_of(Cart), CUT), Side("generation 2", code_of(Cart), CUT)
    left, right = rows(spark, one).repartition(7), rows(spark, other).repartition(3)
    (found,) = diff_of(left, right, side, beside, samples=3).differences
    assert (found.kind, found.field, found.count) == ("other value", "total", 299)
    assert [sample.aggregate_id for sample in found.samples] == ["0001", "0002", "0003"]
    assert "the same code and events" in found.reason
    assert not diff_of(left, left, side, side)


def test_code_is_known_by_its_declaration_or_its_source() -> None:
    assert code_of(Cart).digest == code_of(Cart).digest != code_of(Mutated).digest
    assert code_of(Mean()).digest == code_of(Mean()).digest

    class Other(Mean):
        name = "mean"

        def apply(self, state: float, event: AnyEvent) -> float:
            return state - float(event.data["price"])

    assert code_of(Other()).digest != code_of(Mean()).digest
    assert str(code_of(Cart, "v7")).startswith("v7 (cart version 1, code ")
    assert Difference("x").as_value()["field"] is None


def test_a_generation_is_taken_further_by_the_version_that_made_it() -> None:
    """A program has the next version beside it, long before that is replayed."""
    latest = Shop("redis://127.0.0.1:1", both=True, worth=True).subjects["shop/basket"]
    assert version_said(latest.projection) == "basket version 2"
    for said, kind in (("basket version 1", Basket), ("basket version 2", BasketInCents)):
        assert type(latest.of_version(said).projection) is kind
    assert latest.of_version("basket version 3") is latest


def test_keys_of_two_sides_are_compared_part_by_part() -> None:
    """More of them than are held at once: each comes once, with what was said of it last."""
    with pytest.MonkeyPatch.context() as patched, Keysets() as keys:
        patched.setattr(keysets, "AT_ONCE", 100)
        for number in range(2000):
            keys.add("lake", ("acme", f"{number}\n"))
            keys.add("live", ("acme", f"{number + 5}\n"), [str(number), number])
        keys.add("live", ("acme", "2004\n"), "again")
        parts = list(keys.parts())
    only = {key: said for part in parts for key, said in part["live"].items() if key not in part["lake"]}
    assert only == {("acme", f"{n}\n"): [str(n - 5), n - 5] for n in range(2000, 2004)} | {
        ("acme", "2004\n"): "again"
    }
    assert len(parts) > 200
    assert sum(len(part["lake"]) for part in parts) == 2000
