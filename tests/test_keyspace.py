"""Names, tags and slots: what Toril believes is what a real server does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Servers
from toril import InvalidName, InvalidValue, QueueNames, make_queue_name
from toril.connection.node import Node, NodeOptions
from toril.keyspace import (
    KEY_SETS,
    NAME_RULES,
    SLOTS,
    IdempotencyKeys,
    KeySet,
    Kind,
    LogKeys,
    PartitionKeys,
    QueueKeys,
    RateKeys,
    RoomKeys,
    SeatKeys,
    ServerKeys,
    SlotRange,
    StreamKeys,
    plan_slots,
    slot_of,
    split_slots,
    tag_of,
)
from toril.testing import Cluster, assert_tagged

KNOWN_TAGS = {
    "plain": None,
    "{a}": b"a",
    "x{a}y": b"a",
    "a}b{c}": b"c",
    "{}x{y}": None,
    "{{x}}": b"{x",
    "{a}{b}": b"a",
    "{a": None,
    "a}": None,
    "{}": None,
    "{ü}": "ü".encode(),
    "": None,
}


@pytest.mark.parametrize(("key", "tag"), KNOWN_TAGS.items())
def test_tag_rule(key: str, tag: bytes | None) -> None:
    assert tag_of(key) == tag
    assert tag_of(key.encode()) == tag


def test_known_slots() -> None:
    assert slot_of("123456789") == 0x31C3  # the check value of CRC16/XMODEM
    assert slot_of("a}b{c}") == 7365
    assert slot_of("{evt_2025_1001}") == 3998
    assert slot_of("myqueue") == 9917


def hostile_key(rng: random.Random) -> bytes:
    """A key meant to break a parser of hash tags."""
    pieces = [
        b"{",
        b"}",
        b"{}",
        b"}{",
        b"{{",
        b"}}",
        b":",
        b"a",
        b"bull",
        "é".encode(),
        "😀".encode(),
        b"\0",
        b" ",
    ]
    kind = rng.randrange(4)
    if kind == 0:
        return b"".join(rng.choices(pieces, k=rng.randrange(1, 9)))
    if kind == 1:
        return rng.randbytes(rng.randrange(1, 40))
    if kind == 2:
        return b"bull:{%d}:%d" % (rng.randrange(10**6), rng.randrange(10**6))
    return rng.choice(list(KNOWN_TAGS)).encode() + b"".join(rng.choices(pieces, k=3))


async def test_no_crossslot_slots_agree_with_a_real_server(servers: Servers, rng: random.Random) -> None:
    """100,000 keys, hostile ones among them: our slot is CLUSTER KEYSLOT's."""
    made = servers.get("valkey-cluster")
    assert isinstance(made, Cluster)
    node = Node(made.servers[0].address, NodeOptions())
    keys = [key.encode() for key in KNOWN_TAGS if key]
    keys += [hostile_key(rng) for _ in range(100_000 - len(keys))]
    try:
        for start in range(0, len(keys), 5_000):
            step = keys[start : start + 5_000]
            answers = await node.ask([("CLUSTER", "KEYSLOT", key) for key in step])
            wrong = [
                (key, slot_of(key), said)
                for key, said in zip(step, answers, strict=True)
                if slot_of(key) != said
            ]
            assert not wrong, wrong[:5]
    finally:
        await node.close()


# ------------------------------------------------------------------------- names


def test_queue_names_are_tagged() -> None:
    assert make_queue_name("collector") == "{collector}"
    assert make_queue_name("span_ingestion/command/record_span") == "{span_ingestion/command/record_span}"
    assert make_queue_name("ünï cödé") == "{ünï cödé}"


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("", "must not be empty"),
        ("{a}", "already carries a hash tag"),
        ("x{a}y", "already carries a hash tag"),
        ("a:b", "no ':'"),
        ("a{b", "no brace"),
        ("a}b", "no brace"),
        ("}{", "no brace"),
        ("{}", "no brace"),
        ("\ud800", "UTF-8"),
        ("x" * 513, "more than 512"),
        (7, "must be a string"),
        (None, "must be a string"),
    ],
)
def test_bad_queue_names_are_refused_by_rule(name: Any, rule: str) -> None:
    with pytest.raises(InvalidName, match="queue name") as caught:
        make_queue_name(name)
    assert rule in str(caught.value)
    assert caught.value.value == name


@given(st.text())
def test_a_queue_name_is_refused_or_is_its_own_tag(name: str) -> None:
    try:
        made = make_queue_name(name)
    except InvalidName:
        return
    assert tag_of(made) == name.encode()
    assert slot_of(f"bull:{made}:wait") == slot_of(f"bull:{made}:any}}thing{{else}}")


@pytest.mark.parametrize("kind", NAME_RULES)
def test_each_kind_of_name_has_a_rule_with_an_example(kind: Kind) -> None:
    rule = NAME_RULES[kind]
    assert rule.check(rule.example) == rule.example
    for bad in ("", "{a}", "a{b", "a}b", ":", "x" * 600):
        with pytest.raises(InvalidName):
            rule.check(bad)
    assert tag_of("{" + rule.example + "}") == rule.example.encode()


def test_declared_names() -> None:
    class Queues(QueueNames):
        COLLECTOR = "collector"
        EVALUATIONS = "evaluations"
        RECORD_SPAN = "span_ingestion/command/record_span"

    assert str(Queues.COLLECTOR) == "{collector}"
    assert f"{Queues.COLLECTOR}" == "{collector}"
    plan = assert_tagged(Queues)
    assert [placement.name for placement in plan.placements] == [str(name) for name in Queues]
    assert sum(plan.per_shard().values()) == 3
    assert set(plan.per_shard()) == {"shard 1", "shard 2", "shard 3"}


def test_declared_names_are_refused_when_declared_wrongly() -> None:
    with pytest.raises(InvalidName, match="already carries"):

        class Tagged(QueueNames):
            A = "{a}"

    with pytest.raises(InvalidName, match="declared twice, as A and B"):

        class Twice(QueueNames):
            A = "a"
            B = "a"

    class Empty(QueueNames):
        pass

    with pytest.raises(AssertionError, match="declares no queue names"):
        assert_tagged(Empty)


# ------------------------------------------------------------------------- key sets

MAKERS: dict[Kind, Callable[[str], KeySet]] = {
    "queue": lambda name: QueueKeys(make_queue_name(name)),
    "stream": lambda name: StreamKeys(name, len(name) % 3 or None),
    "log": LogKeys,
    "partition": lambda name: PartitionKeys(name, len(name), len(name)),
    "room": lambda name: RoomKeys(name, len(name) % 3 or None),
    "seats": SeatKeys,
    "rate": lambda name: RateKeys("join", name),
    "idempotency": IdempotencyKeys,
    "server": lambda _: ServerKeys(),
}


def test_every_key_set_is_walked() -> None:
    assert MAKERS.keys() == KEY_SETS.keys()


@pytest.mark.parametrize("kind", KEY_SETS)
@given(name=st.text(st.characters(codec="utf-8"), min_size=1), ident=st.text(st.characters(codec="utf-8")))
def test_no_crossslot_all_keys_of_a_set_share_a_slot(kind: Kind, name: str, ident: str) -> None:
    """Whatever names and ids hold (braces, colons, tags of their own), a set stays in its slot."""
    try:
        keys = MAKERS[kind](name)
    except InvalidName:
        return
    walked = list(keys.walk(ident)) + list(keys.walk("{x}")) + list(keys.walk("}{"))
    assert len(set(walked)) > 1
    assert {slot_of(key) for key in walked} == {keys.slot}


def test_queue_keys_take_names_as_node_has_them() -> None:
    assert QueueKeys("{collector}").wait == "bull:{collector}:wait"
    assert QueueKeys("collector", "{bull}").slot == slot_of("bull")
    untagged = QueueKeys("collector")
    assert untagged.tag is None
    assert untagged.slot is None
    assert untagged.cluster_safe_name == "{collector}"
    assert QueueKeys("x{a}y").cluster_safe_name == "x{a}y"
    for bad in ("", "a:b", 3, "\ud800"):
        with pytest.raises(InvalidName, match="queue name"):
            QueueKeys(bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidName, match="queue prefix"):
        QueueKeys("a", "")


# ------------------------------------------------------------------------- planning


@given(st.integers(1, 1000))
def test_split_slots_covers_all_slots_evenly(shards: int) -> None:
    ranges = split_slots(shards)
    assert [part.first for part in ranges] == [0] + [part.last + 1 for part in ranges[:-1]]
    assert ranges[-1].last == SLOTS - 1
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


def test_a_plan_says_how_even_it_is() -> None:
    shards = {f"shard {i}": [part] for i, part in enumerate(split_slots(2))}
    even = plan_slots({"a": 0, "b": SLOTS - 1}, shards)
    assert even.imbalance == 1.0
    uneven = plan_slots({"a": 0, "b": 1}, shards)
    assert uneven.imbalance == 2.0
    assert uneven.per_shard() == {"shard 0": 2, "shard 1": 0}
    with pytest.raises(InvalidValue, match="no shard serves slot 9"):
        plan_slots({"a": 9}, {"shard": [SlotRange(0, 8)]})
    for bad in (0, SLOTS + 1):
        with pytest.raises(InvalidValue, match="shards"):
            split_slots(bad)
    with pytest.raises(InvalidValue, match="slot range"):
        SlotRange(5, 4)
