"""Where the tests of this package keep data: one engine for all of them, and a database for each."""

from __future__ import annotations

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

    def where(self, place: str) -> dict[str, Any]:
        """What :meth:`Database.open` is told, with a database of its own."""
        name = f"test_{os.getpid()}_{next(_numbers)}"
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
    _places = None


@asynccontextmanager
async def fresh(place: str, **more: Any) -> AsyncIterator[Database]:
    """An empty database, dropped afterwards."""
    assert _places is not None
    async with await Database.open(**_places.where(place), **more) as database:
        try:
            yield database
        finally:
            await database.run("drop", lambda client: client.command(f"DROP DATABASE {database.name} SYNC"))
