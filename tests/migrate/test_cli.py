"""``toril migrate``, as a person or a script uses it."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.conftest import Servers, emptied
from tests.matrix import PRODUCTS
from tests.migrate.stage import NEW, OLD, Stage
from tests.test_cli import run
from tests.waiting import until
from toril import connect
from toril.keyspace import QueueKeys
from toril.queue import Queue

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def migrate(
    stage: Stage, *args: str, code: int = 0, env: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    done = await asyncio.to_thread(run, "migrate", *args, **{"TORIL_REDIS_URL": stage.redis.url, **env})
    assert done.returncode == code, done.stdout + done.stderr
    return done


async def as_json(stage: Stage, *args: str, code: int = 0) -> Any:
    return json.loads((await migrate(stage, *args, "--json", code=code)).stdout)


async def test_from_the_dry_run_to_the_end(stage: Stage) -> None:
    await stage.add(count=5)
    await stage.add(count=2, delay=3_600_000)
    shown = (await migrate(stage)).stdout
    assert "0 already copied, 7 pending." in shown
    assert "Safe to run --cleanup." not in shown
    refused = await migrate(stage, "--migrate", "--cleanup", code=1)
    assert "copy first, verify, then clean up" in refused.stderr
    assert "Nothing was removed" in (await migrate(stage, "--cleanup", "--yes", code=3)).stdout
    assert "7 jobs copied." in (await migrate(stage, "--migrate")).stdout
    shown = (await migrate(stage)).stdout
    assert "7 already copied, 0 pending." in shown
    assert "All jobs have been copied. Safe to run --cleanup." in shown
    assert "Safe to run --cleanup." in (await migrate(stage, "verify", OLD)).stdout
    (told,) = await as_json(stage, "status")
    assert told | {"began": 0} == {
        "source": f"bull:{OLD}",
        "destination": NEW,
        "phase": "copying",
        "began": 0,
        "tracked": 7,
        "old": 7,
        "new": 7,
        "paused": True,
    }
    refused = await migrate(stage, "--cleanup", code=1)
    assert "add --yes" in refused.stderr
    manifest = str(stage.manifest)
    assert "keys removed." in (await migrate(stage, "--cleanup", "--yes", "--manifest", manifest)).stdout
    assert "Migration is clean." in (await migrate(stage)).stdout
    assert "cleaned" in (await migrate(stage, "status")).stdout
    assert await stage.work_off() == ["1", "2", "3", "4", "5"]


async def test_what_is_left_is_in_the_exit_code_and_named(stage: Stage) -> None:
    await stage.add(NEW)
    await stage.add(count=2)
    done = await migrate(stage, "copy", code=3)
    assert "1 job copied, 1 left." in done.stdout
    assert f"error: {OLD} 1: another job has this id in '{NEW}'" in done.stderr
    report = await as_json(stage, "copy", code=3)
    assert report["queues"][0]["problems"][0]["job"] == "1"
    checked = await as_json(stage, "verify", code=3)
    assert (checked["safe"], checked["reasons"]) == (False, ["1 job of 'mail' not copied"])
    assert (await as_json(stage, "copy", "--renumber"))["left"] == 0
    assert "no such queue" in (await migrate(stage, "nobody", code=1)).stderr


async def test_names_from_a_file_and_the_environment(stage: Stage, tmp_path: Path) -> None:
    await stage.add("event-sourcing")
    path = tmp_path / "map.json"
    path.write_text('{"event-sourcing": "{event_sourcing}", "not-there": "{gone}"}')
    planned = await as_json(stage, "plan", "--map", str(path))
    assert [queue["destination"] for queue in planned["queues"]] == ["{event_sourcing}"]
    env = {"TORIL_REDIS_URL": "", "REDIS_URL": stage.redis.url}
    await migrate(stage, "--migrate", "--map", str(path), env=env)
    again = await as_json(stage, "plan")  # it goes on under the name it began with
    assert [(queue["destination"], queue["pending"]) for queue in again["queues"]] == [
        ("{event_sourcing}", 0)
    ]


async def test_queues_that_flows_link_move_together(stage: Stage) -> None:
    child = {"name": "mail", "queueName": "mails", "data": {}, "opts": {"jobId": "m"}}
    order = {"name": "order", "queueName": "orders", "opts": {"jobId": "o"}, "children": [child]}
    await stage.node.call("addFlow", flow=order)
    await stage.add("alone")
    shown = (await migrate(stage, "mails")).stdout
    assert "Flows link mails, orders: they move together, under one tag." in shown
    assert "alone" not in shown
    await migrate(stage, "copy")
    mails, orders = "{mails+orders}mails", "{mails+orders}orders"
    assert QueueKeys(mails).slot == QueueKeys(orders).slot
    assert await stage.work_off(mails) == ["m"]
    assert await stage.work_off(orders) == ["o"]  # its child has told it
    assert await stage.node.call("getChildrenValues", queue=orders, job="o") == {f"bull:{mails}:m": None}
    assert "Safe to run --cleanup." in (await migrate(stage, "verify")).stdout


async def test_old_workers_are_named(stage: Stage) -> None:
    await stage.add(count=2, delay=3_600_000)
    worker = {"name": "reader"}
    await stage.node.call("startWorker", name="w", queue=OLD, processor={"kind": "ok"}, worker=worker)
    named = "old workers of mail are connected: reader at 127.0.0.1:"
    for args in ((), ("copy",), ("verify",)):
        assert named in " ".join((await migrate(stage, *args)).stderr.split())
    refused = await migrate(stage, "cleanup", "--yes", code=3)
    assert "old workers of 'mail' are connected: reader at 127.0.0.1:" in " ".join(refused.stderr.split())
    await stage.node.call("stop", name="w")


async def test_prefixes_of_their_own(stage: Stage) -> None:
    await Queue(OLD, stage.redis, prefix="app:old").add("send")
    await stage.add()  # the same name with the usual prefix
    prefixes = ("--prefix", "app:old", "--to-prefix", "app:new")
    assert "1 job copied." in (await migrate(stage, "copy", *prefixes)).stdout
    assert "Safe to run --cleanup." in (await migrate(stage, "verify", *prefixes)).stdout
    (told,) = await as_json(stage, "status", *prefixes)
    assert (told["source"], told["destination"]) == (f"app:old:{OLD}", NEW)
    await migrate(stage, "cleanup", "--yes", "--manifest", str(stage.manifest), *prefixes)
    assert not [name for name in await _keys(stage) if name.startswith("app:old:")]
    assert await stage.redis.command("LLEN", QueueKeys(NEW, "app:new").wait) == 1
    assert await stage.state(OLD, "1") == "waiting"


async def _keys(stage: Stage) -> list[str]:
    return [key.decode() async for key in stage.redis.scan("*")]


async def test_rollback_gives_back_what_is_not_finished(stage: Stage) -> None:
    await stage.add(count=6)
    await stage.add(NEW, jobId="own")
    await migrate(stage, "copy")
    for token in ("a", "b"):
        await stage.fetch(NEW, token)
        await stage.node.call(
            "complete", queue=NEW, job={"held": token}, token=token, value=1, fetchNext=False, worker={}
        )
    await stage.fetch(NEW, "busy")
    report = await as_json(stage, "rollback", "--yes", code=3)
    assert report["queues"][0]["busy"] == 1
    await stage.node.call(
        "complete", queue=NEW, job={"held": "busy"}, token="busy", value=1, fetchNext=False, worker={}
    )
    done = await migrate(stage, "rollback", "--yes")
    assert "1 job added under the new name stay there" in " ".join(done.stderr.split())
    assert await stage.work_off(OLD) == ["4", "5", "6"]
    assert await stage.work_off(NEW) == ["own"]


async def test_following_ends_when_told(stage: Stage) -> None:
    await stage.add(count=2)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "toril.cli", "migrate", "copy", "--follow", "--json"),
        env={**os.environ, "TORIL_REDIS_URL": stage.redis.url},
        stdout=subprocess.PIPE,
    )

    async def arrived(count: int) -> bool:
        return bool(await stage.redis.command("LLEN", QueueKeys(NEW).wait) == count)

    await until(lambda: arrived(2))
    await stage.add()
    await until(lambda: arrived(3))
    process.send_signal(signal.SIGINT)
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert json.loads(out)["queues"][0]["total"] == 3


async def test_a_bar_says_how_far_how_fast_and_how_long(stage: Stage) -> None:
    for _ in range(3):
        await stage.add(count=1000)
    shown = await asyncio.to_thread(_on_a_terminal, stage.redis.url, "copy", "--rate", "3000")
    assert "of 3,000" in shown
    assert "/s" in shown
    assert "0:00:0" in shown
    assert "3,000 jobs copied." in shown


@pytest.mark.parametrize("follow", [[], ["--follow"]])
async def test_migrate_whole_after_ctrl_c_in_the_middle(stage: Stage, follow: list[str]) -> None:
    for _ in range(3):
        await stage.add(count=1000)
    half_way = partial(_on_a_terminal, interrupt=rb"[1-9]00 of 3,000", code=130)
    shown = await asyncio.to_thread(half_way, stage.redis.url, "copy", "--rate", "500", *follow)
    assert "Run it again to go on." in shown
    assert "'toril migrate rollback' lets them go on" in shown
    arrived = await stage.redis.command("LLEN", QueueKeys(NEW).wait)
    assert 100 <= arrived < 3000
    report = await as_json(stage, "copy")
    (queue,) = report["queues"]
    assert (queue["already"], queue["total"], queue["left"]) == (arrived, 3000 - arrived, 0)
    assert report["ended"]
    assert report["seconds"] > 0
    assert await stage.redis.command("LRANGE", QueueKeys(NEW).wait, 0, -1) == await stage.redis.command(
        "LRANGE", QueueKeys(OLD).paused, 0, -1
    )


def _on_a_terminal(url: str, *args: str, interrupt: bytes | None = None, code: int = 0) -> str:
    """What a command says on a terminal, where Ctrl-C may be pressed when something is seen."""
    child, screen = pty.fork()
    if child == 0:
        os.environ.update(TORIL_REDIS_URL=url, COLUMNS="120", TERM="xterm")
        os.execv(sys.executable, [sys.executable, "-m", "toril.cli", "migrate", *args])
    seen = b""
    with suppress(OSError):  # the terminal is gone with the child
        while part := os.read(screen, 65536):
            seen += part
            if interrupt is not None and re.search(interrupt, seen):
                os.write(screen, b"\x03")
                interrupt = None
    os.close(screen)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code, seen.decode()
    return seen.decode()


async def test_keys_of_any_kind(stage: Stage) -> None:
    for number in range(3):
        await stage.add(f"q{number}")  # other keys, which the rule does not mean
    await stage.redis.command("SET", QueueKeys("q0").limiter, "1", "PX", 600_000)
    rule = ("bull:<queue>:limiter", "limits:{<queue>}")
    assert "1 key would be copied." in (await migrate(stage, "keys", *rule)).stdout
    assert "1 key copied" in (await migrate(stage, "keys", *rule, "--copy")).stdout
    assert "1 of 1 key the same." in (await migrate(stage, "keys", *rule, "--verify")).stdout
    assert "needs a hash tag" in (await migrate(stage, "keys", "a:<x>", "b:<x>", code=1)).stderr


async def test_a_cluster_from_the_dry_run_to_the_end(servers: Servers, tmp_path: Path) -> None:
    server = emptied(servers.get(f"{PRODUCTS[0]}-cluster"))
    old, url = (
        QueueKeys(OLD),
        {"TORIL_REDIS_URL": "", "REDIS_CLUSTER_ENDPOINTS": server.url.partition("://")[2]},
    )

    async def ok(*args: str) -> str:
        done = await asyncio.to_thread(run, "migrate", *args, **url)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    async with connect(server.url) as redis:
        for number in range(30):  # in a cluster, keys without a tag can be written one by one only
            await redis.command("HSET", old.job(f"j{number}"), "name", "n", "data", "{}", "timestamp", 1)
            await redis.command("LPUSH", old.wait, f"j{number}")
        assert "0 already copied, 30 pending." in await ok()
        assert "30 jobs copied." in await ok("--migrate")
        assert "Safe to run --cleanup." in await ok()
        assert "30 keys removed." in await ok("--cleanup", "--yes", "--manifest", str(tmp_path / "m"))
        assert "Migration is clean." in await ok()
        there = await redis.command("LRANGE", QueueKeys(NEW).wait, 0, -1)
        assert there == [f"j{number}".encode() for number in reversed(range(30))]
