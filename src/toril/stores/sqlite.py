"""A cold store in one file: for one machine, and for the embedded set-up."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from toril.aggregate import Aggregate
from toril.log import Frozen

T = TypeVar("T")

PAGE = 1000


class SqliteColdStore:
    """A :class:`~toril.log.ColdStore` in an SQLite file, which several processes may share.

    What was put is on the disk: the file is written ahead and synchronised at each commit.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30)
        self._one_at_a_time = threading.Lock()
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute("PRAGMA synchronous = FULL")
        self._file.execute(
            "CREATE TABLE IF NOT EXISTS frozen (tenant TEXT, type TEXT, id TEXT, epoch INTEGER NOT NULL,"
            " changes INTEGER NOT NULL, fields BLOB NOT NULL, PRIMARY KEY (tenant, type, id)) WITHOUT ROWID"
        )

    def close(self) -> None:
        """Close the file, when no thread works on it any more: one may, whose asker was cancelled."""
        with self._one_at_a_time:
            self._file.close()

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def locked() -> T:
            with self._one_at_a_time:
                return work(self._file)

        return await asyncio.to_thread(locked)

    async def put(self, batch: Sequence[Frozen]) -> None:
        """As :meth:`ColdStore.put`; in one transaction."""
        rows = [
            (one.aggregate.tenant, one.aggregate.type, one.aggregate.id, one.epoch, one.changes, one.fields)
            for one in batch
        ]

        def work(file: sqlite3.Connection) -> None:
            file.execute("BEGIN IMMEDIATE")
            try:
                file.executemany(
                    "INSERT INTO frozen VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
                    " epoch = excluded.epoch, changes = excluded.changes, fields = excluded.fields"
                    " WHERE excluded.changes > changes",
                    rows,
                )
            except BaseException:
                file.execute("ROLLBACK")
                raise
            file.execute("COMMIT")

        await self._do(work)

    async def get(self, aggregate: Aggregate) -> Frozen | None:
        """As :meth:`ColdStore.get`."""
        (found,) = await self.get_many([aggregate])
        return found

    async def get_many(self, aggregates: Sequence[Aggregate]) -> list[Frozen | None]:
        """As :meth:`ColdStore.get_many`: a thread is asked once, which is what takes time."""

        def work(file: sqlite3.Connection) -> list[Frozen | None]:
            found: list[Frozen | None] = []
            for one in aggregates:
                row = file.execute(
                    "SELECT epoch, changes, fields FROM frozen WHERE tenant = ? AND type = ? AND id = ?",
                    (one.tenant, one.type, one.id),
                ).fetchone()
                found.append(None if row is None else Frozen(one, *row))
            return found

        return await self._do(work)

    async def erase(self, tenant: str) -> int:
        """As :meth:`ColdStore.erase`."""
        return await self._do(
            lambda file: file.execute("DELETE FROM frozen WHERE tenant = ?", (tenant,)).rowcount
        )

    async def aggregates(self) -> AsyncIterator[Aggregate]:
        """As :meth:`ColdStore.aggregates`, page by page."""
        after = ("", "", "")
        while True:
            page = await self._do(
                lambda file, after=after: file.execute(  # type: ignore[misc]
                    "SELECT tenant, type, id FROM frozen WHERE (tenant, type, id) > (?, ?, ?)"
                    " ORDER BY tenant, type, id LIMIT ?",
                    (*after, PAGE),
                ).fetchall()
            )
            for row in page:
                yield Aggregate(*row)
            if len(page) < PAGE:
                return
            after = page[-1]
