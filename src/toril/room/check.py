"""The promises of a waiting room, checked against a room that runs: P1 to P10; P11 is of the seats.

=====  ====================================================================================================
P1     admissions in any time ≤ rate × time + burst
P2     inside at any time ≤ ``max_active``
P3     first come, first served; or by the order that a seed drew which was committed to before
P4     the same key, or the same user, has the same ticket
P5     nobody is let in twice
P6     ghosts block nobody, and are gone soon
P7     positions are counted right, so they never grow
P8     nobody is dropped who was heard of
P9     all that is known of a ticket agrees: every step was made whole
P10    nothing but an admission costs the room anything
P11    seats: see :func:`toril.room.seat_check.check_seats`
=====  ====================================================================================================

The past is checked by the audit, as far back as that goes; the present by scripts that read a small part of
the room at a time, each in one step, so that they hold nobody up and a room in use can be checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from toril.room.audit import (
    Entry,
    Violation,
    check_budget,
    check_cuts,
    check_ghosts,
    check_order,
    check_shuffle,
    read_audit,
)
from toril.room.room import Room
from toril.room.settings import Seed
from toril.room.shards import draw_all
from toril.room.snapshot import STRETCH
from toril.room.store import ShardStore
from toril.room.ticket import Lane, check_lane

SLOW_MS = 5000
"""A ghost may be there so long after its time, and nobody may look after the room for so long."""

SHOWN = 50
"""Violations that are listed: a thousand of one kind say no more."""

PAGE = 200


@dataclass(frozen=True, slots=True)
class RoomCheck:
    """What a check found."""

    room: str
    entries: int
    """Decisions that were looked at."""
    whole: bool
    """Whether the audit goes back to the beginning; where not, P10 cannot be checked."""
    forgot: int
    """How often a server died that alone knew something of the room, as far as a room of several shards can
    tell."""
    waiting: int
    active: int
    violations: tuple[Violation, ...]

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not self.violations


async def check_room(room: Room) -> RoomCheck:
    """Check all promises of a room, in small steps."""
    stores = await room.shards()
    stats = await room.stats()
    budgets = {lane: await _budget_of(room, lane) for lane in stats.lanes}  # before what is told of them
    audits = [await read_audit(room.redis, store.keys) for store in stores]
    own = audits[0] if len(stores) == 1 else await read_audit(room.redis, room.keys)
    found: list[Violation] = []
    for store, entries in zip(stores, audits, strict=True):
        found += [violation async for violation in _check_shard(store, entries)]
    for lane in stats.lanes:
        found += check_budget(lane, own, budgets[lane])
        if len(stores) > 1:
            found += check_cuts(lane, own, audits)
        found += await _check_shuffle(room, stores, audits, lane)
    return RoomCheck(
        room=room.name,
        entries=len(own) + (sum(map(len, audits)) if len(stores) > 1 else 0),
        whole=bool(own) and own[0].what == "create",
        forgot=len({entry.said["round"] for entry in own if entry.what == "forgot"}),
        waiting=sum(lane.waiting for lane in stats.lanes.values()),
        active=sum(lane.active for lane in stats.lanes.values()),
        violations=tuple(found[:SHOWN]),
    )


async def _check_shard(store: ShardStore, entries: Sequence[Entry]) -> AsyncIterator[Violation]:
    now, meta, lanes = await store.look()
    for violation in check_ghosts(entries):
        yield violation
    for name, (line, _) in lanes.items():
        lane = check_lane(name)
        for violation in check_order(lane, entries):
            yield violation
        for promise, what in await store.inspect(lane):
            yield Violation(promise, what)
        first, last = line.get("head", 0) // STRETCH, max(0, line.get("issued", 0) - 1) // STRETCH
        for stretch in range(first, last + 1):
            for promise, what in await store.inspect(lane, stretch):
                yield Violation(promise, what)
        at, count = 0, PAGE
        while count == PAGE:
            count, wrong = await store.inspect_active(lane, at, PAGE)
            at += count
            for promise, what in wrong:
                yield Violation(promise, what)
        waits_since = await store.longest_silence(lane)
        if waits_since is not None and now - waits_since > int(meta["patience"]) + SLOW_MS:
            yield Violation("P6", f"{lane}: a ghost has been there for {now - waits_since} ms")


async def _budget_of(room: Room, lane: Lane) -> tuple[int, int] | None:
    level, at = await room.redis.command("HMGET", room.keys.line(lane), "level", "at")
    return None if level is None else (int(level), int(at))


async def _check_shuffle(
    room: Room, stores: Sequence[ShardStore], audits: Sequence[Sequence[Entry]], lane: Lane
) -> list[Violation]:
    """The order was drawn by the seed that was committed to."""
    looks = [await store.look() for store in stores]
    lines = [lanes[lane][0] for _, _, lanes in looks]
    firsts, sealed = ([line.get(what, 0) for line in lines] for what in ("first", "sealed"))
    seed, commitment = await room.seed(), await room.commitment()
    if seed is None or firsts == sealed:
        return []
    found = []
    if Seed(seed).commitment != commitment:
        found.append(Violation("P3", "the seed of the shuffle is not the one that was committed to"))
    order = await asyncio.to_thread(draw_all, seed, lane, firsts, sealed)
    for shard, entries in enumerate(audits):
        own = [ticket for its, ticket in order if its == shard]
        found += check_shuffle(lane, entries, firsts[shard], own)
    return found
