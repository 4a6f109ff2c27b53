"""``EventSourcing``: what all pipelines of a program share."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from toril.aggregate import check_tenant
from toril.connection import Connection, Durability, connect
from toril.connection.durability import Level
from toril.connection.errors import ConnectionFailed, OutcomeUnknown
from toril.connection.open import URL_VARIABLE
from toril.events.commands import CommandHandler
from toril.events.errors import ConfigurationError
from toril.events.stores import Appended, EventStore
from toril.log import ColdStore, History, Log
from toril.runtime.backend import Backend
from toril.runtime.commands import CommandDispatcher, CommandOptions, Sent
from toril.runtime.desk import told
from toril.runtime.engine import EngineOptions
from toril.runtime.generations import GenerationStanding
from toril.runtime.memory import MemoryBackend
from toril.runtime.pipeline import Definition, PipelineBuilder
from toril.runtime.redis import RedisBackend
from toril.runtime.service import EventSourcingService
from toril.runtime.work import Work
from toril.runtime.worker import ProcessorWorker
from toril.stores.log import LogEventStore

if TYPE_CHECKING:
    from toril.runtime.telemetry import RuntimeTelemetry  # needs an extra

Payload = TypeVar("Payload")

MEMORY = "memory://"

logger = logging.getLogger("toril.runtime")


class PipelineCommand(Generic[Payload]):
    """One command of a pipeline, to execute here or to send."""

    def __init__(
        self,
        pipeline: RegisteredPipeline,
        handler: type[CommandHandler[Payload]],
        options: CommandOptions | None,
    ) -> None:
        self._pipeline = pipeline
        self._handler = handler
        self._options = options
        self._dispatcher: CommandDispatcher[Payload] | None = None

    async def dispatcher(self) -> CommandDispatcher[Payload]:
        """What it is carried out by."""
        if self._dispatcher is None:
            service = await self._pipeline.opened()
            sourcing = self._pipeline.sourcing
            self._dispatcher = CommandDispatcher(
                self._handler,
                pipeline=self._pipeline.name,
                aggregate_type=self._pipeline.aggregate_type,
                store=service.store,
                redis=sourcing.redis,
                options=self._options,
                snapshots=service.snapshots,
                telemetry=None if sourcing.telemetry is None else sourcing.telemetry.jobs,
            )
        return self._dispatcher

    async def close(self) -> None:
        """Wait for what was sent and is executed in this process."""
        if self._dispatcher is not None:
            await self._dispatcher.close()

    async def execute(
        self,
        payload: Payload | Mapping[str, Any],
        *,
        tenant: str,
        idempotency_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        durability: Durability | Level | None = None,
    ) -> Appended | None:
        """Decide on the command and store its events, now; None where nothing happens."""
        dispatcher = await self.dispatcher()
        return await dispatcher.execute(
            payload,
            tenant=tenant,
            idempotency_key=idempotency_key,
            metadata=metadata,
            durability=durability,
        )

    async def execute_many(
        self,
        payloads: Sequence[Payload | Mapping[str, Any]],
        *,
        tenant: str,
        metadata: Mapping[str, Any] | None = None,
        durability: Durability | Level | None = None,
    ) -> list[Appended | Exception | None]:
        """Decide on many commands and store their events in one go.

        For each, what :meth:`execute` would have returned or raised. For handlers that decide on no state.
        """
        dispatcher = await self.dispatcher()
        return await dispatcher.execute_many(
            payloads, tenant=tenant, metadata=metadata, durability=durability
        )

    async def send(
        self,
        payload: Payload | Mapping[str, Any],
        *,
        tenant: str,
        idempotency_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        durability: Durability | Level | None = None,
    ) -> Sent:
        """Let a worker execute the command."""
        dispatcher = await self.dispatcher()
        return await dispatcher.send(
            payload,
            tenant=tenant,
            idempotency_key=idempotency_key,
            metadata=metadata,
            durability=durability,
        )

    async def send_many(
        self,
        payloads: list[Payload | Mapping[str, Any]],
        *,
        tenant: str,
        metadata: Mapping[str, Any] | None = None,
        durability: Durability | Level | None = None,
    ) -> list[Sent]:
        """Let workers execute many."""
        dispatcher = await self.dispatcher()
        return await dispatcher.send_many(payloads, tenant=tenant, metadata=metadata, durability=durability)


class Commands:
    """The commands of a pipeline, by name: ``pipeline.commands.record_span``."""

    def __init__(self, made: Mapping[str, PipelineCommand[Any]]) -> None:
        self._made = dict(made)

    def __getattr__(self, name: str) -> PipelineCommand[Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> PipelineCommand[Any]:
        found = self._made.get(name)
        if found is None:
            known = ", ".join(self._made) or "none"
            raise ConfigurationError(f"the pipeline has no command {name!r}; it has: {known}")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)


class RegisteredPipeline:
    """A pipeline that was built."""

    def __init__(self, sourcing: EventSourcing, definition: Definition) -> None:
        self.sourcing = sourcing
        self.name = definition.name
        self.aggregate_type = definition.aggregate_type
        self.definition = definition
        self._typed: dict[type[CommandHandler[Any]], PipelineCommand[Any]] = {}
        for handler, options in definition.commands.values():
            self._typed[handler] = PipelineCommand(self, handler, options)
        self.commands = Commands(
            {name: self._typed[handler] for name, (handler, _) in definition.commands.items()}
        )
        self._service: EventSourcingService | None = None

    def __repr__(self) -> str:
        return f"RegisteredPipeline({self.name!r}, {self.aggregate_type!r})"

    def command(self, handler: type[CommandHandler[Payload]]) -> PipelineCommand[Payload]:
        """A command by its class: a type checker knows its payload."""
        found = self._typed.get(handler)
        if found is None:
            raise ConfigurationError(f"pipeline {self.name!r} has no command {handler.__name__}")
        return found

    @property
    def service(self) -> EventSourcingService:
        """What can be asked of it; once the event sourcing it belongs to is open."""
        if self._service is None:
            raise ConfigurationError(
                f"pipeline {self.name!r} is not open yet: async with its EventSourcing, or await open()"
            )
        return self._service

    async def opened(self) -> EventSourcingService:
        """The service, opened where it is not."""
        await self.sourcing.open()
        return self.service

    def bind(self, store: EventStore, backend: Backend) -> None:
        """Connect it with where its events are."""
        self._service = EventSourcingService(self.definition, store, backend, self.sourcing.telemetry)


class EventSourcing:
    """What all pipelines of a program share: the connection, the log, the stores.

    ::

        sourcing = EventSourcing("redis://localhost")
        orders = sourcing.register_pipeline().with_name("orders").with_aggregate_type("order") … .build()

        async with sourcing, sourcing.worker():
            await orders.commands.place_order.send({...}, tenant="acme")

    ``url``: as for :func:`toril.connect`, or ``memory://`` for one process without a server. A server that
    cannot be reached is an error; memory is never taken in its place.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        log: str = "log",
        partitions: int | None = None,
        cold: ColdStore | None = None,
        history: History | None = None,
        quiet: timedelta = timedelta(hours=1),
        idempotency_window: timedelta = timedelta(hours=24),
        most_entries: int | None = None,
        durability: Durability | Level = "memory",
        options: EngineOptions | None = None,
        telemetry: RuntimeTelemetry | None = None,
    ) -> None:
        self.telemetry = telemetry
        self.url = url if url is not None else os.environ.get(URL_VARIABLE)
        self.pipelines: dict[str, RegisteredPipeline] = {}
        self.redis: Connection | None = None
        """The connection, once it is open; None in memory."""
        self.log: Log | None = None
        """The log, once it is open; None in memory."""
        self.backend: Backend | None = None
        self._log_name = log
        self._log_settings: dict[str, Any] = {
            "partitions": partitions,
            "cold": cold,
            "history": history,
            "quiet": quiet,
            "idempotency_window": idempotency_window,
            "most_entries": most_entries,
            "durability": durability,
        }
        self._options = options or EngineOptions()
        self._store: EventStore | None = None
        self._opening = asyncio.Lock()

    @property
    def in_memory(self) -> bool:
        """Whether it has no server."""
        return self.url == MEMORY

    @property
    def log_name(self) -> str:
        """The name of its log."""
        return self._log_name

    def register_pipeline(self) -> PipelineBuilder:
        """Begin a pipeline."""
        return PipelineBuilder(self)

    def register(self, definition: Definition) -> RegisteredPipeline:
        """Take a pipeline that was built."""
        if definition.name in self.pipelines:
            raise ConfigurationError(f"there are two pipelines {definition.name!r}")
        if self.telemetry is not None:
            traced = {
                name: replace(work, telemetry=self.telemetry) for name, work in definition.works.items()
            }
            definition.works = traced
        made = RegisteredPipeline(self, definition)
        if self._store is not None and self.backend is not None:
            made.bind(self._store, self.backend)
        self.pipelines[definition.name] = made
        return made

    # ------------------------------------------------------------------ opening

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> Self:
        """Connect; a second time it does nothing."""
        async with self._opening:
            if self._store is None:
                if self.in_memory:
                    memory = MemoryBackend()
                    self._store, self.backend = memory, memory
                else:
                    self.redis = await connect(self.url)
                    self.log = Log(self.redis, self._log_name, **self._log_settings)
                    await self.log.layout()
                    self._store, self.backend = LogEventStore(self.log), RedisBackend(self.log)
                for pipeline in self.pipelines.values():
                    pipeline.bind(self._store, self.backend)
        return self

    async def close(self) -> None:
        """Wait for what is under way, then disconnect."""
        for pipeline in self.pipelines.values():
            for name in pipeline.commands:
                await pipeline.commands[name].close()
        if self.log is not None:
            await self.log.drain()
        if self.redis is not None:
            await self.redis.close()
            self.redis = None

    async def pause_tenant(self, tenant: str) -> None:
        """Let no handler and no projection take events of a tenant, within a second or so; they wait."""
        await self._pause_tenant(tenant, on=True)

    async def resume_tenant(self, tenant: str) -> None:
        """Let the events of a paused tenant be processed."""
        await self._pause_tenant(tenant, on=False)

    async def _pause_tenant(self, tenant: str, *, on: bool) -> None:
        check_tenant(tenant)
        await self.open()
        assert self.backend is not None
        await self.backend.pause(f"tenant {tenant}", on=on)

    def works(self, *pipelines: str) -> list[Work]:
        """The processors of pipelines; of all, without names."""
        for name in pipelines:
            if name not in self.pipelines:
                known = ", ".join(self.pipelines) or "none"
                raise ConfigurationError(f"there is no pipeline {name!r}; there are: {known}")
        chosen = [self.pipelines[name] for name in pipelines or self.pipelines]
        return [work for pipeline in chosen for work in pipeline.definition.works.values()]

    @asynccontextmanager
    async def worker(
        self, *pipelines: str, commands: bool = True, upkeep: bool = True
    ) -> AsyncIterator[ProcessorWorker]:
        """Run the processors and commands of pipelines (of all, without names) while it is entered.

        Any number of processes may: they share the partitions. Left, it ends what runs and gives back the
        rest. ``upkeep``: also trim the log and let quiet aggregates leave Redis.
        """
        works = self.works(*pipelines)
        await self.open()
        assert self.backend is not None
        lease = timedelta(seconds=self._options.lease)
        async with AsyncExitStack() as stack:
            if upkeep and self.log is not None:
                await stack.enter_async_context(self.log.upkeep())
            if commands:
                for name in pipelines or self.pipelines:
                    for command in self.pipelines[name].commands:
                        dispatcher = await self.pipelines[name].commands[command].dispatcher()
                        if self.redis is not None:
                            # Commands of a worker that died are taken over as soon as its partitions are.
                            await stack.enter_async_context(
                                dispatcher.worker(lock_duration=lease, stalled_interval=lease)
                            )
            worker = await stack.enter_async_context(ProcessorWorker(self.backend, works, self._options))
            following = asyncio.create_task(self._follow(worker, list(pipelines or self.pipelines)))
            following.add_done_callback(told)
            try:
                yield worker
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    async def _follow(self, worker: ProcessorWorker, pipelines: Sequence[str]) -> None:
        """Run generations as they are loaded, and no more once they are retired."""
        while True:
            try:
                for name in pipelines:
                    learnt = await self.pipelines[name].service.generations.learn()
                    for processor in learnt.retired:
                        await worker.drop(processor)
                    run = {engine.work.processor for engine in worker.engines}
                    for work in list(self.pipelines[name].definition.works.values()):
                        if work.processor not in run | learnt.retired:
                            worker.add(work)
            except (ConnectionFailed, OutcomeUnknown) as problem:
                logger.warning("generations could not be looked for: %s", problem)
            await asyncio.sleep(self._options.lease / 5)

    async def generations(self) -> dict[str, list[GenerationStanding]]:
        """How the generations of all projections stand, by pipeline."""
        await self.open()
        return {name: await one.service.generations.standings() for name, one in self.pipelines.items()}


event_sourcing = EventSourcing()
"""The default instance: ``TORIL_REDIS_URL``, or the embedded server."""
