"""Rows for tables of a lake, without a log; and rows as they can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame

from toril.lake import sending
from toril.lake.lake import Lake, Record
from toril.lake.tables import EVENTS, LOG_COLUMNS

PARTITIONS = 2
DAY = 86_400 * 10**9
TODAY = int(datetime.now(UTC).timestamp()) // 86_400 * DAY

SCHEMA = ", ".join(f"`{column.name}` {column.type}" for column in LOG_COLUMNS)


def secret(tenant: str, number: int) -> str:
    """What only an event of a tenant has in it."""
    return f"whisper of {tenant} {number}"


def events(lake: Lake, first: int, count: int, tenants: list[str], *, day: int = 0) -> DataFrame:
    """Events with numbers from ``first``, of tenants in turn, recorded so many days ago."""
    rows = []
    for number in range(first, first + count):
        tenant = tenants[number % len(tenants)]
        recorded = TODAY - day * DAY + number * 1000
        body = f'{{"id": "{tenant}-{number}", "data": "{secret(tenant, number)}"}}'.encode()
        place = (1, number % PARTITIONS, number // PARTITIONS + 1, f"{recorded // 10**6}-{number}")
        whose = (tenant, "note", f"of-{tenant}", number // len(tenants) + 1)
        rows.append((*place, *whose, recorded, f"{tenant}-{number}", "noted", 1, recorded, body))
    return lake.spark.createDataFrame(rows, SCHEMA)


def add_events(
    lake: Lake, batch: int, count: int, tenants: list[str], *, day: int = 0, files: int = 1
) -> None:
    """One batch of them, so many files in each partition."""
    lake.ensure(EVENTS)
    upto = {
        f"{number:02d}": (batch * count // PARTITIONS, f"{batch}-{number}") for number in range(PARTITIONS)
    }
    made = events(lake, (batch - 1) * count, count, tenants, day=day)
    lake.append(made.repartition(files), EVENTS, Record(batch=batch, positions=upto))


def as_texts(frame: DataFrame, without: Iterable[str] = ("batch", "recorded_day")) -> list[str]:
    """Rows as text, in one order."""
    names = sorted(set(frame.columns) - set(without))
    return sorted(repr([_plain(value) for value in row]) for row in frame.select(*names).collect())


def _plain(value: Any) -> Any:
    return sorted(value.items()) if isinstance(value, dict) else value


@contextmanager
def at_most_sent_round(most: int) -> Iterator[list[DataFrame]]:
    """Where so many keys may be sent to every task: what is."""
    sent: list[DataFrame] = []

    def send(keys: DataFrame) -> DataFrame:
        sent.append(keys)
        return keys

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sending, "broadcast", send)
        patched.setattr(sending, "SENT_ROUND", most)
        yield sent
