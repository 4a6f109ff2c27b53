"""``toril log …`` to keep order, and ``toril tenant erase``."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest

from tests.cli.log.events import QUIET, cold_module, fill, order, read_all, register, started, words
from tests.cli.shell import Shell, on_terminal
from tests.waiting import until_quiet
from toril import Connection
from toril.log import Log, Retention
from toril.stores.sqlite import SqliteColdStore
from toril.testing import Cluster, Server

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
