"""The small projection by engines that run in one process, on the same files, for orientation.

Each runs in a process of its own (``python -m benchmarks.lake.others polars PATH``), twice: the second time
counts, and the memory is that of the process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

_SQL = """
SELECT tenant, trace_id, count(*) AS spans, {count_if}(status = 2) AS errors, min(start) AS started_at,
    max("end") AS ended_at, coalesce(sum(input_tokens), 0) AS input_tokens,
    coalesce(sum(output_tokens), 0) AS output_tokens, coalesce(sum(cost), 0) AS cost,
    {sorted}({set}) AS models, {min_by}(name, {place}) AS trace_name
FROM {files} GROUP BY tenant, trace_id
"""


def polars(path: str) -> tuple[int, int]:
    """Polars, lazily, by its streaming engine."""
    import polars as pl

    model = pl.col("response_model").drop_nulls().unique().sort()
    asked = (
        pl.scan_delta(path)
        .group_by("tenant", "trace_id")
        .agg(
            pl.len().alias("spans"),
            (pl.col("status") == 2).sum().alias("errors"),
            pl.col("start").min().alias("started_at"),
            pl.col("end").max().alias("ended_at"),
            pl.col("input_tokens").sum(),
            pl.col("output_tokens").sum(),
            pl.col("cost").sum(),
            model.alias("models"),
            pl.col("name").sort_by("start", "span_id").first().alias("trace_name"),
        )
    )
    made = asked.collect(engine="streaming")
    return made.height, int(made["spans"].sum())


def duckdb(path: str) -> tuple[int, int]:
    """DuckDB, on the Parquet files that the table has now: its reader of Delta is fetched at run time."""
    from deltalake import DeltaTable

    duck: Any = import_module("duckdb")  # which is in no environment but this benchmark's

    files = ", ".join(f"'{one.removeprefix('file://')}'" for one in DeltaTable(path).file_uris())
    asked = _SQL.format(
        count_if="count_if",
        sorted="list_sort",
        set="list(DISTINCT response_model) FILTER (WHERE response_model IS NOT NULL)",
        min_by="min_by",
        place="(start, span_id)",
        files=f"read_parquet([{files}], hive_partitioning=false)",
    )
    made = duck.sql(asked).arrow().read_all()
    return made.num_rows, sum(made.column("spans").to_pylist())


def clickhouse(path: str) -> tuple[int, int]:
    """ClickHouse inside of the process."""
    import pyarrow as pa  # type: ignore[import-untyped]

    chdb: Any = import_module("chdb")

    os.chdir("/")  # it reads files below the folder that it runs in

    asked = _SQL.format(
        count_if="countIf",
        sorted="arraySort",
        set="groupUniqArray(response_model)",
        min_by="argMin",
        place="(start, span_id)",
        files=f"deltaLakeLocal('{path}')",
    )
    with pa.ipc.open_file(chdb.query(asked, "Arrow").bytes()) as file:
        made = file.read_all()
    return made.num_rows, sum(made.column("spans").to_pylist())


ENGINES: dict[str, Callable[[str], tuple[int, int]]] = {
    "Polars": polars,
    "DuckDB": duckdb,
    "ClickHouse": clickhouse,
}


def main() -> None:
    """Ask twice; print the seconds of the second time, the traces, and the spans in them."""
    engine, path = ENGINES[sys.argv[1]], sys.argv[2]
    engine(path)
    began = time.perf_counter()
    traces, spans = engine(path)
    print(time.perf_counter() - began, traces, spans)


if __name__ == "__main__":
    main()
