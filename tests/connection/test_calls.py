"""Commands and scripts on every kind of server."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from enum import IntEnum
from typing import Any

import pytest

from tests.conftest import MATRIX, Servers
from tests.connection.scripts import ADD, COUNT, FOLDER, MOVE, ONCE, REFUSE, TAKE, TRESPASS
from tests.waiting import until
from toril import Connection, InvalidValue, TorilError, connect
from toril.connection import (
    BadScript,
    CommandRefused,
    ConnectionFailed,
    CrossSlot,
    OutOfMemory,
    ScriptBusy,
    ScriptFailed,
    load_script,
)
from toril.keyspace import Key, QueueKeys, make_queue_name, slot_of
from toril.testing import Cluster, Server, standalone

KEYS = QueueKeys(make_queue_name("calls"))


async def test_calls_go_to_the_server_that_has_the_keys(redis: Connection) -> None:
    keys = [Key(f"{{{n}}}:x") for n in range(50)]
    await asyncio.gather(*(redis.command("SET", key, n) for n, key in enumerate(keys)))
    assert await asyncio.gather(*(redis.command("GET", key) for key in keys)) == [
        str(n).encode() for n in range(50)
    ]
    assert {key async for key in redis.scan("*:x")} == {key.encode() for key in keys}
    sizes = await redis.each_primary("DBSIZE")
    assert sum(sizes.values()) == 50
    assert len(sizes) == len(await redis.shards()) == (3 if redis.clustered else 1)


async def test_many_reads_travel_together(redis: Connection) -> None:
    keys = [Key(f"{{many}}:{n}") for n in range(50)]
    await asyncio.gather(*(redis.command("SET", key, n) for n, key in enumerate(keys)))
    commands = [("GET", key) for key in keys]
    values = [str(n).encode() for n in range(50)]
    assert await redis.read_many(commands, keys[0]) == values
    # Sent to a server that does not have them, they are asked for one by one.
    elsewhere = next(key for n in range(999) if abs((key := Key(f"{{{n}}}")).slot - keys[0].slot) > 5462)
    assert await redis.read_many(commands, elsewhere) == values
    with pytest.raises(InvalidValue, match="change nothing"):
        await redis.read_many([("INCR", keys[0])], keys[0])
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await redis.read_many([*commands, ("LLEN", keys[0])], keys[0])


async def test_a_cluster_is_recognised_behind_one_address(server: Server | Cluster) -> None:
    first = server.servers[0] if isinstance(server, Cluster) else server
    async with connect(first.url) as redis:
        assert redis.clustered is isinstance(server, Cluster)
        assert redis.facts.version >= "7"


async def test_a_database_is_used_or_refused(server: Server | Cluster) -> None:
    first = server.servers[0] if isinstance(server, Cluster) else server
    if isinstance(server, Cluster):
        with pytest.raises(InvalidValue, match=r"only database 0|database 1 is not valid"):
            await connect(f"{first.url}/1")
        return
    async with connect(f"{first.url}/1") as one, connect(first.url) as zero:
        await one.command("SET", Key("k"), 1)
        assert await zero.command("EXISTS", Key("k")) == 0
    with pytest.raises(InvalidValue, match="database 99 is not valid"):
        await connect(f"{first.url}/99")


async def test_bad_arguments_are_refused_before_sending(redis: Connection) -> None:
    for bad in (None, {}, [1], object(), "\ud800"):
        with pytest.raises(InvalidValue, match="argument of SET"):
            await redis.command("SET", Key("k"), bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="command"):
        await redis.command()
    assert await redis.command("EXISTS", Key("k")) == 0
    await redis.command("SET", Key("k"), 1)
    with pytest.raises(CommandRefused, match="WRONGTYPE") as caught:
        await redis.command("LPUSH", Key("k"), 1)
    assert caught.value.code == "WRONGTYPE"


# ------------------------------------------------------------------------- slots

TWO_KEYS = "#!lua\nreturn redis.call('MSET', KEYS[1], 1, KEYS[2], 2)"


async def test_no_crossslot_a_call_over_two_slots_is_never_sent(redis: Connection) -> None:
    """On every topology, so that what works on a laptop works on a cluster."""
    with pytest.raises(CrossSlot, match="nothing was sent"):
        await redis.command("MSET", Key("a"), 1, Key("b"), 2)
    with pytest.raises(CrossSlot, match="nothing was sent"):
        await redis.run(MOVE, [Key("a"), Key("b")])
    assert await redis.command("EXISTS", Key("a")) == 0
    assert await redis.command("MSET", Key("{t}a"), 1, Key("{t}b"), 2) == b"OK"


async def test_no_crossslot_a_real_cluster_refuses_what_tags_allow(servers: Servers) -> None:
    """Seed 000's proof: without a tag a two-key script fails with CROSSSLOT, with one it succeeds."""
    for name in (n for n in MATRIX if n.endswith("cluster")):
        async with connect(servers.get(name).url) as redis:
            # Plain strings, so that it is the server who has to notice.
            with pytest.raises(CrossSlot, match="CROSSSLOT"):
                await redis.command("EVAL", TWO_KEYS, 2, "bull:collector:wait", "bull:collector:active")
            wait, active = QueueKeys("{collector}").wait, QueueKeys("{collector}").active
            assert await redis.command("EVAL", TWO_KEYS, 2, wait, active) == b"OK"


async def test_no_crossslot_an_undeclared_key_of_another_slot_is_refused(servers: Servers) -> None:
    """Also where the same server has that slot: that is what the shebang is for."""
    for name in (n for n in MATRIX if n.endswith("cluster")):
        made = servers.get(name)
        assert isinstance(made, Cluster)
        async with connect(made.url) as redis:
            mine = made.primary_of(KEYS.wait)
            others = [f"other-{n}" for n in range(1000) if slot_of(f"other-{n}") != KEYS.slot]
            near = next(key for key in others if made.primary_of(key) is mine)
            far = next(key for key in others if made.primary_of(key) is not mine)
            for key in (near, far):
                with pytest.raises(CommandRefused, match=r"slot|non local key"):
                    await redis.run(TRESPASS, KEYS, key)
            assert await redis.run(TRESPASS, KEYS, KEYS.meta) is None


# ------------------------------------------------------------------------- scripts


async def test_scripts_are_called_by_name_with_a_key_set(redis: Connection) -> None:
    assert await redis.run(ADD, KEYS, "1", "2") == 2
    assert await redis.run(MOVE, KEYS) == b"1"
    assert await redis.run(COUNT, KEYS) == 1
    assert await redis.command("LRANGE", KEYS.active, 0, -1) == [b"1"]


async def test_scripts_are_loaded_again_on_each_server(redis: Connection) -> None:
    queues = [QueueKeys(make_queue_name(f"q{n}")) for n in range(20)]
    await asyncio.gather(*(redis.run(ADD, keys, "1") for keys in queues))
    await redis.each_primary("SCRIPT", "FLUSH")
    assert await asyncio.gather(*(redis.run(ADD, keys, "2") for keys in queues)) == [2] * 20
    count = redis.script_counts["jobs/add"]
    assert count.calls == 40
    assert count.errors["NOSCRIPT"] >= len(await redis.shards())
    assert count.seconds > 0


async def test_script_errors_are_typed_and_counted(redis: Connection) -> None:
    class Conflict(CommandRefused):
        pass

    with pytest.raises(CommandRefused, match="CONFLICT the script says no") as caught:
        await redis.run(REFUSE, KEYS, "CONFLICT")
    assert caught.value.code == "CONFLICT"
    stated = load_script("jobs/refuse", FOLDER, errors={"CONFLICT": Conflict})
    with pytest.raises(Conflict):
        await redis.run(stated, KEYS, "CONFLICT")
    await redis.command("SET", KEYS.wait, "not a list")
    with pytest.raises((ScriptFailed, CommandRefused), match=r"jobs/move"):
        await redis.run(MOVE, KEYS)
    assert redis.script_counts["jobs/refuse"].errors["CONFLICT"] == 2
    with pytest.raises(InvalidValue, match="takes wait active"):
        await redis.run(MOVE, [KEYS.wait])


async def test_a_full_server_refuses_new_work_and_drains_the_old(binary: Any) -> None:
    with standalone({"maxmemory": "100mb", "maxmemory-policy": "noeviction"}, binary=binary) as server:
        async with connect(server.url) as redis:
            await redis.run(ADD, KEYS, *(str(n) for n in range(100)))
            await redis.run(MOVE, KEYS)
            server.ask("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(OutOfMemory, match=r"OOM.*jobs/add"):
                await redis.run(ADD, KEYS, "new")
            with pytest.raises(OutOfMemory):
                await redis.command("SET", KEYS.meta, "x")
            assert redis.script_counts["jobs/add"].errors["OOM"] == 1
            assert await redis.run(COUNT, KEYS) == 99
            for left in range(98, -1, -1):
                assert await redis.run(MOVE if left % 2 else TAKE, KEYS) is not None
                assert await redis.run(COUNT, KEYS) == left
            server.ask("CONFIG", "SET", "maxmemory", "100mb")
            assert await redis.run(ADD, KEYS, "new") == 1


async def test_a_busy_server_is_waited_for_then_reported(binary: Any) -> None:
    with standalone({"busy-reply-threshold": 50}, binary=binary) as server:
        async with connect(server.url, patience=20) as redis, connect(server.url, patience=0.3) as hasty:
            endless = asyncio.create_task(redis.command("EVAL", "while true do end", 1, Key("k")))
            while not str(await _ping_error(server)).startswith("BUSY"):
                pass
            with pytest.raises(ScriptBusy, match="BUSY"):
                await hasty.run(ADD, KEYS, "1")
            assert hasty.script_counts["jobs/add"].errors["BUSY"] == 1
            waiting = asyncio.create_task(hasty.command("LLEN", KEYS.wait))
            server.ask("SCRIPT", "KILL")
            with pytest.raises(CommandRefused, match="killed"):
                await endless
            assert await waiting == 0


async def _ping_error(server: Server) -> object:
    try:
        return await asyncio.to_thread(server.ask, "PING")
    except Exception as problem:  # noqa: BLE001 - whatever it says is what the test looks at
        return problem


def test_every_script_of_toril_says_what_it_is() -> None:
    from importlib.resources import files

    lua = files("toril") / "lua"
    for room in lua.iterdir():
        for file in room.iterdir() if room.is_dir() else ():
            if file.name.endswith(".lua") and not file.name.startswith("_"):
                load_script(f"{room.name}/{file.name.removesuffix('.lua')}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("return 1", "must start with '#!lua'"),
        ("#!lua flags=allow-cross-slot-keys\n-- keyspace: queue", "flags Toril does not use"),
        ("#!lua\n-- keyspace: queue\n-- keys: wait\n-- args: none", "does not state: result"),
        ("#!lua\n-- keyspace: moon\n-- keys: wait\n-- args: none\n-- result: x", "which does not exist"),
        ("#!lua\n-- keyspace: queue\n-- keys: wait moon\n-- args: none\n-- result: x", "lacks: moon"),
        (
            "#!lua\n-- include: no/where\n-- keyspace: queue\n-- keys: wait\n-- args: none\n-- result: x",
            "no script",
        ),
    ],
)
def test_a_script_that_does_not_say_what_it_is_is_refused(text: str, problem: str, tmp_path: Any) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "verb.lua").write_text(text)
    with pytest.raises(BadScript, match=problem):
        load_script("room/verb", tmp_path)
    with pytest.raises(BadScript, match="there is no script"):
        load_script("room/noun", tmp_path)


# ------------------------------------------------------------------------- blocking


async def test_a_blocking_read_returns_when_its_time_is_over(servers: Servers) -> None:
    """Not at 5 s (a common client default), nor at our own limit for silence; others go on meanwhile."""

    async def read(redis: Connection) -> float:
        started = time.monotonic()
        reply = await redis.command("XREAD", "BLOCK", 6000, "STREAMS", KEYS.events, "$", blocks_for=6)
        assert reply is None
        return time.monotonic() - started

    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(connect(servers.get(name).url, silence=2)) for name in MATRIX
        ]
        reads = [asyncio.create_task(read(redis)) for redis in connections]
        for redis in connections:
            assert await redis.run(ONCE, KEYS, "meanwhile") >= 1
        for took in await asyncio.gather(*reads):
            assert took > 5.9


async def test_a_blocking_read_is_woken_and_can_be_cancelled(redis: Connection) -> None:
    def pop(seconds: int) -> asyncio.Task[Any]:
        return asyncio.create_task(redis.command("BLPOP", KEYS.wait, seconds, blocks_for=seconds))

    waiting = pop(30)
    while await _blocked(redis) < 1:
        pass
    cancelled = pop(30)
    while await _blocked(redis) < 2:
        pass
    cancelled.cancel()
    await asyncio.wait([cancelled])
    await redis.run(ADD, KEYS, "1")
    assert await waiting == [KEYS.wait.encode(), b"1"]
    # The cancelled call's connection is gone with it: what comes now is not swallowed by it.
    await redis.run(ADD, KEYS, "2")
    assert await pop(30) == [KEYS.wait.encode(), b"2"]


async def _blocked(redis: Connection) -> int:
    infos = (await redis.each_primary("INFO", "clients")).values()
    return sum(int(info.split(b"blocked_clients:")[1].split(b"\r")[0]) for info in infos)


# ------------------------------------------------------------------------- what a wire must never do


class Colour(IntEnum):
    RED = 7


async def test_an_argument_that_cannot_be_sent_does_not_shift_replies(redis: Connection) -> None:
    """One bad call among others: it is refused, and everyone else gets their own reply."""
    await asyncio.gather(*(redis.command("SET", Key(f"{{t}}{n}"), f"value {n}") for n in range(10)))
    good = [redis.command("GET", Key(f"{{t}}{n}")) for n in range(10)]
    bad = redis.command("SET", Key("{t}x"), True)
    replies = await asyncio.gather(*good[:5], bad, *good[5:], return_exceptions=True)
    assert isinstance(replies.pop(5), InvalidValue)
    assert replies == [f"value {n}".encode() for n in range(10)]
    await redis.command("SET", Key("{t}x"), Colour.RED)
    assert await redis.command("GET", Key("{t}x")) == b"7"
    with pytest.raises(InvalidValue, match="UTF-8"):
        await redis.command("GET", Key("\udc80"))


async def test_a_closed_connection_stays_closed(server: Server | Cluster) -> None:
    redis = await connect(server.url)
    await redis.close()
    with pytest.raises(ConnectionFailed, match="PING was not executed: the connection was closed"):
        await redis.command("PING")


async def test_closing_ends_calls_that_wait_for_a_connection(server: Server | Cluster) -> None:
    """With an error of ours: they were not cancelled, the connection was."""
    redis = await connect(server.url)
    keys = [Key(f"{n}") for n in range(5)]
    node = await redis._topology.primary(keys[0].slot)
    node.redial()
    paused = server.primaries() if isinstance(server, Cluster) else [server]
    for each in paused:
        each.pause()
    try:
        waiting = [asyncio.create_task(redis.command("GET", key)) for key in keys]
        await until(lambda: node._dialling is not None)
        await redis.close()
        for ended in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(ended, TorilError), ended
    finally:
        for each in paused:
            each.resume()
