"""How Node and Toril are compared, by sequences of operations and by mistakes made on purpose."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from tests.conformance import operations as ops
from tests.conformance.operations import Advance, Drain, Fetch, Operation
from tests.conformance.oracle import NodeOracle
from tests.conformance.sides import NodeSide, compare, locate
from tests.conformance.store import Store
from tests.conformance.strategies import NOTHING_LEFT_OUT, random_sequence, shortest
from tests.conformance.toril_side import TorilSide, open_toril
from tests.conftest import SCALE, SEED
from toril.connection import Script
from toril.queue import store as store_module
from toril.testing import Cluster, Server

Sides = tuple[NodeSide, TorilSide]
Twins = tuple[TorilSide, TorilSide]


def scaled(number: int) -> int:
    """So many at scale 1."""
    return max(1, int(number * SCALE))


@asynccontextmanager
async def open_sides(
    server: Server | Cluster, *, dbs: tuple[int, int] = (0, 1), prefixes: tuple[str, str] = ("bull", "bull")
) -> AsyncIterator[Sides]:
    """Node and Toril, each in a database (or below a prefix) of its own, with a Node process each."""
    async with NodeOracle() as truth, NodeOracle() as beside:
        node = await NodeSide.open(truth, server, db=dbs[0], prefix=prefixes[0])
        try:
            async with open_toril(beside, server, db=dbs[1], prefix=prefixes[1]) as toril:
                yield node, toril
        finally:
            await node.close()


async def differ(node: NodeSide, toril: TorilSide, operations: Sequence[Operation]) -> list[str]:
    """How the sides differ after a sequence, apart from the one thing that Toril means to do otherwise."""
    found = await compare(node, toril, operations)
    if found:
        kept = await without_lossy_drains(node, operations)
        if len(kept) < len(operations):
            found = await compare(node, toril, kept)
    return found


async def without_lossy_drains(node: NodeSide, operations: Sequence[Operation]) -> list[Operation]:
    """Leave out the drains that meet a scheduler's job in ``wait``: BullMQ loses it (FINDINGS, 10)."""
    kept: list[Operation] = []
    await node.reset()
    for operation in operations:
        if isinstance(operation, Drain) and _scheduled_waits(node.store, operation.queue):
            continue
        await node.execute(operation)
        kept.append(operation)
    return kept


def _scheduled_waits(store: Store, queue: str) -> bool:
    lists = [store.ask("LRANGE", store.key(queue, name), 0, -1) for name in ("wait", "paused")]
    return any(job.startswith(b"repeat:") for ids in lists for job in ids)


async def check(node: NodeSide, toril: TorilSide, operations: Sequence[Operation], what: str) -> None:
    """Fail with the shortest sequence, and where it goes wrong, unless the sides agree."""
    if not await differ(node, toril, operations):
        return
    small = await shortest(operations, lambda some: differ(node, toril, some))
    small = await without_lossy_drains(node, small)
    lines = [f"{what} (TORIL_TEST_SEED={SEED}):", *map(repr, small), *await locate(node, toril, small)]
    pytest.fail("\n".join(lines))


def sequence(chance: random.Random, without: frozenset[str] = NOTHING_LEFT_OUT) -> list[Operation]:
    """One of :func:`random_sequence`'s; some with more of what seldom comes by itself."""
    operations = random_sequence(chance, without=without)
    match chance.randrange(5):
        case 0:
            return [_counted(operation) for operation in operations]
        case 1:
            return [each for operation in operations for each in _watched(operation)]
        case _:
            return operations


def _counted(operation: Operation) -> Operation:
    """With minutes instead of seconds, and workers that count what they finish in them."""
    match operation:
        case Advance(ms=ms) if ms >= 1000:
            return Advance(ms=60_000)
        case Fetch() | ops.OnLockedJob():
            return replace(operation, worker=replace(operation.worker, metrics=ops.Metrics(2)))
        case _:
            return operation


def _watched(operation: Operation) -> list[Operation]:
    """With a line in the log of every job that is taken, and a look for stalled ones after it."""
    match operation:
        case Fetch(queue=queue, token=token):
            line = ops.Log(queue=queue, job=ops.Held(token), row=f"taken by {token}")
            return [operation, line, ops.Sweep(queue=queue)]
        case _:
            return [operation]


@dataclass(frozen=True)
class Mistake:
    """One change of the scripts' text."""

    was: tuple[str, ...]
    becomes: tuple[str, ...]

    def made_in(self, script: Script) -> Script | None:
        """The script with the mistake in it; None where there is no place for it."""
        pattern = re.compile(r"\n\s*".join(re.escape(line) for line in self.was))
        source, times = pattern.subn("\n".join(self.becomes).replace("\\", r"\\"), script.source)
        if not times:
            return None
        assert times == 1, f"{self.was} stands in {script.name} more than once"
        assert source != script.source
        return replace(script, source=source, sha=hashlib.sha1(source.encode()).hexdigest())


def read_mistakes(text: str) -> dict[str, Mistake]:
    found = {}
    for block in re.split(r"\n(?=\w)", text.strip()):
        name, *lines = block.split("\n")
        was, becomes = (tuple(line[4:] for line in lines if line[2] == sign) for sign in "-+")
        found[name] = Mistake(was, becomes)
    return found


ENOUGH = 300
"""Sequences within which each mistake must be found."""


def make(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Toril work with the mistake, in every script that has a place for it."""
    scripts = {name: value for name, value in vars(store_module).items() if isinstance(value, Script)}
    mutants = {name: mistake.made_in(script) for name, script in scripts.items()}
    assert any(mutants.values()), "there is no place for this mistake"
    for name, mutant in mutants.items():
        if mutant is not None:
            monkeypatch.setattr(store_module, name, mutant)
