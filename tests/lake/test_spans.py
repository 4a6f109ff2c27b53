"""Spans: every event that recorded one is in the table once, or in quarantine with the reason."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import deltalake
import msgspec
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame

from tests.lake.span_events import SCHEMA, Body, a_span, archive, body_of, rows_of
from toril.events import StoreError, Upcasters
from toril.events.event import restore_event
from toril.lake import steps
from toril.lake.errors import LakeError, OtherWriter
from toril.lake.files import files_of
from toril.lake.lake import Lake, Record
from toril.lake.quarantine import requeue
from toril.lake.reading import Reader, reason_of
from toril.lake.replay import typing_for
from toril.lake.serving import ask
from toril.lake.spans import SpansStep, spans_of
from toril.lake.subjects import TRACE_SUMMARY
from toril.lake.tables import EVENTS, QUARANTINE, SPANS, Table
from toril.pipelines.spans.recording import SPAN_RECORDED
from toril.pipelines.spans.span import Ai, Link, Scope, Span, SpanEvent

SECRET = "hunter2"


def read(*bodies: Body, upcasters: Upcasters | None = None) -> list[dict[str, Any]]:
    """Bodies as a worker reads them."""
    made = Reader(upcasters).batch(pa.RecordBatch.from_pylist(rows_of(bodies), schema=SCHEMA))
    rows: list[dict[str, Any]] = made.to_pylist()
    return rows


def changed(body: bytes, **data: Any) -> bytes:
    """A body whose data was changed behind the back of all rules."""
    said = msgspec.json.decode(body)
    said["data"] |= data
    return msgspec.json.encode(said)


def test_a_span_is_what_its_columns_say() -> None:
    spans = [a_span(number) for number in range(300)]
    spans.append(a_span(300, links=[Link(trace_id="1" * 32, span_id="2" * 16)], ai=Ai(input=0, output="")))
    for span, row in zip(spans, read(*spans), strict=True):
        assert row["reason"] is None
        assert row["body"] is None
        ai = span.ai or Ai()
        for name in ("span_id", "parent_span_id", "name", "kind", "start", "end", "duration", "status"):
            assert row[name] == getattr(span, name)
        for name in ("request_model", "response_model", "input_tokens", "first_token", "cost", "labels"):
            assert row[name] == getattr(ai, name)
        assert {name: msgspec.json.decode(value) for name, value in row["attributes"]} == span.attributes
        assert dict(row["resource"]) == {"service.name": '"shop"'}
        for name, value in (("input", ai.input), ("output", ai.output)):
            assert row[name] is None if value is None else msgspec.json.decode(row[name]) == value
        assert msgspec.json.decode(row["events"]) == msgspec.to_builtins(span.events)
        assert msgspec.json.decode(row["links"]) == msgspec.to_builtins(span.links)


def test_text_and_number_differ_and_names_are_in_order() -> None:
    (row,) = read(a_span(1, attributes={"n": 1, "t": "1", "null": None, "o": {"é": [1.0], "a": -0.0}}))
    assert dict(row["attributes"]) == {"n": "1", "t": '"1"', "null": "null", "o": '{"a":-0.0,"é":[1.0]}'}


def said(**more: Any) -> bytes:
    """The body of an event, with something that it should not say."""
    return msgspec.json.encode(msgspec.json.decode(body_of(a_span())) | more)


WHOLE = "a whole number from -2**63 to 2**63 - 1"
REFUSED = {
    SECRET.encode(): "body: it must be JSON in UTF-8",
    b'{"id":"\xff"}': "body: it must be JSON in UTF-8",
    b"[]": "body: Expected `object`, got `array`",
    b'{"type":"x","data":{}}': "id: it is missing",
    changed(body_of(a_span()), start=SECRET): "data.start: Expected `int`, got `str`",
    changed(body_of(a_span()), start=-1): "data.start: nanoseconds since 1970, from 0 to 2**63 - 1",
    changed(body_of(a_span()), kind=6): "data.kind: 0 to 5",
    changed(body_of(a_span()), ai={"kind": SECRET}): "data.ai.kind: it is none of the values that are known",
    changed(body_of(a_span()), ai={"cost": 2**63}): f"data.ai.cost: {WHOLE}",
    changed(body_of(a_span()), ai={"input_tokens": -(2**63) - 1}): f"data.ai.input_tokens: {WHOLE}",
    changed(body_of(a_span()), ai={"cost": 1.5}): "data.ai.cost: Expected `int | null`, got `float`",
    changed(body_of(a_span()), span_id=SECRET): "data.span_id: 16 lower-case hex digits, not all of them 0",
    body_of(a_span(), schema_version=2): "schema_version: it is newer than this program knows",
    body_of(a_span(), data={"span_id": SECRET}): "data.trace_id: it is missing",
    said(metadata=None): "metadata: Expected `object`, got `null`",
    said(occurred_at=-1): "occurred_at: Expected `int` >= 0",
    said(occurred_at=2**63): f"occurred_at: Expected `int` <= {2**63 - 1}",
    said(schema_version=0): "schema_version: Expected `int` >= 1",
    said().replace(b'"data":', b'"date":'): "data: it is missing",
}


@pytest.mark.parametrize(("body", "reason"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_cannot_be_read_has_a_reason_that_gives_nothing_away(body: bytes, reason: str) -> None:
    (row,) = read(body)
    assert row["reason"] == reason
    assert row["body"] == body
    assert row["span_id"] is None


def test_a_body_that_is_nested_too_deeply_has_its_reason() -> None:
    body = b'{"type":"t","data":%s%s}' % (b"[" * 5000, b"]" * 5000)
    with pytest.raises(StoreError) as caught:
        restore_event(body, "acme:span:1", version=1, recorded_at=0)
    assert reason_of(caught.value) == "body: it is nested too deeply"


def test_what_live_cannot_read_is_refused_wherever_it_is() -> None:
    link = Link(trace_id="1" * 32, span_id="2" * 16)
    event = SpanEvent(name="e", time=1)
    whole = msgspec.to_builtins(a_span(ai=Ai(cost=1), scope=Scope(name="s"), links=[link], events=[event]))
    inside: list[Any] = [whole, whole["ai"], whole["resource"], whole["scope"]]
    (row,) = read(changed(body_of(a_span()), scope={"name": ""}).replace(b"{", b'{"anything":1e400,', 1))
    assert row["said_empty"] == ["scope.name"]  # what live passes over is passed over
    for place in [*inside, whole["links"][0], whole["events"][0]]:
        bodies = []
        for value in ("1", "1e400", '"\\ud800"', '"\xff"'):
            place["unknown"] = msgspec.Raw(value.encode("latin-1"))
            event_of = {"type": SPAN_RECORDED, "id": "e", "occurred_at": 1, "data": whole}
            bodies.append(msgspec.json.encode(event_of | {"anything": msgspec.Raw(b"1e400")}))
        del place["unknown"]
        rows = read(*bodies)
        assert rows[0]["cost"] == 1, rows[0]["reason"]
        assert "its numbers must be ones that a double can hold" in rows[1]["reason"]
        assert [row["reason"] for row in rows[2:]] == ["body: it must be JSON in UTF-8"] * 2
        for body, row in zip(bodies, rows, strict=True):
            with nullcontext() if row["reason"] is None else pytest.raises(StoreError):
                restore_event(body, "acme:span:1", version=1, recorded_at=1)


def test_a_span_is_where_it_says_it_is() -> None:
    rows = rows_of([a_span(), a_span()])
    rows[0]["aggregate_id"] = "1" * 32
    rows[1]["aggregate_type"] = "order"
    made = Reader().batch(pa.RecordBatch.from_pylist(rows, schema=SCHEMA)).to_pylist()
    assert [row["reason"] for row in made] == [
        "data.trace_id: it must be the id of the aggregate",
        "aggregate_type: spans are events of 'span'",
    ]


def test_old_events_are_read_by_the_upcasters_of_live() -> None:
    upcasters = Upcasters()

    @upcasters.step(SPAN_RECORDED, 1, 2)
    def named(data: Any) -> Any:
        return {**data, "name": {"ok": "renamed", "half": "\ud800"}.get(data["name"]) or data["missing"]}

    @upcasters.step(SPAN_RECORDED, 2, 3)
    def with_label(data: Any) -> Any:
        return {**data, "ai": {"labels": ["new"]}}

    rows = read(
        a_span(1, name="ok"),
        body_of(a_span(2, name="as it is"), schema_version=3),
        a_span(3, name="other"),
        a_span(4, name="half"),
        upcasters=upcasters,
    )
    assert [row["name"] for row in rows] == ["renamed", "as it is", None, None]
    assert [row["labels"] for row in rows[:2]] == [["new"], ["a", "b"]]
    assert [row["reason"] for row in rows] == [
        None,
        None,
        "data: its upcaster failed with KeyError",
        "data: it cannot be read (UnicodeEncodeError)",
    ]


class CutOff(SpansStep):
    """Killed between the two tables."""

    def write(self, lake: Lake, rows: DataFrame, record: Record) -> None:  # noqa: ARG002
        raise KeyboardInterrupt


def test_once_per_table_when_a_batch_is_cut_off_between_the_two(lake: Lake, tmp_path: Path) -> None:
    newer = body_of(a_span(8), schema_version=2)
    other = body_of(a_span(), type="other", data={"n": 1})
    archive(lake, [*map(a_span, range(1, 8)), newer, b"nonsense", other])
    SpansStep().prepare(lake)
    with pytest.raises(KeyboardInterrupt):
        CutOff().once(lake)
    archive(lake, [a_span(9), a_span(10), b"more nonsense"])

    # The program that goes on can read what the one before could not, and the other way round.
    upcasters = Upcasters()
    seventh = a_span(7).span_id

    @upcasters.step(SPAN_RECORDED, 1, 2)
    def but_one(data: Any) -> Any:
        return data if data["span_id"] != seventh else None

    step = SpansStep(upcasters)
    # The half that is missing is that of the first batch, though there is more to read by now.
    first = step.once(lake)
    assert first is not None
    assert (first.batch, first.source, first.positions) == (2, 1, {"00": (10, "1-0")})
    second = step.once(lake)
    assert second is not None
    assert (second.batch, second.source) == (3, 2)
    assert step.once(lake) is None
    # What a pipeline without upcasters sees is in events alone, from now on.
    assert (first.upcast, second.upcast, lake.last(SPANS).upcast) == (True, True, True)
    assert SpansStep()._upcast(second)
    assert typing_for(lake, TRACE_SUMMARY) is None

    spans = lake.read(SPANS).select("ordinal", "batch", "span_id").orderBy("ordinal").collect()
    assert [tuple(row)[:2] for row in spans] == [*((n, 2) for n in range(1, 7)), (11, 3), (12, 3)]
    refused = lake.read(QUARANTINE).orderBy("ordinal").collect()
    assert [(row["ordinal"], row["batch"]) for row in refused] == [(7, 2), (8, 1), (9, 1), (13, 3)]
    assert refused[1]["body"] == newer
    again = spans_of(lake.read(EVENTS), upcasters).where("ordinal <> 8").select("ordinal", "span_id")
    assert sorted(map(tuple, again.collect())) == [(row["ordinal"], row["span_id"]) for row in spans]

    # The next tables read by the batch: of each file it must be known which ones it has.
    for table in ("events", "spans", "quarantine"):
        for commit in (tmp_path / "lake" / table / "_delta_log").glob("*.json"):
            for action in map(msgspec.json.decode, commit.read_text().splitlines()):
                stats = msgspec.json.decode(action.get("add", {}).get("stats", "{}"))
                assert not stats.get("numRecords") or "batch" in stats["minValues"]

    _others_read_it(tmp_path / "lake" / "spans", a_span(1))


class Meddled(Lake):
    """Somebody else does something just before the n-th write."""

    def __init__(self, lake: Lake, write: int, meanwhile: Callable[[], object]) -> None:
        super().__init__(lake.spark, lake.path)
        self.left = write
        self.meanwhile = meanwhile

    def append(self, rows: DataFrame, table: Table, record: Record) -> None:
        self.left -= 1
        if self.left == 0:
            self.meanwhile()
        super().append(rows, table, record)


def refusing(number: int) -> Upcasters:
    """Those of a program that cannot read one of the spans."""
    upcasters, span_id = Upcasters(), a_span(number).span_id

    @upcasters.step(SPAN_RECORDED, 1, 2)
    def but_one(data: Any) -> Any:
        return data if data["span_id"] != span_id else None

    return upcasters


@pytest.mark.parametrize("where", ["at the claim", "between the two", "at the second claim"])
def test_an_event_is_in_one_table_when_two_programs_read_it_differently(lake: Lake, where: str) -> None:
    """Each cannot read one that the others can, and one comes between the writes of another."""
    archive(lake, [a_span(1), a_span(2), a_span(3)])
    step = SpansStep(refusing(1))
    step.prepare(lake)

    def cut_off(number: int) -> None:
        with pytest.raises(KeyboardInterrupt):
            CutOff(refusing(number)).once(lake)

    if where == "at the claim":
        with pytest.raises(OtherWriter):
            step.once(Meddled(lake, 1, lambda: cut_off(2)))
    elif where == "between the two":
        # It is not dead at all, and writes its spans after another has begun to finish them.
        step.once(Meddled(lake, 2, lambda: cut_off(2)))
    else:
        cut_off(2)
        with pytest.raises(OtherWriter):
            step.once(Meddled(lake, 2, lambda: SpansStep(refusing(3)).once(lake)))
    while step.once(lake) is not None:
        pass
    spans, refused = (
        [row["ordinal"] for row in lake.read(table).select("ordinal").collect()]
        for table in (SPANS, QUARANTINE)
    )
    assert sorted(spans + refused) == [1, 2, 3]
    assert lake.last(SPANS).source == 1


def test_tables_that_are_made_anew_are_whole_or_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """``spans`` is made of all but what waits in quarantine; one that knows of what is gone says so."""
    newer = body_of(a_span(2), schema_version=2)
    archive(lake, [a_span(1), newer, b"nonsense"])
    archive(lake, [a_span(3)])
    archive(lake, [a_span(4), b"more nonsense"])
    monkeypatch.setattr(steps, "BATCHES_AT_ONCE", 2)
    upcasters = Upcasters()
    upcasters.register(SPAN_RECORDED, 1, 2, dict)
    for again, step in enumerate((SpansStep(), SpansStep(upcasters))):
        step.prepare(lake)
        while step.once(lake) is not None:
            pass
        assert lake.last(SPANS).source == lake.last(QUARANTINE).source == 3
        if not again:
            assert requeue(lake, upcasters=upcasters).read == 1
        rows = lake.read(SPANS).select("ordinal", "batch").orderBy("ordinal").collect()
        assert [row["ordinal"] for row in rows] == [1, 2, 4, 5]
        assert len({row["batch"] for row in rows}) > 1, "a part of the batches at a time"
        waits = lake.read(QUARANTINE).where("requeued_at IS NULL").select("ordinal").collect()
        assert sorted(row["ordinal"] for row in waits) == [3, 6]
        files_of(lake).remove("quarantine" if again else "spans")
    step.prepare(lake)
    with pytest.raises(LakeError, match=r"quarantine up to 0: .* Remove .*/quarantine and .*/spans as well"):
        step.once(lake)
    files_of(lake).remove("events")
    archive(lake, [a_span(1)])
    with pytest.raises(LakeError, match="made anew"):
        step.once(lake)
    lake.append(lake.read(QUARANTINE).limit(0), QUARANTINE, Record(batch=1, source=3))
    for _ in ("both have read of it", "quarantine has"):
        with pytest.raises(LakeError, match=r"up to batch 3, and .* up to 1: .* Remove .*/spans"):
            step.once(lake)
        files_of(lake).remove("spans")
        step.prepare(lake)


def _others_read_it(place: Path, first: Span) -> None:
    """ClickHouse, Polars and delta-rs, without Spark."""
    asked = "SELECT count(), sum(cost), argMin(attributes['text'], ordinal) FROM spans"
    ((count, cost, text),) = ask(str(place.parent), ["spans"], asked).rows
    frame = pl.scan_delta(str(place)).sort("ordinal").collect()
    table = deltalake.DeltaTable(str(place)).to_pyarrow_table()
    assert int(count) == len(frame) == table.num_rows == 8
    assert int(cost) == frame["cost"].sum() == sum(filter(None, table["cost"].to_pylist()))
    assert text == '"1"'
    assert frame["start_time"][0].timestamp() == pytest.approx(first.start / 10**9)
