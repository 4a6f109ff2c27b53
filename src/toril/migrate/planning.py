"""What a migration would do: names, links, counts, and what stands in the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from toril.connection import Connection
from toril.keyspace import QueueKeys
from toril.migrate.copying import sort_out
from toril.migrate.destination import Destination
from toril.migrate.discovery import choose_queues, find_links
from toril.migrate.jobs import LETTERS, NAMES, STATES
from toril.migrate.moves import Move, Moves, new_names
from toril.migrate.reading import QueueReader
from toril.migrate.report import Told, tell_nobody
from toril.migrate.status import known_names


@dataclass(slots=True)
class QueuePlan:
    """One queue, as it is to be moved."""

    source: str
    destination: str
    slot: int | None
    linked: list[str] = field(default_factory=list)
    """Queues that flows link it to: they move together, under one tag."""
    counts: Counter[str] = field(default_factory=Counter)
    schedulers: int = 0
    copied: int = 0
    """Of its jobs, those that were copied already."""
    pending: int = 0
    paused: bool = False
    workers: list[str] | None = field(default_factory=list)
    """Old workers that are connected; None where the server does not tell."""
    phase: str = ""
    """How far it is: nothing, copying, rolling back or cleaned."""

    @property
    def total(self) -> int:
        """Its jobs."""
        return self.counts.total()

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self) | {"counts": dict(self.counts), "total": self.total}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be moved where."""

    moves: Moves
    queues: list[QueuePlan]

    @property
    def pending(self) -> int:
        """Jobs that are not copied."""
        return sum(queue.pending for queue in self.queues)

    @property
    def copied(self) -> int:
        """Jobs that are."""
        return sum(queue.copied for queue in self.queues)


async def choose_moves(
    source: Connection,
    destination: Connection,
    names: Sequence[str] = (),
    *,
    prefix: str = "bull",
    to_prefix: str | None = None,
    given: Mapping[str, str] | None = None,
    tag: str | None = None,
    other_server: bool = False,
    told: Told = tell_nobody,
) -> tuple[Moves, list[list[str]]]:
    """The queues that are meant, with those that flows link to them; and the groups that flows make.

    A migration that has begun goes on under the names it began with.
    """
    chosen = await choose_queues(source, names, prefix, given)
    groups = await find_links(source, chosen, prefix, told)
    every = [name for group in groups for name in group]
    known = await known_names(destination, prefix, to_prefix or prefix)
    made = new_names(every, groups, known | dict(given or {}), tag)
    moves = Moves(
        (Move(QueueKeys(name, prefix), QueueKeys(made[name], to_prefix or prefix)) for name in every),
        other_server=other_server,
    )
    return moves, groups


async def make_plan(
    source: Connection, destination: Connection, moves: Moves, groups: Sequence[Sequence[str]] = ()
) -> Plan:
    """Look at the queues, and change nothing."""
    linked = {name: [other for other in group if other != name] for group in groups for name in group}
    queues = []
    for move in moves:
        old, new = QueueReader(source, move.source), Destination(destination, move.destination, "")
        plan = QueuePlan(
            move.source.name,
            move.destination.name,
            move.destination.slot,
            linked.get(move.source.name, []),
            paused=await old.is_paused(),
            workers=await old.workers(),
        )
        plan.phase = (await new.facts()).get("phase", "")
        plan.schedulers = await source.command("ZCARD", move.source.repeat)
        for state, count in (await old.counts()).items():
            plan.counts[NAMES[LETTERS[state]]] += count
        for state in STATES if plan.phase else ():
            async for places in old.walk(state):
                known, fresh = await sort_out(old, new, places)
                plan.copied += len(known)
                plan.pending += len(fresh)
        if not plan.phase:
            plan.pending = plan.total
        queues.append(plan)
    return Plan(moves, queues)
