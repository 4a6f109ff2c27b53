"""What runs in a task of Spark: pages come in while the ones before are made into columns."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

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
    with _collecting_rarely(), Door(options.where(), options.log) as door:
        floors = Floors(door.log, task.floor)
        if task.floor:
            # They are there since it was planned, unless it is run once more.
            door.do(floors.put({stretch.partition: stretch.after for stretch in task.stretches}))
            door.begin(floors.keep())
        ready: asyncio.Queue[Page | Exception | None] = asyncio.Queue(AHEAD)
        door.begin(_fetch(door.log, task, ready))
        while (page := door.do(ready.get())) is not None:
            if isinstance(page, Exception):
                raise page
            batch = columns(page.partition, task.wanted.rows(page.entries))
            if batch.num_rows:
                yield batch
        if task.floor:  # a task that has failed is tried again, and needs them
            door.do(floors.remove())


async def _fetch(log: Log, task: Task, ready: asyncio.Queue[Page | Exception | None]) -> None:
    try:
        for stretch in task.stretches:
            async for page in pages(log, stretch):
                await ready.put(page)
        await ready.put(None)
    except Exception as problem:  # noqa: BLE001 - it is raised where the pages are taken
        await ready.put(problem)


@contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Pages are made of very many lists, none in a circle: looking for circles would cost a third of all."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
