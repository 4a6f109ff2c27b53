"""The table of trace summaries is, after each batch, what a recomputation in one piece says."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from tests.conftest import SEED
from tests.lake.span_parts import T0, Row, chance_events, frame, live
from toril.lake import summaries
from toril.lake.lake import Lake, Record
from toril.lake.serving import ask
from toril.lake.spans import spans_of
from toril.lake.summaries import TRACE_SUMMARIES, SummariesStep, summaries_of
from toril.lake.tables import SPANS
from toril.pipelines.spans.summary import TraceSummary

DAY = 86_400_000_000_000


def batches_of(chance: random.Random, traces: int) -> list[list[Row]]:
    """Events of three batches, a month apart, in order of version; some traces are open all the while."""
    rows = chance_events(chance, traces, most=6)
    rows.sort(key=lambda row: (row["tenant"], row["aggregate_id"], row["version"]))
    batches: list[list[Row]] = [[] for _ in range(3)]
    at, key = 0, None
    for row in rows:
        if key != (row["tenant"], row["aggregate_id"]):
            key, at = (row["tenant"], row["aggregate_id"]), chance.randrange(3)
        at = min(at + chance.choice([0, 0, 0, 1, 2]), 2)
        row["recorded_at"] = T0 + at * 30 * DAY + chance.randrange(5)
        batches[at].append(row)
    return [chance.sample(batch, len(batch)) for batch in batches]


def add(lake: Lake, rows: Iterable[Row], number: int) -> None:
    lake.ensure(SPANS)
    spans = spans_of(frame(lake.spark, rows))
    lake.append(spans, SPANS, Record(batch=number, source=number))


def found(rows: DataFrame) -> dict[tuple[str, str], dict[str, Any]]:
    names = [name for name in TRACE_SUMMARIES.names if name not in ("batch", "day")]
    made = [row.asDict(recursive=True) for row in rows.select(*names).collect()]
    by_key = {(row["tenant"], row["trace_id"]): row for row in made}
    assert len(by_key) == len(made), "a trace has two rows"
    return by_key


@pytest.mark.promise
def test_live_is_batch_for_the_table_of_summaries_whatever_comes_late(lake: Lake) -> None:
    batches = batches_of(random.Random(SEED), 60)
    # One event of the first batch was in quarantine, and came last of all, when its trace had others.
    traces = Counter((row["tenant"], row["aggregate_id"]) for batch in batches for row in batch)
    several = [row for row in batches[0] if traces[row["tenant"], row["aggregate_id"]] > 1]
    late = next(row for row in several if row["version"] == 1)
    batches[0].remove(late)
    batches.append([late])
    step = SummariesStep()
    step.prepare(lake)
    for number, rows in enumerate(batches, 1):
        add(lake, rows, number)
        record = step.once(lake)
        assert record is not None
    assert step.once(lake) is None
    table = lake.read(TRACE_SUMMARIES).cache()
    there = found(table)
    assert there == found(summaries_of(lake.read(SPANS)))
    assert table.select("day").distinct().count() == 3  # a row stays where it is
    assert {row["batch"] for row in table.select("batch").distinct().collect()} <= {1, 2, 3, 4}

    states = live(TraceSummary, [row for batch in batches for row in batch])
    assert states.keys() == there.keys()
    for key, (version, state) in states.items():
        shown = TraceSummary.decode(state).as_dict()
        assert {name: there[key][name] for name in shown} == shown
        assert there[key]["version"] == version

    # A batch that is written again changes nothing.
    before = lake.version(TRACE_SUMMARIES)
    step.write(lake, lake.batches(SPANS, 3, 4), Record(batch=4, source=4))
    assert lake.version(TRACE_SUMMARIES) == before

    # One without spans is recorded, and the table is not looked through for it.
    add(lake, [], 5)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(summaries, "merge_into", _not_called)
        empty = step.once(lake)
    assert empty is not None
    assert (lake.last(TRACE_SUMMARIES), empty.batch, empty.source) == (empty, 5, 5)
    assert lake.version(TRACE_SUMMARIES) == before + 1
    assert lake.read(TRACE_SUMMARIES).count() == len(there)

    feed = lake.spark.read.format("delta").option("readChangeFeed", "true")
    changes = feed.option("startingVersion", before).option("endingVersion", before)
    kinds = {row["_change_type"] for row in changes.load(lake.place(TRACE_SUMMARIES)).collect()}
    assert kinds == {"update_preimage", "update_postimage"}
    _read_elsewhere(
        Path(lake.place(TRACE_SUMMARIES)), len(there), sum(row["spans"] for row in there.values())
    )


def _not_called(*_: object) -> str:
    raise AssertionError("there is nothing to merge")


def _read_elsewhere(place: Path, traces: int, spans: int) -> None:
    """One row for each trace, whoever reads it."""
    assert DeltaTable(place).to_pyarrow_table().num_rows == traces
    whole = pl.scan_delta(str(place)).select(pl.len(), pl.col("spans").sum()).collect()
    assert whole.row(0) == (traces, spans)
    query = "SELECT count(), sum(spans), count(DISTINCT tenant, trace_id) FROM trace_summaries"
    said = ask(str(place.parent), ["trace_summaries"], query)
    assert [int(number) for number in said.rows[0]] == [traces, spans, traces]
