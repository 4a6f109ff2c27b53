"""``toril log …`` to look: ls, show, tail, readers."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from tests.cli.log.events import QUIET, fill, order, read_all, register, started, words
from tests.cli.shell import Shell, widest
from tests.waiting import until, until_quiet
from toril import Connection
from toril.aggregate import Aggregate
from toril.keyspace import Key, log_of
from toril.log import Log, Retention
from toril.stores.sqlite import SqliteColdStore

# ---------------------------------------------------------------------------- ls


async def test_ls_lists_all_logs_and_the_slowest_reader(shell: Shell, redis: Connection, log: Log) -> None:
    assert words(shell.ok("ls")) == f"No event logs at {redis.url}. "
    assert shell.json("ls") == {"logs": [], "total": 0}
    await fill(log, 20)
    await read_all(log, "billing")
    await register(log, "lake")
    audit = Log(redis, "audit.trail", partitions=1)
    await audit.choose_retention(Retention.keep_for(timedelta(days=7)))
    await redis.command("HSET", Key("toril:{room}:meta"), "capacity", 5)  # of another room
    await redis.command("SET", Key("toril:{odd}:meta"), "text")
    found = shell.json("ls")
    assert [row["name"] for row in found["logs"]] == ["audit.trail", "shop"]
    assert found["logs"][1] == {
        "name": "shop",
        "partitions": 4,
        "epoch": 1,
        "events": 20,
        "entries": 20,
        "hot": 20,
        "retention": None,
        "readers": 2,
        "slowest": "lake",
        "backlog": 20,
        "problem": None,
    }
    rows = [words(line).strip() for line in shell.ok("ls").splitlines()]
    assert "audit.trail 1 1 0 0 0 7 d no reader" in rows
    assert "shop 4 1 20 20 20 not chosen lake 20" in rows
    narrow = shell.ok("ls", COLUMNS="60")
    assert widest(narrow) <= 60
    assert "No room for:" in narrow
    assert "The first 1 of 2 logs. More: --limit 2" in shell.ok("ls", "--limit", "1")


async def test_ls_shows_a_log_of_a_later_version(shell: Shell, redis: Connection, log: Log) -> None:
    await log.layout()
    await redis.command("HSET", log.keys.meta, "form", 99)
    shown = shell.ok("ls")
    assert "✘ shop" in shown
    assert "is written in form 99" in shown
    assert "upgrade it" in shell.json("ls")["logs"][0]["problem"]
    assert "is written in form 99" in shell.error("show", "shop")


def test_names_of_logs() -> None:
    assert log_of(b"toril:{shop}:meta") == "shop"
    assert log_of(b"toril:{shop:00}:meta") is None
    assert log_of(b"toril:{\xff}:meta") is None


# ---------------------------------------------------------------------------- show


async def test_show_tells_how_a_log_is_doing(shell: Shell, log: Log) -> None:
    await fill(log, 300)
    await read_all(log, "billing")
    await register(log, "lake")
    found = shell.json("show", "shop")
    assert (found["events"], found["trimmed"], found["entries"], found["aggregates"]) == (300, 0, 300, 300)
    assert (found["retention"], found["held_up_by"], found["carrying"]) == (None, [], False)
    assert [(one["reader"], one["backlog"]) for one in found["readers"]] == [("lake", 300), ("billing", 0)]
    memory = found["memory"]
    assert 30 < memory["per_event"] < 300
    assert 150 < memory["per_aggregate"] < 500
    assert memory["body_bytes"] == pytest.approx(28, abs=1)
    assert memory["fields"] == 5
    assert memory["total"] > 300 * (memory["per_event"] + memory["per_aggregate"])
    shown = words(shell.ok("show", "shop"))
    for text in (
        "shop 4 partitions · epoch 1",
        "events 300 ever, 0 trimmed, 300 in Redis",
        "kept nobody has chosen: nothing is trimmed",
        "lake: 300 events behind, the oldest",
        "billing: all done",
        "for a million events",
    ):
        assert text in shown, shown
    await log.choose_retention(Retention.archived_by("lake"))
    assert shell.json("show", "shop")["held_up_by"] == ["lake"]
    assert "held up by lake: 300 events in 4 partitions" in words(shell.ok("show", "shop"))
    await log.choose_retention(Retention.archived_by("nowhere"))
    assert "reader nowhere, the archive, is not registered in 4" in words(shell.ok("show", "shop"))
    assert widest(shell.ok("show", "shop", COLUMNS="60")) <= 60


async def test_show_says_who_holds_up_what_is_old(shell: Shell, log: Log) -> None:
    await fill(log, 40)
    await register(log, "slow")
    await log.choose_retention(Retention.keep_for(timedelta(hours=1)))
    assert shell.json("show", "shop")["held_up_by"] == [], "it is all too young to go"
    await log.choose_retention(Retention.keep_for(timedelta(milliseconds=1)))
    assert shell.json("show", "shop")["held_up_by"] == ["slow"]


async def test_show_partitions_and_epochs(shell: Shell, log: Log) -> None:
    await fill(log, 40)
    await register(log, "lake")
    found = shell.json("show", "shop", "--partitions", "--limit", "2")
    assert found["total"] == 4
    assert [one["partition"] for one in found["partitions"]] == [0, 1]
    first = found["partitions"][0]
    assert first["backlog"] == {"lake": first["events"]}
    shown = shell.ok("show", "shop", "--partitions", "--limit", "2")
    assert "The first 2 of 4 partitions. More: --limit 4" in shown
    await log.resize(3)
    assert "of" not in shell.ok("show", "shop", "--partitions").split("behind")[1]
    rows = [words(line).strip() for line in shell.ok("show", "shop").splitlines()]
    assert "1 4 40 0 40 40 4 of 4 sealed" in rows
    assert "2 3 0 0 0 40 written to" in rows
    assert [one["current"] for one in shell.json("show", "shop")["epochs"]] == [False, True]


async def test_show_memory_counts_large_bodies(shell: Shell, log: Log) -> None:
    await log.append(order(1), [b"x" * 200_000] * 3)
    memory = shell.json("show", "shop")["memory"]
    assert 200_000 < memory["per_event"] < 300_000
    assert memory["body_bytes"] == 200_000


# ---------------------------------------------------------------------------- one aggregate


async def test_show_an_aggregate_and_its_events(shell: Shell, log: Log) -> None:
    bodies = [b'{"type": "placed", "items": [{"sku": "\xc3\xa4"}]}', b"plain \x1b[2J", b"\xff\xfe", b"[1, 2]"]
    await log.append(order(1), bodies)
    found = shell.json("show", "shop", "--aggregate", "acme:order:1")
    assert (found["version"], found["trimmed"]) == (4, 0)
    assert [event["version"] for event in found["events"]] == [1, 2, 3, 4]
    assert [event["type"] for event in found["events"]] == ["placed", None, None, None]
    assert found["events"][0]["body"] == {"type": "placed", "items": [{"sku": "ä"}]}
    assert [event["body"] for event in found["events"][1:]] == ["plain \x1b[2J", {"base64": "//4="}, [1, 2]]
    assert (found["events"][0]["tenant"], found["events"][0]["aggregate_id"]) == ("acme", "1")
    shown = shell.ok("show", "shop", "--aggregate", "acme:order:1")
    for text in ("acme:order:1  version 4", "1  placed  20", '"sku": "ä"', "plain \\x1b[2J", "//4="):
        assert text in shown, shown
    assert "\x1b" not in shown
    capped = shell.ok("show", "shop", "--aggregate", "acme:order:1", "--limit", "2")
    assert "The last 2 of 4 events. More: --limit 4" in capped
    assert "placed" not in capped
    await log.append(order(1), [json.dumps(list(range(100))).encode()])
    assert "more lines: --full" in shell.ok("show", "shop", "--aggregate", "acme:order:1")
    assert "more lines" not in shell.ok("show", "shop", "--aggregate", "acme:order:1", "--full")


async def test_show_an_aggregate_that_is_trimmed_cold_or_nowhere(
    shell: Shell, redis: Connection, tmp_path: Path
) -> None:
    cold = SqliteColdStore(tmp_path / "cold")
    log = Log(redis, "shop", partitions=1, cold=cold, quiet=QUIET)
    await log.append(order(1), [b"old"] * 3)
    await read_all(log, "lake")
    await log.choose_retention(Retention.archived_by("lake"))
    assert (await log.trim()).removed == 3
    await log.append(order(1), [b"new"])
    found = shell.json("show", "shop", "--aggregate", "acme:order:1")
    assert (found["version"], found["trimmed"]) == (4, 3)
    assert [event["body"] for event in found["events"]] == ["new"]
    assert "Events 1 to 3 are no longer in the log." in shell.ok(
        "show", "shop", "--aggregate", "acme:order:1"
    )
    missing = shell.error("show", "shop", "--aggregate", "acme:order:2")
    assert missing == "log 'shop' has no aggregate 'acme:order:2' in Redis"
    await until_quiet(log)
    assert await log.cool() == 1
    assert "perhaps it is in the cold store" in shell.error("show", "shop", "--aggregate", "acme:order:1")
    assert "others in the cold store" in shell.ok("show", "shop")
    cold.close()


# ---------------------------------------------------------------------------- tail


async def test_tail_shows_the_last_events_in_the_order_of_time(shell: Shell, log: Log) -> None:
    await log.layout()
    assert shell.run("tail", "shop").stderr == "there are no events in log 'shop'\n"
    for number in range(30):
        await log.append(order(number), [json.dumps({"type": f"t{number}"}).encode()])
        await until_quiet(log, timedelta(milliseconds=1))  # each in a millisecond of its own
    lines = shell.ok("tail", "shop").splitlines()
    assert [line.split()[-2] for line in lines] == [f"t{number}" for number in range(20, 30)]
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} +0\d +\d+ +1 +15 bytes +t29 +acme:order:29", lines[-1]
    )
    assert len(shell.ok("tail", "shop", "-n", "3").splitlines()) == 3
    assert len(shell.ok("tail", "shop", "--from", "first").splitlines()) == 30
    assert len(shell.ok("tail", "shop", "--from", "first", "-n", "7").splitlines()) == 7
    events = [json.loads(line) for line in shell.ok("tail", "shop", "--json").splitlines()]
    assert [event["body"]["type"] for event in events] == [f"t{number}" for number in range(20, 30)]
    assert not [standing for standing in await log.standings() if standing.readers], "it took its floor away"


async def test_tail_picks_a_tenant_and_a_type(shell: Shell, log: Log) -> None:
    await fill(log, 300, "acme")
    await log.append(order(5, "globex"), [b"one"])
    await log.append(Aggregate("globex", "cart", "1:2"), [b"two \x1b[2J"])
    await fill(log, 300, "acme")
    for start in ("first", "tail"):
        picked = shell.ok("tail", "shop", "--tenant", "globex", "--from", start).splitlines()
        assert sorted(line.split()[-1] for line in picked) == ["globex:cart:1:2", "globex:order:5"]
    (event,) = shell.ok("tail", "shop", "--type", "cart", "--json").splitlines()
    assert json.loads(event)["aggregate_id"] == "1:2"
    none = shell.run("tail", "shop", "--tenant", "initech")
    assert (none.returncode, none.stdout) == (0, "")
    assert "there are no such events" in none.stderr


async def test_tail_says_how_far_back_it_looked(shell: Shell, redis: Connection) -> None:
    log = Log(redis, "shop", partitions=1)
    await log.append(order(5, "globex"), [b"one"])
    for _ in range(6):
        await log.append(order(1), [b"x"] * 250)
    far = shell.run("tail", "shop", "--tenant", "globex")
    assert far.stdout == ""
    assert "looked at the last 1,000 events of each partition; all: --from first" in far.stderr
    assert "globex" in shell.ok("tail", "shop", "--tenant", "globex", "--from", "first")


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
async def test_tail_follows_until_a_signal(shell: Shell, log: Log, end: signal.Signals) -> None:
    await fill(log, 3)
    process = started(shell, "tail", "shop", "-n", "1", "-f")
    assert process.stdout is not None
    try:
        assert "acme:order:" in await asyncio.to_thread(process.stdout.readline)
        for number in range(10, 13):
            await log.append(order(number), [b'{"type": "late"}'])
            line = await asyncio.to_thread(process.stdout.readline)
            assert f"acme:order:{number}" in line
        assert any(standing.readers for standing in await log.standings())
    finally:
        process.send_signal(end)
        assert process.wait(timeout=20) == 0
        process.stdout.close()
    assert not [standing for standing in await log.standings() if standing.readers]


# ---------------------------------------------------------------------------- readers


async def test_readers_tells_how_far_behind_each_is(shell: Shell, log: Log) -> None:
    await log.layout()
    assert "Nobody reads shop" in shell.ok("readers", "shop")
    await fill(log, 40)
    await read_all(log, "billing")
    await until_quiet(log, timedelta(milliseconds=50))
    await fill(log, 40)
    async with log.reader() as temporary:
        await register(log, "lake")
        found = {one["reader"]: one for one in shell.json("readers", "shop")["readers"]}
        assert found["billing"]["backlog"] == 40
        assert found["lake"]["backlog"] == found[temporary.name]["backlog"] == 80
        assert (found["lake"]["partitions_behind"], found["lake"]["partitions"]) == (4, 4)
        assert found["lake"]["oldest_unread_age"] >= found["billing"]["oldest_unread_age"] + 50
        assert found[temporary.name]["temporary"]
        assert 0 < found[temporary.name]["expires_in"] <= 60_000
        assert found["lake"]["expires_in"] is None
        assert "Nothing is trimmed: nobody has chosen what is kept." in shell.ok("readers", "shop")
    await log.choose_retention(Retention.archived_by("lake"))
    found = {one["reader"]: one for one in shell.json("readers", "shop")["readers"]}
    assert list(found) == ["lake", "billing"], "the slowest first, and the temporary one is gone"
    assert (found["lake"]["holds_up_events"], found["lake"]["holds_up_partitions"]) == (80, 4)
    assert found["billing"]["holds_up_events"] == 0
    rows = [words(line).strip() for line in shell.ok("readers", "shop").splitlines()]
    assert any(re.fullmatch(r"lake group 80 4 of 4 .+ 80 events", row) for row in rows), rows


async def test_a_silent_temporary_reader_is_not_listed(shell: Shell, log: Log) -> None:
    await fill(log, 4)
    for standing in await log.standings():
        await log.store(standing.partition).register("~gone", "first", 1)
    last = max(standing.now for standing in await log.standings())

    async def time_is_up() -> bool:
        return all(standing.now > last + 1 for standing in await log.standings())

    await until(time_is_up)
    assert shell.json("readers", "shop")["readers"] == []
