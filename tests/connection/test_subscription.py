"""Doorbells: whatever happens to the servers, no channel that has news goes untold."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.waiting import until
from toril import Connection, connect
from toril.connection import CommandRefused, ConnectionFailed, OutcomeUnknown, Subscription, subscription
from toril.connection.wire import ErrorReply
from toril.errors import InvalidValue
from toril.keyspace import Key
from toril.testing import Cluster, Server, cluster, sentinel, standalone

CHANNELS = {Key(f"{{bell:{number:02}}}") for number in range(24)}
ONE = Key("{bell:07}")


async def hear(rings: Subscription, channels: Iterable[Key] = CHANNELS, within: float = 10.0) -> None:
    """Return when all of the channels have been told."""
    missing = set(channels)
    async with asyncio.timeout(within):
        while missing:
            missing -= await anext(rings)


async def stays_quiet(rings: Subscription, seconds: float = 0.3) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            pytest.fail(f"told of {await anext(rings)}")


async def unheard(redis: Connection, rings: Subscription, channel: Key) -> None:
    """Nothing is told of this channel: what is rung after it, at the same server, is heard alone."""
    there = await redis._topology.primary(channel.slot)
    others = [one for one in sorted(CHANNELS - {channel}) if await redis._topology.primary(one.slot) is there]
    heard = asyncio.create_task(anext(rings))
    await ring(redis, others[0])
    async with asyncio.timeout(10):
        assert await heard == {others[0]}


async def ring(redis: Connection, channel: Key, times: int = 1) -> None:
    for _ in range(times):
        await redis.command("SPUBLISH", channel, "")


def primaries(server: Server | Cluster) -> list[Server]:
    return server.primaries() if isinstance(server, Cluster) else [server]


def listeners(server: Server | Cluster) -> int:
    """How many connections listen."""
    return sum(len(each.ask("CLIENT", "LIST", "TYPE", "pubsub").splitlines()) for each in primaries(server))


@pytest.fixture(autouse=True)
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are not asked whether they are there: what a test waits for comes at once, or too late."""
    monkeypatch.setattr(subscription, "PING_EVERY", 60)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch, seldom: None) -> None:  # noqa: ARG001
    """Servers are asked often whether they are there."""
    monkeypatch.setattr(subscription, "PING_EVERY", 0.1)


# ------------------------------------------------------------------------- rings


async def test_a_ring_arrives_and_only_that(redis: Connection, server: Server | Cluster) -> None:
    async with redis.subscribe(CHANNELS) as rings:
        await hear(rings)
        assert listeners(server) == len(primaries(server)), "one connection per server"
        for channel in CHANNELS:
            await ring(redis, channel)
            async with asyncio.timeout(10):
                assert await anext(rings) == {channel}


async def test_a_burst_becomes_one_set(redis: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: Counter[bytes] = Counter()
    take = Subscription._ring

    def counted(rings: Subscription, raw: bytes) -> None:
        heard[raw] += 1
        take(rings, raw)

    async with redis.subscribe(CHANNELS) as rings:
        monkeypatch.setattr(Subscription, "_ring", counted)
        await hear(rings)
        heard.clear()
        await asyncio.gather(*(ring(redis, channel, 200) for channel in CHANNELS - {ONE}))
        await until(lambda: heard.total() == 200 * (len(CHANNELS) - 1))
        assert await anext(rings) == CHANNELS - {ONE}
        await stays_quiet(rings, 0.05)


@pytest.mark.parametrize(
    ("channel", "keys"),
    [
        ("KEYS[1]", (ONE,)),
        ("KEYS[2]", (Key(f"{ONE}:stream"), ONE)),
        ("string.sub(KEYS[1], 1, 9)", (Key(f"{ONE}:stream"),)),
    ],
)
async def test_a_script_can_ring(redis: Connection, channel: str, keys: tuple[Key, ...]) -> None:
    """Also on a channel that was not declared as a key, where it has the same hash tag."""
    source = (
        f"#!lua\nredis.call('XADD', KEYS[1], '*', 'f', 'v')\nreturn redis.call('SPUBLISH', {channel}, '')"
    )
    async with redis.subscribe(CHANNELS) as rings:
        await hear(rings)
        assert await redis.command("EVAL", source, len(keys), *keys) == 1
        async with asyncio.timeout(10):
            assert await anext(rings) == {ONE}


async def test_a_script_can_only_ring_in_its_own_slot(clustered: Connection) -> None:
    with pytest.raises(CommandRefused, match="do not hash to the same slot"):
        await clustered.command("EVAL", "#!lua\nreturn redis.call('SPUBLISH', '{bell:08}', '')", 1, ONE)


@pytest.fixture
async def clustered(redis_one_node_cluster: Cluster) -> AsyncIterator[Connection]:
    async with connect(redis_one_node_cluster.url) as made:
        yield made


async def test_channels_come_and_go(redis: Connection) -> None:
    async with redis.subscribe() as rings:
        await stays_quiet(rings, 0.1)
        for channel in CHANNELS:
            rings.add(channel)
        await hear(rings)
        await stays_quiet(rings)
        rings.discard(ONE)
        rings.discard(Key("{bell:99}"))
        while (await redis.command("PUBSUB", "SHARDNUMSUB", ONE, near=ONE))[1]:
            await asyncio.sleep(0.01)
        await ring(redis, ONE)
        await unheard(redis, rings, ONE)
        rings.add(ONE)
        rings.add(ONE)
        await hear(rings, {ONE})
        await ring(redis, ONE)
        await hear(rings, {ONE})
        rings.discard(ONE)
        rings.add(ONE)  # before anything was done about it
        await hear(rings, {ONE})
        await ring(redis, ONE)
        await hear(rings, {ONE})
        await ring(redis, ONE)
        rings.discard(ONE)  # nothing is told of it any more, not even an empty set
        await unheard(redis, rings, ONE)


async def test_no_news_no_noise(redis: Connection, server: Server | Cluster, often: None) -> None:  # noqa: ARG001
    async with redis.subscribe(CHANNELS) as rings:
        await hear(rings)
        for each in primaries(server):
            each.ask("CONFIG", "RESETSTAT")
        await stays_quiet(rings, 1.0)
        for each in primaries(server):
            stats = each.ask("INFO", "commandstats").decode().splitlines()
            used = {line.split("_")[1].split(":")[0] for line in stats if line.startswith("cmdstat_")}
            assert "ping" in used
            assert not {name for name in used if "subscribe" in name or name in ("client|setname", "auth")}


# ------------------------------------------------------------------------- the end


async def test_closing_ends_the_iteration(redis: Connection, server: Server | Cluster) -> None:
    rings = redis.subscribe(CHANNELS)
    told = []

    async def read() -> None:
        async with rings:
            told.extend([channels async for channels in rings])

    reading = asyncio.create_task(read())
    while set().union(*told) != CHANNELS and listeners(server) < len(primaries(server)):
        await asyncio.sleep(0.01)
    await rings.close()
    async with asyncio.timeout(10):
        await reading
    await rings.close()
    with pytest.raises(StopAsyncIteration):
        await anext(rings)
    while listeners(server):
        await asyncio.sleep(0.01)


async def test_it_ends_with_its_connection(server: Server | Cluster) -> None:
    redis = await connect(server.url)
    async with redis.subscribe(CHANNELS) as rings:
        await hear(rings)
        reading = asyncio.create_task(anext(rings, None))
        await asyncio.sleep(0)
        await redis.close()
        async with asyncio.timeout(10):
            assert await reading is None
        while listeners(server):
            await asyncio.sleep(0.01)
    with pytest.raises(ConnectionFailed, match="closed by its owner"):
        redis.subscribe()


async def test_what_is_refused_is_raised(binary: Path | None) -> None:
    with standalone({"requirepass": "s3cret"}, binary=binary) as server:
        async with connect(server.url) as redis, redis.subscribe(CHANNELS) as rings:
            await hear(rings)
        server.ask("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "resetchannels", f"&{ONE}")
        async with connect(f"redis://app:pw@{server.address}") as redis:
            async with redis.subscribe({ONE}) as rings:
                await hear(rings, {ONE})
                rings.add(Key("{bell:08}"))
                with pytest.raises(CommandRefused, match=r"NOPERM.*SSUBSCRIBE {bell:08}"):
                    await hear(rings, {Key("{bell:08}")})
            with pytest.raises(InvalidValue, match="entered first"):
                await anext(redis.subscribe())


# ------------------------------------------------------------------------- what happens to servers


async def test_killed_connections_are_told_of_and_replaced(
    redis: Connection, server: Server | Cluster
) -> None:
    async with redis.subscribe(CHANNELS) as rings:
        await hear(rings)
        for _ in range(3):
            for each in primaries(server):
                each.ask("CLIENT", "KILL", "TYPE", "pubsub")
            await hear(rings)
            await stays_quiet(rings, 0.1)
            await ring(redis, ONE)
            async with asyncio.timeout(10):
                assert await anext(rings) == {ONE}
        assert {(await redis._topology.primary(each.slot)).dials for each in CHANNELS} == {1}, (
            "the connection that calls share is well, and was left alone"
        )


async def test_a_server_without_a_free_connection_is_waited_for(binary: Path | None) -> None:
    """And the calls go on meanwhile, over the connection they have."""
    with standalone(binary=binary) as server:
        async with connect(server.url) as redis, redis.subscribe(CHANNELS) as rings:
            await hear(rings)
            await redis.command("CONFIG", "SET", "maxclients", 1)
            await redis.command("CLIENT", "KILL", "TYPE", "pubsub")
            await stays_quiet(rings, 0.5)
            await redis.command("CONFIG", "SET", "maxclients", 100)
            await hear(rings)


RING = "#!lua\nredis.call('INCR', KEYS[1])\nredis.call('SPUBLISH', KEYS[1], '')"
"""A channel may be called like a key. One that is declared beside it, and is no key, would be looked for
as one: while its slot moves, the server would refuse the script (TRYAGAIN) for the whole time."""


class Watch:
    """Writers that count up and ring; a reader that looks at a counter only when it is told to."""

    def __init__(self, redis: Connection, rings: Subscription) -> None:
        self.redis = redis
        self.seen: dict[Key, int] = dict.fromkeys(CHANNELS, -1)
        self._rings = rings
        self._going = True
        self._reader = asyncio.create_task(self._read())
        self._writers = [asyncio.create_task(self._write(random.Random(number))) for number in range(4)]

    async def _read(self) -> None:
        async for channels in self._rings:
            await asyncio.gather(*map(self._look, channels))

    async def _look(self, channel: Key) -> None:
        self.seen[channel] = await self._count(channel)

    async def _count(self, channel: Key) -> int:
        return int(await self.redis.command("GET", channel) or 0)

    async def _write(self, rng: random.Random) -> None:
        channels = sorted(CHANNELS)
        while self._going:
            await self._ring(rng.choice(channels))
            await asyncio.sleep(0.002)

    async def _ring(self, channel: Key) -> None:
        with suppress(OutcomeUnknown):
            await self.redis.command("EVAL", RING, 1, channel)

    async def goes_on(self, more: int = 5) -> None:
        """Return when every channel has been told of again, so many times more."""
        already = dict(self.seen)
        await until(lambda: all(self.seen[channel] >= count + more for channel, count in already.items()))

    async def settle(self, within: float = 20.0) -> None:
        """Stop writing: what was written last must have been seen, and soon."""
        self._going = False
        await asyncio.gather(*self._writers)
        counts = dict(zip(CHANNELS, await asyncio.gather(*map(self._count, CHANNELS)), strict=True))
        try:
            async with asyncio.timeout(within):
                while self.seen != counts:
                    await asyncio.sleep(0.01)
        finally:
            assert not self._reader.done()
        for channel in CHANNELS:  # and every ring that comes now is heard
            await self._ring(channel)
        async with asyncio.timeout(within):
            while self.seen != {channel: count + 1 for channel, count in counts.items()}:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def watched(url: str) -> AsyncIterator[Watch]:
    async with connect(url) as redis, redis.subscribe(CHANNELS) as rings:
        watch = Watch(redis, rings)
        await watch.goes_on()
        yield watch
        await watch.settle()


Event = Callable[[Cluster, Watch], Awaitable[object]]


async def cut(nodes: Cluster, watch: Watch) -> None:
    for _ in range(5):
        for server in nodes.primaries():
            server.ask("CLIENT", "KILL", "TYPE", "pubsub")
        await watch.goes_on(1)


async def move(nodes: Cluster, _: Watch) -> None:
    for turn in range(6):
        for channel in sorted(CHANNELS)[:4]:
            owner = nodes.primary_of(channel)
            others = [
                server for server in nodes.servers if server in nodes.primaries() and server is not owner
            ]
            target = others[turn % 2]
            while nodes.primary_of(channel) is not target:
                with suppress(ErrorReply):  # servers may still disagree about the move before
                    await asyncio.to_thread(nodes.move_slot, channel.slot, target)
                await asyncio.sleep(0.05)


async def fail_over(nodes: Cluster, _: Watch) -> None:
    await asyncio.to_thread(nodes.fail_over, nodes.primary_of(ONE))


async def kill(nodes: Cluster, _: Watch) -> None:
    await asyncio.to_thread(nodes.kill, nodes.primary_of(ONE))


async def hang(nodes: Cluster, watch: Watch) -> None:
    victim = nodes.primary_of(ONE)
    victim.pause()
    await watch.goes_on(1)  # with the one that was elected in its place
    assert nodes.primary_of(ONE) is not victim
    victim.resume()


@pytest.mark.parametrize("event", [cut, move, fail_over, kill, hang])
async def test_no_news_are_missed_when_a_cluster(
    event: Event, binary: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if event is hang:
        monkeypatch.setattr(subscription, "PING_EVERY", 0.5)
    with cluster(binary=binary) as nodes:
        async with watched(nodes.url) as watch:
            await event(nodes, watch)


async def test_a_moved_slot_is_told_of_and_nothing_else(binary: Path | None) -> None:
    with cluster(masters=3, replicas=0, binary=binary) as nodes:
        async with connect(nodes.url) as redis, redis.subscribe(CHANNELS) as rings:
            await hear(rings)
            target = next(server for server in nodes.servers if server is not nodes.primary_of(ONE))
            await asyncio.to_thread(nodes.move_slot, ONE.slot, target)
            async with asyncio.timeout(10):
                assert await anext(rings) == {ONE}
            await stays_quiet(rings)
            await ring(redis, ONE)
            await hear(rings, {ONE})


async def test_servers_that_point_at_each_other_are_waited_for(binary: Path | None) -> None:
    """Half a reshard: the source has let go of the slot, and the target does not know of it yet."""
    with cluster(masters=2, replicas=0, binary=binary) as nodes:
        async with connect(nodes.url) as redis, redis.subscribe(CHANNELS) as rings:
            await hear(rings)
            source = nodes.primary_of(ONE)
            target = next(server for server in nodes.servers if server is not source)
            name = target.ask("CLUSTER", "MYID")
            for server in nodes.servers:
                server.ask("CONFIG", "RESETSTAT")
            source.ask("CLUSTER", "SETSLOT", ONE.slot, "NODE", name)
            await until(
                lambda: all(
                    b"cmdstat_ssubscribe:" in server.ask("INFO", "commandstats") for server in nodes.servers
                )
            )
            await stays_quiet(rings, 1.0)
            tried = [server.ask("INFO", "commandstats").decode() for server in nodes.servers]
            calls = [int(said.split("cmdstat_ssubscribe:calls=")[1].split(",")[0]) for said in tried]
            rejected = [
                int(said.split("cmdstat_ssubscribe:")[1].split("rejected_calls=")[1].split(",")[0])
                for said in tried
            ]
            assert 1 <= sum(calls) + sum(rejected) < 40, "it does not rush"
            target.ask("CLUSTER", "SETSLOT", ONE.slot, "NODE", name)
            async with asyncio.timeout(10):
                assert await anext(rings) == {ONE}
            await ring(redis, ONE)
            await hear(rings, {ONE})


async def test_no_news_are_missed_when_a_server_is_started_again(binary: Path | None) -> None:
    with standalone({"appendonly": "yes", "appendfsync": "always"}, binary=binary) as server:
        async with watched(server.url) as watch:
            for _ in range(3):
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.restart)
                await watch.goes_on()


async def test_a_server_that_stands_still_is_given_up(binary: Path | None, often: None) -> None:  # noqa: ARG001
    with standalone(binary=binary) as server:
        async with connect(server.url, silence=0.3) as redis, redis.subscribe(CHANNELS) as rings:
            await hear(rings)
            server.pause()
            await stays_quiet(rings, 1.0)
            server.resume()
            await hear(rings)


async def test_no_news_are_missed_when_a_sentinel_names_another_master(binary: Path | None) -> None:
    replica_of = {"repl-diskless-sync-delay": 0}
    with (
        standalone(replica_of, binary=binary) as first,
        standalone(replica_of, binary=binary) as second,
        sentinel(first) as watcher,
    ):
        second.ask("REPLICAOF", first.address.host, first.address.port)
        while b"slaves=1" not in watcher.ask("INFO", "sentinel"):
            await asyncio.sleep(0.05)
        async with watched(f"redis+sentinel://{watcher.address}/mymaster"):
            await asyncio.to_thread(first.kill)
            while b"role:slave" in second.ask("INFO", "replication"):
                await asyncio.sleep(0.05)
