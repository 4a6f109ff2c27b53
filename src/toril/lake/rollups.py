"""Rollups: what the spans of a tenant and model come to, by minute, hour and day.

Everything in a row adds up: counts, sums in decimals that cannot overflow, smallest and largest, and counts
in fixed buckets for percentiles. So a batch is rolled up by itself and added to what is there, and the
result is that of all spans in one piece, whatever the batches were.

A row is in the partition of its grain and ``period``: the hour of a minute, the day of an hour, the month of
a day. A batch touches the periods that its spans began in and no others, and none of them ever has more than
60 rows for a tenant and model: what a batch costs does not grow with history.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import expr, lit

from toril.errors import InvalidValue
from toril.lake.buckets import bucket_sql, merged_sql
from toril.lake.lake import Lake, Record
from toril.lake.steps import Step
from toril.lake.tables import ROLLUPS, SPANS

KEYS = ("tenant", "model", "grain", "period", "start")
"""What a row is the rollup of."""

ONCE_PER_SPAN = {
    "traces": "CAST(parent_span_id IS NULL AS BIGINT)",
    "errors": "CAST(status = 2 AS BIGINT)",
    # A sum of decimals has ten digits more: bigints in 28 are added up in 38.
    **{
        name: f"CAST(coalesce({name}, 0) AS DECIMAL(28,0))"
        for name in (
            *("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"),
            *("reasoning_tokens", "cost"),
        )
    },
}
"""What a span adds to a row, besides its measures."""

MEASURES = ("duration", "first_token")
"""What is counted in buckets. Each span has the first one."""


class RollupsStep(Step):
    """Feeds ``rollups`` from ``spans``."""

    table = ROLLUPS
    source = SPANS

    def write(self, lake: Lake, rows: DataFrame, record: Record) -> None:
        part = rollups_of(rows).persist()
        try:
            periods = sorted(row["period"] for row in part.select("period").distinct().collect())
            if periods:
                _merge(lake, part, periods, record)
            else:
                lake.append_nothing(ROLLUPS, record)
        finally:
            part.unpersist()


def rollups_of(spans: DataFrame) -> DataFrame:
    """The rollups of spans, in one piece: the columns of ``rollups`` without ``batch``."""
    said = ", ".join(
        f"named_struct('measure', '{name}', 'value', {name}, 'is_span', {str(not place).lower()})"
        for place, name in enumerate(MEASURES)
    )
    values = spans.selectExpr(
        "tenant",
        "coalesce(nullif(response_model, ''), nullif(request_model, ''), '') AS model",
        "start DIV 60000000000 AS minute",
        *(f"{how} AS {name}" for name, how in ONCE_PER_SPAN.items()),
        f"inline(filter(array({said}), one -> one.value IS NOT NULL))",
    )
    minutes = values.groupBy("tenant", "model", "minute", "measure", expr(f"{bucket_sql('value')} AS bucket"))
    counted = minutes.agg(
        expr("count(1) AS count"),
        expr("sum(CAST(value AS DECIMAL(28,0))) AS sum"),
        expr("min(value) AS min"),
        expr("max(value) AS max"),
        *(expr(f"sum(CASE WHEN is_span THEN {name} ELSE 0 END) AS {name}") for name in ONCE_PER_SPAN),
    )
    grains = counted.selectExpr("*", f"inline({_GRAINS})")
    return _rows(grains)


def summed(rollups: DataFrame, *by: str) -> DataFrame:
    """Rollups as fewer: all rows that have these columns in common as one, exactly.

    ``summed(rollups.where("grain = 'day'"), "model")`` is what each model comes to over all tenants and days.
    """
    for name in by:
        if name not in KEYS:
            raise InvalidValue("by", name, f"some of {', '.join(KEYS)}")
    numbers = rollups.groupBy(*by).agg(*(expr(f"{how} AS {name}") for name, how in _ADDED_UP.items()))
    entries = ", ".join(
        f"transform(map_entries({name}_buckets), one -> named_struct('measure', '{name}', 'bucket', one.key, "
        "'count', one.value))"
        for name in MEASURES
    )
    counts = rollups.selectExpr(*by, f"inline(concat({entries}))")
    counts = counts.groupBy(*by, "measure", "bucket").agg(expr("sum(count) AS count"))
    buckets = counts.groupBy(*by).agg(*(_buckets(name) for name in MEASURES))
    both = numbers.join(buckets, list(by)) if by else numbers.where("spans > 0").crossJoin(buckets)
    return both.select(*by, *(name for name in ROLLUPS.names if name not in (*KEYS, "batch")))


_DAY = "CAST(date_add(DATE'1970-01-01', CAST(minute DIV 1440 AS INT)) AS STRING)"
_HOUR = f"concat({_DAY}, ' ', lpad(CAST(minute DIV 60 % 24 AS STRING), 2, '0'))"


def _grain(name: str, period: str, minutes: int) -> str:
    start = f"timestamp_seconds(minute DIV {minutes} * {minutes} * 60)"
    return f"named_struct('grain', '{name}', 'period', {period}, 'start', {start})"


_MONTH = f"substring({_DAY}, 1, 7)"
_GRAINS = f"array({_grain('minute', _HOUR, 1)}, {_grain('hour', _DAY, 60)}, {_grain('day', _MONTH, 1440)})"

_SUMS = (*tuple(ONCE_PER_SPAN)[2:], *(f"{name}_sum" for name in MEASURES))
_COUNTS = ("spans", "traces", "errors", "first_token_count")
_ADDED_UP = {
    **{name: f"sum({name})" for name in (*_COUNTS, *_SUMS)},
    **{f"{name}_min": f"min({name}_min)" for name in MEASURES},
    **{f"{name}_max": f"max({name}_max)" for name in MEASURES},
}
"""How each number of several rows becomes one."""


def _buckets(measure: str) -> Column:
    entries = f"collect_list(struct(bucket, count)) FILTER (WHERE measure = '{measure}')"
    return expr(f"map_from_entries(array_sort({entries})) AS {measure}_buckets")


def _rows(counted: DataFrame) -> DataFrame:
    """Rows of rollups from counts by measure and bucket."""
    buckets = counted.groupBy(*KEYS, "measure", "bucket").agg(
        *(expr(f"sum({name}) AS {name}") for name in ("count", "sum", *ONCE_PER_SPAN)),
        expr("min(min) AS min"),
        expr("max(max) AS max"),
    )
    made: list[Column] = [expr(f"sum({name}) AS {name}") for name in ONCE_PER_SPAN]
    for name in MEASURES:
        of_it = f"FILTER (WHERE measure = '{name}')"
        made += [
            expr(f"coalesce(sum(count) {of_it}, 0) AS {name}_count"),
            expr(f"coalesce(sum(sum) {of_it}, 0) AS {name}_sum"),
            expr(f"min(min) {of_it} AS {name}_min"),
            expr(f"max(max) {of_it} AS {name}_max"),
            _buckets(name),
        ]
    rows = buckets.groupBy(*KEYS).agg(*made).withColumnRenamed("duration_count", "spans")
    return rows.select(*(name for name in ROLLUPS.names if name != "batch"))


def _merge(lake: Lake, part: DataFrame, periods: Iterable[str], record: Record) -> None:
    """Add a part to what is there. Only files of these periods are looked at."""
    listed = ", ".join(f"'{period}'" for period in periods)
    same = " AND ".join(f"old.{name} = new.{name}" for name in KEYS)
    changes = {name: f"old.{name} + new.{name}" for name in (*_COUNTS, *_SUMS)}
    changes |= {f"{name}_min": f"least(old.{name}_min, new.{name}_min)" for name in MEASURES}
    changes |= {f"{name}_max": f"greatest(old.{name}_max, new.{name}_max)" for name in MEASURES}
    changes |= {
        f"{name}_buckets": merged_sql(f"old.{name}_buckets", f"new.{name}_buckets") for name in MEASURES
    }
    changes["batch"] = "new.batch"
    changed = ", ".join(f"{name} = {how}" for name, how in changes.items())
    put = {name: f"new.{name}" for name in ROLLUPS.names}
    # As in summaries: the number is no part of the code that Spark makes.
    part.withColumn("batch", lit(record.batch).cast("bigint")).createOrReplaceTempView(_VIEW)
    try:
        with lake.recording(ROLLUPS, record):
            lake.spark.sql(
                f"MERGE INTO {lake.sql_name(ROLLUPS)} AS old USING {_VIEW} AS new "  # noqa: S608 - names of ours
                f"ON old.period IN ({listed}) AND {same} WHEN MATCHED THEN UPDATE SET {changed} "
                f"WHEN NOT MATCHED THEN INSERT ({', '.join(put)}) VALUES ({', '.join(put.values())})"
            )
    finally:
        lake.spark.catalog.dropTempView(_VIEW)


_VIEW = "toril_rollups_of_batch"
