"""The two sides of a comparison: each executes the same operations on a database of its own.

:class:`NodeSide` is the truth. The other side is an implementation of :class:`Side` over the code under
test. :func:`compare` runs a sequence on both and says where they differ, :func:`locate` after which
operation they began to.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from tests.conformance.dump import Dump, differences, normalise, without_prefix
from tests.conformance.operations import (
    NOTHING,
    Advance,
    At,
    Held,
    Id,
    JobRef,
    LoseLock,
    OnJob,
    Operation,
    Random,
)
from tests.conformance.oracle import NodeOracle
from tests.conformance.replies import Reply, crashed, reply_difference
from tests.conformance.store import Store
from toril.testing import Cluster, Server

START = 1_700_000_000_000
"""The time at which every sequence begins, in ms. It is a whole step (see store.STEP)."""

CHANCE = 0.5
"""What chance says at the beginning."""

QUEUES = ("q", "p")
"""The queues that every sequence begins with; they have written their ``meta`` key."""


class Side(Protocol):
    """One implementation, on one database."""

    name: str
    prefix: str

    async def reset(self) -> None:
        """Wipe the database, set the clock to :data:`START`, make the queues of :data:`QUEUES`."""
        ...

    async def execute(self, operation: Operation) -> Reply:
        """Do one operation. Nothing is raised: an error is a reply."""
        ...

    async def run(self, operations: Sequence[Operation]) -> list[Reply]:
        """:meth:`reset`, then all operations, one after the other."""
        ...

    async def dump(self) -> Dump:
        """Every key below the prefix, as it is."""
        ...


def open_store(server: Server | Cluster, db: int = 0, prefix: str = "bull") -> Store:
    """A raw look at a server or a cluster."""
    servers = server.primaries() if isinstance(server, Cluster) else [server]
    return Store([each.address for each in servers], db, prefix)


class NodeSide:
    """BullMQ 5.62.0 in Node."""

    name = "node"

    def __init__(self, oracle: NodeOracle, place: str, store: Store) -> None:
        self.store = store
        self.prefix = store.prefix
        self._oracle = oracle
        self._place = place

    @classmethod
    async def open(
        cls, oracle: NodeOracle, server: Server | Cluster, *, db: int = 0, prefix: str = "bull"
    ) -> NodeSide:
        """A place of the oracle's in a database, with key prefix ``prefix``."""
        store = open_store(server, db, prefix)
        where: dict[str, Any] = {"prefix": prefix}
        if isinstance(server, Cluster):
            where["nodes"] = [[each.address.host, each.address.port] for each in server.primaries()]
        else:
            where |= {"host": server.address.host, "port": server.address.port, "db": db}
        place = f"{server!r}/{db}/{prefix}"
        await oracle.call("open", place=place, **where)
        return cls(oracle, place, store)

    async def close(self) -> None:
        """Close the oracle's connections to this database."""
        await self._oracle.call("close", place=self._place)
        self.store.close()

    async def call(self, op: str, **args: Any) -> Any:
        """Ask the oracle for something here that is no :class:`Operation`."""
        return await self._oracle.call(op, place=self._place, **args)

    async def reset(self) -> None:
        """See :class:`Side`."""
        await self._sequence([_RESET])

    async def execute(self, operation: Operation) -> Reply:
        """See :class:`Side`."""
        return (await self._sequence([operation.to_json(self.prefix)]))[0]

    async def run(self, operations: Sequence[Operation]) -> list[Reply]:
        """See :class:`Side`. All in one request."""
        return (await self._sequence([_RESET, *(each.to_json(self.prefix) for each in operations)]))[1:]

    async def dump(self) -> Dump:
        """See :class:`Side`."""
        return self.store.dump()

    async def _sequence(self, operations: list[Any]) -> list[Reply]:
        replies: list[Reply] = await self._oracle.call("sequence", place=self._place, operations=operations)
        return replies


_RESET = {"op": "reset", "now": START, "random": CHANCE, "queues": list(QUEUES)}


class DirectSide(ABC):
    """What an implementation under test need not care about: time, references, replies.

    A subclass says how an operation is done (:meth:`perform`), and makes its queues (:meth:`begin`). It
    reads the clock and chance from :attr:`now` and :attr:`chance`, and remembers in :attr:`held` which job
    a token activated last, with what it knew about it then.
    """

    name = "direct"
    errors: tuple[type[Exception], ...] = (Exception,)
    """What :meth:`perform` may raise that is a reply."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.prefix = store.prefix
        self.now = START
        self.chance = CHANCE
        self.held: dict[str, tuple[str, Any]] = {}

    @abstractmethod
    async def begin(self) -> None:
        """Make the queues of :data:`QUEUES`, as new: they write their ``meta`` key."""

    @abstractmethod
    async def perform(self, operation: Operation, job: str | None) -> Any:
        """Do one operation; the value of its reply. ``job`` is the id of the job it is about."""

    def code_of(self, error: Exception) -> int | None:
        """BullMQ's code for an error (a.9 in the reference)."""
        code = getattr(error, "code", None)
        return code if isinstance(code, int) else None

    async def reset(self) -> None:
        """See :class:`Side`."""
        self.store.wipe()
        self.now, self.chance = START, CHANCE
        self.held.clear()
        await self.begin()

    async def execute(self, operation: Operation) -> Reply:
        """See :class:`Side`."""
        try:
            return {"ok": await self._execute(operation)}
        except self.errors as error:
            return {"error": error_view(error, self.code_of(error))}

    async def run(self, operations: Sequence[Operation]) -> list[Reply]:
        """See :class:`Side`."""
        await self.reset()
        return [await self.execute(operation) for operation in operations]

    async def dump(self) -> Dump:
        """See :class:`Side`."""
        return self.store.dump()

    def job_meant(self, queue: str, reference: JobRef) -> str | None:
        """The id of the job that a reference means now."""
        match reference:
            case Id(id=name):
                return name
            case Held(held=token):
                return self.held[token][0] if token in self.held else None
            case At():
                return self.store.job_at(queue, reference)

    async def _execute(self, operation: Operation) -> Any:
        match operation:
            case Advance(ms=ms):
                self.store.age(self.now, self.now + ms)
                self.now += ms
                return self.now
            case Random(value=value):
                self.chance = value
                return None
            case OnJob(queue=queue, job=reference):
                job = self.job_meant(queue, reference)
                if job is None:
                    return NOTHING
                if isinstance(operation, LoseLock):
                    return self.store.ask("DEL", self.store.key(queue, f"{job}:lock"))
                return await self.perform(operation, job)
            case _:
                return await self.perform(operation, None)


def error_view(error: Exception, code: int | None) -> dict[str, Any]:
    """An error as a reply has it."""
    view = {"name": type(error).__name__, "message": str(error)}
    return view if code is None else {**view, "code": code}


# ---------------------------------------------------------------------- comparing


async def compare(
    left: Side, right: Side, operations: Sequence[Operation], *, past_crashes: bool = False
) -> list[str]:
    """Run the same operations on both sides; what differs afterwards, in words, empty when nothing does.

    Where a script of the left side (Node) breaks off half-way, which some of BullMQ's do, the sequence
    ends before that operation, unless ``past_crashes``.
    """
    replies = await asyncio.gather(left.run(operations), right.run(operations))
    broken = next((place for place, reply in enumerate(replies[0]) if crashed(reply)), None)
    if broken is not None and not past_crashes:
        operations = operations[:broken]
        replies = await asyncio.gather(left.run(operations), right.run(operations))
    found = [
        f"reply {place} to {operation}: {difference}"
        for place, operation in enumerate(operations)
        if (difference := _reply_difference(left, right, replies[0][place], replies[1][place]))
    ]
    return found + await _state_differences(left, right)


async def locate(left: Side, right: Side, operations: Sequence[Operation]) -> list[str]:
    """Step through a sequence; the first operation after which the sides differ, and how."""
    await asyncio.gather(left.reset(), right.reset())
    for place, operation in enumerate(operations):
        mine, other = await asyncio.gather(left.execute(operation), right.execute(operation))
        reply = _reply_difference(left, right, mine, other)
        found = [f"reply: {reply}"] if reply else []
        found += await _state_differences(left, right)
        if found:
            return [f"after operation {place}, {operation}:", *found]
    return []


def _reply_difference(left: Side, right: Side, mine: Reply, other: Reply) -> str | None:
    if left.prefix != right.prefix:
        mine, other = without_prefix(mine, left.prefix), without_prefix(other, right.prefix)
    return reply_difference(mine, other)


async def _state_differences(left: Side, right: Side) -> list[str]:
    other_prefix = left.prefix != right.prefix
    mine, other = [
        normalise(await side.dump(), prefix=side.prefix if other_prefix else None) for side in (left, right)
    ]
    return differences(mine, other, names=(left.name, right.name))
