"""From the log into the table ``events``, beside reading the same streams and doing nothing with them."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hiredis
from pyspark.sql import SparkSession

from toril import connect
from toril.aggregate import Aggregate
from toril.lake.archive import EventsStep
from toril.lake.lake import Lake
from toril.lake.tables import EVENTS
from toril.log import Append, Log
from toril.pipelines.spans.summary import SPAN_AGGREGATE
from toril.testing import standalone

from . import made
from .readings import Readings
from .watch import Peak

TORIL = "toril lake: log → events"
BARE = "a bare XRANGE reader in Python"
PAGE = 1000
AT_ONCE = 5_000
LOG = "log"


def measure(spark: SparkSession, folder: Path, events: int, rounds: int) -> Readings:
    """Archive a log of so many events, again and again, and read it barely."""
    found = Readings()
    with standalone() as server:
        keys = asyncio.run(_fill(server.url, events))
        for turn in range(-1, rounds):
            sides = [TORIL, BARE] if turn % 2 else [BARE, TORIL]
            for side in sides:
                with Peak() as peak:
                    began = time.perf_counter()
                    if side == BARE:
                        count = _read(server.url, keys)
                    else:
                        count = _archive(spark, folder / f"archive-{turn}", server.url, f"lake/{turn + 1}")
                    took = time.perf_counter() - began
                if count != events:
                    raise RuntimeError(f"{side}: {count:,} events of {events:,}")
                if turn >= 0:  # the first round warms up
                    found.add(side, events / took, peak.bytes)
    return found


def _archive(spark: SparkSession, path: Path, url: str, group: str) -> int:
    lake = Lake(spark, path)
    step = EventsStep(url, LOG, group=group)
    step.prepare(lake)
    try:
        while step.once(lake):
            pass
    finally:
        step.close(lake)
    return sum(ordinal for ordinal, _ in lake.last(EVENTS).positions.values())


async def _fill(url: str, events: int) -> list[str]:
    """Append the events as a collector would; the keys of the streams."""
    async with connect(url) as redis, Log(redis, LOG) as log:
        appends = _appends(events)
        while some := list(islice(appends, AT_ONCE)):
            for outcome in await log.append_many(some):
                if isinstance(outcome, BaseException):
                    raise outcome
        layout = await log.layout()
        return [str(log.store(partition).keys.entries) for partition in layout.partitions()]


def _appends(events: int) -> Iterator[Append]:
    for number in range(events):
        tenant, span = made.span_of(*made.place_of(number))
        event = made.event_of(tenant, span)
        yield Append(Aggregate(tenant, SPAN_AGGREGATE, span.trace_id), [event.to_bytes()])


def _read(url: str, keys: list[str]) -> int:
    """All entries of the streams, one page after the other, each parsed and dropped."""
    where = urlsplit(url)
    reader, count = hiredis.Reader(), 0
    with socket.create_connection((where.hostname, where.port)) as line:
        for key in keys:
            after = "-"
            while True:
                asked: Any = ("XRANGE", key, after, "+", "COUNT", PAGE)
                line.sendall(hiredis.pack_command(asked))
                while (page := reader.gets()) is False:
                    reader.feed(line.recv(1 << 20))
                count += len(page)
                if len(page) < PAGE:
                    break
                after = f"({page[-1][0].decode()}"
    return count
