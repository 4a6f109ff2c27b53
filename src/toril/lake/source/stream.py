"""``toril_log`` as a stream: batches with exact ends, and floors that stay between them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from toril.errors import TorilError
from toril.lake.source.door import Door
from toril.lake.source.floors import SILENT_STREAM, Floors, new_name
from toril.lake.source.options import Options, marks_of
from toril.lake.source.plan import Task, check_places, group, start_of
from toril.lake.source.positions import Marks, between, in_order
from toril.lake.source.reading import Stretch
from toril.lake.source.tasks import read_task
from toril.log import Partition, Position
from toril.log.entry import START

EVERYTHING = 2**62


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the log batch by batch. It lives in a process beside the driver, as long as the query runs.

    Offsets are positions: ``{"07": [ordinal, id]}``. :meth:`commit` comes a batch late and only moves this
    query's own temporary floor; nothing is remembered in the log.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._opened: _Opened | None = None
        self._until: Marks | None = None
        """Where to stop, where it is to read only what is there now."""

    def _open(self) -> _Opened:
        if self._opened is None:
            self._opened = _Opened(self._options)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Where a new query begins."""
        return in_order(self._open().begin())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """At most ``max_events`` in a batch."""
        return ReadMaxRows(self._options.max_events)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what is there now, and nothing that comes later."""
        self._until = self._open().door.tails()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next batch goes; found without reading it."""
        after = marks_of(start)
        opened = self._open()
        opened.cover(after)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else EVERYTHING
        until = self._until
        if until is not None:
            # A start at the tail is looked up after the end was, and events may have come in between. By the
            # ordinal alone: another entry in the same place is still found out.
            until = {
                name: max(end, after.get(name, START), key=lambda at: at[0]) for name, end in until.items()
            }
        return in_order(opened.door.next_batch(after, most, until))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The tail, for the query's progress."""
        return in_order(self._open().door.tails())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch."""
        after, upto = marks_of(start), marks_of(end)
        opened = self._open()
        opened.cover(after)
        stretches = [
            Stretch(Partition.parse(name), Position(*after.get(name, START)), Position(*upto[name]))
            for name in upto
            if upto[name][0] > after.get(name, START)[0]
        ]
        if not stretches:
            return []
        groups = opened.door.do(group(opened.door.log, stretches, self._options.tasks))
        return [Task(tuple(some)) for some in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What one task reads."""
        assert isinstance(partition, Task)
        return read_task(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """The query will not ask for anything up to here again."""
        self._open().move(marks_of(end))

    def stop(self) -> None:
        """The query has ended."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


class _Opened:
    """A log, and floors in all of its partitions, which are renewed while the query thinks or waits."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.door = Door(options.where(), options.log)
        self.door.__enter__()
        self._floors = Floors(self.door.log, new_name(), SILENT_STREAM)
        self._keeping = self.door.begin(self._keep())

    def begin(self) -> Marks:
        return self.door.do(self._begin())

    async def _begin(self) -> Marks:
        await check_places(self.door.log, self._options)
        layout = await self.door.log.layout()
        found = await self._floors.put({one: start_of(self._options, one) for one in layout.partitions()})
        return {str(partition): (at.ordinal, at.id) for partition, at in found.items()}

    def cover(self, after: Mapping[str, tuple[int, str]]) -> None:
        """Have floors where the query stands; an epoch that began meanwhile is read from its start."""
        self.door.do(self._cover(after))

    async def _cover(self, after: Mapping[str, tuple[int, str]]) -> None:
        layout = await self.door.log.layout(anew=True)
        missing = [one for one in layout.partitions() if one not in self._floors.at]
        await self._floors.put({one: Position(*after.get(str(one), START)) for one in missing})

    async def _keep(self) -> None:
        while True:
            await self._floors.pause()
            await self._floors.renew()
            if self._floors.at:
                with suppress(TorilError):  # whoever asks for the next batch does it too, and is told
                    await self._cover({})

    def move(self, end: Marks) -> None:
        at = self._floors.at
        places = {Partition.parse(name): Position(*place) for name, place in end.items()}
        self.door.do(self._floors.move({one: place for one, place in places.items() if one in at}))

    def close(self) -> None:
        try:
            self._keeping.cancel()
            self.door.do(self._floors.remove())
        finally:
            self.door.close()


def behind(progress: Any) -> int:
    """Events that a query has not read yet, of a log's tail at that time, as its progress says."""
    behind_by = 0
    for source in progress.sources:
        with suppress(ValueError, TypeError, AttributeError):  # another kind of source
            end, tail = json.loads(source.endOffset), json.loads(source.latestOffset)
            behind_by += between(marks_of(end), marks_of(tail))
    return behind_by
