"""What runs in a task of Spark: pages come in while the ones before are made into columns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pyarrow as pa  # type: ignore[import-untyped]

from toril.lake.source.door import Door
from toril.lake.source.floors import Floors
from toril.lake.source.options import Options
from toril.lake.source.plan import Task
from toril.lake.source.reading import Page, pages
from toril.lake.source.rows import columns
from toril.log import Log

AHEAD = 4
"""Pages that are fetched before they are asked for."""


def read_task(options: Options, task: Task) -> Iterator[pa.RecordBatch]:
    """All that a task reads, as batches of Arrow."""
    with Door(options.where(), options.log) as door:
        ready: asyncio.Queue[Page | Exception | None] = asyncio.Queue(AHEAD)
        fetching = door.begin(_fetch(door.log, task, ready))
        try:
            while (page := door.do(ready.get())) is not None:
                if isinstance(page, Exception):
                    raise page
                batch = columns(page.partition, task.wanted.rows(page.entries))
                if batch.num_rows:
                    yield batch
        finally:
            fetching.cancel()


async def _fetch(log: Log, task: Task, ready: asyncio.Queue[Page | Exception | None]) -> None:
    floors = Floors(log, task.floor)
    keeping: asyncio.Task[None] | None = None
    try:
        if task.floor:
            # They are there since it was planned, unless it is run once more.
            await floors.put({stretch.partition: stretch.after for stretch in task.stretches})
            keeping = asyncio.create_task(floors.keep())
        for stretch in task.stretches:
            async for page in pages(log, stretch):
                await ready.put(page)
        if task.floor:
            await floors.remove()
        await ready.put(None)
    except Exception as problem:  # noqa: BLE001 - it is raised where the pages are taken
        await ready.put(problem)
    finally:
        if keeping is not None:
            keeping.cancel()
