"""The live summaries, as an audit asks for them: through the service of their pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from toril.aggregate import Aggregate
from toril.lake.audit.looking import Trace
from toril.lake.live import aggregates_in
from toril.lake.source import Door, Marks
from toril.log import HistoryTrimmed
from toril.log.entry import START
from toril.pipelines.spans.summary import SPAN_AGGREGATE
from toril.runtime.redis import RedisBackend
from toril.runtime.service import EventSourcingService


class LiveSummaries:
    """A :class:`~toril.lake.audit.looking.LiveStore`. ``service`` was opened in the event loop of ``door``.

    ``name``: the projection's, in its pipeline.
    """

    def __init__(self, door: Door, service: EventSourcingService, backend: RedisBackend, name: str) -> None:
        self._door = door
        self._service = service
        self._backend = backend
        self._name = name

    def positions(self) -> Marks:
        """Up to where in the log the processor is of which readers see the states."""

        async def look() -> Marks:
            work = await self._service.generations.reading(self._name)
            found: Marks = {}
            for partition in await self._backend.partitions():
                (at,) = await self._backend.positions(partition, [work.processor])
                found[str(partition)] = (at or START).ordinal, (at or START).id
            return found

        return self._door.do(look())

    def states(self, traces: Sequence[Trace]) -> list[tuple[int, dict[str, Any]] | None]:
        """The summary of each with its version; None where there is none."""

        async def one(trace: Trace) -> tuple[int, dict[str, Any]] | None:
            found = await self._service.get_projection(self._name, trace["tenant"], trace["trace_id"])
            return None if found is None else (found.version, found.state.as_dict())

        async def each() -> list[tuple[int, dict[str, Any]] | None]:
            return list(await asyncio.gather(*map(one, traces)))

        return self._door.do(each())

    def waiting(self, traces: Sequence[Trace]) -> list[bool]:
        """Of each, whether an event of it is tried again, or waits for a person."""

        async def each() -> list[bool]:
            work = await self._service.generations.reading(self._name)
            found = await asyncio.gather(*(self._backend.find(work.processor, _of(one)) for one in traces))
            return [one is not None and one.status != "p" for one in found]

        return self._door.do(each())

    def traces(self) -> Iterator[Sequence[Trace]]:
        """All there are, some at a time; one may come twice."""
        pages = aggregates_in(self._backend.log)
        while (page := self._door.do(_next(pages))) is not None:
            yield [
                {"tenant": one.tenant, "trace_id": one.id}
                for one in map(Aggregate.parse, page)
                if one.type == SPAN_AGGREGATE
            ]

    def firsts(self, traces: Sequence[Trace]) -> list[tuple[str, int] | None]:
        """Where in the log the first event of each is; None where it was trimmed."""

        async def one(trace: Trace) -> tuple[str, int] | None:
            try:
                found = await self._backend.log.read(_of(trace), 1, most=1)
            except HistoryTrimmed:
                return None
            return (str(found[0].partition), found[0].ordinal) if found and found[0].ordinal else None

        async def each() -> list[tuple[str, int] | None]:
            return list(await asyncio.gather(*map(one, traces)))

        return self._door.do(each())


def _of(trace: Trace) -> Aggregate:
    return Aggregate(trace["tenant"], SPAN_AGGREGATE, trace["trace_id"])


async def _next(pages: AsyncIterator[list[str]]) -> list[str] | None:
    return await anext(pages, None)
