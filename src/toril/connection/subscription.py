"""Doorbells: which channels may have news, without a queue that could grow and without a ring missed.

Sharded pub/sub (``SSUBSCRIBE``, ``SPUBLISH``) delivers a message once to whoever listens at that moment,
and nothing to those who come later. So a subscription does not hand on messages; it says where to look.
Whenever it could not listen for a while, it says so for the channels concerned.

How it keeps up: a *keeper* compares, again and again, who has a channel's slot with where it is heard, and
gives every server's *line* the channels it should hear. Whatever happens (a line breaks, a slot moves, a
channel is added), all that is done about it is to let the keeper compare again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from toril.connection.errors import PASSING, CommandRefused, code_of
from toril.connection.node import Node
from toril.connection.topology import ClusterTopology, Topology, redirection
from toril.connection.wire import Broken, ErrorReply, NotSent, Wire
from toril.errors import InvalidValue
from toril.keyspace import Key

PING_EVERY = 3.0
"""Seconds after which a server is asked whether it is still there, and the keeper compares anyway."""

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.25
"""Seconds before the keeper compares again, when it was just called; doubled each time, with jitter."""


class Subscription:
    """An iterator over sets of channels that may have news. Made by :meth:`Connection.subscribe`.

    ::

        async with redis.subscribe(channels) as rings:
            async for rung in rings:
                ...  # look at what these channels stand for

    A set holds every channel that was rung since the last one, once, however often. It also holds those
    that have just been subscribed to: at the start, when added, after a broken connection, a failover, a
    slot that moved; a ring may have been missed before that. Through all of these it goes on for as long
    as it is open. It ends when it or its connection is closed, and raises what a server will never grant.
    """

    def __init__(self, topology: Topology, channels: Iterable[Key]) -> None:
        self._topology = topology
        self._wanted = {channel.encode(): channel for channel in channels}
        self._lines: dict[Node, _Line] = {}
        self._took_away: set[Node] = set()
        self._news: set[Key] = set()
        self._told = asyncio.Event()
        self._called = asyncio.Event()
        self._closed = False
        self._problem: Exception | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if not self._closed:
            self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> set[Key]:
        if self._keeper is None and not self._closed:
            raise InvalidValue("subscription", self, "it must be entered first: async with … as rings")
        while not (self._news or self._closed or self._problem):
            self._told.clear()
            await self._told.wait()
        if self._closed:
            raise StopAsyncIteration
        if self._problem is not None:
            raise self._problem
        news, self._news = self._news, set()
        return news

    def add(self, channel: Key) -> None:
        """Hear one more channel; it is told once as soon as it is heard."""
        raw = channel.encode()
        if raw not in self._wanted:
            self._wanted[raw] = channel
            if any(raw in line.heard for line in self._lines.values()):  # discarded a moment ago
                self._ring(raw)
            self._called.set()

    def discard(self, channel: Key) -> None:
        """Hear a channel no more, if it was heard."""
        if self._wanted.pop(channel.encode(), None) is not None:
            self._news.discard(channel)
            self._called.set()

    async def close(self) -> None:
        """Close its connections and end the iteration."""
        self._closed = True
        self._told.set()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    def _ring(self, raw: bytes) -> None:
        channel = self._wanted.get(raw)
        if channel is not None:
            self._news.add(channel)
            self._told.set()

    def _moved(self, reply: str, node: Node) -> None:
        if isinstance(self._topology, ClusterTopology):
            self._topology.moved(*redirection(reply, node.address))

    # ------------------------------------------------------------------ the keeper

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE
        try:
            while True:
                self._called.clear()
                await self._compare()
                compared = loop.time()
                with suppress(TimeoutError):
                    async with asyncio.timeout(PING_EVERY):
                        await self._called.wait()
                if loop.time() - compared > 2 * LONGEST_PAUSE:
                    pause = FIRST_PAUSE
                else:
                    await asyncio.sleep(pause * random.random())
                    pause = min(pause * 2, LONGEST_PAUSE)
        except Exception as problem:  # noqa: BLE001 - whoever iterates gets it
            self._problem = problem
            self._told.set()
        finally:
            await _end(self._lines.values())

    async def _compare(self) -> None:
        """Give every line the channels of its server; open and close lines as that needs it."""
        while self._took_away:
            node = self._took_away.pop()
            if isinstance(self._topology, ClusterTopology):
                # A primary that became a replica would take the channels again, and never ring.
                await self._topology.learn_from(node)
        for node in [node for node, line in self._lines.items() if line.task.done()]:
            self._lines.pop(node).task.result()
            await self._look_again(node)
        homes: dict[Node, set[bytes]] = {}
        homeless = False
        for raw, channel in list(self._wanted.items()):
            try:
                homes.setdefault(await self._topology.primary(channel.slot), set()).add(raw)
            except NotSent:  # nobody has the slot for now
                homeless = True
        await _end([self._lines.pop(node) for node in self._lines.keys() - homes.keys()])
        for node, channels in homes.items():
            if node not in self._lines:
                self._lines[node] = _Line(
                    node, self._ring, self._moved, self._took_away.add, self._called.set
                )
            self._lines[node].assign(channels)
        if homeless:
            await self._look_again(None)
            self._called.set()

    async def _look_again(self, failed: Node | None) -> None:
        with suppress(NotSent, Broken):  # nobody answers yet; the next try will tell
            if failed is not None and not self._topology.clustered:
                with suppress(NotSent, Broken, TimeoutError):
                    async with asyncio.timeout(PING_EVERY):
                        await failed.ask([("PING",)])
                    return  # it is well, and looking again would end the wire that the calls share
            await self._topology.look_again(failed)


class _Line:
    """A wire to one server, and the channels heard over it. Its task ends when the wire breaks.

    There is never more than one request under way, so what comes in can be told apart: rings, channels
    that the server takes away, and replies.
    """

    def __init__(
        self,
        node: Node,
        ring: Callable[[bytes], None],
        moved: Callable[[str, Node], None],
        took_away: Callable[[Node], None],
        call_keeper: Callable[[], None],
    ) -> None:
        self.heard: set[bytes] = set()
        self._node = node
        self._ring = ring
        self._moved = moved
        self._took_away = took_away
        self._call_keeper = call_keeper
        self._assigned: set[bytes] = set()
        self._leaving: set[bytes] = set()
        self._called = asyncio.Event()
        self.task = asyncio.create_task(self._run())
        self.task.add_done_callback(lambda _: call_keeper())

    def assign(self, channels: set[bytes]) -> None:
        """Hear these channels and no others."""
        if channels != self._assigned:
            self._assigned = channels
            self._called.set()

    async def _run(self) -> None:
        with suppress(NotSent, Broken):
            async with self._node.listen(self._hear, self._called.set) as wire:
                while wire.closed is None:
                    self._called.clear()
                    if new := [*(self._assigned - self.heard)]:
                        await self._join(wire, new)
                    elif old := [*(self.heard - self._assigned)]:
                        await self._leave(wire, old)
                    else:
                        await self._wait(wire)

    async def _join(self, wire: Wire, channels: list[bytes]) -> None:
        # One command for each: those of different slots cannot go together, and each has its own answer.
        replies = await wire.ask([("SSUBSCRIBE", raw) for raw in channels], self._node.silence)
        for raw, reply in zip(channels, replies, strict=True):
            if not isinstance(reply, ErrorReply):
                continue
            code = code_of(str(reply))
            if code == "MOVED":
                self._moved(str(reply), self._node)
                self._lose(raw)
            elif code in PASSING:
                raise NotSent(str(reply))
            else:
                raise CommandRefused(f"{reply} (SSUBSCRIBE {raw.decode()})")

    async def _leave(self, wire: Wire, channels: list[bytes]) -> None:
        self.heard.difference_update(channels)
        self._leaving = set(channels)
        await wire.ask([("SUNSUBSCRIBE", raw) for raw in channels], self._node.silence)
        self._leaving = set()

    async def _wait(self, wire: Wire) -> None:
        try:
            async with asyncio.timeout(PING_EVERY):
                await self._called.wait()
        except TimeoutError:
            await wire.ask([("PING",)], self._node.silence)

    def _hear(self, said: Any) -> bool:
        """Take what the server says, in its order; whether it was something else than a reply."""
        if not isinstance(said, list):
            return False
        kind, raw = said[0], said[1]
        if kind == b"smessage":
            self._ring(raw)
            return True
        if kind == b"ssubscribe":
            self.heard.add(raw)
            self._ring(raw)
        elif kind == b"sunsubscribe":
            if raw not in self._leaving:
                self._took_away(self._node)  # its slot has moved, or the server is no primary any more
                self._lose(raw)
                return True
            self._leaving.discard(raw)
        return False

    def _lose(self, raw: bytes) -> None:
        """A channel is not to be had here, until the keeper says so again."""
        self.heard.discard(raw)
        self._assigned.discard(raw)
        self._call_keeper()


async def _end(lines: Iterable[_Line]) -> None:
    tasks = [line.task for line in lines]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
