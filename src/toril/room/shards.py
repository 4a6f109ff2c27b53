"""A room over several slots: tickets for each shard, one order, one budget.

People are let in by rounds. The room allots, from one budget and by what the shards last said; each shard
serves; the room settles. One round is open at a time, and each of its steps can be made again, so a process
that dies in the middle is replaced by any other. The budget is charged when a round is settled, as if all had
come in that moment: over any time, no more come in than one bucket would let in.

The order between shards is made by *cuts*: how many tickets each had given when it served. Everybody of one
cut comes in before anybody of the next. So of two people in different shards the later one can come in first
only if they joined less than one round apart; by no clock.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from toril.connection.wire import Argument
from toril.errors import TorilError
from toril.room.errors import NoSuchRoom, RoundOver
from toril.room.shuffle import drawn_order, lot, parts_of
from toril.room.snapshot import Snapshot
from toril.room.store import ShardStore, Tick
from toril.room.ticket import Lane, check_lane

NOT_COPIED = frozenset(
    {"phase", "version", "round", "round_open", "round_from", "refused", "told", "server", "drawing"}
)
"""What a shard has of its own, and does not take over from its room."""

MOST_CUTS = 4096
SMALLEST_CUT = 64
"""Of a shuffled order: people between one cut and the next."""


class Cuts:
    """The cuts of one lane, as far as this process has read them."""

    def __init__(self, hall: ShardStore, lane: Lane) -> None:
        self._hall = hall
        self._lane = lane
        self._before = 0
        self._rows: list[tuple[int, ...]] = []
        self._lock = asyncio.Lock()

    async def know(self, count: int) -> None:
        """Read those that are missing of the first so many."""
        async with self._lock:
            known = self._before + len(self._rows)
            if known < count:
                before, rows = await self._hall.cuts(self._lane, known)
                if before > known:
                    self._before, self._rows = before, []
                self._rows += rows

    def forget(self, heads: Sequence[int]) -> None:
        """Let go of those that are settled in all shards."""
        gone = 0
        while gone < len(self._rows) and all(map(int.__le__, self._rows[gone], heads)):
            gone += 1
        if gone:
            self._rows, self._before = self._rows[gone:], self._before + gone

    def of(self, shard: int, place: int, count: int) -> tuple[int, ...] | None:
        """The cut that a place belongs to, of the first so many; None where it was not made yet."""
        known = min(len(self._rows), max(0, count - self._before))
        at = bisect_left(self._rows, place, 0, known, key=lambda row: row[shard])
        return self._rows[at] if at < known else None


def ahead_of(snapshot: Snapshot, cuts: Cuts, lane: Lane, shard: int, place: int) -> int | None:
    """How many are let in before somebody, at most; None until the next cut says so."""
    cut = cuts.of(shard, place, snapshot.cuts[lane])
    own, _ = snapshot.shards[shard][lane].ahead(place)
    if cut is None:
        return 0 if place <= snapshot.shards[shard][lane].head else None
    others = (
        lines[lane].upto(cut[other])[0] for other, lines in enumerate(snapshot.shards) if other != shard
    )
    return own + sum(others)


class Rounds:
    """Lets people into a room of several shards."""

    def __init__(self, hall: ShardStore, stores: Sequence[ShardStore], steps: int) -> None:
        self._hall = hall
        self._stores = stores
        self._steps = steps

    async def once(self) -> Tick:
        """One round, from where it is."""
        number, began, version, phase, resetting, *lanes = await self._hall.allot(self._steps)
        # At the same time: the cut that they make is then as sharp as it can be.
        its = (number, began, self._steps)
        serving = (self._serve(shard, version, its, lanes) for shard in range(len(self._stores)))
        try:
            served = await asyncio.gather(*serving)
        except RoundOver as problem:
            await self._hall.allot(self._steps, problem.done)
            return Tick(version=number, phase=phase.decode(), resetting=bool(resetting))
        behind = [shard for shard, (its_phase, *_) in enumerate(served) if its_phase != b"open"]
        behind = behind if phase == b"open" and not resetting else []  # they forgot the order they had
        args: list[Argument] = [number, 1 if behind else 0]
        for at, (lane, _, _, cuts_before, _) in enumerate(lanes):
            args += (lane, cuts_before)
            for _, forgot, *said in served:
                _, came, _, _, head, tickets, active, waiting, ever, alive, _ = said[at]
                args += (came, forgot, head, tickets, active, waiting, ever, len(alive), *alive)
        await self._publish(number, phase, served, await self._hall.settle(*args))
        for shard in behind:
            await self._draw_again(shard)
        each = [lane for said in served for lane in said[2:]]
        admitted, ghosts, ended = (sum(int(lane[what]) for lane in each) for what in (1, 2, 3))
        more = admitted + ghosts > 0 and any(int(lane[7]) for lane in each)
        return Tick(admitted, ghosts, ended, more, number, phase.decode(), bool(resetting))

    async def _serve(self, shard: int, version: int, its: Sequence[Argument], lanes: Sequence[Any]) -> Any:
        args: list[Argument] = [version, *its]
        for lane, grants, places, _, cuts in lanes:
            own = [cut.split()[shard] for cut in cuts]
            args += (lane, grants.split()[shard], places.split()[shard], len(own), *own)
        for _ in range(10):
            said = await self._stores[shard].serve(*args)
            if said is not None:
                return said
            args[0] = await self.sync(shard)
        raise TorilError(f"shard {shard} of room {self._hall.room!r} does not take the settings of the room")

    async def sync(self, shard: int) -> int:
        """Give a shard the settings of the room; their version."""
        meta = await self._hall.meta()
        if not meta:
            raise NoSuchRoom(f"NOROOM there is no room {self._hall.room!r}")
        fields = {name: value for name, value in meta.items() if name not in NOT_COPIED}
        phase = "open" if meta["phase"] == "open" else "gathering"
        version = int(meta["version"])
        has = await self._stores[shard].put(version, phase, fields)
        if has > version:  # the room was changed since, or it forgot a change that the shard has heard of
            now = int((await self._hall.meta())["version"])
            return now if now >= has else await self._hall.configure("change", {}, outdo=has)
        return version

    async def _publish(
        self, version: int, phase: bytes, served: Sequence[Any], settled: Sequence[Any]
    ) -> None:
        now, mode, paused, patience, *counted = settled
        fields: dict[str, Argument] = {
            "now": now,
            "mode": mode,
            "phase": phase,
            "paused": paused,
            "patience": patience,
            "shards": len(served),
        }
        for shard, (_, _, *said) in enumerate(served):
            for lane, *_, parts in said:
                for name, part in zip(("", ":counts", ":front"), parts, strict=True):
                    fields[f"{shard}/{lane.decode()}{name}"] = part
        for lane, count in counted:
            fields[f"{lane.decode()}:cuts"] = count
        await asyncio.gather(*(store.publish(version, fields) for store in self._stores))

    async def shuffle(self) -> None:
        """Draw one order for all shards, and write it down: each shard's places, and the cuts between."""
        for store in self._stores:
            await store.start()
        looks = [await store.look() for store in self._stores]
        seed = (await self._hall.meta())["seed"]
        for name in looks[0][2]:
            lane = check_lane(name)
            lines = [lanes[name][0] for _, _, lanes in looks]
            firsts = [line.get("first", 0) for line in lines]
            sealed = [line.get("sealed", 0) for line in lines]
            order = await asyncio.to_thread(draw_all, seed, lane, firsts, sealed)
            if not order:
                continue
            await self._hall.write_cuts(lane, _cuts_of(order, firsts))
            for shard, line in enumerate(lines):
                own = [ticket for its, ticket in order if its == shard]
                await self._write(shard, lane, own[line.get("placed", 0) - firsts[shard] :], line)
        await self._hall.start("end")

    async def _draw_again(self, shard: int) -> None:
        """Write down the order of a shard that forgot it, in a room that is open."""
        store, meta = self._stores[shard], await self._hall.meta()
        if meta["phase"] != "open" or meta.get("resetting") == "1":
            return
        await store.start(version=meta["version"])  # not one that was reset meanwhile
        _, own, lanes = await store.look()
        for name, (line, _) in lanes.items():
            lane = check_lane(name)
            first, sealed, placed = (line.get(what, 0) for what in ("first", "sealed", "placed"))
            if own["phase"] == "shuffling" and placed < sealed:
                order = await asyncio.to_thread(drawn_order, meta["seed"], lane, first + 1, sealed, shard)
                await self._write(shard, lane, order[placed - first :], line)

    async def _write(self, shard: int, lane: Lane, order: Sequence[int], line: Mapping[str, int]) -> None:
        for before, packed in parts_of(order, line.get("placed", 0)):
            now, _ = await self._stores[shard].place(lane, before, packed)
            if now < before + len(packed) // 4:
                raise TorilError(f"the order of shard {shard} was written down to {now} only")


def draw_all(seed: str, lane: Lane, firsts: Sequence[int], sealed: Sequence[int]) -> list[tuple[int, int]]:
    """All tickets that are shuffled, with their shards, in the order in which they are let in."""
    tickets = [
        (shard, ticket)
        for shard, (first, last) in enumerate(zip(firsts, sealed, strict=True))
        for ticket in range(first + 1, last + 1)
    ]
    return sorted(tickets, key=lambda one: lot(seed, lane, *one))


def _cuts_of(order: Sequence[tuple[int, int]], firsts: Sequence[int]) -> list[str]:
    size = max(SMALLEST_CUT, -(-len(order) // MOST_CUTS))
    places, cuts = list(firsts), []
    for at, (shard, _) in enumerate(order, 1):
        places[shard] += 1
        if at % size == 0 or at == len(order):
            cuts.append(" ".join(map(str, places)))
    return cuts
