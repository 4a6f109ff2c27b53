"""Ways in which a reader of many partitions, each in a slot of its own, can learn of new entries.

The readers are as small as they can be and share all but the waiting, so that what is measured is the
way. Each runs in a process of its own; an entry's body is the time at which it was sent.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection as Pipe
from typing import Any

from toril import Connection, connect
from toril.connection import Script, Subscription
from toril.connection.node import Node
from toril.keyspace import Key, PartitionKeys

PARTITIONS = 64
PAGE = 100
LOOK_ANYWAY = 1.0
"""Seconds after which a reader that waits for rings looks at all partitions."""
BLOCK = 5
"""Seconds that a blocking command may wait; then it is sent again."""
LONGEST_BELL = 1000
"""Entries of a list that a client rings; without a bound, one that nobody reads would grow for ever."""

KEYS = [PartitionKeys(number=number) for number in range(PARTITIONS)]


def _script(source: str) -> Script:
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script("benchmark", source, sha, ("entries",), "partition")


_XADD = "#!lua\nlocal id = redis.call('XADD', KEYS[1], 'MAXLEN', '~', 1000, '*', 'b', ARGV[1])\n"
APPEND = _script(_XADD + "return id")
APPEND_AND_RING = _script(
    _XADD + "redis.call('SPUBLISH', string.sub(KEYS[1], 1, -8) .. 'bell', '')\nreturn id"
)


@dataclass(slots=True)
class Log:
    """A connection to the streams, and how far they were read."""

    redis: Connection
    last: list[bytes] = field(default_factory=lambda: [b"0-0"] * PARTITIONS)
    delays: list[float] = field(default_factory=list)
    """Seconds from sending an append to having the entry."""

    async def look(self, numbers: Iterable[int]) -> bool:
        """Read what is new in some partitions, with one request per server; whether anything was."""
        asked: dict[Node, list[int]] = {}
        for number in numbers:
            node = await self.redis._topology.primary(KEYS[number].slot)
            asked.setdefault(node, []).append(number)
        found = await asyncio.gather(*(self._look(node, part) for node, part in asked.items()))
        return any(found)

    async def _look(self, node: Node, numbers: list[int]) -> bool:
        commands = [
            ("XREAD", "COUNT", PAGE, "STREAMS", KEYS[number].entries, self.last[number]) for number in numbers
        ]
        replies = await node.ask(commands)
        for number, reply in zip(numbers, replies, strict=True):
            self.take(number, reply)
        return any(replies)

    def take(self, number: int, reply: Any) -> None:
        """Note what an XREAD has brought."""
        if reply:
            now = time.monotonic()
            for ident, (_, body) in reply[0][1]:
                self.delays.append(now - float(body))
                self.last[number] = ident


Ready = Callable[[], None]
Read = Callable[[Log, Ready], Awaitable[None]]
"""Reads for ever; says when it has begun."""
Append = Callable[[Connection, int, str], Awaitable[object]]


# ---------------------------------------------------------------------------- (a) sharded pub/sub

BELLS = {keys.bell: number for number, keys in enumerate(KEYS)}


async def hear_all(rings: Subscription) -> None:
    missing = set(BELLS)
    while missing:
        missing -= await anext(rings)


async def _read_rings(log: Log, ready: Ready) -> None:
    async with log.redis.subscribe(BELLS) as rings:
        await hear_all(rings)
        ready()
        async for rung in rings:
            await log.look(BELLS[bell] for bell in rung)


async def _read_rings_and_look(log: Log, ready: Ready) -> None:
    async with log.redis.subscribe(BELLS) as rings:
        await hear_all(rings)
        ready()
        looked = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(looked + LOOK_ANYWAY - time.monotonic()):
                    rung = await anext(rings)
            except TimeoutError:
                looked = time.monotonic()
                await log.look(range(PARTITIONS))
            else:
                await log.look(BELLS[bell] for bell in rung)


async def _append_and_ring(redis: Connection, number: int, body: str) -> None:
    await redis.run(APPEND_AND_RING, [KEYS[number].entries], body)


async def _append(redis: Connection, number: int, body: str) -> None:
    await redis.run(APPEND, [KEYS[number].entries], body)


# ---------------------------------------------------------------------------- (b) polling


def _poll(longest: float, shortest: float = 0.001) -> Read:
    async def read(log: Log, ready: Ready) -> None:
        ready()
        pause = shortest
        while True:
            pause = shortest if await log.look(range(PARTITIONS)) else min(pause * 2, longest)
            await asyncio.sleep(pause)

    return read


# ---------------------------------------------------------------------------- (c) a blocking read each


async def _read_blocking(log: Log, ready: Ready) -> None:
    async def follow(number: int) -> None:
        key = KEYS[number].entries
        while True:
            ask = ("XREAD", "COUNT", PAGE, "BLOCK", BLOCK * 1000, "STREAMS", key, log.last[number])
            log.take(number, await log.redis.command(*ask, blocks_for=BLOCK))

    async with asyncio.TaskGroup() as group:
        for number in range(PARTITIONS):
            group.create_task(follow(number))
        await asyncio.sleep(1)
        ready()


# ---------------------------------------------------------------------------- (d) a list per shard


async def list_bells(redis: Connection, reader: int = 0) -> dict[int, Key]:
    """For each partition the list of its shard: the first name that falls into one of its slots."""
    found: dict[int, Key] = {}
    for shard in await redis.shards():
        names = (Key(f"{{doorbell:{number}}}:{reader}") for number in count())
        bell = next(name for name in names if any(name.slot in part for part in shard.slots))
        own = [
            number
            for number, keys in enumerate(KEYS)
            if any(keys.entries.slot in part for part in shard.slots)
        ]
        found |= dict.fromkeys(own, bell)
    return found


async def _read_lists(log: Log, ready: Ready) -> None:
    async def follow(bell: Key) -> None:
        while True:
            ask = ("BLMPOP", BLOCK, 1, bell, "LEFT", "COUNT", LONGEST_BELL)
            rung = await log.redis.command(*ask, blocks_for=BLOCK)
            if rung:
                await log.look({int(number) for number in rung[1]})

    async with asyncio.TaskGroup() as group:
        for bell in set((await list_bells(log.redis)).values()):
            group.create_task(follow(bell))
        await asyncio.sleep(0.5)
        ready()


@dataclass(slots=True)
class RingLists:
    """Appends, and pushes onto the lists of so many readers, in the same write."""

    readers: int
    bells: list[dict[int, Key]] = field(default_factory=list)

    async def __call__(self, redis: Connection, number: int, body: str) -> None:
        if not self.bells:
            self.bells = [await list_bells(redis, reader) for reader in range(self.readers)]
        rings: list[Awaitable[object]] = []
        for bells in self.bells:
            rings.append(redis.command("LPUSH", bells[number], number))
            rings.append(redis.command("LTRIM", bells[number], 0, LONGEST_BELL - 1))
        await asyncio.gather(_append(redis, number, body), *rings)


# ---------------------------------------------------------------------------- all of them


@dataclass(frozen=True, slots=True)
class Way:
    """How a reader waits, and what an append does for it."""

    read: Read
    append: Append = _append


TORIL = "rings, and a look every second"

WAYS: Mapping[str, Way] = {
    TORIL: Way(_read_rings_and_look, _append_and_ring),
    "rings alone": Way(_read_rings, _append_and_ring),
    "polling, 1 to 10 ms": Way(_poll(0.01)),
    "polling, 1 to 100 ms": Way(_poll(0.1)),
    "polling, 1 to 1000 ms": Way(_poll(1.0)),
    "a blocking read per partition": Way(_read_blocking),
    "a list per shard": Way(_read_lists, RingLists(1)),
}


def read_in_process(url: str, name: str, pipe: Pipe) -> None:
    """The body of a reader's process. What comes over the pipe is answered: processor time, and delays."""

    async def run() -> None:
        async with connect(url) as redis:
            log = Log(redis)

            def answer() -> None:
                pipe.recv()
                pipe.send((time.process_time(), log.delays))
                log.delays = []

            reading = asyncio.ensure_future(WAYS[name].read(log, lambda: pipe.send("ready")))
            gc.collect()
            gc.freeze()
            asyncio.get_running_loop().add_reader(pipe.fileno(), answer)
            await reading

    asyncio.run(run())


def listen_in_process(url: str, listeners: int, pipe: Pipe) -> None:
    """The body of a process that only listens, with so many connections to each server."""

    async def drain(rings: Subscription) -> None:
        async for _ in rings:
            await asyncio.sleep(0.01)

    async def run() -> None:
        async with AsyncExitStack() as stack:
            tasks = []
            for _ in range(listeners):
                redis = await stack.enter_async_context(connect(url))
                rings = await stack.enter_async_context(redis.subscribe(BELLS))
                await hear_all(rings)
                tasks.append(asyncio.ensure_future(drain(rings)))
            pipe.send("ready")
            await asyncio.gather(*tasks)

    asyncio.run(run())
