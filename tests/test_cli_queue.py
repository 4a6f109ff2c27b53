"""``toril queue …``, as a person, a script or a tired operator uses it, on every kind of server."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
import pytest

from tests.command import toril
from tests.conftest import MATRIX, Servers, emptied
from tests.test_cli import run
from toril import Connection, connect
from toril.cli.queue import queue as group
from toril.cli.queue import whole
from toril.cli.queue.add import read_json
from toril.cli.queue.target import Target
from toril.cli.show import Column, _fit, safe
from toril.cli.times import ago, local, parse_duration, span
from toril.errors import InvalidValue
from toril.keyspace import Key
from toril.queue import AddJob, Backoff, Job, JobOptions, KeepJobs, Parent, Queue
from toril.queue.job import JobData
from toril.queue.outcomes import Completed, Failed
from toril.queue.queue import client_name
from toril.queue.store import TakeOptions, wall_clock
from toril.testing import Cluster, Server

KEEP = KeepJobs(count=-1)
HOUR = 3_600_000


@dataclass
class Shell:
    """Runs ``toril queue …`` on one server, or another group of commands."""

    url: str
    group: str = "queue"

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return run(self.group, *args, "--url", self.url, **env)

    def ok(self, *args: str, **env: str) -> str:
        done = self.run(*args, **env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def json(self, *args: str) -> Any:
        return json.loads(self.ok(*args, "--json"))

    def piped(self, text: str, *args: str) -> str:
        done = toril(self.group, *args, "--url", self.url, said=text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def error(self, *args: str) -> str:
        """The one line of a refusal."""
        done = self.run(*args)
        assert done.returncode == 1, done.stdout + done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert not done.stdout, done.stdout
        return done.stderr.removeprefix("error: ").strip()


@pytest.fixture(params=[name for name in MATRIX if name.startswith("valkey")])
def server(request: pytest.FixtureRequest, servers: Servers) -> Server | Cluster:
    """Standalone and cluster. Each command is a process of its own, and takes its time."""
    return emptied(servers.get(request.param))


@pytest.fixture
def shell(server: Server | Cluster) -> Shell:
    return Shell(server.url)


@pytest.fixture
def queue(redis: Connection) -> Queue:
    return Queue("{shop}", redis)


async def take(queue: Queue, count: int = 1, **how: Any) -> list[JobData]:
    """Jobs as a worker takes them."""
    tokens = [f"worker:{number}" for number in range(count)]
    jobs = (await queue.store.step([], tokens, TakeOptions(**how))).jobs
    assert len(jobs) == count
    return jobs


async def fail(queue: Queue, *jobs: JobData, reason: str = "out of stock") -> None:
    traces = b'["Error: out of stock\\n    at order.js:7"]'
    await queue.store.step([Failed(job.id, job.token, reason, KEEP, 3, traces) for job in jobs])


async def complete(queue: Queue, *jobs: JobData, points: int | None = None) -> None:
    outcomes = [Completed(job.id, job.token, b'{"sent":true}', KEEP) for job in jobs]
    await queue.store.step(outcomes, take=TakeOptions(metrics_points=points))


async def fill(queue: Queue, count: int, **options: Any) -> list[str]:
    added = await queue.add_bulk(AddJob("order", {"n": n}, JobOptions(**options)) for n in range(count))
    return [job.id for job in added]


async def schedule(queue: Queue, scheduler: str, due: int) -> str:
    """A scheduler with its next job, as its keys are."""
    redis, keys = queue.store.redis, queue.keys
    await redis.command("ZADD", keys.repeat, due, scheduler)
    await redis.command("HSET", keys.scheduler(scheduler), "name", "sweep", "every", HOUR, "ic", 1)
    job = await queue.add("sweep", {}, JobOptions(job_id=f"repeat:{scheduler}:{due}"))
    await redis.command("HSET", keys.job(job.id), "rjk", scheduler)
    return job.id


async def put_everywhere(queue: Queue) -> None:
    """Jobs in every state: 2 failed, 1 completed, 1 active, 1 waiting for children, 2 waiting …"""
    await fill(queue, 4, attempts=3)
    first, second, third, fourth = await take(queue, 4, worker="ann")
    await fail(queue, first, second)
    await complete(queue, third)
    await Job.of(queue.store, fourth).update_progress(40)
    await queue.add("parent", {"is": "parent"}, JobOptions(job_id="p"))
    (parent,) = await take(queue)
    link = Parent("p", queue.keys.base.removesuffix(":"))
    await queue.add("child", {"is": "child"}, JobOptions(job_id="c", parent=link))
    await queue.store.wait_for_children("p", parent.token)
    await queue.add("order", {"is": "last"})
    await queue.add("urgent", {}, JobOptions(priority=7))
    await queue.add("later", {}, JobOptions(delay=HOUR))


COUNTS = {
    "active": 1,
    "waiting": 2,
    "prioritized": 1,
    "delayed": 1,
    "waiting-children": 1,
    "failed": 2,
    "completed": 1,
}


def widest(text: str) -> int:
    return max(map(len, text.splitlines()), default=0)


# ---------------------------------------------------------------------------- ls


async def test_ls_lists_all_queues_sorted_with_jobs_and_workers(
    shell: Shell, redis: Connection, queue: Queue, server: Server | Cluster
) -> None:
    await put_everywhere(queue)
    other = Queue("{accounts}", redis)
    await fill(other, 3)
    await other.pause()
    await redis.command("HSET", other.keys.meta, "version", "bullmq:5.58.1")
    await Queue("{elsewhere}", redis, prefix="test").announce()
    await redis.command("HSET", queue.keys["a:b:meta"], "not", "a queue")  # a job with that id
    async with connect(server.url, client_name=client_name(queue.keys, "ann")) as worker:
        await worker.command("EXISTS", queue.keys.meta)  # connects to the server that has the queue
        found = shell.json("ls")
        shown = shell.ok("ls")
    assert [row["name"] for row in found["queues"]] == ["{accounts}", "{shop}"]
    assert found["total"] == 2
    accounts, shop = found["queues"]
    assert (accounts["paused"], accounts["version"], accounts["workers"]) == (True, "bullmq:5.58.1", 0)
    assert accounts["counts"]["waiting"] == 3, "the jobs of a paused queue wait too"
    assert (shop["paused"], shop["version"], shop["workers"]) == (False, "bullmq:5.62.0", 1)
    assert shop["counts"] == COUNTS
    rows = [line.split() for line in shown.splitlines() if line.strip().startswith("{")]
    assert rows[0] == ["{accounts}", "paused", "0", "3", "0", "0", "0", "0", "0", "0", "bullmq", "5.58.1"]
    assert rows[1] == ["{shop}", "1", "2", "1", "1", "1", "2", "1", "1", "bullmq", "5.62.0"]
    assert [row["name"] for row in shell.json("ls", "--prefix", "test")["queues"]] == ["{elsewhere}"]


async def test_ls_says_where_it_was_capped_and_what_had_no_room(shell: Shell, redis: Connection) -> None:
    for name in ("a", "b", "c"):
        await Queue(f"{{{name}{'x' * 30}}}", redis).announce()
    shown = shell.ok("ls", "--limit", "2")
    assert "{cx" not in shown
    assert "The first 2 of 3 queues. More: --limit 3" in shown
    assert len(shell.json("ls", "--limit", "2")["queues"]) == 2
    narrow = shell.ok("ls", COLUMNS="60")
    assert widest(narrow) <= 60
    assert "No room for: delayed, workers, completed, version." in re.sub(r"\s+", " ", narrow)
    for header in ("queue", "active", "waiting", "failed"):
        assert header in narrow


async def test_ls_of_nothing_and_of_an_untagged_queue(shell: Shell, redis: Connection) -> None:
    assert "No queues with prefix 'bull'" in shell.ok("ls")
    assert shell.json("ls") == {"queues": [], "total": 0}
    await redis.command("HSET", Key("bull:plain:meta"), "version", "bullmq:5.62.0")
    (row,) = shell.json("ls")["queues"]
    assert bool(row["problem"]) == redis.clustered
    assert ("cannot be used on a cluster" in shell.ok("ls")) == redis.clustered


# ---------------------------------------------------------------------------- show


async def test_show_tells_how_a_queue_is_doing(shell: Shell, server: Server | Cluster) -> None:
    async with connect(server.url) as redis:
        now = wall_clock()
        clock = iter(range(now - 3 * HOUR, now, 60_000))
        queue = Queue("{shop}", redis, clock=lambda: next(clock))
        await fill(queue, 9)
        for _ in range(4):
            await complete(queue, *await take(queue), points=10)
        await queue.set_global_concurrency(8)
        await queue.set_global_rate_limit(100, 2000)
        await queue.rate_limit(HOUR)
        await schedule(queue, "nightly", now + HOUR)
        await fill(queue, 1, delay=5 * HOUR)
        async with connect(server.url, client_name=client_name(queue.keys, "ann")) as worker:
            await worker.command("EXISTS", queue.keys.meta)
            found, shown = shell.json("show", "{shop}"), shell.ok("show", "{shop}")
    assert found["counts"]["waiting"] == 6
    assert found["counts"]["completed"] == 4
    assert found["oldest_waiting"]["id"] == "5"
    assert found["oldest_waiting"]["age"] == pytest.approx(3 * HOUR, abs=60_000)
    assert found["global_concurrency"] == 8
    assert found["global_rate_limit"] == {"max": 100, "duration": 2000}
    assert found["rate_limited_for"] == pytest.approx(HOUR, abs=60_000)
    assert [worker["name"] for worker in found["workers"]] == ["ann"]
    assert [(s["id"], s["every"], s["next_run"]) for s in found["schedulers"]] == [
        ("nightly", HOUR, now + HOUR)
    ]
    assert found["metrics"]["completed"]["count"] == 4
    assert found["metrics"]["failed"] is None
    assert found["next_delayed"] == pytest.approx(now + 2 * HOUR, abs=HOUR)
    for line in (
        "waiting 6 oldest 3 h (job 5)",
        "limits 8 active at a time",
        "100 started in 2 s",
        "none starts for 60 min",
        "workers ann at 127.0.0.1:",
        "schedulers nightly: every 60 min, next in 60 min",
        "metrics completed 4 in all",
    ):
        assert line in re.sub(r"[ \n]+", " ", shown), shown
    assert widest(shell.ok("show", "{shop}", COLUMNS="60")) <= 60


# ---------------------------------------------------------------------------- jobs


async def test_jobs_lists_every_state(shell: Shell, queue: Queue) -> None:
    await put_everywhere(queue)
    groups = {group["state"]: group for group in shell.json("jobs", "{shop}")["states"]}
    assert {state: group["total"] for state, group in groups.items()} == COUNTS
    assert {state: len(group["jobs"]) for state, group in groups.items()} == COUNTS
    now = wall_clock()
    (failed, _), (active,) = groups["failed"]["jobs"], groups["active"]["jobs"]
    assert (failed["reason"], failed["attempts_made"], failed["attempts"]) == ("out of stock", 1, 3)
    assert failed["time"] == pytest.approx(now, abs=60_000)
    assert active["progress"] == 40
    assert groups["delayed"]["jobs"][0]["time"] == pytest.approx(now + HOUR, abs=60_000)
    assert groups["prioritized"]["jobs"][0]["priority"] == 7
    assert groups["completed"]["jobs"][0]["result"] == {"sent": True}
    assert [job["id"] for job in groups["waiting-children"]["jobs"]] == ["p"]
    shown = shell.ok("jobs", "{shop}")
    for text in ("out of stock", "40 %", '{"sent":true}', "in 60 min", "1/3", '{"is":"last"}'):
        assert text in shown, shown


async def test_jobs_caps_lists_and_says_so(shell: Shell, queue: Queue) -> None:
    ids = await fill(queue, 30)
    await queue.pause()  # what waits is listed under the same name
    group = shell.json("jobs", "{shop}", "--state", "waiting")["states"][0]
    assert [job["id"] for job in group["jobs"]] == ids[:-21:-1]
    assert group["total"] == 30
    oldest = shell.json("jobs", "{shop}", "--state", "wait", "--oldest", "--limit", "2")["states"][0]
    assert [job["id"] for job in oldest["jobs"]] == ids[:2]
    shown = shell.ok("jobs", "{shop}", "--state", "waiting", "--limit", "3")
    assert "3 of 30 jobs. More: --state waiting --limit 30" in shown
    assert "waiting  30 jobs, newest first" in shown
    assert "no jobs" in shell.ok("jobs", "{shop}", "--state", "failed")


async def test_jobs_shows_what_other_programs_left_behind(
    shell: Shell, redis: Connection, queue: Queue
) -> None:
    await queue.add("\x1b[2Jname\n", {"text": "a" * 5000})
    await redis.command("LPUSH", queue.keys.wait, "ghost", "odd")
    await redis.command("HSET", queue.keys.job("odd"), "name", b"\xff", "data", "not {json", "timestamp", "x")
    await redis.command("HSET", queue.keys.job("odd"), "opts", "[", "stacktrace", '"one"', "progress", "\x07")
    shown = shell.ok("jobs", "{shop}", "--state", "waiting")
    assert "\x1b" not in shown
    assert "\\x1b[2Jname" in shown
    assert "not {json" in shown
    assert "no data: the id is left over" in shown
    assert widest(shown) <= 120
    jobs = shell.json("jobs", "{shop}", "--state", "waiting")["states"][0]["jobs"]
    assert [(job["id"], job["gone"]) for job in jobs] == [("odd", False), ("ghost", True), ("1", False)]
    one = shell.ok("job", "{shop}", "odd")
    assert "not {json" in one
    assert "one" in one
    assert "waiting" in shell.ok("job", "{shop}", "ghost")


# ---------------------------------------------------------------------------- job and logs


async def test_job_shows_everything(shell: Shell, redis: Connection, queue: Queue) -> None:
    options = JobOptions(job_id="p", attempts=3, backoff=Backoff("exponential", 1000))
    await queue.add("order", {"items": [{"sku": "ä-1"}]}, options)
    (taken,) = await take(queue, worker="ann")
    job = Job.of(queue.store, taken)
    await job.log("first \x1b[31mline")
    await job.log("second line")
    await job.update_progress({"step": 2})
    link = Parent("p", queue.keys.base.removesuffix(":"))
    await queue.add("child", {}, JobOptions(job_id="c", parent=link))
    active = shell.json("job", "{shop}", "p")
    assert 0 < active["locked_for"] <= 30_000
    assert active["children"]["pending"] == ["bull:{shop}:c"]
    assert shell.json("job", "{shop}", "c")["parent"] == {"id": "p", "queue": "bull:{shop}"}
    await redis.command("DEL", queue.keys.dependencies("p"))
    await fail(queue, taken)
    found = shell.json("job", "{shop}", "p")
    assert found["state"] == "failed"
    assert found["data"] == {"items": [{"sku": "ä-1"}]}
    assert found["options"]["backoff"] == {"type": "exponential", "delay": 1000}
    assert found["worker"] == "ann"
    assert found["stack_traces"] == ["Error: out of stock\n    at order.js:7"]
    assert found["logs"] == ["first \x1b[31mline", "second line"]
    shown = shell.ok("job", "{shop}", "p")
    added = found["timestamp"]
    for text in (
        *("order  failed", "job p of {shop}", "out of stock", "1 of 3", "ann", "at order.js:7", '"ä-1"'),
        *("first \\x1b[31mline", "second line", '{"step":2}', "exponential"),
        f"{local(added)}  {added}",
    ):
        assert text in shown, f"{text} is not in {shown}"


async def test_long_texts_of_a_job_are_cut_and_shown_in_full_when_asked(shell: Shell, queue: Queue) -> None:
    job = await queue.add("order", list(range(100)))
    for number in range(40):
        await job.log(f"line {number}")
    shown = shell.ok("job", "{shop}", job.id)
    assert "… 72 more lines: --full" in shown
    assert "Log, the last 30 of 40 lines" in shown
    assert "line 9\n" not in shown
    full = shell.ok("job", "{shop}", job.id, "--full")
    assert "more lines" not in full
    assert "line 0" in full


async def test_logs_prints_lines_and_says_when_there_are_more(shell: Shell, queue: Queue) -> None:
    job = await queue.add("order")
    assert shell.ok("logs", "{shop}", job.id) == ""
    for number in range(5):
        await job.log(f"line {number} {'x' * 200}")
    assert shell.ok("logs", "{shop}", job.id).splitlines()[4] == f"line 4 {'x' * 200}"
    done = shell.run("logs", "{shop}", job.id, "--limit", "2")
    assert [line[:6] for line in done.stdout.splitlines()] == ["line 3", "line 4"]
    assert "the last 2 of 5 lines" in done.stderr
    assert shell.json("logs", "{shop}", job.id)["total"] == 5
    assert shell.error("logs", "{shop}", "99") == "there is no job '99' in queue '{shop}'"


async def test_keys_that_are_no_jobs_are_left_alone(shell: Shell, queue: Queue) -> None:
    await fill(queue, 2)
    await schedule(queue, "nightly", wall_clock() + HOUR)
    keys = ("meta", "wait", "repeat:nightly", "99")
    for verb in ("retry", "promote", "remove"):
        done = shell.run(verb, "{shop}", *keys, *(["--yes"] if verb == "remove" else []))
        assert done.returncode == 1
        assert done.stderr.splitlines() == [
            f"error: there is no job {key!r} in queue '{{shop}}'" for key in keys
        ]
    assert shell.error("job", "{shop}", "meta") == "there is no job 'meta' in queue '{shop}'"
    assert await queue.counts("waiting") == {"waiting": 3, "paused": 0}
    assert await queue.scheduler("nightly") is not None


# ---------------------------------------------------------------------------- add


async def test_add_prints_the_id_and_keeps_the_options(shell: Shell, queue: Queue) -> None:
    done = shell.run("add", "{shop}", "order", '{"sku": "ä", "n": 1.5}', "--attempts", "3", "--backoff", "2s")
    assert done.stdout == "1\n"
    assert "queue '{shop}' is new here" in done.stderr
    job = await queue.job("1")
    assert job is not None
    assert (job.name, job.data) == ("order", {"sku": "ä", "n": 1.5})
    assert job.opts == {"attempts": 3, "backoff": {"type": "fixed", "delay": 2000}}
    assert shell.ok("add", "{shop}", "order", "--delay", "15m", "--priority", "4") == "2\n"
    assert shell.ok("add", "{shop}", "order", "[]", "--delay", "1500") == "3\n"
    second, third = await queue.job("2"), await queue.job("3")
    assert second is not None
    assert third is not None
    assert (second.data, second.delay, second.priority) == ({}, 900_000, 4)
    assert (third.data, third.delay) == ([], 1500)
    assert shell.json("add", "{shop}", "order", "--id", "mine", "--lifo") == {
        "queue": "{shop}",
        "id": "mine",
        "added": True,
    }
    again = shell.run("add", "{shop}", "order", "--id", "mine")
    assert again.stdout == "mine\n"
    assert "job 'mine' is already there (waiting): nothing was added" in again.stderr
    assert shell.json("add", "{shop}", "order", "--deduplication", "d")["added"]
    assert not shell.json("add", "{shop}", "order", "--deduplication", "d")["added"]
    assert await queue.counts("waiting") == {"waiting": 3, "paused": 0}


async def test_add_reads_data_from_a_pipe(shell: Shell, queue: Queue) -> None:
    job_id = shell.piped('{"from": "pipe"}', "add", "{shop}", "order", "-")
    job = await queue.job(job_id.strip())
    assert job is not None
    assert job.data == {"from": "pipe"}


async def test_add_refuses_what_cannot_be(shell: Shell, queue: Queue) -> None:
    await queue.announce()
    for args, rule in (
        (('{"a": 1,}',), "not JSON at column 9"),
        (('{"a":\n tru}',), "not JSON at line 2, column 2"),
        (("--id", "5"), "it cannot be a whole number"),
        (("--durability", "hope"), "hope"),
    ):
        assert rule in shell.error("add", "{shop}", "order", *args)
    assert sum((await queue.counts()).values()) == 0


# ---------------------------------------------------------------------------- retry and promote


async def test_retry_by_id_tells_who_refused(shell: Shell, queue: Queue) -> None:
    await fill(queue, 4)
    failed = await take(queue, 2)
    await fail(queue, *failed)
    await complete(queue, *(done := await take(queue)))
    assert shell.ok("retry", "{shop}", failed[0].id) == f"Job {failed[0].id} retried.\n"
    done_run = shell.run("retry", "{shop}", failed[1].id, done[0].id, "99", "--json")
    assert done_run.returncode == 1
    assert json.loads(done_run.stdout) == {
        "queue": "{shop}",
        "retried": [failed[1].id],
        "refused": {
            done[0].id: f"job '{done[0].id}' is completed, not failed",
            "99": "there is no job '99' in queue '{shop}'",
        },
    }
    assert done_run.stderr.count("error: ") == 2
    assert "retried" in shell.ok("retry", "{shop}", done[0].id, "--state", "completed")
    assert (await queue.counts("waiting"))["waiting"] == 4


async def test_retry_all(shell: Shell, queue: Queue) -> None:
    await fill(queue, 25)
    await fail(queue, *await take(queue, 20))
    await complete(queue, *await take(queue, 5))
    refused = shell.error("retry", "{shop}", "--all")
    assert refused == (
        "retry --all asks first, and there is no terminal to ask on: add --yes (nothing was changed)"
    )
    assert (await queue.counts("failed"))["failed"] == 20
    assert shell.ok("retry", "{shop}", "--all", "--yes", "--batch", "7") == "20 jobs retried.\n"
    assert shell.json("retry", "{shop}", "--all", "--state", "completed", "--yes") == {
        "queue": "{shop}",
        "retried": 5,
        "left": 0,
        "stopped": False,
    }
    assert (await queue.counts("waiting"))["waiting"] == 25
    assert shell.ok("retry", "{shop}", "--all", "--yes") == "No failed jobs.\n"
    for args in ((), ("1", "--all")):
        assert shell.error("retry", "{shop}", *args).startswith("retry takes the ids of jobs, or --all")


async def test_promote(shell: Shell, queue: Queue) -> None:
    ids = await fill(queue, 5, delay=HOUR)
    assert shell.ok("promote", "{shop}", *ids[:2]) == "2 jobs promoted.\n"
    assert shell.error("promote", "{shop}", ids[0]) == f"job {ids[0]!r} is waiting, not delayed"
    assert shell.ok("promote", "{shop}", "--all") == "3 jobs promoted.\n"
    assert shell.json("promote", "{shop}", "--all")["promoted"] == 0
    assert (await queue.counts("waiting"))["waiting"] == 5


# ---------------------------------------------------------------------------- one job


async def test_remove(shell: Shell, queue: Queue) -> None:
    ids = await fill(queue, 4)
    (taken,) = await take(queue)
    scheduled = await schedule(queue, "nightly", wall_clock() + HOUR)
    assert "remove asks first" in shell.error("remove", "{shop}", ids[1])
    assert await queue.job(ids[1]) is not None
    assert shell.ok("remove", "{shop}", ids[1], "--yes") == f"Job {ids[1]} removed.\n"
    done = shell.run("remove", "{shop}", ids[2], taken.id, scheduled, "-y", "--json")
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert said["removed"] == [ids[2]]
    assert said["refused"][taken.id] == f"job {taken.id!r} (or a child of it) is being worked on, and stays"
    assert "next run of a scheduler" in said["refused"][scheduled]
    assert await queue.job(ids[2]) is None


async def test_priority_and_delay(shell: Shell, queue: Queue) -> None:
    (waiting,) = await fill(queue, 1)
    (delayed,) = await fill(queue, 1, delay=HOUR)
    assert shell.ok("priority", "{shop}", waiting, "5") == f"Job {waiting} changed.\n"
    assert await queue.counts_per_priority(5) == {5: 1}
    assert shell.json("delay", "{shop}", delayed, "2h")["changed"] == [delayed]
    job = await queue.job(delayed)
    assert job is not None
    assert job.delay == 2 * HOUR
    assert shell.error("delay", "{shop}", waiting, "5") == f"job {waiting!r} is prioritized, not delayed"
    assert "there is no job '99'" in shell.error("priority", "{shop}", "99", "5")


# ---------------------------------------------------------------------------- the whole queue


async def test_pause_and_resume(shell: Shell, redis: Connection, queue: Queue) -> None:
    await fill(queue, 2)
    assert shell.ok("pause", "{shop}") == "{shop} is paused.\n"
    assert await queue.is_paused()
    assert shell.ok("pause", "{shop}") == "{shop} was paused already.\n"
    assert shell.json("resume", "{shop}") == {"queue": "{shop}", "paused": False, "changed": True}
    assert shell.ok("resume", "{shop}") == "{shop} was not paused.\n"
    assert (await queue.counts("waiting"))["waiting"] == 2
    await redis.command("HSET", queue.keys.meta, "version", "bullmq:6.2.0")
    assert "it belongs to bullmq:6.2.0" in shell.error("pause", "{shop}")
    assert not await queue.is_paused()


async def test_drain(shell: Shell, queue: Queue) -> None:
    await fill(queue, 3)
    await fill(queue, 2, priority=1)
    await fill(queue, 2, delay=HOUR)
    await schedule(queue, "nightly", wall_clock() + HOUR)
    assert "drain asks first" in shell.error("drain", "{shop}")
    assert (await queue.counts("waiting"))["waiting"] == 4
    done = shell.run("drain", "{shop}", "--yes")
    assert done.stdout == "5 jobs removed.\n"
    assert "1 job left: the next runs of schedulers" in done.stderr
    assert shell.json("drain", "{shop}", "--delayed", "--yes") == {"queue": "{shop}", "removed": 2, "left": 1}
    await queue.drain()
    assert (await queue.counts())["waiting"] == 1


async def test_clean_removes_only_what_is_old(shell: Shell, server: Server | Cluster) -> None:
    async with connect(server.url) as redis:
        then = wall_clock() - 2 * HOUR
        old, new = Queue("{shop}", redis, clock=lambda: then), Queue("{shop}", redis)
        for queue, count in ((old, 12), (new, 4)):
            await fill(queue, count)
            await fail(queue, *await take(queue, count))
        assert "clean asks first" in shell.error("clean", "{shop}", "--state", "failed", "--older-than", "1h")
        question = "Remove 5 jobs of {shop} that failed more than 60 min ago, for good? [y/N]: "
        asked = ("clean", "{shop}", "--state", "failed", "--older-than", "1h", "--limit", "5")
        assert on_terminal(shell, *asked, say=[(question, "no\n")])[0] == 1
        clean = ("clean", "{shop}", "--state", "failed", "--yes", "--older-than")
        assert shell.ok(*clean, "3h") == "0 jobs removed.\n"
        assert shell.ok(*clean, "1h", "--limit", "5") == "5 jobs removed.\n"
        assert shell.json(*clean, "1h")["removed"] == 7
        assert (await new.counts("failed"))["failed"] == 4
        assert shell.ok(*clean, "0s") == "4 jobs removed.\n"
        assert shell.ok(*clean, "0s") == "0 jobs removed.\n"


async def test_clean_looks_behind_jobs_that_stay(shell: Shell, server: Server | Cluster) -> None:
    """Delayed jobs stand in the order they are due: old ones may be behind young ones."""
    async with connect(server.url) as redis:
        then = wall_clock() - 2 * HOUR
        old, new = Queue("{shop}", redis, clock=lambda: then), Queue("{shop}", redis)
        await fill(new, 6, delay=HOUR)
        await fill(old, 4, delay=9 * HOUR)
        clean = ("clean", "{shop}", "--yes", "--older-than", "1h")
        assert shell.ok(*clean, "--state", "delayed", "--limit", "3") == "3 jobs removed.\n"
        assert shell.json(*clean, "--state", "delayed") == {
            "queue": "{shop}",
            "removed": 1,
            "stopped": False,
            "looked_at_all": True,
        }
        assert (await new.counts("delayed"))["delayed"] == 6
        await fill(old, 3)
        await new.pause()
        assert shell.ok(*clean, "--state", "waiting") == "3 jobs removed.\n", "a paused queue's jobs wait too"
        scheduled = await schedule(old, "nightly", wall_clock() + HOUR)
        await fill(old, 2)
        assert shell.ok(*clean, "--state", "waiting") == "2 jobs removed.\n"
        assert await new.state(scheduled) == "waiting"


async def test_clean_says_when_it_did_not_look_at_all(
    redis: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Walking over all the young ones again and again would hold the server up."""
    monkeypatch.setattr(whole, "BATCH", 2)
    monkeypatch.setattr(whole, "WINDOW", 6)
    then = wall_clock() - 2 * HOUR
    old, new = Queue("{shop}", redis, clock=lambda: then), Queue("{shop}", redis)
    await fill(new, 5, delay=HOUR)
    await fill(old, 3, delay=9 * HOUR)
    await fill(new, 7, delay=9 * HOUR)
    await fill(old, 1, delay=20 * HOUR)
    cleaner = whole._Cleaner(Target(new, json=False), "delayed", wall_clock() - HOUR, None)
    gone, more = 0, True
    while more:
        count, more = await cleaner.step()
        gone += count
    assert gone == 3
    assert cleaner.gave_up
    assert (await new.counts("delayed"))["delayed"] == 13


async def test_obliterate(shell: Shell, redis: Connection, queue: Queue) -> None:
    await put_everywhere(queue)
    assert "obliterate asks first" in shell.error("obliterate", "{shop}", "--force")
    refused = shell.error("obliterate", "{shop}", "--yes")
    assert refused.startswith("queue '{shop}' has 1 job that workers have")
    assert not await queue.is_paused(), "a refused command leaves the queue as it was"
    assert sum((await queue.counts()).values()) == 9
    assert shell.ok("obliterate", "{shop}", "--yes", "--force") == "{shop} is gone, with 9 jobs.\n"
    assert {key async for key in redis.scan("bull:{shop}:*")} <= {b"bull:{shop}:marker"}
    assert "there is no queue '{shop}'" in shell.error("show", "{shop}")


# ---------------------------------------------------------------------------- names


async def test_a_plain_name_finds_the_tagged_queue(shell: Shell, redis: Connection, queue: Queue) -> None:
    await fill(queue, 1)
    if redis.clustered:
        assert "has no hash tag" in (said := shell.error("show", "shop"))
        assert "use '{shop}'" in said
        return
    done = shell.run("show", "shop", "--json")
    assert json.loads(done.stdout)["name"] == "{shop}"
    assert done.stderr == "there is no queue 'shop' here: using '{shop}'\n"
    assert shell.run("add", "shop", "order").stdout == "2\n"
    assert await Queue("{shop}", redis).job("2") is not None
    await Queue("shop", redis).add("order")
    assert shell.json("show", "shop")["name"] == "shop", "as Node has it, where there is one"
    assert "there is no queue 'a{b'" in shell.error("show", "a{b")


async def test_a_name_that_is_nowhere_says_how_to_find_one(shell: Shell) -> None:
    assert "'toril queue ls' lists those there are" in shell.error("pause", "{nowhere}")
    assert "with prefix 'test'" in shell.error("show", "{nowhere}", "--prefix", "test")
    assert "BullMQ queue names hold no ':'" in shell.error("show", "a:b")


# ---------------------------------------------------------------------------- on a terminal


def heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def on_terminal(
    shell: Shell, *args: str, say: Sequence[tuple[str, str | signal.Signals]] = (), columns: int = 100
) -> tuple[int, str]:
    """Run it in a terminal: when a text appears, type something or send a signal. Exit code and screen."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    command = [sys.executable, "-m", "toril.cli", shell.group, *args, "--url", shell.url]
    # Where the tests themselves were started to ignore Ctrl-C (by nohup, say), a terminal's program is not.
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, preexec_fn=heed_ctrl_c
    )
    os.close(theirs)
    screen, waiting = "", list(say)
    try:
        while True:
            try:
                seen = os.read(ours, 65_536)
            except OSError:  # the other side is closed
                break
            if not seen:
                break
            screen += seen.decode(errors="replace")
            if waiting and waiting[0][0] in screen:
                _, what = waiting.pop(0)
                if isinstance(what, signal.Signals):
                    process.send_signal(what)
                else:
                    os.write(ours, what.encode())
    finally:
        os.close(ours)
        code = process.wait(timeout=30)
    assert not waiting, f"{waiting[0][0]!r} did not appear in {screen!r}"
    return code, screen


@pytest.mark.parametrize("server", ["valkey-standalone"], indirect=True)
async def test_a_terminal_is_asked_first(shell: Shell, queue: Queue) -> None:
    await fill(queue, 3)
    question = "Remove 3 jobs of {shop} that wait, for good? [y/N]: "
    for answer in ("n\n", "\n", "\x04", signal.SIGINT):
        code, screen = on_terminal(shell, "drain", "{shop}", say=[(question, answer)])
        assert code == 1
        assert "nothing was changed" in screen
        assert (await queue.counts("waiting"))["waiting"] == 3
    code, screen = on_terminal(shell, "drain", "{shop}", say=[(question, "y\n")])
    assert code == 0
    assert "3 jobs removed." in screen
    assert (await queue.counts("waiting"))["waiting"] == 0


async def test_ctrl_c_stops_between_steps_and_says_how_far_it_was(
    shell: Shell, redis: Connection, queue: Queue
) -> None:
    await queue.announce()
    total = 20_000
    for start in range(0, total, 1000):
        pairs = [part for n in range(start, start + 1000) for part in (n + 1, f"j{n}")]
        await redis.command("ZADD", queue.keys.failed, *pairs)
    args = ("retry", "{shop}", "--all", "--yes", "--batch", "1")
    code, screen = on_terminal(shell, *args, say=[("of 20,000", signal.SIGINT)])
    assert code == 130
    assert "Retrying" in screen
    told = re.search(r"Stopped: ([\d,]+) jobs? retried, ([\d,]+) failed are left\.", screen)
    assert told, screen
    counts = await queue.counts("waiting", "failed")
    assert counts["waiting"] == int(told[1].replace(",", ""))
    assert counts["failed"] == int(told[2].replace(",", ""))
    assert counts["waiting"] + counts["failed"] == total
    assert counts["failed"] > 0


@pytest.mark.parametrize("server", ["valkey-standalone"], indirect=True)
async def test_tables_fit_the_terminal(shell: Shell, queue: Queue) -> None:
    await put_everywhere(queue)
    for columns in (60, 100):
        for args in (("ls",), ("show", "{shop}"), ("jobs", "{shop}"), ("job", "{shop}", "1")):
            code, screen = on_terminal(shell, *args, columns=columns)
            assert code == 0, screen
            assert widest(re.sub(r"\x1b\[[0-9;]*m", "", screen.replace("\r\n", "\n"))) <= columns


# ---------------------------------------------------------------------------- bad input, without a server


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("clean", "q", "--state", "failed", "--older-than", "5"), "like 90s, 15m, 2h or 7d"),
        (("clean", "q", "--state", "failed", "--older-than", "5 weeks"), "like 90s, 15m, 2h or 7d"),
        (("clean", "q", "--state", "failed", "--older-than", "99999999d"), "at most 36500d"),
        (("clean", "q", "--state", "lost", "--older-than", "5m"), "one of active, waiting"),
        (("jobs", "q", "--state", "lost"), "one of active, waiting"),
        (("jobs", "q", "--limit", "0"), "a whole number from 1 to 10,000"),
        (("ls", "--limit", "many"), "a whole number from 1 to 10,000"),
        (("delay", "q", "1", "soon"), "a number alone is milliseconds"),
        (("add", "q", "n", "--delay", "-5"), "a number alone is milliseconds"),
        (("priority", "q", "1", "2097153"), "a whole number from 0 to 2,097,152"),
        (("show", "q", "--url", "redis://localhost:1"), "cannot be reached"),
        (("show", "q", "--url", "ftp://x"), "the scheme must be one of"),
    ],
)
def test_errors_are_one_line_that_names_the_rule(args: tuple[str, ...], problem: str) -> None:
    done = run("queue", *args)
    assert done.returncode == 1
    assert problem in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_every_command_has_help_and_the_shared_options() -> None:
    assert "obliterate" in run("queue", "--help").stdout
    assert len(group.commands) == 16
    for name, command in group.commands.items():
        told = command.get_help(click.Context(command))
        for option in ("--url", "--prefix", "--json"):
            assert option in told, f"{name} has no {option}"


@pytest.mark.parametrize(
    ("raw", "where"),
    [
        ('{"a": NaN}', "column 7: NaN is not JSON"),
        ('{"NaN": -Infinity}', "column 9: -Infinity is not JSON"),
        ("[1,\n 1e999]", "line 2, column 2: 1e999 is too large"),
        ("", "column 1"),
        ("{'a': 1}", "column 2"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_json_that_is_none_says_where(raw: str, where: str) -> None:
    with pytest.raises(InvalidValue, match=re.escape(where)):
        read_json(raw)


def test_times_read_and_written() -> None:
    assert [parse_duration("t", text) for text in ("90s", "15m", "2h", "7d", "5ms")] == [
        *(90_000, 900_000, 2 * HOUR, 168 * HOUR, 5)
    ]
    assert parse_duration("t", "250", plain=True) == 250
    assert [span(ms) for ms in (5, 1500, 119_000, 121_000, 3 * HOUR, 72 * HOUR)] == [
        *("5 ms", "2 s", "119 s", "2 min", "3 h", "3 d")
    ]
    assert (ago(1000, 61_000), ago(61_000, 1000), ago(5, 6)) == ("60 s ago", "in 60 s", "now")
    assert local(10**17) == "beyond the calendar"


def test_a_table_gives_up_columns_before_it_cuts_what_matters() -> None:
    columns = [Column("name", least=10), Column("count", right=True), Column("more", leave=1)]
    assert _fit(columns, [20, 5, 20], 100) == ({0: 20, 1: 5, 2: 20}, [])
    assert _fit(columns, [20, 5, 20], 45) == ({0: 12, 1: 5, 2: 20}, [])
    assert _fit(columns, [20, 5, 20], 40) == ({0: 20, 1: 5}, ["more"])
    assert _fit(columns, [20, 5, 20], 20) == ({0: 9, 1: 5}, ["more"])


def test_data_cannot_steer_the_terminal() -> None:
    assert safe("a\x1b[2Jb\x07\u202e\x9b\tc\n") == "a\\x1b[2Jb\\x07\\u202e\\x9b\tc\n"
