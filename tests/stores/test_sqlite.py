"""The cold store in a file, where whoever asked it has not waited for the answer."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

from toril.stores.sqlite import SqliteColdStore


async def test_the_file_is_not_closed_under_a_thread_that_works_on_it(tmp_path: Path) -> None:
    """A worker that is cancelled closes the store, and its thread goes on: SQLite would be gone under it."""
    store = SqliteColdStore(tmp_path / "cold")
    works, may_end = threading.Event(), threading.Event()
    answers: list[int] = []

    def work(file: sqlite3.Connection) -> None:
        works.set()
        assert may_end.wait(30)
        answers.extend(file.execute("SELECT 7").fetchone())

    asked = asyncio.create_task(store._do(work))
    assert await asyncio.to_thread(works.wait, 30)
    asked.cancel()
    closing = asyncio.create_task(asyncio.to_thread(store.close))
    done, _ = await asyncio.wait([closing], timeout=0.2)
    may_end.set()
    await closing
    assert not done
    assert answers == [7]
