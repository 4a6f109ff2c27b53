"""Which server answers for a slot: one server, or the shards of a cluster."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from toril.connection.errors import ConnectionFailed
from toril.connection.node import CLOSED, Node, NodeOptions
from toril.connection.url import Address
from toril.connection.wire import Broken, ErrorReply, NotSent
from toril.keyspace import SLOTS, SlotRange

ASKED_AT_ONCE = 4
"""How many servers of a cluster are asked for the slot map at the same time."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A primary, its replicas, and the slots they serve."""

    primary: Address
    replicas: tuple[Address, ...] = ()
    slots: tuple[SlotRange, ...] = (SlotRange(0, SLOTS - 1),)


class Topology(ABC):
    """Finds the server for a call, and learns from what went wrong."""

    clustered: bool

    @abstractmethod
    async def primary(self, slot: int | None) -> Node:
        """The server that takes writes for a slot (any primary for None); ``NotSent`` if unknown."""

    @abstractmethod
    async def replica(self, slot: int | None) -> Node:
        """A replica for a slot, for display only; the primary where there is none."""

    @abstractmethod
    async def shards(self) -> Sequence[Shard]:
        """All shards, as known."""

    @abstractmethod
    def node(self, address: Address) -> Node:
        """The server at an address."""

    @abstractmethod
    async def look_again(self, failed: Node | None) -> None:
        """Find out anew who is in charge, after a call to ``failed`` went wrong."""

    @abstractmethod
    async def close(self) -> None:
        """Close every connection."""


Resolve = Callable[[], Awaitable[Shard]]


class SingleTopology(Topology):
    """One primary, and whoever says where it is: a URL, the sentinels, the embedded server."""

    clustered = False

    def __init__(self, resolve: Resolve, options: NodeOptions) -> None:
        self._resolve = resolve
        self._options = options
        self._shard: Shard | None = None
        self._primary: Node | None = None
        self._replicas: list[Node] = []
        self._resolving = asyncio.Lock()

    async def primary(self, slot: int | None) -> Node:
        if self._primary is None:
            async with self._resolving:
                if self._primary is None:
                    self._adopt(await self._resolve())
        assert self._primary is not None
        return self._primary

    async def replica(self, slot: int | None) -> Node:
        await self.primary(slot)
        return random.choice(self._replicas) if self._replicas else await self.primary(slot)

    async def shards(self) -> Sequence[Shard]:
        await self.primary(None)
        assert self._shard is not None
        return [self._shard]

    def node(self, address: Address) -> Node:
        if self._primary is None or address != self._primary.address:
            raise NotSent(f"{address} is not the primary any more")
        return self._primary

    async def look_again(self, failed: Node | None) -> None:
        async with self._resolving:
            if failed is not self._primary:
                return  # another task has looked since that call
            shard = await self._resolve()
            if self._shard is not None and shard == self._shard and self._primary is not None:
                self._primary.redial()
            else:
                self._adopt(shard)

    def _adopt(self, shard: Shard) -> None:
        former = [node for node in (self._primary, *self._replicas) if node is not None]
        self._shard = shard
        self._primary = Node(shard.primary, self._options)
        self._replicas = [Node(address, self._options) for address in shard.replicas]
        for node in former:
            node.redial()

    async def close(self) -> None:
        for node in (self._primary, *self._replicas):
            if node is not None:
                await node.close()


@dataclass
class _View:
    """The slot map of a cluster at one moment."""

    shards: list[Shard] = field(default_factory=list)
    owner: list[Address | None] = field(default_factory=lambda: [None] * SLOTS)


class ClusterTopology(Topology):
    """The shards of a Redis Cluster, as its nodes tell them."""

    clustered = True

    def __init__(self, seeds: Sequence[Address], options: NodeOptions) -> None:
        self._seeds = list(seeds)
        self._options = options
        self._view = _View()
        self._nodes: dict[Address, Node] = {}
        self._readers: dict[Address, Node] = {}
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    def node(self, address: Address) -> Node:
        found = self._nodes.get(address)
        if found is None:
            found = self._nodes[address] = Node(address, self._options, on_quiet=self._start_looking)
        return found

    async def primary(self, slot: int | None) -> Node:
        if not self._view.shards:
            await self.look_again(None)
        if slot is None:
            return self.node(random.choice(self._view.shards).primary)
        owner = self._view.owner[slot]
        if owner is None:
            raise NotSent(f"no server of the cluster serves slot {slot}")
        return self.node(owner)

    async def replica(self, slot: int | None) -> Node:
        primary = await self.primary(slot)
        shard = next((s for s in self._view.shards if s.primary == primary.address), None)
        if shard is None or not shard.replicas:
            return primary
        address = random.choice(shard.replicas)
        reader = self._readers.get(address)
        if reader is None:
            reader = self._readers[address] = Node(address, self._options, read_only=True)
        return reader

    async def shards(self) -> Sequence[Shard]:
        await self.look_again(None)
        return self._view.shards

    def moved(self, slot: int, address: Address) -> Node:
        """Note what a MOVED reply says; the whole map is read again behind the caller's back."""
        self._view.owner[slot] = address
        self._start_looking()
        return self.node(address)

    async def look_again(self, failed: Node | None) -> None:
        self._start_looking()
        looking = self._looking
        if looking is None:
            raise NotSent(CLOSED)
        try:
            await asyncio.shield(looking)
        except asyncio.CancelledError:
            if looking.cancelled():  # by close(): nobody else does that
                raise NotSent(CLOSED) from None
            raise

    async def learn_from(self, node: Node) -> None:
        """Take the map as this server has it: it has just said that something of its own has changed."""
        view = await self._ask_for_view(node.address)
        if isinstance(view, _View):
            self._adopt(view)

    def _start_looking(self) -> None:
        if self._looking is None and not self._closed:
            self._looking = asyncio.create_task(self._look())
            self._looking.add_done_callback(self._looked)

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._looking = None
        if not task.cancelled():
            task.exception()  # those who wait for it have it; nobody may be waiting

    async def _look(self) -> None:
        known = [shard.primary for shard in self._view.shards]
        known += [address for shard in self._view.shards for address in shard.replicas]
        random.shuffle(known)
        candidates = list(dict.fromkeys([*known, *self._seeds]))
        problems: list[str] = []
        for start in range(0, len(candidates), ASKED_AT_ONCE):
            # Several at once, because one that hangs must not keep us from those that answer.
            asked = [
                asyncio.create_task(self._ask_for_view(address))
                for address in candidates[start : start + ASKED_AT_ONCE]
            ]
            try:
                for answer in asyncio.as_completed(asked):
                    view = await answer
                    if isinstance(view, _View):
                        self._adopt(view)
                        return
                    problems.append(view)
            finally:
                for task in asked:
                    task.cancel()
        raise NotSent("; ".join(problems))

    async def _ask_for_view(self, address: Address) -> _View | str:
        """What a server knows of the cluster, or why it could not say."""
        try:
            reply = (await self.node(address).ask([("CLUSTER", "SLOTS")]))[0]
        except (NotSent, Broken, ConnectionFailed) as problem:
            return str(problem)
        if isinstance(reply, ErrorReply):
            return f"{address}: {reply}"
        view = _read_slots(reply, address)
        return view if view.shards else f"{address} knows of no slots"

    def _adopt(self, view: _View) -> None:
        self._view = view
        alive = {shard.primary for shard in view.shards}
        for address, node in self._nodes.items():
            if address not in alive:
                node.give_up_quiet()
        alive |= {address for shard in view.shards for address in shard.replicas}
        for nodes in (self._nodes, self._readers):
            for address in [gone for gone in nodes if gone not in alive]:
                nodes.pop(address).redial()

    async def close(self) -> None:
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        for node in (*self._nodes.values(), *self._readers.values()):
            await node.close()


def redirection(text: str, asked: Address) -> tuple[int, Address]:
    """Slot and address of a MOVED or ASK reply; one without a host means the server we asked."""
    _, slot, where = text.split(" ")[:3]
    host, _, port = where.rpartition(":")
    return int(slot), Address(host or asked.host, int(port))


def _read_slots(reply: list[list[Any]], asked: Address) -> _View:
    """The slot map in a CLUSTER SLOTS reply; a server without a name of its own is the one we asked."""
    ranges: dict[Address, list[SlotRange]] = {}
    replicas: dict[Address, tuple[Address, ...]] = {}
    view = _View()
    for first, last, *servers in reply:
        primary, *others = (
            Address(server[0].decode() if server[0] else asked.host, int(server[1])) for server in servers
        )
        ranges.setdefault(primary, []).append(SlotRange(first, last))
        replicas[primary] = tuple(others)
        view.owner[first : last + 1] = [primary] * (last - first + 1)
    view.shards = [
        Shard(primary, replicas[primary], tuple(sorted(slots))) for primary, slots in ranges.items()
    ]
    view.shards.sort(key=lambda shard: shard.slots[0])
    return view
