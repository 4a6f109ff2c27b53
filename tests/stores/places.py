"""Where the tests of this package keep data: one engine for all of them, and a database for each."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tests.stores.clickhouse_http import ClickHouseServer, clickhouse_server
from toril.stores.clickhouse import Database

EMBEDDED, HTTP, REAL = "embedded", "http", "server"
REAL_URL = os.environ.get("TORIL_CLICKHOUSE_URL")
PLACES = [EMBEDDED, HTTP, *([REAL] if REAL_URL else [])]

_numbers = itertools.count()


class Places:
    """The directory of the embedded engine, and a server that is started when first asked for."""

    def __init__(self, stack: ExitStack, root: Path) -> None:
        self._stack = stack
        self._root = root
        self._server: ClickHouseServer | None = None
        self.directory = root / "embedded"

    def where(self, place: str, name: str | None = None) -> dict[str, Any]:
        """What :meth:`Database.open` is told, with a database of its own where none is named."""
        name = name or f"test_{os.getpid()}_{next(_numbers)}"
        if place == EMBEDDED:
            return {"directory": self.directory, "database": name}
        if place == REAL:
            assert REAL_URL
            return {"url": urlunsplit(urlsplit(REAL_URL)._replace(path=f"/{name}"))}
        if self._server is None:
            self._server = self._stack.enter_context(clickhouse_server(self._root / "server"))
        return {"url": f"{self._server.url}/{name}"}


_places: Places | None = None


@contextmanager
def places(root: Path) -> Iterator[Places]:
    """For as long as the tests of this package run."""
    global _places
    with ExitStack() as stack:
        _places = Places(stack, root)
        yield _places
        if REAL_URL:
            asyncio.run(_leave_nothing())
    _places = None


async def _leave_nothing() -> None:
    async with emptied(REAL) as database:
        await database.run("drop", lambda client: client.command(f"DROP DATABASE {database.name} SYNC"))


@asynccontextmanager
async def fresh(place: str, **more: Any) -> AsyncIterator[Database]:
    """An empty database, dropped afterwards."""
    assert _places is not None
    async with await Database.open(**_places.where(place), **more) as database:
        try:
            yield database
        finally:
            await database.run("drop", lambda client: client.command(f"DROP DATABASE {database.name} SYNC"))


@asynccontextmanager
async def emptied(place: str) -> AsyncIterator[Database]:
    """A database that tests take in turns: to empty the tables is quicker than to make them."""
    assert _places is not None
    async with await Database.open(**_places.where(place, f"test_{os.getpid()}")) as database:
        for table in ("event_log", "frozen_aggregates", "stored_spans", "trace_summaries"):
            text = f"TRUNCATE TABLE {database.name}.{table} SYNC"
            await database.run("empty", lambda client, text=text: client.command(text))  # type: ignore[misc]
        yield database
