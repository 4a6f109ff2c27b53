"""Which queues are meant, what they are to be called, and how single keys are renamed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conftest import Servers, emptied
from tests.matrix import MATRIX, PRODUCTS
from toril import Connection, connect
from toril.errors import InvalidValue
from toril.keyspace import QueueKeys, foreign_key
from toril.migrate import (
    KeyRule,
    Move,
    Moves,
    choose_moves,
    find_links,
    find_queues,
    new_names,
    read_mapping,
    rename_keys,
    status,
)

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest_asyncio.fixture(loop_scope="package", params=MATRIX)
async def redis(request: pytest.FixtureRequest, servers: Servers) -> AsyncIterator[Connection]:
    async with connect(emptied(servers.get(request.param)).url) as made:
        yield made


async def test_queues_are_found_on_every_server_also_without_meta(redis: Connection) -> None:
    names = [f"trace_processing/{number}" for number in range(12)]
    for name in names:
        await redis.command("HSET", QueueKeys(name).meta, "version", "bullmq:5.62.0")
    await redis.command("LPUSH", QueueKeys("no-meta").wait, "1")
    await redis.command("HSET", QueueKeys("{tagged}").meta, "version", "bullmq:5.62.0")
    await redis.command("HSET", QueueKeys("other", "ox").meta, "version", "bullmq:5.62.0")
    assert await find_queues(redis) == sorted([*names, "no-meta"])
    assert await find_queues(redis, "ox") == ["other"]
    moves, _ = await choose_moves(redis, redis, ["trace_processing/1*"])
    assert [str(move) for move in moves] == [
        f"trace_processing/{each} → {{trace_processing/{each}}}" for each in ("1", "10", "11")
    ]
    with pytest.raises(InvalidValue, match="there is no such queue"):
        await choose_moves(redis, redis, ["nobody"])
    with pytest.raises(InvalidValue, match="carries a hash tag already"):
        await choose_moves(redis, redis, ["{tagged}"])
    assert await status(redis, redis) == []


async def test_queues_that_flows_link_are_found(redis: Connection) -> None:
    top, child, alone = QueueKeys("top"), QueueKeys("child"), QueueKeys("alone")
    await redis.command("ZADD", top.waiting_children, 1, "t")
    await redis.command("HSET", str(top.job("t")), "name", "t")
    await redis.command("SADD", top.dependencies("t"), str(child.job("c")))
    await redis.command("LPUSH", alone.wait, "a")
    assert await find_links(redis, ["alone", "top"]) == [["alone"], ["child", "top"]]
    await redis.command("LPUSH", child.wait, "c")
    await redis.command(
        "HSET",
        child.job("c"),
        "name",
        "c",
        "parentKey",
        str(top.job("t")),
        "parent",
        '{"id":"t","queueKey":"bull:top"}',
    )
    assert await find_links(redis, ["child"]) == [["child", "top"]]


async def test_new_names_share_a_tag_where_flows_link() -> None:
    groups = [["mails", "orders"], ["alone"]]
    names = ["mails", "orders", "alone"]
    made = new_names(names, groups)
    assert made == {"mails": "{mails+orders}mails", "orders": "{mails+orders}orders", "alone": "{alone}"}
    assert new_names(names, groups, tag="shop")["alone"] == "{shop}alone"
    assert new_names(names, groups, {"mails": "{post}"})["orders"] == "{post}orders"
    with pytest.raises(InvalidValue, match="must share a hash tag"):
        new_names(names, groups, {"mails": "{a}", "orders": "{b}"})
    many = [f"queue-{number}" for number in range(20)]
    assert new_names(many, [many])["queue-7"] == "{queue-0+19}queue-7"


async def test_moves_are_checked(tmp_path: Path) -> None:
    old, other, new = QueueKeys("a"), QueueKeys("b"), QueueKeys("{a}")
    with pytest.raises(InvalidValue, match="must carry a hash tag"):
        Moves([Move(old, QueueKeys("plain"))])
    with pytest.raises(InvalidValue, match="cannot both become it"):
        Moves([Move(old, new), Move(other, new)])
    with pytest.raises(InvalidValue, match="it is the old one"):
        Moves([Move(new, new)])
    path = tmp_path / "map.json"
    for text in ("no json", '["a"]', '{"a": 1}'):
        path.write_text(text)
        with pytest.raises(InvalidValue, match="a JSON object of old names and new ones"):
            read_mapping(path)
    with pytest.raises(InvalidValue, match="cannot be read"):
        read_mapping(tmp_path / "none.json")


async def test_keys_are_renamed_with_type_and_time_to_live(redis: Connection) -> None:
    rule = KeyRule("dedupe:<user>:<event>:<time>", "dedupe:{<event>}:<user>:<event>:<time>")
    for number in range(20):
        await redis.command("SET", foreign_key(f"dedupe:u{number}:evt:1"), "1", "PX", 300_000)
    await redis.command("RPUSH", foreign_key("dedupe:list:evt:1"), "a", "b")
    await redis.command("HSET", foreign_key("dedupe:hash:evt:1"), "a", "b")
    await redis.command("SET", foreign_key("dedupe:too:few"), "1")
    planned = await rename_keys(redis, redis, rule)
    assert (planned.found, planned.copied) == (22, 0)
    assert len(planned.examples) == 5
    for old, renamed in planned.examples:
        assert renamed == old.replace("dedupe:", "dedupe:{evt}:")
    assert (await rename_keys(redis, redis, rule, "verify")).missing == 22
    copied = await rename_keys(redis, redis, rule, "copy")
    assert (copied.copied, copied.problems) == (22, [])
    new = foreign_key("dedupe:{evt}:u3:evt:1")
    assert await redis.command("GET", new) == b"1"
    assert 290_000 < await redis.command("PTTL", new) <= 300_000
    assert await redis.command("LRANGE", foreign_key("dedupe:{evt}:list:evt:1"), 0, -1) == [b"a", b"b"]
    assert await redis.command("PTTL", foreign_key("dedupe:{evt}:list:evt:1")) == -1
    again = await rename_keys(redis, redis, rule, "copy")
    assert (again.copied, again.already, again.problems) == (0, 22, [])
    assert (await rename_keys(redis, redis, rule, "verify")).problems == []
    await redis.command("SET", new, "other", "KEEPTTL")
    damaged = await rename_keys(redis, redis, rule, "verify")
    assert [problem.job for problem in damaged.problems] == ["dedupe:u3:evt:1"]


async def test_keys_go_to_a_server_of_another_kind(servers: Servers) -> None:
    newer, older = (emptied(servers.get(f"{each}-standalone")) for each in (PRODUCTS[0], PRODUCTS[-1]))
    rule = KeyRule("k:<name*>", "k:{<name>}")
    values: dict[str, tuple[str | int, ...]] = {
        "string": ("SET", "v"),
        "list": ("RPUSH", "a", "b"),
        "set": ("SADD", "a", "b"),
        "hash": ("HSET", "a", "1"),
        "zset": ("ZADD", 1, "a", 2, "b"),
    }
    async with connect(newer.url) as source, connect(older.url) as destination:
        for kind, (command, *value) in values.items():
            await source.command(command, foreign_key(f"k:{kind}"), *value)
            await source.command("PEXPIRE", foreign_key(f"k:{kind}"), 600_000)
        report = await rename_keys(source, destination, rule, "copy")
        assert (report.copied, report.problems) == (5, [])
        verified = await rename_keys(source, destination, rule, "verify")
        assert (verified.already, verified.problems) == (5, [])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("plain", "plain", "needs parts like <event>"),
        ("a:<x>", "a:{<y>}", "<y> is not a part"),
        ("a:<x>", "a:<x>", "needs a hash tag"),
        ("a:{<x>}", "b:{<x>}", "has a hash tag already"),
    ],
)
async def test_bad_rules_are_refused(old: str, new: str, said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        KeyRule(old, new)
