"""The one door to ClickHouse: statements run in threads, and errors say whether trying again can help."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from toril.aggregate import check_tenant
from toril.events.errors import ConfigurationError, StoreError
from toril.stores.clickhouse import engine
from toril.stores.clickhouse.batcher import Batcher, Limits
from toril.stores.clickhouse.failures import keep_values_out_of_logs, store_error
from toril.stores.clickhouse.migrations import migrate
from toril.stores.clickhouse.place import Embedded, Place, place_of
from toril.stores.clickhouse.table import Row, Table, weight

T = TypeVar("T")

THREADS = 8
"""Statements that run at once. Each has a connection of its own, made when it is first needed."""

CONNECT_TIMEOUT = 10
ANSWER_TIMEOUT = 60

INSERTING = {"async_insert": 0, "insert_deduplicate": 0, "max_partitions_per_insert_block": 0}
"""Acknowledged when it is stored; rows count as the same by their keys alone; old events are of any month."""

CACHES = dict.fromkeys(("mark_cache_size", "primary_index_cache_size", "index_mark_cache_size"), 64 * 2**20)
"""Of the engine inside of a process, in bytes: it would take 5 GiB for each."""


class Database:
    """Tables of Toril in a ClickHouse server, or in an engine inside of this process.

    ::

        async with await Database.open(directory=Path("data")) as database:
            spans = ClickHouseSpanTable(database)
    """

    def __init__(self, place: Place, limits: Limits | None = None) -> None:
        self._place = place
        self._limits = limits
        self._process = os.getpid()
        self._threads = ThreadPoolExecutor(THREADS, "toril-clickhouse")
        self._idle: list[Any] = []
        self._writers: dict[str, Batcher[Row]] = {}
        self._has_engine = False
        self._closing: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def open(
        cls,
        url: str | None = None,
        *,
        directory: Path | None = None,
        database: str = "toril",
        limits: Limits | None = None,
    ) -> Self:
        """Connect, and bring the schema to what this program knows.

        ``url`` is ``clickhouse://user:password@host:8123/database`` (``clickhouses://`` for TLS). A
        ``directory`` is for one process at a time, and a process can have one: a second gets a
        :class:`StoreError` that says who has it.
        """
        made = cls(place_of(url, directory, database), limits)
        try:
            await made.run("open the database", lambda client: migrate(client, made.name))
            if made.is_embedded:
                engine.give_back_signals()
        except BaseException:
            await made.close()
            raise
        return made

    def __repr__(self) -> str:
        return f"Database({str(self._place)!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def name(self) -> str:
        """The database's name, as it stands before a table's."""
        return self._place.database

    @property
    def is_embedded(self) -> bool:
        """Whether the data is in a directory that belongs to this process."""
        return isinstance(self._place, Embedded)

    async def query(
        self,
        statement: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        formats: Mapping[str, str] | None = None,
    ) -> list[tuple[Any, ...]]:
        """The rows of a ``SELECT``. Values are bound as ``{name:Type}``; ``{database}`` is put in.

        ``formats`` says how columns are read: ``bytes`` for bodies, ``int`` for times.
        """
        text = statement.replace("{database}", self.name)

        def work(client: Any) -> list[tuple[Any, ...]]:
            found = client.query(text, dict(parameters or {}), column_formats=dict(formats or {}))
            return list(found.result_rows)

        return await self.run("read", work)

    async def insert(self, table: Table, rows: Sequence[Row]) -> None:
        """Insert these at once; returns when they are stored. :meth:`writer` gathers rows of many callers."""
        if not rows:
            return
        names = [name for name, _ in table.columns]
        types = [kind for _, kind in table.columns]

        def work(client: Any) -> None:
            client.insert(
                table.name,
                list(zip(*rows, strict=True)),
                column_names=names,
                database=self.name,
                column_type_names=types,
                column_oriented=True,
                settings=INSERTING,
            )

        await self.run(f"insert into {table.name}", work)

    def writer(self, table: Table) -> Batcher[Row]:
        """Gathers rows for a table: one for all who insert into it. :meth:`close` waits for it."""
        if table.name not in self._writers:
            self._writers[table.name] = Batcher(
                lambda rows: self.insert(table, rows), weigh=weight, limits=self._limits
            )
        return self._writers[table.name]

    async def count(self, table: Table, tenant: str) -> int:
        """How many rows a tenant has, each counted once."""
        counting = f"SELECT count() FROM {{database}}.{table.name} FINAL WHERE TenantId = {{tenant:String}}"  # noqa: S608
        return int((await self.query(counting, {"tenant": check_tenant(tenant)}))[0][0])

    async def erase(self, table: Table, tenant: str) -> int:
        """Remove all of a tenant, and return when it is gone; says how many rows, each counted once."""
        there = await self.count(table, tenant)
        if there:
            text = f"ALTER TABLE {self.name}.{table.name} DELETE WHERE TenantId = {{tenant:String}}"
            await self.run(
                f"erase from {table.name}", lambda client: client.command(text, {"tenant": tenant})
            )
            await self._until_changed(table)
        return there

    async def _until_changed(self, table: Table) -> None:
        """Wait for what was begun: it may take longer than one answer may."""
        pause = 0.01
        while True:
            left, problems = (
                await self.query(
                    "SELECT count(), countIf(latest_fail_reason != '') FROM system.mutations"
                    " WHERE database = {name:String} AND table = {table:String} AND NOT is_done",
                    {"name": self.name, "table": table.name},
                )
            )[0]
            if not left:
                return
            if problems:
                raise StoreError(f"ClickHouse cannot finish changing {table.name}: see system.mutations")
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)

    async def run(self, what: str, work: Callable[[Any], T]) -> T:
        """Run ``work`` with a connection in a thread. A caller that gives up does not stop what was begun."""
        if self._closed:
            raise StoreError("the ClickHouse database is closed", retryable=False)
        if os.getpid() != self._process:
            raise StoreError(
                "this ClickHouse database was opened before a fork: open it anew", retryable=False
            )
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._with_client, what, work)

    async def close(self) -> None:
        """Returns when all that was begun is done, and the directory is free for another process."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="toril-clickhouse-close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await asyncio.gather(*(writer.close() for writer in self._writers.values()))
        self._closed = True
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self._threads.shutdown()
        while self._idle:
            self._idle.pop().close()
        if self._has_engine:
            engine.release()

    def _with_client(self, what: str, work: Callable[[Any], T]) -> T:
        try:
            try:
                client = self._idle.pop()
            except IndexError:
                client = self._connect()
            try:
                return work(client)
            finally:
                self._idle.append(client)
        except Exception as problem:  # noqa: BLE001 - all that the driver and the engine raise
            raise store_error(what, str(self._place), problem) from None

    def _connect(self) -> Any:
        """A connection. It is made in a thread of ours: the engine changes that thread's signal mask."""
        try:
            from clickhouse_connect.driver import create_client
        except ImportError as problem:
            raise ConfigurationError(
                f"ClickHouse needs pip install 'toril[clickhouse]' ({problem})"
            ) from problem
        keep_values_out_of_logs()
        place = self._place
        if isinstance(place, Embedded):
            if not self._has_engine:
                engine.acquire(place.directory)
                self._has_engine = True
            try:
                return create_client(interface="chdb", path=str(place.directory), chdb_options=CACHES)
            except Exception as problem:
                raise StoreError(f"the ClickHouse engine cannot start at {place}: {problem}") from problem
        return create_client(
            interface="https" if place.tls else "http",
            host=place.host,
            port=place.port,
            username=place.user,
            password=place.password,
            connect_timeout=CONNECT_TIMEOUT,
            send_receive_timeout=ANSWER_TIMEOUT,
            autogenerate_session_id=False,
        )
