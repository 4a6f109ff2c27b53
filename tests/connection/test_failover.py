"""Through failovers, reshards and restarts: no call is lost, none is executed twice."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.conftest import SCALE
from tests.connection.scripts import ADD, COUNT, ONCE
from toril import Connection, connect
from toril.connection import OutcomeUnknown, Unavailable, Unreachable
from toril.keyspace import QueueKeys, make_queue_name
from toril.testing import Cluster, Server, cluster, standalone

KEYS = QueueKeys(make_queue_name("failover"))
CALLERS = 20


class Callers:
    """Many tasks that call a script which must not run twice, and what came of each call."""

    def __init__(self, redis: Connection) -> None:
        self.redis = redis
        self.confirmed: set[str] = set()
        self.unknown: set[str] = set()
        self._going = True
        self._tasks = [asyncio.create_task(self._call(caller)) for caller in range(CALLERS)]

    async def _call(self, caller: int) -> None:
        number = 0
        while self._going:
            call = f"{caller}-{number}"
            number += 1
            try:
                assert await self.redis.run(ONCE, KEYS, call) == 1, f"call {call} was executed twice"
                self.confirmed.add(call)
            except OutcomeUnknown:
                self.unknown.add(call)

    async def more(self, calls: int = 200) -> None:
        """Wait until so many more calls have been confirmed."""
        goal = len(self.confirmed) + calls
        async with asyncio.timeout(60):
            while len(self.confirmed) < goal:
                await asyncio.sleep(0.001)
                for task in self._tasks:
                    if task.done():
                        task.result()

    async def stop(self) -> dict[str, int]:
        """Stop calling; how often each call was executed, as the server has it."""
        self._going = False
        await asyncio.gather(*self._tasks)
        reply = await self.redis.command("HGETALL", KEYS.meta)
        return {call.decode(): int(times) for call, times in zip(reply[::2], reply[1::2], strict=True)}


async def through(
    redis: Connection, event: Callable[[], Awaitable[object]]
) -> tuple[Callers, dict[str, int]]:
    callers = Callers(redis)
    await callers.more()
    await event()
    await callers.more()
    return callers, await callers.stop()


async def test_no_job_lost_a_live_reshard_of_the_slot_in_use_loses_no_call(
    binary: Path | None, rng: random.Random
) -> None:
    """Keys go over one by one while the script works on them: ASK, TRYAGAIN and MOVED all the way."""
    moves = round(6 * SCALE)
    with cluster(masters=3, replicas=0, binary=binary) as nodes:
        async with connect(nodes.url) as redis:
            # More keys in the slot than one MIGRATE takes, so that it stays half-way for a while.
            for number in range(200):
                await redis.command("SET", KEYS.job(str(number)), "x" * 100)

            async def reshard() -> None:
                for _ in range(moves):
                    assert KEYS.slot is not None
                    owner = nodes.primary_of(KEYS.slot)
                    target = rng.choice([server for server in nodes.servers if server is not owner])
                    await asyncio.to_thread(nodes.move_slot, KEYS.slot, target)
                    await callers.more(50)

            callers = Callers(redis)
            await callers.more()
            await reshard()
            executed = await callers.stop()
            assert not callers.unknown
            assert executed == dict.fromkeys(callers.confirmed, 1)


async def test_no_job_lost_a_coordinated_failover_loses_no_call(binary: Path | None) -> None:
    with cluster(binary=binary) as nodes:
        async with connect(nodes.url) as redis:
            callers, executed = await through(
                redis, lambda: asyncio.to_thread(nodes.fail_over, nodes.primary_of(KEYS.meta))
            )
            assert not callers.unknown
            assert executed == dict.fromkeys(callers.confirmed, 1)


async def test_a_call_made_during_a_failover_succeeds_after_it(binary: Path | None) -> None:
    """The master is killed: calls wait for the election; those that were under way say so."""
    with cluster(binary=binary) as nodes:
        async with connect(nodes.url) as redis:
            victim = nodes.primary_of(KEYS.meta)
            started = time.monotonic()
            dead = asyncio.create_task(asyncio.to_thread(nodes.kill, victim))
            while victim.pid:
                await asyncio.sleep(0.001)
            assert await redis.run(ADD, KEYS, "1", durability="memory") == 1
            assert time.monotonic() - started > 0.5, "it did not have to wait"
            elected = await dead  # the one that is asked first may hear of it last
            assert nodes.primary_of(KEYS.meta) is elected
            callers = Callers(redis)
            await callers.more()
            executed = await callers.stop()
            assert executed == dict.fromkeys(callers.confirmed, 1)


async def test_calls_under_way_when_a_master_dies_are_reported_as_unknown(binary: Path | None) -> None:
    with cluster(binary=binary) as nodes:
        async with connect(nodes.url) as redis:
            callers, executed = await through(
                redis, lambda: asyncio.to_thread(nodes.kill, nodes.primary_of(KEYS.meta))
            )
            assert all(times == 1 for times in executed.values())
            # One call of each caller can have been on its way, no more.
            assert len(callers.unknown) <= CALLERS
            # Replication is asynchronous: the last confirmed calls may be gone with the master.
            lost = callers.confirmed - executed.keys()
            assert len(lost) < len(callers.confirmed) / 2


async def test_a_server_that_hangs_is_given_up_and_its_replica_takes_over(binary: Path | None) -> None:
    with cluster(binary=binary) as nodes:
        async with connect(nodes.url, silence=1.0) as redis:
            await redis.run(ADD, KEYS, "1", durability="replicated")
            victim = nodes.primary_of(KEYS.wait)
            victim.pause()
            try:
                # A read may be sent again, so it comes through.
                assert await redis.run(COUNT, KEYS) == 1
                assert nodes.primary_of(KEYS.wait) is not victim
            finally:
                victim.resume()


async def test_a_server_that_was_replaced_while_it_hung_is_not_believed(binary: Path | None) -> None:
    """It would still confirm the calls it had, before it learns that it is no master any more."""
    with cluster(binary=binary) as nodes:
        async with connect(nodes.url) as redis:
            await redis.run(ONCE, KEYS, "before", durability="replicated")
            victim = nodes.primary_of(KEYS.meta)
            victim.pause()
            calls = [asyncio.create_task(redis.run(ONCE, KEYS, f"call-{n}")) for n in range(20)]
            while nodes.primary_of(KEYS.meta) is victim:
                await asyncio.sleep(0.05)
            ended = await asyncio.gather(*calls, return_exceptions=True)
            victim.resume()
            nodes.wait_until_whole()
            reply = await redis.command("HGETALL", KEYS.meta)
            kept = {call.decode() for call in reply[::2]}
            lost = [n for n, result in enumerate(ended) if result == 1 and f"call-{n}" not in kept]
            assert not lost, "confirmed, and gone"
            assert all(isinstance(result, OutcomeUnknown) or result == 1 for result in ended)


async def test_redirections_that_go_in_circles_are_waited_out(binary: Path | None) -> None:
    """Half a reshard: the source has let go of the slot, and the target does not know of it yet."""
    with cluster(masters=2, replicas=0, binary=binary) as nodes:
        async with connect(nodes.url) as redis:
            assert KEYS.slot is not None
            source = nodes.primary_of(KEYS.slot)
            target = next(server for server in nodes.servers if server is not source)
            name = target.ask("CLUSTER", "MYID")
            source.ask("CLUSTER", "SETSLOT", KEYS.slot, "NODE", name)
            waiting = asyncio.create_task(redis.run(ADD, KEYS, "1"))
            done, _ = await asyncio.wait([waiting], timeout=0.5)
            assert not done
            target.ask("CLUSTER", "SETSLOT", KEYS.slot, "NODE", name)
            assert await waiting == 1


async def test_a_write_without_reply_is_reported_not_repeated(binary: Path | None) -> None:
    with standalone(binary=binary) as server:
        async with connect(server.url, silence=0.5) as redis:
            assert await redis.run(ADD, KEYS, "1") == 1
            server.pause()
            write = asyncio.create_task(redis.run(ADD, KEYS, "2"))
            read = asyncio.create_task(redis.run(COUNT, KEYS))
            command = asyncio.create_task(redis.command("INCR", KEYS.id))
            get = asyncio.create_task(redis.command("GET", KEYS.id))
            repeatable = asyncio.create_task(redis.command("HSET", KEYS.meta, "a", 1, repeatable=True))
            with pytest.raises(OutcomeUnknown, match="jobs/add: the connection broke"):
                await write
            server.resume()
            with pytest.raises(OutcomeUnknown, match="INCR"):
                await command
            # What was sent is executed when the server goes on: unknown, indeed.
            assert await read == 2
            assert await get == b"1"
            assert await repeatable in (0, 1)


async def test_a_restart_is_waited_out(binary: Path | None) -> None:
    with standalone({"appendonly": "yes", "appendfsync": "always"}, binary=binary) as server:
        async with connect(server.url) as redis:
            assert await redis.run(ADD, KEYS, "1") == 1
            server.kill()
            waiting = asyncio.create_task(redis.run(ADD, KEYS, "2"))
            await asyncio.to_thread(server.restart)
            assert await waiting == 2


async def test_patience_ends_with_a_clear_error(binary: Path | None) -> None:
    with standalone(binary=binary) as server:
        async with connect(server.url, patience=0.5) as redis:
            server.kill()
            started = time.monotonic()
            with pytest.raises(Unavailable, match=r"PING was not executed: for 0.5 s .*Connect"):
                await redis.command("PING")
            assert time.monotonic() - started < 10
        with pytest.raises(Unreachable, match="cannot be reached"):
            await connect(server.url)


async def test_a_primary_that_became_a_replica_is_waited_for(binary: Path | None) -> None:
    """READONLY: as behind a name that points at the new primary a moment later."""
    with standalone(binary=binary) as server, standalone(binary=binary) as other:
        async with connect(server.url) as redis:
            await redis.run(ADD, KEYS, "1")
            server.ask("REPLICAOF", other.address.host, other.address.port)
            waiting = asyncio.create_task(redis.run(ADD, KEYS, "2"))
            done, _ = await asyncio.wait([waiting], timeout=0.3)
            assert not done
            server.ask("REPLICAOF", "NO", "ONE")
            assert await waiting >= 1


async def test_replicas_answer_only_when_asked(binary: Path | None) -> None:
    with cluster(binary=binary) as nodes:
        async with connect(nodes.url) as redis:
            await redis.run(ADD, KEYS, "1", durability="replicated")
            primary = nodes.primary_of(KEYS.wait)
            (replica,) = nodes.replicas_of(primary)
            for server in (primary, replica):
                server.ask("CONFIG", "RESETSTAT")
            for _ in range(10):
                assert await redis.command("LLEN", KEYS.wait) == 1
            assert (_calls(primary, "llen"), _calls(replica, "llen")) == (10, 0)
            for _ in range(10):
                assert await redis.command("LLEN", KEYS.wait, replica=True) == 1
            assert (_calls(primary, "llen"), _calls(replica, "llen")) == (10, 10)


def _calls(server: Server, command: str) -> int:
    for line in server.ask("INFO", "commandstats").decode().splitlines():
        if line.startswith(f"cmdstat_{command}:"):
            return int(line.split("calls=")[1].split(",")[0])
    return 0


def test_the_cluster_of_the_tests_is_what_it_says(redis_cluster: Cluster) -> None:
    assert len(redis_cluster.servers) == 6
    assert len(redis_cluster.primaries()) == 3
    assert all(len(redis_cluster.replicas_of(primary)) == 1 for primary in redis_cluster.primaries())


def test_the_one_node_cluster_has_all_slots(redis_one_node_cluster: Cluster, redis_server: Server) -> None:
    assert [row[:2] for row in redis_one_node_cluster.servers[0].ask("CLUSTER", "SLOTS")] == [[0, 16383]]
    assert redis_server.ask("PING") == b"PONG"
