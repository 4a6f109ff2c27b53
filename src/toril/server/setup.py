"""The whole of it, put together: log, tables, pipelines, and what serves and works.

Without settings everything is embedded: a Valkey of its own and a ClickHouse engine inside of the process.
With URLs, the same code is one of any number of processes.
"""

from __future__ import annotations

import gc
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from toril.connection import connect
from toril.connection.durability import Level
from toril.connection.embedded import default_home
from toril.errors import TorilError
from toril.events import EventHandler
from toril.keyspace import LogKeys
from toril.log import Retention
from toril.log.layout import create_layout
from toril.pipelines.archive import ARCHIVE, register_archive
from toril.pipelines.spans.aggregation import DEBOUNCE
from toril.pipelines.spans.clickhouse import ClickHouseSpanTable, ClickHouseTraceTable
from toril.pipelines.spans.ingestion import Ingestion, check_durability, safest
from toril.pipelines.spans.prices import PriceTable
from toril.pipelines.spans.redaction import Redactor, no_redaction
from toril.room.tokens import AdmissionTokens, NoTokens
from toril.runtime import EngineOptions, EventSourcing, ProcessorWorker
from toril.server.app import Parts
from toril.server.erasing import Erasable, ErasedTenant, Progress, erase_tenant
from toril.server.keys import ApiKeys
from toril.server.limits import Limits
from toril.server.operator import Operator, announced
from toril.server.room import USUAL, RoomApi, RoomOptions
from toril.server.routes import RouteGroup
from toril.server.running import HOST, PORT, Server
from toril.stores.clickhouse import ClickHouseColdStore, ClickHouseHistory, Database
from toril.stores.clickhouse import Limits as InsertLimits

logger = logging.getLogger("toril.server")

EMBEDDED_PARTITIONS = 16
"""Partitions of a log that is made on the embedded server: one process needs no more, and idles for less."""

INSERTS = InsertLimits(pace=0.5, paced_rows=200)
"""Under load, inserts into a table are so many seconds apart: few large ones cost half of many small ones."""

KNOWN = timedelta(days=30)
"""For how long a trace that is never quiet knows its spans again. One that is cold knows all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What can be said about a set-up. Nothing needs to be."""

    redis: str | None = None
    """As for :func:`toril.connect`; None: the embedded server in ``home``."""
    clickhouse: str | None = None
    """``clickhouse://user:password@host:8123/database``; None: an engine in this process, in ``home``."""
    home: Path = field(default_factory=default_home)
    log: str = "log"
    partitions: int | None = None
    """Of a log that is made: 64, where nothing is said, and on the embedded server 16."""
    quiet: timedelta = timedelta(hours=1)
    """How long a trace must be quiet before it leaves Redis. The same in all processes."""
    most_entries: int | None = None
    """In a partition of the log: with workers that far behind, senders are told to come again. None: as many
    as Redis has memory for. The same in all processes."""
    durability: Level | None = None
    """How safe spans must be before they are accepted; None: as safe as the server can make them."""
    redactor: Redactor = no_redaction
    prices: PriceTable | None = None
    debounce: timedelta = DEBOUNCE
    on_settled: Mapping[str, EventHandler[Any]] = field(default_factory=dict)
    """Handlers for settled summaries, by name."""
    options: EngineOptions | None = None
    limits: Limits = Limits()  # noqa: RUF009 - it is frozen
    open_tenant: str | None = None
    """For development: requests from this machine that bring no key are this tenant's."""
    admin: str | None = None
    """A secret with which waiting rooms are made and changed over HTTP; None: the one in ``server.json``."""
    room_keys: Path | None = None
    """The file of the keys that sign admission tokens; None: ``room-keys.json`` in ``home``, made when it is
    not there. All servers need the same."""
    new_rooms: bool = False
    """Whether a waiting room is made when somebody joins an event that nobody knows."""
    room_durability: Level = "memory"
    """How safe a join, an admission, a hold of seats must be before it is answered."""
    trusted_proxies: tuple[str, ...] = ()
    """Whose ``X-Forwarded-For`` the waiting room believes: addresses, or networks."""


class Setup:
    """Everything that a process needs to collect, to process and to answer.

    ::

        async with Setup.open(Settings()) as setup, setup.worker(), setup.server() as server:
            await server.wait()
    """

    def __init__(self, settings: Settings, database: Database) -> None:
        self.settings = settings
        self.database = database
        self.spans = ClickHouseSpanTable(database)
        self.traces = ClickHouseTraceTable(database)
        self.history = ClickHouseHistory(database)
        self.cold = ClickHouseColdStore(database)
        self.sourcing = EventSourcing(
            settings.redis or f"embedded://{settings.home}",
            log=settings.log,
            partitions=settings.partitions,
            cold=self.cold,
            history=self.history,
            quiet=settings.quiet,
            idempotency_window=KNOWN,
            most_entries=settings.most_entries,
            options=settings.options,
        )
        self.ingestion = Ingestion(
            self.sourcing,
            spans=self.spans,
            traces=self.traces,
            redactor=settings.redactor,
            prices=settings.prices,
            debounce=settings.debounce,
            durability=settings.durability,
            on_settled=settings.on_settled,
        )
        register_archive(self.sourcing, self.history)
        self._worker: ProcessorWorker | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings) -> AsyncIterator[Self]:
        """Open the tables and the log; closed in the other order."""
        async with AsyncExitStack() as stack:
            directory = None if settings.clickhouse else settings.home / "clickhouse"
            database = await stack.enter_async_context(
                await Database.open(settings.clickhouse, directory=directory, limits=INSERTS)
            )
            setup = cls(settings, database)
            if settings.redis is None and settings.partitions is None:
                async with connect(setup.sourcing.url) as redis:
                    await create_layout(redis, LogKeys(settings.log), EMBEDDED_PARTITIONS)
            await stack.enter_async_context(setup.sourcing)
            await setup._begin()
            yield setup

    async def _begin(self) -> None:
        log = self.sourcing.log
        assert log is not None
        if self.ingestion.durability is None:
            self.ingestion.durability = await safest(log)
            if self.ingestion.durability == "memory":
                logger.warning(
                    "spans are accepted when they are in the server's memory: it can promise no more"
                )
        else:
            await check_durability(log, self.ingestion.durability)
        await check_durability(log, self.settings.room_durability)
        if (await log.layout()).retention is None:
            # The history has a copy of everything, so what all have read may go.
            await log.choose_retention(Retention.archived_by(ARCHIVE))

    @property
    def keys(self) -> ApiKeys:
        """The API keys of tenants."""
        assert self.sourcing.redis is not None
        return ApiKeys(self.sourcing.redis)

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[ProcessorWorker]:
        """Process what comes in, while it is entered."""
        async with self.sourcing.worker() as worker:
            self._worker = worker
            yield worker

    @asynccontextmanager
    async def server(self, host: str = HOST, port: int = PORT) -> AsyncIterator[Server]:
        """Serve it over HTTP, while it is entered."""
        secret = secrets.token_urlsafe(32)
        server = Server(
            Parts(
                recorder=self.ingestion,
                keys=self.keys,
                spans=self.spans,
                traces=self.traces,
                sourcings=[self.sourcing],
                limits=self.settings.limits,
                open_tenant=self.settings.open_tenant,
                operator=secret,
                checks={"clickhouse": self._look_at_tables, "processors": self._look_at_processors},
                groups=[Operator(secret, self.erase_tenant).group(), *self._room(secret)],
            ),
            host=host,
            port=port,
        )
        async with server:
            if self.database.is_embedded:
                with announced(self.settings.home, server.url, secret):
                    yield server
            else:
                yield server

    def _room(self, secret: str) -> list[RouteGroup]:
        """The waiting room, where its extra is installed."""
        assert self.sourcing.redis is not None
        try:
            file = self.settings.room_keys or self.settings.home / "room-keys.json"
            tokens = AdmissionTokens.from_file(file)
        except NoTokens as problem:
            logger.warning("there is no waiting room: %s", problem)
            return []
        options = RoomOptions(
            tokens=tokens,
            admin=self.settings.admin or secret,
            new_rooms=USUAL if self.settings.new_rooms else None,
            durability=self.settings.room_durability,
            trusted=self.settings.trusted_proxies,
        )
        return [RoomApi(self.sourcing.redis, options).group()]

    async def erase_tenant(self, tenant: str, progress: Progress | None = None) -> ErasedTenant:
        """Remove all that there is of a tenant, everywhere."""
        tables: dict[str, Erasable] = {"spans": self.spans, "traces": self.traces, "events": self.history}
        return await erase_tenant(
            tenant, sourcing=self.sourcing, keys=self.keys, tables=tables, progress=progress
        )

    async def _look_at_tables(self) -> None:
        await self.database.query("SELECT 1", {})

    async def _look_at_processors(self) -> None:
        if self._worker is not None and not self._worker.is_running:
            raise TorilError("a processor has stopped: the log of the process says why")


def collect_garbage_seldom() -> None:
    """For processes that only run a set-up: a third of a worker's time went into looking for cycles.

    What is in flight and what is kept at hand are many small objects, and hardly any of them are in cycles.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
