"""``python -m benchmarks.lake.checkpoints``: the archive by Spark's own checkpoints, and by its own records.

The same backlog goes into a table by a streaming query of ``toril_log`` with a checkpoint folder, and by
:class:`~toril.lake.archive.EventsStep`; in turns, in one session. Then the checkpoint folder is deleted, and
both are asked once more.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click
from pyspark.sql import SparkSession

from toril.aggregate import Aggregate
from toril.connection import connect
from toril.lake.archive import EventsStep
from toril.lake.lake import Lake
from toril.lake.sessions import session
from toril.lake.source import register
from toril.lake.tables import EVENTS, LOG_COLUMNS
from toril.log import Append, Log
from toril.testing import standalone

BODY = b'{"type":"made","id":"%d","occurred_at":1,"schema_version":1,"data":{"text":"%s"}}'


class Took(NamedTuple):
    """What a backlog took."""

    seconds: float
    batch: float
    """The median of its batches."""
    rows: int
    """In the table afterwards."""


async def fill(url: str, events: int) -> None:
    """Events of about 330 bytes."""
    async with connect(url) as redis:
        log = Log(redis, partitions=8)
        for first in range(0, events, 500):
            some = range(first, min(first + 500, events))
            await log.append_many(
                [
                    Append(Aggregate("acme", "trace", f"{one % 997:032x}"), [BODY % (one, b"x" * 250)])
                    for one in some
                ]
            )


def by_checkpoint(spark: SparkSession, url: str, place: Path, most: int) -> Took:
    """A streaming query, until it has all there is."""
    began = time.perf_counter()
    lake = Lake(spark, place)
    lake.ensure(EVENTS)
    rows = spark.readStream.format("toril_log").option("url", url).option("max_events", most).load()
    query = (
        rows.selectExpr(*(column.name for column in LOG_COLUMNS), "0L AS batch")
        .writeStream.format("delta")
        .option("checkpointLocation", str(checkpoint(place)))
        .trigger(availableNow=True)
        .start(lake.place(EVENTS))
    )
    query.awaitTermination()
    # The source's rows are not counted by Spark; a batch is what has added something.
    durations = [one["durationMs"] for one in query.recentProgress]
    took = [one["triggerExecution"] / 1000 for one in durations if "addBatch" in one]
    return Took(
        time.perf_counter() - began, statistics.median(took) if took else 0.0, lake.read(EVENTS).count()
    )


def checkpoint(place: Path) -> Path:
    """The folder that the query remembers by."""
    return place.with_name(f"{place.name}-checkpoint")


def by_records(spark: SparkSession, url: str, place: Path, most: int) -> Took:
    """Steps, until the table has all there is."""
    began = time.perf_counter()
    lake = Lake(spark, place)
    step = EventsStep(url, group=f"bench/{place.name}", most=most)
    step.prepare(lake)
    took = []
    while True:
        before = time.perf_counter()
        if step.once(lake) is None:
            break
        took.append(time.perf_counter() - before)
    step.close(lake)
    return Took(
        time.perf_counter() - began, statistics.median(took) if took else 0.0, lake.read(EVENTS).count()
    )


@click.command()
@click.option("--events", default=100_000, show_default=True, help="In the log.")
@click.option("--most", default=10_000, show_default=True, help="In a batch.")
@click.option("--rounds", default=3, show_default=True, help="The first one warms up, and is not counted.")
def main(events: int, most: int, rounds: int) -> None:
    """Compare them."""
    folder = Path(tempfile.mkdtemp(prefix="toril-bench-"))
    spark = session(conf={"spark.ui.enabled": "false"})
    register(spark)
    with standalone() as server:
        asyncio.run(fill(server.url, events))
        ratios: list[tuple[float, float]] = []
        for number in range(rounds):
            theirs = by_checkpoint(spark, server.url, folder / f"theirs-{number}", most)
            ours = by_records(spark, server.url, folder / f"ours-{number}", most)
            click.echo(f"round {number}: by checkpoint {theirs}, by records {ours}")
            assert theirs.rows == ours.rows == events
            ratios.append((ours.seconds / theirs.seconds, ours.batch / theirs.batch))
        backlog, batch = (statistics.median(some) for some in zip(*(ratios[1:] or ratios), strict=True))
        click.echo(f"by records against by checkpoint: a backlog {backlog:.2f} x, a batch {batch:.2f} x")
        shutil.rmtree(checkpoint(folder / "theirs-0"))
        theirs = by_checkpoint(spark, server.url, folder / "theirs-0", most)
        ours = by_records(spark, server.url, folder / "ours-0", most)
        click.echo(f"without the checkpoint: {theirs.rows:,} rows by checkpoint, {ours.rows:,} by records")
    spark.stop()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
