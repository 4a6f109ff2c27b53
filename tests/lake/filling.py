"""Logs to read from, for tests that are not in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]

from toril import connect
from toril.aggregate import Aggregate
from toril.events import NewEvent
from toril.lake.source import Door, Marks
from toril.lake.source.options import Options, as_json
from toril.lake.source.plan import Task, plan_batch
from toril.lake.source.tasks import read_task
from toril.log import Log
from toril.log.entry import Append

T = TypeVar("T")


class Row(NamedTuple):
    """An entry, as the log's own reader gives it."""

    partition: str
    ordinal: int
    entry_id: str
    key: str
    version: int
    recorded_at: int
    body: bytes


def with_log(url: str, do: Callable[[Log], Awaitable[T]], **how: Any) -> T:
    """Do something with a log."""

    async def work() -> T:
        async with connect(url) as redis, Log(redis, **how) as log:
            return await do(log)

    return asyncio.run(work())


def event(number: int, size: int = 0) -> bytes:
    data = {"number": number, "text": "x" * size}
    return NewEvent(type="test.shop.order.placed", data=data, id=f"e{number}", occurred_at=number).to_bytes()


async def fill(log: Log, bodies: Sequence[bytes], *, tenants: int = 3, aggregates: int = 20) -> None:
    """Append bodies to some aggregates in turn."""
    for first in range(0, len(bodies), 500):
        some = enumerate(bodies[first : first + 500], first)
        results = await log.append_many(
            [
                Append(Aggregate(f"tenant{place % tenants}", "order", f"a:{place % aggregates}"), [body])
                for place, body in some
            ]
        )
        assert not [result for result in results if isinstance(result, BaseException)]


def filled(url: str, count: int, *, partitions: int = 4, **how: Any) -> None:
    """A log with so many events."""
    with_log(url, lambda log: fill(log, [event(n) for n in range(count)]), partitions=partitions, **how)


async def everything(log: Log) -> list[Row]:
    """All that the log's own reader gives, in its order."""
    found = []
    async with log.reader() as reader:
        async for batch in reader.until_now():
            for entry in batch.entries:
                place = (str(entry.partition), entry.ordinal, entry.id)
                found.append(Row(*place, entry.key, entry.version, entry.recorded_at, entry.body))
    return found


def rows(batch: pa.RecordBatch) -> list[Row]:
    """A batch of the source as what the log's own reader gives."""
    found = []
    for row in batch.to_pylist():
        partition, epoch = f"{row['log_partition']:02d}", row["log_epoch"]
        key = f"{row['tenant']}:{row['aggregate_type']}:{row['aggregate_id']}"
        name = partition if epoch == 1 else f"{epoch}:{partition}"
        found.append(
            Row(
                *(name, row["ordinal"], row["entry_id"], key),
                *(row["version"], row["recorded_at"], row["body"]),
            )
        )
    return found


def planned(url: str, after: Marks | None = None, upto: Marks | None = None, **given: str) -> list[Task]:
    """The tasks of a read, as the driver plans them."""
    options = asked(url, after, upto, **given)
    with Door(url, options.log) as door:
        return [Task(tuple(some), "~test") for some in door.do(plan_batch(door.log, options, "~test"))]


def asked(url: str, after: Marks | None = None, upto: Marks | None = None, **given: str) -> Options:
    options = {"url": url, **given}
    if after is not None:
        options["after"] = as_json(after)
    if upto is not None:
        options["upto"] = as_json(upto)
    return Options.read(options)


def read(url: str, after: Marks | None = None, upto: Marks | None = None, **given: str) -> list[Row]:
    """What the tasks of a read give, without Spark."""
    options = asked(url, after, upto, **given)
    return [
        row
        for task in planned(url, after, upto, **given)
        for batch in read_task(options, task)
        for row in rows(batch)
    ]
