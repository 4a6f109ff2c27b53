"""``toril log …`` and ``toril tenant erase``, as a person, a script or a tired operator uses them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import click
import pytest

from tests.conftest import MATRIX, Servers, emptied
from tests.test_cli import run
from tests.test_cli_queue import Shell, on_terminal, widest
from tests.waiting import until, until_quiet
from toril import Connection
from toril.aggregate import Aggregate
from toril.cli.log import log as group
from toril.keyspace import Key, log_of
from toril.log import Append, Log, Retention
from toril.stores.sqlite import SqliteColdStore
from toril.testing import Cluster, Server

QUIET = timedelta(milliseconds=200)


@pytest.fixture(params=[name for name in MATRIX if name.startswith("valkey")])
def server(request: pytest.FixtureRequest, servers: Servers) -> Server | Cluster:
    """Standalone and cluster. Each command is a process of its own, and takes its time."""
    return emptied(servers.get(request.param))


@pytest.fixture
def shell(server: Server | Cluster) -> Shell:
    return Shell(server.url, "log")


@pytest.fixture
def log(redis: Connection) -> Log:
    return Log(redis, "shop", partitions=4)


def order(number: int, tenant: str = "acme") -> Aggregate:
    return Aggregate(tenant, "order", str(number))


async def fill(log: Log, count: int, tenant: str = "acme") -> None:
    """One event for each of so many orders."""
    made = [Append(order(n, tenant), [json.dumps({"type": "placed", "n": n}).encode()]) for n in range(count)]
    assert not [one for one in await log.append_many(made) if isinstance(one, BaseException)]


async def read_all(log: Log, name: str) -> None:
    async with log.reader(name) as reader:
        async for batch in reader.until_now():
            await batch.done()


async def register(log: Log, name: str) -> None:
    async with log.reader(name):
        pass


def started(shell: Shell, *args: str) -> subprocess.Popen[str]:
    """A command that runs until a signal."""
    command = [sys.executable, "-m", "toril.cli", "log", *args, "--url", shell.url]
    env = {**os.environ, "COLUMNS": "120"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


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


# ---------------------------------------------------------------------------- trim


async def test_trim_explains_the_choices_and_does_nothing(shell: Shell, log: Log) -> None:
    await fill(log, 20)
    await read_all(log, "lake")
    done = shell.run("trim", "shop")
    assert done.returncode == 1
    for text in ("nobody has chosen yet", "--keep-all", "--keep-for 7d", "--archived-by READER"):
        assert text in done.stderr
    assert sum(standing.length for standing in await log.standings()) == 20
    assert "one of --keep-all, --keep-for and --archived-by" in shell.error(
        "trim", "shop", "--keep-all", "--keep-for", "7d"
    )
    assert (await log.layout(anew=True)).retention is None


async def test_trim_chooses_and_trims_and_names_who_holds_up_the_rest(shell: Shell, log: Log) -> None:
    await fill(log, 400)
    await read_all(log, "lake")
    await fill(log, 40)
    choose = ("trim", "shop", "--archived-by", "lake")
    assert "trim asks first" in shell.error(*choose)
    assert (await log.layout(anew=True)).retention is None
    question = "From now on, trim events of log shop that lake and all other readers are done with, for good?"
    assert on_terminal(shell, *choose, say=[(question, "n\n")], columns=140)[0] == 1
    code, screen = on_terminal(shell, *choose, say=[(question, "y\n")], columns=140)
    assert code == 0
    assert "events removed" in screen
    assert (await log.layout(anew=True)).retention == Retention.archived_by("lake")
    await fill(log, 10)
    done = shell.run("trim", "shop")
    assert done.stdout.startswith("0 events removed, ")
    assert done.stderr == "reader 'lake' holds up 50 events in 4 partitions\n"
    await read_all(log, "lake")
    value = shell.json("trim", "shop")
    assert value["left"] == 0
    assert value["removed"] >= 50
    assert value["retention"] == "archived by lake"
    assert value["held_up_by"] == {}
    assert shell.ok("trim", "shop", "--keep-all") == "shop keeps all its events: nothing is trimmed.\n"


async def test_trim_by_age_says_why_the_rest_stays(shell: Shell, log: Log) -> None:
    await fill(log, 20)
    done = shell.run("trim", "shop", "--keep-for", "7d", "--yes")
    assert done.stdout == "0 events removed, 20 left.\n"
    assert done.stderr == "no reader is registered in 4 partitions\n"
    await read_all(log, "billing")
    done = shell.run("trim", "shop")
    assert "those left are younger than 7 d" in done.stderr
    assert shell.ok("trim", "shop", "--keep-for", "1ms", "-y") == "20 events removed, 0 left.\n"
    assert "'lake', the archive" not in shell.ok("trim", "shop", "--archived-by", "lake", "-y")


# ---------------------------------------------------------------------------- retire


async def test_retire_names_what_was_never_read(shell: Shell, log: Log) -> None:
    await fill(log, 40)
    await register(log, "lake")
    await log.choose_retention(Retention.archived_by("lake"))
    assert "retire asks first" in shell.error("retire", "shop", "lake")
    question = "Retire reader lake of log shop, for good? [y/N]: "
    code, screen = on_terminal(shell, "retire", "shop", "lake", say=[(question, "n\n")])
    assert code == 1
    assert "It has not read 40 events in 4 partitions; once it is gone" in words(screen)
    assert "It is the archive: without it, nothing is trimmed." in words(screen)
    assert shell.json("readers", "shop")["readers"]
    done = shell.run("retire", "shop", "lake", "--yes")
    assert done.stdout == "Reader lake is retired. It had not read 40 events.\n"
    assert "it was the archive" in done.stderr
    assert shell.error("retire", "shop", "lake", "--yes") == (
        "there is no reader 'lake' in log 'shop': 'toril log readers shop' lists them"
    )
    await read_all(log, "billing")
    assert shell.json("retire", "shop", "billing", "--yes") == {
        "log": "shop",
        "reader": "billing",
        "retired": True,
        "unread": 0,
    }


# ---------------------------------------------------------------------------- resize, keep


async def test_resize_asks_and_versions_go_on(shell: Shell, log: Log) -> None:
    await fill(log, 60)
    assert "resize asks first" in shell.error("resize", "shop", "6")
    question = "Change log shop from 4 to 6 partitions? 60 aggregates are carried over to epoch 2. [y/N]: "
    code, screen = on_terminal(shell, "resize", "shop", "6", say=[(question, "y\n")])
    assert code == 0
    assert "shop has 6 partitions now, in epoch 2." in screen
    assert "Carrying aggregates over" in screen
    assert (await log.append(order(1), [b"x"])).version == 2
    assert "has as many already" in shell.error("resize", "shop", "6", "--yes")
    assert shell.json("resize", "shop", "5", "--yes") == {"log": "shop", "epoch": 3, "partitions": 5}
    assert "a whole number from 1 to 4,096" in shell.error("resize", "shop", "0")


def cold_module(path: Path, name: str) -> dict[str, str]:
    """A module of a user's with a cold store in it, and the environment in which it is found."""
    text = (
        f"from toril.stores.sqlite import SqliteColdStore\ncold = SqliteColdStore({str(path / 'cold')!r})\n"
    )
    (path / f"{name}.py").write_text(text)
    return {"PYTHONPATH": str(path)}


async def test_without_its_cold_store_a_log_is_not_changed(
    shell: Shell, server: Server | Cluster, redis: Connection, tmp_path: Path
) -> None:
    env = cold_module(tmp_path, "stores_of_mine")
    cold = SqliteColdStore(tmp_path / "cold")
    log = Log(redis, "shop", partitions=2, cold=cold, quiet=QUIET)
    await fill(log, 20)
    await fill(log, 5, "globex")
    await until_quiet(log)
    assert await log.cool() == 25
    tenant = Shell(server.url, "tenant")
    for refused in (
        shell.error("resize", "shop", "3", "--yes"),
        tenant.error("erase", "globex", "--log", "shop", "--yes"),
    ):
        assert "aggregates of log 'shop' are in a cold store" in refused
        assert "--cold MODULE:NAME" in refused
    assert (await log.layout(anew=True)).current.partitions == 2
    given = ("--cold", "stores_of_mine:cold", "--yes", "--json")
    assert json.loads(shell.ok("resize", "shop", "3", *given, **env))["epoch"] == 2
    assert (await log.append(order(1), [b"x"])).version == 2, "it was not forgotten"
    erased = json.loads(tenant.ok("erase", "globex", "--log", "shop", *given, **env))
    assert (erased["events"], erased["cold"]) == (5, 5)
    for bad, why in (("nowhere:cold", "there is no module"), ("stores_of_mine:x", "like shop.stores:cold")):
        assert why in shell.run("resize", "shop", "4", "--yes", "--cold", bad, **env).stderr
    cold.close()


async def test_keep_trims_cools_and_drops_epochs_until_a_signal(shell: Shell, log: Log) -> None:
    await fill(log, 400)
    await log.choose_retention(Retention.archived_by("lake"))
    await log.resize(3)
    process = started(shell, "keep", "shop", "--every", "200ms", "--json")
    assert process.stdout is not None
    try:
        await read_all(log, "lake")
        said = [json.loads(await asyncio.to_thread(process.stdout.readline))]
        until = time.monotonic() + 20
        while not said[-1]["dropped"] and time.monotonic() < until:
            said.append(json.loads(await asyncio.to_thread(process.stdout.readline)))
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        process.stdout.close()
    assert sum(round_["removed"] for round_ in said) == 400
    assert said[-1]["dropped"] == 1
    assert [epoch.number for epoch in (await log.layout(anew=True)).epochs] == [2]


async def test_keep_says_what_it_does_and_what_is_missing(shell: Shell, log: Log) -> None:
    await fill(log, 20)
    await read_all(log, "lake")
    code, screen = on_terminal(
        shell, "keep", "shop", "--every", "1", say=[("keeping shop; Ctrl-C ends it", signal.SIGINT)]
    )
    assert code == 0
    assert "nobody has chosen what log 'shop' keeps" in screen
    assert "SIGINT: ended" in screen
    await log.choose_retention(Retention.keep_for(timedelta(milliseconds=1)))
    code, screen = on_terminal(
        shell, "keep", "shop", "--every", "1", say=[("20 events trimmed", signal.SIGTERM)]
    )
    assert code == 0
    assert "SIGTERM: ended" in screen


# ---------------------------------------------------------------------------- tenant erase


@pytest.fixture
def tenant(server: Server | Cluster) -> Shell:
    return Shell(server.url, "tenant")


async def test_erase_asks_for_the_name_and_tells_what_was_removed(tenant: Shell, log: Log) -> None:
    await fill(log, 30)
    await fill(log, 20, "globex")
    await fill(log, 20, "globex")
    args = ("erase", "globex", "--log", "shop")
    assert "erase asks first" in tenant.error(*args)
    code, screen = on_terminal(tenant, *args, say=[("Type globex to go on: ", "acme\n")])
    assert code == 1
    assert "of tenant globex from log shop, for good" in words(screen)
    assert "nothing was changed" in screen
    assert await log.version(order(1, "globex")) == 2
    code, screen = on_terminal(tenant, *args, say=[("Type globex to go on: ", "globex\n")])
    assert code == 0
    rows = [words(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line)).strip() for line in screen.splitlines()]
    assert "events 40" in rows, rows
    assert "aggregates in Redis 20" in rows
    assert "aggregates in the cold store not asked" in rows
    assert await log.version(order(1, "globex")) == 0
    assert await log.version(order(1)) == 1
    again = tenant.json(*args, "--yes")
    assert (again["events"], again["aggregates"], again["partitions"]) == (0, 0, 0)
    assert (await log.append(order(1, "globex"), [b"anew"])).version == 1


# ---------------------------------------------------------------------------- all of them


@pytest.mark.parametrize("server", ["valkey-standalone"], indirect=True)
async def test_tables_fit_the_terminal(shell: Shell, log: Log) -> None:
    await fill(log, 40)
    await register(log, "a-reader-with-quite-a-long-name-that-needs-room")
    await log.choose_retention(Retention.archived_by("a-reader-with-quite-a-long-name-that-needs-room"))
    await log.resize(3)
    looks = (
        ("ls",),
        ("show", "shop"),
        ("show", "shop", "--partitions"),
        ("show", "shop", "--aggregate", "acme:order:1"),
        ("tail", "shop"),
        ("readers", "shop"),
    )
    for columns in (60, 100):
        for args in looks:
            code, screen = on_terminal(shell, *args, columns=columns)
            assert code == 0, screen
            plain = re.sub(r"\x1b\[[0-9;]*m", "", screen.replace("\r\n", "\n"))
            assert widest(plain) <= columns, f"{args}: {plain}"


async def test_a_look_does_not_make_a_log(shell: Shell, redis: Connection) -> None:
    for args in (("show",), ("tail",), ("readers",), ("trim",), ("keep",)):
        refused = shell.error(args[0], "nowhere")
        assert refused == f"there is no log 'nowhere' at {redis.url}: 'toril log ls' lists those there are"
    assert [key async for key in redis.scan()] == []


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("log", "ls", "--limit", "0"), "a whole number from 1 to 10,000"),
        (("log", "show", "a:b"), "log names are letters, digits"),
        (("log", "show", "x", "--aggregate", "acme:1", "--url", "redis://localhost:1"), "cannot be reached"),
        (("log", "tail", "x", "--from", "middle"), "first or tail"),
        (("log", "tail", "x", "-n", "some"), "a whole number from 0"),
        (("log", "trim", "x", "--keep-for", "7 days"), "like 90s, 15m, 2h or 7d"),
        (("log", "keep", "x", "--every", "0"), "at least 100ms"),
        (("log", "keep", "x", "--quiet", "soon"), "like 90s, 15m, 2h or 7d"),
        (("log", "resize", "x", "many"), "a whole number from 1 to 4,096"),
        (("tenant", "erase", "a:b", "--log", "x"), "it must not contain ':'"),
    ],
)
def test_errors_are_one_line_that_names_the_rule(args: tuple[str, ...], problem: str) -> None:
    done = run(*args)
    assert done.returncode == 1
    assert problem in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not done.stdout


async def test_wrong_values_are_named(shell: Shell, log: Log) -> None:
    await log.layout()
    for args, problem in (
        (("show", "shop", "--aggregate", "acme:1"), "it has three parts, tenant:type:id"),
        (("show", "shop", "--aggregate", "acme:a b:1"), "aggregate type"),
        (("show", "shop", "--aggregate", "acme:a:1", "--partitions"), "one of the two at a time"),
        (("tail", "shop", "--tenant", "a:b"), "it must not contain ':'"),
        (("tail", "shop", "--type", "a b"), "letters, digits"),
        (("trim", "shop", "--archived-by", "a b", "--yes"), "printable characters without blanks"),
        (("trim", "shop", "--keep-for", "0s", "--yes"), "a positive time"),
    ):
        assert problem in shell.error(*args)


def test_every_command_has_help_and_the_shared_options() -> None:
    assert len(group.commands) == 8
    for name, command in group.commands.items():
        told = command.get_help(click.Context(command))
        for option in ("--url", "--json"):
            assert option in told, f"{name} has no {option}"
    assert "--log" in run("tenant", "erase", "--help").stdout
