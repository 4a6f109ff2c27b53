"""Rollups: however spans are cut into batches, a row is what all spans of it come to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import msgspec
import polars as pl
import pytest
from pyspark.sql import DataFrame, Row

from tests.lake.span_events import DAY, NOON, Body, a_span, archive, events_of
from toril.errors import InvalidValue
from toril.lake.buckets import bucket, percentile, percentile_sql
from toril.lake.lake import Lake
from toril.lake.rollups import KEYS, RollupsStep, rollups_of, summed
from toril.lake.serving import ask
from toril.lake.spans import SpansStep, spans_of
from toril.lake.tables import ROLLUPS, SPANS
from toril.pipelines.spans.span import Ai, Span

HUGE = 2**63 - 1
HOUR, MINUTE = DAY // 24, DAY // 1440
LENGTHS = {"minute": MINUTE, "hour": HOUR, "day": DAY}
TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")


def by_key(rows: Iterable[Row], keys: tuple[str, ...] = KEYS) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows as Python has them, without the batch."""
    made = {}
    for row in rows:
        said = row.asDict()
        said.pop("batch", None)
        key = tuple(said.pop(name) for name in keys)
        assert key not in made
        made[key] = said
    return made


def in_python(spans: Iterable[tuple[Span, str]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The same by the rules in words."""
    groups: dict[tuple[Any, ...], list[Span]] = defaultdict(list)
    for span, tenant in spans:
        model = (span.ai and (span.ai.response_model or span.ai.request_model)) or ""
        for grain, length in LENGTHS.items():
            start = datetime.fromtimestamp(span.start // length * length // 10**9, UTC)
            period = start.strftime({"minute": "%Y-%m-%d %H", "hour": "%Y-%m-%d", "day": "%Y-%m"}[grain])
            groups[tenant, model, grain, period, start.replace(tzinfo=None)].append(span)
    return {key: _row(group) for key, group in groups.items()}


def _row(group: list[Span]) -> dict[str, Any]:
    said = [span.ai or Ai() for span in group]
    first = [ai.first_token for ai in said if ai.first_token is not None]
    durations = [span.duration for span in group]
    return {
        "spans": len(group),
        "traces": sum(span.is_root for span in group),
        "errors": sum(span.status == 2 for span in group),
        **{name: Decimal(sum(getattr(ai, name) or 0 for ai in said)) for name in (*TOKENS, "cost")},
        "duration_sum": Decimal(sum(durations)),
        "duration_min": min(durations),
        "duration_max": max(durations),
        "duration_buckets": _counts(durations),
        "first_token_count": len(first),
        "first_token_sum": Decimal(sum(first)),
        "first_token_min": min(first, default=None),
        "first_token_max": max(first, default=None),
        "first_token_buckets": _counts(first),
    }


def _counts(numbers: list[int]) -> dict[int, int]:
    made: dict[int, int] = defaultdict(int)
    for number in numbers:
        made[bucket(number)] += 1
    return dict(made)


def some_spans() -> list[tuple[Span, str]]:
    """Of two tenants and two days, with what is too much for a bigint, and what clocks and models say."""
    spans = [(a_span(number), "acme" if number % 5 else "other") for number in range(1, 120)]
    strange = [
        a_span(200, start=0, end=HUGE, ai=Ai(cost=HUGE, input_tokens=HUGE, first_token=-5)),
        a_span(201, start=0, end=HUGE, ai=Ai(cost=HUGE, input_tokens=HUGE, first_token=HUGE)),
        a_span(202, start=HUGE, end=0, ai=Ai(cost=-3)),
        a_span(203, start=NOON + DAY, end=NOON + DAY, ai=Ai(request_model="m", response_model="")),
    ]
    return [*spans, *((span, "acme") for span in strange)]


def test_once_per_row_whatever_the_batches_were(lake: Lake, tmp_path: Path) -> None:
    """Three batches of spans, the last two as one batch of rollups; one of them twice; one of nothing."""
    spans = some_spans()
    to_spans, to_rollups = SpansStep(), RollupsStep()
    for step in (to_spans, to_rollups):
        step.prepare(lake)
    parts: list[list[Body]] = [[*spans[1::3]], [*spans[::3]], [*spans[2::3], b"nonsense"]]
    for place, part in enumerate(parts):
        archive(lake, part)
        to_spans.once(lake)
        if place == 0:
            first = to_rollups.once(lake)
            assert first is not None
            # A process that was killed before it knew that the batch was written tries it again.
            to_rollups.write(lake, lake.batches(SPANS, 0, 1), first)
    second = to_rollups.once(lake)
    assert second is not None
    assert (second.batch, second.source) == (2, 3)
    archive(lake, [b"only nonsense"])
    to_spans.once(lake)
    nothing = to_rollups.once(lake)
    assert nothing is not None
    assert to_rollups.once(lake) is None
    assert lake.last(ROLLUPS) == nothing

    rows = by_key(lake.read(ROLLUPS).collect())
    assert rows == in_python(spans)
    assert rows == by_key(rollups_of(lake.read(SPANS)).collect())
    huge = rows["acme", "", "day", "1970-01", datetime(1970, 1, 1)]  # noqa: DTZ001 - as Spark gives it
    assert huge["cost"] == huge["input_tokens"] == huge["duration_sum"] == 2 * HUGE

    _together(lake, spans)
    _others_read_it(tmp_path / "lake" / "rollups", rows)


def _together(lake: Lake, spans: list[tuple[Span, str]]) -> None:
    """Rows add up to what they would be in one piece, and have its percentiles."""
    minutes = lake.read(ROLLUPS).where("grain = 'minute'")
    for rows in (minutes, lake.read(ROLLUPS).where("grain = 'day'")):
        (whole,) = _with_percentile(summed(rows)).collect()
        said = whole.asDict()
        assert said.pop("p95") == percentile(said["duration_buckets"], 0.95)
        assert said == _row([span for span, _ in spans])
    tenants = by_key(summed(minutes, "tenant").collect(), ("tenant",))
    assert tenants == {
        (name,): _row([span for span, tenant in spans if tenant == name]) for name in ("acme", "other")
    }


def _with_percentile(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("*", f"{percentile_sql('duration_buckets', 0.95)} AS p95")


def _others_read_it(place: Path, rows: dict[tuple[Any, ...], dict[str, Any]]) -> None:
    """ClickHouse, Polars and delta-rs, without Spark."""
    days = [row for key, row in rows.items() if key[2] == "day"]
    counts: dict[int, int] = defaultdict(int)
    for row in days:
        for index, count in row["duration_buckets"].items():
            counts[index] += count
    asked = (
        "SELECT toString(sum(cost)), toJSONString(sumMap(duration_buckets)) FROM rollups WHERE grain = 'day'"
    )
    ((cost, buckets),) = ask(str(place.parent), ["rollups"], asked).rows
    frame = pl.scan_delta(str(place)).filter(pl.col("grain") == "day").collect()
    table = deltalake.DeltaTable(str(place)).to_pyarrow_table(filters=[("grain", "=", "day")])
    assert (
        int(cost) == frame["cost"].sum() == sum(table["cost"].to_pylist()) == sum(row["cost"] for row in days)
    )
    assert {int(index): count for index, count in msgspec.json.decode(buckets).items()} == counts
    for found in (frame["duration_buckets"].to_list(), table["duration_buckets"].to_pylist()):
        assert sum(len(entries) for entries in found) == sum(len(row["duration_buckets"]) for row in days)


def test_only_what_a_row_is_of_can_be_summed_by(lake: Lake) -> None:
    rows = rollups_of(spans_of(events_of(lake.spark, [a_span()])))
    with pytest.raises(InvalidValue, match="by 'cost' is not valid: some of tenant, model"):
        summed(rows, "cost")
