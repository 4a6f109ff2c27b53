"""``toril queue …`` to look: ls, show, jobs, job, logs, and the names they take."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.queue.jobs import COUNTS, HOUR, complete, fail, fill, put_everywhere, schedule, take
from tests.cli.shell import Shell, widest
from toril import Connection, connect
from toril.cli.times import local
from toril.keyspace import Key
from toril.queue import Backoff, Job, JobOptions, Parent, Queue
from toril.queue.queue import client_name
from toril.queue.store import wall_clock
from toril.testing import Cluster, Server

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
