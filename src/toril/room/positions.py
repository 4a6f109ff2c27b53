"""Positions, from the newest snapshot that this process knows of."""

from __future__ import annotations

import asyncio

from toril.room.shards import Cuts, ahead_of
from toril.room.snapshot import Snapshot
from toril.room.store import ShardStore
from toril.room.ticket import Lane, Ticket


class Positions:
    """What a process knows of a room, to tell people how far they are."""

    def __init__(self, hall: ShardStore) -> None:
        self._hall = hall
        self._snapshots: dict[int, Snapshot] = {}
        self._readings: dict[int, asyncio.Task[Snapshot | None]] = {}
        self._cuts: dict[Lane, Cuts] = {}

    async def snapshot(self, store: ShardStore, version: int) -> Snapshot | None:
        """A snapshot at least as new as a version; None where none was published yet.

        Whoever asks later, wherever, is answered by one that is no older: so a position never grows.
        """
        had = self._snapshots.get(store.shard)
        for _ in range(2):  # a reading that is under way may have begun before that version was there
            if had is not None and had.version >= version:
                break
            reading = self._readings.get(store.shard)
            if reading is None:
                reading = self._readings[store.shard] = asyncio.create_task(self._read(store))
            had = await asyncio.shield(reading)
        return had

    async def _read(self, store: ShardStore) -> Snapshot | None:
        """Once for all who ask meanwhile: of a crowd, a new version is news to everybody at the same time."""
        try:
            found = await store.snapshot()
        finally:
            del self._readings[store.shard]
        if found is not None:
            self._snapshots[store.shard] = found
            oldest = min(self._snapshots.values(), key=lambda one: one.version)
            for lane, cuts in self._cuts.items():
                cuts.forget([lines[lane].head for lines in oldest.shards])
        return found

    async def ahead(self, ticket: Ticket, snapshot: Snapshot | None) -> tuple[int | None, bool]:
        """How many are before a ticket, at most, and whether that is exact; None where nobody knows."""
        if snapshot is None or not snapshot.ordered or not ticket.place or ticket.state != "waiting":
            return None, False
        token = ticket.token
        if len(snapshot.shards) == 1:
            return snapshot.shards[0][token.lane].ahead(ticket.place)
        cuts = self._cuts.setdefault(token.lane, Cuts(self._hall, token.lane))
        await cuts.know(snapshot.cuts[token.lane])
        return ahead_of(snapshot, cuts, token.lane, token.shard, ticket.place), False
