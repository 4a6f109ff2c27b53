"""A worker process: Toril's worker, or a bare loop on the same connection. It does as it is told over a pipe.

The bare loop reads a page of each partition in turn, applies it, and commits the states and the position in
one go. It has no leases, no retries, no turns of tenants, and looks for no gaps. There are two: one runs the
same handler and the same projection on the same events, and keeps the same state, so that what is left is
what the runtime costs; the other is written by hand for this one case, from bytes to sums.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Coroutine
from multiprocessing.connection import Connection as Pipe
from typing import Any

import msgspec

from toril import Connection, connect
from toril.connection.wire import Argument
from toril.events import EventHandler, HandlerContext
from toril.events.event import AnyEvent
from toril.keyspace import Key, PartitionKeys
from toril.log.entry import Partition, decode
from toril.runtime import EngineOptions, EventSourcing, ProcessorWorker
from toril.runtime.engine import Engine
from toril.stores.log import event_of

from .load import PARTITIONS, Arrivals, Nothing, Summary

PAGE = 500
BLOCK = 5
"""Seconds that a blocking read may wait; then it is sent again."""
LOOK = 0.005
"""Seconds between two looks at whether all is committed."""
PIPELINE = "bench"
PROCESSOR = "processor"
FULL_NAME = f"{PIPELINE}/{PROCESSOR}"

Play = Callable[[Pipe, str, int], Coroutine[Any, Any, None]]


def play(pipe: Pipe) -> None:
    """The body of a player's process: what is asked for, one after the other."""
    while (asked := pipe.recv()) is not None:
        side, url, players = asked
        asyncio.run(SIDES[side](pipe, url, players))
        gc.unfreeze()


async def _go(pipe: Pipe) -> float:
    """Say that all is prepared, and wait for the start; the processor time so far."""
    gc.collect()
    gc.freeze()
    pipe.send("ready")
    await asyncio.to_thread(pipe.recv)
    return time.process_time()


def _end(pipe: Pipe, cpu: float) -> None:
    pipe.send((time.monotonic(), time.process_time() - cpu))


# ---------------------------------------------------------------------------- Toril


def sourcing(url: str, handler: EventHandler[Any] | None) -> EventSourcing:
    """One pipeline with one processor: the handler, or without one the projection."""
    made = EventSourcing(url, partitions=PARTITIONS)
    pipeline = made.register_pipeline().with_name(PIPELINE).with_aggregate_type("trace")
    if handler is None:
        pipeline.with_projection(PROCESSOR, None, Summary).build()
    else:
        pipeline.with_event_handler(PROCESSOR, handler).build()
    return made


async def _toril(pipe: Pipe, url: str, players: int, handler: EventHandler[Any] | None) -> None:
    async with sourcing(url, handler) as made:
        assert made.backend is not None
        worker = ProcessorWorker(made.backend, made.works(), EngineOptions())
        # All know of each other before any begins, so that nothing moves while it is measured.
        await made.backend.members(FULL_NAME, worker.name, EngineOptions().lease)
        cpu = await _go(pipe)
        async with worker:
            (engine,) = worker.engines
            while not _is_done(engine, PARTITIONS // players):  # noqa: ASYNC110
                await asyncio.sleep(LOOK)
            _end(pipe, cpu)
            await asyncio.to_thread(pipe.recv)
    pipe.send("gone")


def _is_done(engine: Engine, partitions: int) -> bool:
    parts = engine.slices.values()
    return len(parts) >= partitions and all(part.position.ordinal >= part.lease.tail for part in parts)


async def _toril_handler(pipe: Pipe, url: str, players: int) -> None:
    await _toril(pipe, url, players, Nothing())


async def _toril_projection(pipe: Pipe, url: str, players: int) -> None:
    await _toril(pipe, url, players, None)


async def _toril_arrivals(pipe: Pipe, url: str, players: int) -> None:  # noqa: ARG001
    handler = Arrivals()
    async with sourcing(url, handler) as made, made.worker(upkeep=False) as worker:
        while len(worker.engines[0].slices) < PARTITIONS:  # noqa: ASYNC110
            await asyncio.sleep(LOOK)
        await _go(pipe)
        pipe.send(handler.delays)


# ---------------------------------------------------------------------------- a bare loop

STREAMS = [PartitionKeys("log", 1, number).entries for number in range(PARTITIONS)]


States = dict[Any, list[Argument]]
"""By the aggregate's key, fields and values."""


class Bare:
    """How far a loop is, and where it keeps that."""

    def __init__(self, redis: Connection) -> None:
        self.redis = redis
        self.at: list[bytes] = [b"0-0"] * PARTITIONS

    async def page(self, number: int) -> list[Any]:
        """The next entries of a partition."""
        after = b"(" + self.at[number]
        found: list[Any] = await self.redis.command("XRANGE", STREAMS[number], after, "+", "COUNT", PAGE)
        return found

    async def commit(self, number: int, states: States, last: bytes) -> None:
        """A hash for each aggregate, as Toril has them, and the position, sent at once."""
        node = await self.redis._topology.primary(STREAMS[number].slot)
        commands: list[tuple[Argument, ...]] = [
            ("HSET", bare_key(number, str(key)), *fields) for key, fields in states.items()
        ]
        commands.append(("HSET", bare_key(number, "position"), "bench", last))
        await node.ask(commands)
        self.at[number] = last


class ByHand(Bare):
    """All states of a partition in one hash, with one command."""

    async def commit(self, number: int, states: States, last: bytes) -> None:
        node = await self.redis._topology.primary(STREAMS[number].slot)
        flat: list[Argument] = []
        for key, fields in states.items():
            flat += (key, fields[-1])
        await node.ask(
            [
                ("HSET", bare_key(number, "all"), *flat),
                ("HSET", bare_key(number, "position"), "bench", last),
            ]
        )
        self.at[number] = last


def bare_key(number: int, name: str) -> Key:
    """Where a bare loop keeps something of a partition."""
    return Key(f"{{bare:{number}}}:{name}")


async def _each_page(bare: Bare, apply: Callable[[int, list[Any]], Awaitable[States]]) -> None:
    """Page by page, the partitions in turn, until there is nothing left."""
    busy = set(range(PARTITIONS))
    while busy:
        for number in sorted(busy):
            page = await bare.page(number)
            if page:
                await bare.commit(number, await apply(number, page), page[-1][0])
            else:
                busy.discard(number)


async def _bare_handler(bare: Bare) -> None:
    """The handler, called with the same events and the same context."""
    handler = Nothing()

    async def apply(number: int, page: list[Any]) -> States:
        states: States = {}
        entries, _ = decode(Partition(1, number), page)
        for entry in entries:
            event = event_of(entry)
            context = HandlerContext(tenant=event.tenant, pipeline=PIPELINE, processor=PROCESSOR)
            await handler.handle(event, context)
            states[entry.key] = ["checkpoint", f"p{entry.version} {event.id}"]
        return states

    await _each_page(bare, apply)


async def _bare_projection(bare: Bare) -> None:
    """The projection, with the same events."""
    held: dict[str, Summary] = {}

    async def apply(number: int, page: list[Any]) -> States:
        entries, _ = decode(Partition(1, number), page)
        last: dict[str, AnyEvent] = {}
        for entry in entries:
            event = last[entry.key] = event_of(entry)
            held[entry.key] = Summary.apply(held.get(entry.key) or Summary.initial(), event)
        return {
            key: ["checkpoint", f"p{event.version} {event.id}", "state", Summary.encode(held[key])]
            for key, event in last.items()
        }

    await _each_page(bare, apply)


async def _handler_by_hand(bare: Bare) -> None:
    """A function, called with a dict."""
    handle, decoded = _handle, msgspec.json.decode

    async def apply(number: int, page: list[Any]) -> States:  # noqa: ARG001
        states: States = {}
        for _, fields in page:
            event = decoded(fields[7])
            await handle(event)
            states[fields[5]] = [b"p%b %b" % (fields[3], event["id"].encode())]
        return states

    await _each_page(bare, apply)


async def _handle(event: Any) -> None:
    pass


async def _projection_by_hand(bare: Bare) -> None:
    """The sums, written out."""
    decoded, encode = msgspec.json.decode, msgspec.json.encode
    held: dict[bytes, list[int]] = {}

    async def apply(number: int, page: list[Any]) -> States:  # noqa: ARG001
        last: dict[bytes, bytes] = {}
        for _, fields in page:
            data, key = decoded(fields[7])["data"], fields[5]
            state = held.get(key)
            if state is None:
                held[key] = [data["cost"], 1, data["start"], data["end"]]
            else:
                state[0] += data["cost"]
                state[1] += 1
                state[2] = min(state[2], data["start"])
                state[3] = max(state[3], data["end"])
            last[key] = fields[3]
        states: States = {}
        for key, version in last.items():
            cost, spans, start, end = held[key]
            states[key] = [
                encode(
                    {
                        "cost": cost,
                        "spans": spans,
                        "started_at": start,
                        "ended_at": end,
                        "version": int(version),
                    }
                )
            ]
        return states

    await _each_page(bare, apply)


def _bare(kind: Callable[[Connection], Bare], loop: Callable[[Bare], Awaitable[None]]) -> Play:
    async def run(pipe: Pipe, url: str, players: int) -> None:  # noqa: ARG001
        async with connect(url) as redis:
            await redis.command("PING")
            cpu = await _go(pipe)
            await loop(kind(redis))
            _end(pipe, cpu)
            await asyncio.to_thread(pipe.recv)
        pipe.send("gone")

    return run


async def _bare_arrivals(pipe: Pipe, url: str, players: int) -> None:  # noqa: ARG001
    """One blocking read of all partitions, decode, call, commit."""
    delays: list[float] = []
    ready = asyncio.Event()

    async def follow(redis: Connection) -> None:
        at = [b"0-0"] * PARTITIONS
        for number, stream in enumerate(STREAMS):
            last = await redis.command("XREVRANGE", stream, "+", "-", "COUNT", 1)
            at[number] = last[0][0] if last else b"0-0"
        places = {stream.encode(): number for number, stream in enumerate(STREAMS)}
        node = await redis._topology.primary(STREAMS[0].slot)
        bare = Bare(redis)
        ready.set()
        while True:
            ask: tuple[Argument, ...] = ("XREAD", "BLOCK", BLOCK * 1000, "STREAMS", *STREAMS, *at)
            (found,) = await node.ask_alone([ask], BLOCK)
            for name, page in found or ():
                number = places[name]
                states: States = {}
                for entry_id, fields in page:
                    event = msgspec.json.decode(fields[7])
                    await _handle(event)
                    delays.append(time.monotonic() - event["data"]["sent"])
                    states[fields[5]] = ["checkpoint", fields[3]]
                    at[number] = entry_id
                await bare.commit(number, states, at[number])

    async with connect(url) as redis:
        following = asyncio.ensure_future(follow(redis))
        await ready.wait()
        await _go(pipe)
        following.cancel()
        pipe.send(delays)


SIDES: dict[str, Play] = {
    "handler": _toril_handler,
    "projection": _toril_projection,
    "arrivals": _toril_arrivals,
    "bare handler": _bare(Bare, _bare_handler),
    "bare projection": _bare(Bare, _bare_projection),
    "handler by hand": _bare(ByHand, _handler_by_hand),
    "projection by hand": _bare(ByHand, _projection_by_hand),
    "bare arrivals": _bare_arrivals,
}
