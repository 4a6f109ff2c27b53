"""Temporary floors: what a read of Spark still needs is not trimmed under it.

A floor that is not renewed for :data:`SILENT` seconds is forgotten: whoever dies holds up trimming no longer
than that.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress

from toril.connection.errors import ConnectionFailed, OutcomeUnknown
from toril.lake.source.places import why_missing
from toril.log import Log, Partition, Position
from toril.log.errors import ReaderGone, WrongPosition
from toril.log.store import PartitionStore

SILENT = 300.0
"""Seconds: as long as a plan may wait for its tasks to begin."""

SILENT_STREAM = 60.0
"""Seconds: a stream's process is there all the time, and is killed at the end."""


def new_name() -> str:
    """A name for the floors of one read."""
    return f"~spark-{secrets.token_urlsafe(9)}"


class Floors:
    """The floors of one read, in some partitions."""

    def __init__(self, log: Log, name: str, silent: float = SILENT) -> None:
        self._log = log
        self._name = name
        self._silent = silent
        self._at: dict[Partition, Position] = {}

    @property
    def at(self) -> Mapping[Partition, Position]:
        """Where they are."""
        return self._at

    async def put(self, wanted: Mapping[Partition, Position | str]) -> dict[Partition, Position]:
        """Have floors at these positions, or ``first``, or ``tail``; says where they are.

        An error where a position is not in the log: it was trimmed, or the log has diverged.
        """

        async def put(store: PartitionStore) -> Position:
            start = wanted[store.partition]
            try:
                state = await store.register(self._name, start, round(self._silent * 1000))
            except WrongPosition:
                assert isinstance(start, Position)
                raise await why_missing(self._log, store.partition, start, None) from None
            return state.position

        partitions = sorted(wanted)
        found = dict(zip(partitions, await self._log.each(put, partitions), strict=True))
        self._at |= found
        return found

    async def move(self, wanted: Mapping[Partition, Position]) -> None:
        """Move floors up."""

        async def move(store: PartitionStore) -> None:
            self._at[store.partition] = wanted[store.partition]
            await self._renew(store)

        await self._log.each(move, [one for one in wanted if wanted[one].ordinal > self._at[one].ordinal])

    async def keep(self) -> None:
        """Renew them, until cancelled."""
        while True:
            await self.pause()
            await self.renew()

    async def pause(self) -> None:
        """Wait until they should be renewed."""
        await asyncio.sleep(self._silent / 4)

    async def renew(self) -> None:
        """Say that they are still needed."""
        with suppress(ConnectionFailed, OutcomeUnknown):  # it may pass before they are forgotten
            await self._log.each(self._renew, list(self._at))

    async def _renew(self, store: PartitionStore) -> None:
        at = self._at[store.partition]
        try:
            await store.advance(self._name, 0, at, round(self._silent * 1000))
        except ReaderGone:
            # Silent for too long, or another task of the same read was done first. What is trimmed by now
            # is missed where it is read.
            with suppress(WrongPosition):
                await store.register(self._name, at, round(self._silent * 1000))

    async def remove(self, partitions: Iterable[Partition] | None = None) -> None:
        """Take them away."""
        gone = list(self._at if partitions is None else partitions)
        for partition in gone:
            self._at.pop(partition, None)
        await self._log.each(lambda store: store.retire(self._name), gone)
