"""Which projection a command is about: one of Toril's own, or one of a program, as pipelines name it."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from toril.cli.careful import INTERRUPTED, Refused
from toril.cli.lake.target import Command
from toril.cli.loading import load
from toril.cli.log.target import has_cold
from toril.cli.place import CLICKHOUSE_VARIABLE
from toril.cli.runtime.target import load_pipelines
from toril.cli.show import note
from toril.connection import connect
from toril.connection.open import URL_VARIABLE, environment_url
from toril.errors import InvalidValue
from toril.events.declared import DeclaredProjection
from toril.events.projection import FoldProjection
from toril.events.upcasters import Upcasters
from toril.keyspace import LogKeys
from toril.lake.subjects import Subject, find_subject, subjects_of
from toril.log import ColdStore
from toril.log.layout import existing_layout
from toril.pipelines.spans.ingestion import Ingestion
from toril.pipelines.spans.memory import MemorySpanTable, MemoryTraceTable
from toril.pipelines.spans.summary import SPAN_AGGREGATE
from toril.runtime import EventSourcing
from toril.runtime.service import EventSourcingService

T = TypeVar("T")

RULE = "it names a module and an EventSourcing, a pipeline or a projection in it, like shop.orders:sourcing"

projection_argument = click.argument("projection", metavar="PROJECTION")
program_option = click.option(
    "--program",
    "program_",
    metavar="MODULE:NAME",
    help="The program that has the projection; without it, Toril's own, which has trace_summary.",
)
program_of_spans = click.option(
    "--program",
    "program_",
    metavar="MODULE:NAME",
    help="The program that collects spans: by its upcasters old events are read; without it, Toril's own.",
)


@dataclass(frozen=True, slots=True)
class Cold:
    """Where Toril's own program keeps quiet aggregates, as far as that was said."""

    url: str | None
    directory: Path | None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ColdStore | None]:
        """The store there; None where none was named."""
        url = self.url or (os.environ.get(CLICKHOUSE_VARIABLE) if self.directory is None else None)
        if url is None and self.directory is None:
            yield None
            return
        from toril.stores.clickhouse import ClickHouseColdStore, Database  # needs an extra

        async with await Database.open(url, directory=self.directory) as database:
            yield ClickHouseColdStore(database)


def cold_options(command: Command) -> Command:
    """--clickhouse and --directory, which come to the command as ``cold``."""

    @click.option(
        "--clickhouse",
        metavar="URL",
        help=f"Where Toril's own program keeps quiet aggregates ({CLICKHOUSE_VARIABLE}).",
    )
    @click.option(
        "--directory",
        type=click.Path(path_type=Path, file_okay=False),
        help="The same without a server; that of a 'toril up' that has ended is TORIL_HOME/clickhouse.",
    )
    @functools.wraps(command)
    def run(clickhouse: str | None, directory: Path | None, **given: Any) -> Any:
        if directory is not None:
            if clickhouse is not None:
                raise InvalidValue("--directory", str(directory), "one of --clickhouse and --directory")
            if not directory.is_dir():  # a misspelt one would be made, and be empty
                raise InvalidValue("--directory", str(directory), "a directory that is there")
        return command(cold=Cold(clickhouse, directory), **given)

    return run


@dataclass(frozen=True, slots=True)
class Program:
    """A program: its projections, and where its log is."""

    subjects: dict[str, Subject]
    url: str | None
    log: str
    sourcing: EventSourcing | None
    """None: it is a projection alone, and nothing live is known of it."""

    def find(self, projection: str) -> Subject:
        """A projection by its name; an error that lists what there is."""
        return find_subject(projection, self.subjects)

    def live(self, subject: Subject) -> EventSourcing:
        """The event sourcing; an error where there is none."""
        if self.sourcing is None or subject.definition is None:
            raise Refused(f"{subject.processor} belongs to no pipeline: there are no live states of it")
        return self.sourcing

    @property
    def upcasters(self) -> Upcasters | None:
        """Those of its pipeline of spans: they bring old events into the form that tables have."""
        pipelines = () if self.sourcing is None else self.sourcing.pipelines.values()
        of_spans = [one.definition for one in pipelines if one.definition.aggregate_type == SPAN_AGGREGATE]
        if not of_spans:
            raise Refused(f"the program has no pipeline with aggregates of type {SPAN_AGGREGATE!r}")
        known = {one.name: one.upcasters for one in of_spans if one.upcasters is not None}
        found = next(iter(known.values()), None)
        if any(one is not found for one in known.values()):
            raise Refused(f"pipelines of spans have different upcasters: {', '.join(known)}")
        return found

    @asynccontextmanager
    async def opened(self, sourcing: EventSourcing) -> AsyncIterator[EventSourcing]:
        """The event sourcing, open; an error where its log is not there, which opening it would make."""
        async with connect(self.url) as redis:
            await existing_layout(redis, LogKeys(self.log))
            async with sourcing:
                yield sourcing

    @asynccontextmanager
    async def service(
        self, subject: Subject, cold: ColdStore | None = None
    ) -> AsyncIterator[EventSourcingService]:
        """The service of the projection's pipeline, open."""
        async with self.opened(self.live(subject)) as sourcing:
            log = sourcing.log
            assert log is not None
            log.cold = log.cold or cold
            if log.cold is None and has_cold(await log.standings()):
                raise Refused(
                    f"aggregates of log {log.name!r} are in a cold store: name it with --clickhouse (that of "
                    "'toril up' with --directory, when it has ended), or give a --program whose "
                    "EventSourcing has it (nothing was changed)"
                )
            yield sourcing.pipelines[subject.pipeline].service


def program(said: str | None, url: str | None, log_name: str) -> Program:
    """The program that ``--program`` names, or Toril's own."""
    if said is None:
        sourcing = EventSourcing(url, log=log_name)
        Ingestion(sourcing, spans=MemorySpanTable(), traces=MemoryTraceTable())
        return _of(sourcing)
    if url:
        os.environ[URL_VARIABLE] = url
    found = load("--program", said, RULE)
    if isinstance(found, type) and issubclass(found, DeclaredProjection | FoldProjection):
        made = found() if issubclass(found, FoldProjection) else found
        subject = Subject(pipeline=said.partition(":")[0], name=made.name, projection=made)
        return Program({subject.processor: subject}, url or environment_url(), log_name, None)
    target = load_pipelines(said)
    if target.sourcing.in_memory:
        raise Refused("these pipelines live in memory://, in a process of their own: nobody can look in")
    its = _of(target.sourcing)
    given = click.get_current_context().get_parameter_source("log_name")
    if log_name != its.log and given not in (None, ParameterSource.DEFAULT):
        raise InvalidValue("--log", log_name, f"the EventSourcing of --program {said} has log {its.log!r}")
    return its


def _of(sourcing: EventSourcing) -> Program:
    definitions = [pipeline.definition for pipeline in sourcing.pipelines.values()]
    return Program(subjects_of(definitions), sourcing.url, sourcing.log_name, sourcing)


def with_program(words: str, said: str | None) -> str:
    """Words of a command to be typed next, with the ``--program`` of this one."""
    return words if said is None else f"{words} --program {said}"


def standing_still(failed: int | None) -> str:
    """What there is to say of aggregates that have failed; nothing where there are none, or nobody knows."""
    if not failed:
        return ""
    stand = "stands" if failed == 1 else "stand"
    return f"{failed:,} of its aggregates {stand} still, at an event that the projection could not take"


def moment(field: str) -> Callable[[click.Context, click.Parameter, str | None], int | None]:
    """Read a moment, as nanoseconds since 1970: ``2026-11-16T08:00``; without a zone it is UTC."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:  # noqa: ARG001
        return None if value is None else parse_moment(field, value)

    return read


def parse_moment(field: str, value: str) -> int:
    """The nanoseconds that are meant."""
    try:
        said = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidValue(
            field, value, "a time like 2026-11-16T08:00:00Z; without a zone it is UTC"
        ) from None
    aware = said if said.tzinfo is not None else said.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000


@contextmanager
def interruptible(said: str) -> Iterator[None]:
    """Ctrl-C ends it with a word on what becomes of it, and the exit code of that; so does SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    in_front = threading.current_thread() is threading.main_thread()  # others get no signals
    if in_front:
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):
        note(f"stopped; {said}")
        sys.exit(INTERRUPTED)
    finally:
        if in_front:
            signal.signal(signal.SIGTERM, before)


def run(work: Awaitable[T]) -> T:
    """Do something that waits for servers."""

    async def do() -> T:
        return await work

    return asyncio.run(do())


def numbered(field: str, said: str, known: dict[str, Any]) -> int:
    """The number of a generation."""
    if not said.isdigit() or int(said) < 1:
        raise InvalidValue(
            field, said, f"the number of a generation, or one of: {', '.join(known) or 'none'}"
        )
    return int(said)
