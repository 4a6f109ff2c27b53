"""Two equal queues made by Node, one of which is migrated: what must be the same afterwards."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance.dump import Dump, Key, differences, normalise
from tests.conformance.operations import (
    Advance,
    Complete,
    Fail,
    Fetch,
    GetJobSchedulers,
    Held,
    Operation,
    Random,
    Resume,
    Sweep,
)
from tests.conformance.replies import crashed, reply_difference
from tests.conformance.sides import CHANCE, QUEUES, START, NodeSide
from tests.conformance.strategies import shortest
from tests.migrate.migrator import Migrator
from toril import connect
from toril.keyspace import foreign_key

NAMES = {"q": "{t}q", "p": "{t}p"}
"""The queues of the generated sequences, which flows link: one tag for both."""

CONTROL = "ctl"
"""The key prefix of the queues that stay where they are."""

STATES = ("wait", "paused", "active", "prioritized", "delayed", "waiting-children", "completed", "failed")

_NOT_MOVED = frozenset(
    {"events", "marker", "id", "pc", "stalled", "stalled-check"}
    | {"toril:migration", "toril:migrated", "toril:migrated-schedulers"}
)
"""What a queue makes anew: its own counters, and what wakes workers."""


def unmoved(value: Any) -> Any:
    """Names as they were before the migration, and as the control has them."""
    match value:
        case str():
            return value.replace("{t}", "").replace(f"{CONTROL}:", "bull:")
        case list() | tuple():
            return type(value)(unmoved(each) for each in value)
        case dict():
            return {unmoved(name): unmoved(each) for name, each in value.items()}
        case _:
            return value


def comparable(dump: Dump) -> dict[str, Key]:
    """What of a dump must be the same on both sides."""
    same = {unmoved(name): replace(key, value=unmoved(key.value)) for name, key in normalise(dump).items()}
    kept = {name: key for name, key in same.items() if name.split(":", 2)[2] not in _NOT_MOVED}
    for queue in QUEUES:
        _join_paused(kept, f"bull:{queue}:")
    return {name: key for name, key in kept.items() if not is_orphan(name, kept)}


def _join_paused(keys: dict[str, Key], base: str) -> None:
    """A paused queue's jobs wait."""
    if paused := keys.pop(f"{base}paused", None):
        wait = keys.get(f"{base}wait")
        keys[f"{base}wait"] = replace(paused, value=[*(wait.value if wait else []), *paused.value])


def is_orphan(name: str, keys: Mapping[str, Key]) -> bool:
    """Whether a key belongs to a job in no state, which BullMQ itself has lost (FINDINGS, 10)."""
    _, queue, suffix = name.split(":", 2)
    if suffix in (*STATES, "meta", "repeat", "limiter") or suffix.startswith(("de:", "metrics:")):
        return False
    if suffix.startswith("repeat:") and suffix[7:] in keys.get(f"bull:{queue}:repeat", Key("", {})).value:
        return False
    ids = {each for state in STATES for each in keys.get(f"bull:{queue}:{state}", Key("", ())).value}
    ends = ("", ":logs", ":dependencies", ":processed", ":failed", ":unsuccessful")
    return not any(suffix == ident + end for ident in ids for end in ends)


def of_queues(dump: Dump, names: Sequence[str]) -> dict[str, Key]:
    """The keys of some queues."""
    return {name: key for name, key in dump.items() if name.split(":", 2)[1] in names}


async def prepare(sides: Sequence[NodeSide], operations: Sequence[Operation]) -> None:
    """Run the same operations everywhere; then all workers die, and time passes: no lock lives."""
    for side in sides:
        await side.run(operations)
        _forget_ghosts(side)
        lose_workers(side)


def lose_workers(side: NodeSide) -> None:
    """All workers die, and their locks run out."""
    for name in side.store.dump():
        if name.endswith((":lock", ":stalled", ":stalled-check")):
            side.store.ask("DEL", name)


def _forget_ghosts(side: NodeSide) -> None:
    """Remove ids without a job, which BullMQ leaves behind when it drains schedulers (FINDINGS, 10)."""
    dump = side.store.dump()
    for queue in QUEUES:
        for state in STATES:
            key = side.store.key(queue, state)
            for ident in dump[key].value if key in dump else ():
                if side.store.key(queue, ident) not in dump:
                    command = ("LREM", key, 0, ident) if dump[key].kind == "list" else ("ZREM", key, ident)
                    side.store.ask(*command)


async def carry_over(side: NodeSide, end: NodeSide, url: str, operations: Sequence[Operation]) -> None:
    """Bring the keys as they are to a cluster, and its clock to the same time: what a dump and a load do."""
    await reset_to(end, operations)
    async with connect(url) as redis:
        for name in side.store.dump():
            payload, ttl = side.store.ask("DUMP", name), max(side.store.ask("PTTL", name), 0)
            await redis.command("RESTORE", foreign_key(name), ttl, payload)
    side.store.wipe()


async def reset_to(side: NodeSide, operations: Sequence[Operation]) -> None:
    """An empty place where time and chance are what they are at the end of a sequence."""
    now = START + sum(each.ms for each in operations if isinstance(each, Advance))
    chance = [CHANCE, *(each.value for each in operations if isinstance(each, Random))][-1]
    await side.call("reset", now=now, random=chance)


async def with_kills(migrator: Migrator, chance: random.Random, **task: Any) -> int:
    """Run a task, killed at random calls, until it comes to its end; how often it was killed."""
    for kills in range(5):
        last = kills == 4
        die_at = 0 if last else int(2 ** chance.uniform(0, 7))
        if await migrator.run(**task, die_at=die_at, after=chance.random() < 0.5):
            return kills
    raise AssertionError("the last run is not killed")


async def fail_with_the_shortest(
    operations: Sequence[Operation],
    found: list[str],
    fails: Callable[[Sequence[Operation]], Awaitable[list[str]]],
) -> None:
    """Fail with a sequence that is as short as can be found in a short time."""
    small = list(operations)
    with suppress(TimeoutError):
        async with asyncio.timeout(30):
            small = await shortest(operations, fails)
            found = await fails(small) or found
    pytest.fail("\n".join([*map(repr, small), *found]))


def state_differences(control: Dump, moved: Dump) -> list[str]:
    """Where a migrated queue is not what the control is."""
    return differences(comparable(control), comparable(moved), names=("control", "migrated"))


async def drain_both(
    control: NodeSide, moved: NodeSide, names: Mapping[str, str] = NAMES, steps: int = 40
) -> list[str]:
    """Let Node work both off in the same way; the first reply in which they differ."""
    return await on_both(control, moved, _shift(steps), names)


async def on_both(
    control: NodeSide, moved: NodeSide, shift: Sequence[tuple[str, Any]], names: Mapping[str, str] = NAMES
) -> list[str]:
    """Let Node do the same on both sides; the first reply in which they differ."""
    mine, other = [
        await side.call(
            "sequence",
            operations=[
                (replace(each, queue=called[name]) if name else each).to_json(side.prefix)
                for name, each in shift
            ],
        )
        for side, called in ((control, {name: name for name in QUEUES}), (moved, names))
    ]
    for (_, operation), a, b in zip(shift, mine, other, strict=True):
        if crashed(a):
            break
        if isinstance(operation, Sweep) and a != b and sorted(a.get("ok", ())) == sorted(b.get("ok", ())):
            break  # BullMQ recovers the members of a set: two servers have them in different orders
        if difference := reply_difference(unmoved(a), unmoved(b)):
            return [f"{operation}: {difference}"]
    return []


def _shift(steps: int) -> list[tuple[str, Any]]:
    """What workers do: take jobs, finish every third with a failure, and let time pass."""
    done: list[tuple[str, Any]] = [(name, Resume()) for name in QUEUES]
    done += [(name, Sweep()) for name in QUEUES]
    done.append(("", Advance(ms=60_000)))
    done += [(name, Sweep()) for name in QUEUES]
    for step in range(steps):
        done += take_and_end(step + 99)  # other tokens than before
        if step % 4 == 3:
            done.append(("", Advance(ms=20_000 * (step // 4 + 1))))
    done += [(name, GetJobSchedulers()) for name in QUEUES]
    return done


def take_and_end(step: int) -> list[tuple[str, Any]]:
    """Take a job of each queue, and finish it."""
    done: list[tuple[str, Any]] = []
    for name in QUEUES:
        token = f"{name}-{step}"
        end: Any = Fail if step % 3 == 2 else Complete
        done.append((name, Fetch(token=token)))
        done.append((name, end(job=Held(token), token=token, fetch_next=False)))
    return done
