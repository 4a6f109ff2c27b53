"""``toril stream …``, as a person, a script or a tired operator uses it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click
import pytest

from tests.cli.shell import Shell, on_terminal
from tests.conftest import MATRIX, Servers, emptied
from tests.test_cli import run
from tests.test_cli_worker import running as running_worker
from tests.waiting import until
from toril import Connection
from toril.cli.stream import stream as group
from toril.stream import (
    AddJob,
    PolicyDenied,
    Route,
    StreamJob,
    StreamOptions,
    StreamQueue,
    StreamWorker,
)
from toril.testing import Cluster, Server

NAME = "mails"


EVERYWHERE = pytest.mark.parametrize(
    "server", [one for one in MATRIX if one.startswith("valkey")], indirect=True
)


@pytest.fixture(params=["valkey-standalone"])
def server(request: pytest.FixtureRequest, servers: Servers) -> Server | Cluster:
    """Mostly one server: each command is a process of its own, and takes its time."""
    return emptied(servers.get(request.param))


@pytest.fixture
def shell(server: Server | Cluster) -> Shell:
    return Shell(server.url, "stream")


@pytest.fixture
def queue(redis: Connection) -> StreamQueue:
    options = StreamOptions(weights=(6, 3, 1), retries=0, backlog=100)
    return StreamQueue(NAME, redis, options=options, schema=None)


@asynccontextmanager
async def working(queue: StreamQueue) -> AsyncIterator[asyncio.Event]:
    """A worker whose handler does what its job's name says; those that hang go on when the event is set."""
    await queue.open()  # a worker reads the options when it starts
    worker, go_on = StreamWorker(NAME, queue.redis, concurrency=10, consumer="ann"), asyncio.Event()

    @worker.handler()
    async def handle(job: StreamJob) -> object:
        await job.log("one line\nanother \x1b[31mred one")
        if job.name == "deny":
            raise PolicyDenied("no mails to \x1b[31mpeople\nwho said no")
        if job.name == "fail":
            raise ValueError("out of stock")
        if job.name == "hang":
            await go_on.wait()
        return {"sent": True}

    async with worker:
        yield go_on
        go_on.set()


async def put_everywhere(queue: StreamQueue) -> dict[str, str]:
    """One job in each state; by state, its id. The worker must be there, and stay until it is looked at."""
    made = {
        "running": await queue.add({"to": "ana"}, name="hang"),
        "dead": await queue.add({"to": "ben"}, name="deny", key="ben", tenant="acme"),
        "exhausted": await queue.add({"to": "carl"}, name="fail"),
        "completed": await queue.add({"to": "dora"}, result_ttl=60),
        "delayed": await queue.add({"to": "eve"}, delay=3600, priority=2),
        "waiting": await queue.add({"to": "ben"}, key="ben", tenant="acme"),
    }

    async def settled() -> bool:
        its = (await queue.metrics()).total
        return (its.pending, its.dead, its.done_total) == (1, 2, 1)

    await until(settled)
    return {state: job.id for state, job in made.items()}


async def test_every_command_is_explained() -> None:
    for name, command in group.commands.items():
        assert command.help, name
        assert all(option.help for option in command.params if isinstance(option, click.Option)), name
    shown = run("stream", "--help").stdout
    assert all(name in shown for name in ("ls", "show", "pending", "dead", "redrive", "discard"))


@EVERYWHERE
async def test_ls_and_show_say_how_a_queue_is_doing(shell: Shell, queue: StreamQueue) -> None:
    assert "No stream queues at" in shell.ok("ls")
    async with working(queue):
        await put_everywhere(queue)
        await queue.schedule("nightly", "0 3 * * *", {"to": "all"})
        (row,) = shell.json("ls")["queues"]
        assert (row["name"], row["lag"], row["pending"], row["delayed"], row["dead"]) == (NAME, 0, 1, 1, 2)
        assert re.search(r"mails +0 +1 +2 +1 +2 ", shell.ok("ls"))
        shown = shell.ok("show", NAME)
        for part in (
            "3 levels of priority, weights 6:3:1",
            "oldest lease renewed",
            "3 of 100 jobs",
            "0 retries, 5 deliveries; behind a dead job of their key, others wait",
            "0 retried, 2 died, 0 redriven in all",
            "ann: 1 job",
            "nightly: 0 3 * * * UTC, next in",
        ):
            assert part in shown
        value = shell.json("show", NAME)
        assert value["workers"] == [{"consumer": "ann", "pending": 1, "alive": True}]
        assert value["options"]["weights"] == [6, 3, 1]
        assert value["total"]["backlog"] == 3


async def test_looking_at_a_queue_changes_nothing_of_it(shell: Shell, redis: Connection) -> None:
    queue = StreamQueue("routed", redis, schema=None, route=Route(key="run"), options=StreamOptions(levels=4))
    await queue.add({"run": "r1"})
    before = await redis.command("HGETALL", queue.home.meta)
    for command in (("ls",), ("show", "routed"), ("metrics", "routed"), ("dead", "routed")):
        shell.ok(*command)
    assert await redis.command("HGETALL", queue.home.meta) == before
    job_id = shell.ok("add", "routed", '{"run": "r1"}').strip()
    assert (await queue.look(job_id)).key == "r1"


async def test_pending_dead_and_job(shell: Shell, queue: StreamQueue) -> None:
    async with working(queue):
        ids = await put_everywhere(queue)
        (job,) = shell.json("pending", NAME)["jobs"]
        assert (job["id"], job["consumer"], job["deliveries"]) == (ids["running"], "ann", 1)
        assert re.search(rf"{ids['running']} +ann ", shell.ok("pending", NAME))

        letters = {letter["id"]: letter for letter in shell.json("dead", NAME)["letters"]}
        assert letters[ids["dead"]]["reason"] == "policy"
        assert letters[ids["exhausted"]]["last_error"] == "ValueError: out of stock"
        shown = shell.ok("dead", NAME, COLUMNS="300")
        assert "no mails to \\x1b[31mpeople who said no" in shown
        assert "\x1b" not in shown
        (only,) = shell.json("dead", NAME, "--reason", "exhausted")["letters"]
        assert only["id"] == ids["exhausted"]
        assert "one of permanent, policy" in shell.error("dead", NAME, "--reason", "boredom")

        for state in ("running", "dead", "delayed", "waiting", "completed"):
            assert shell.json("job", NAME, ids[state])["state"] == state
        shown = shell.ok("job", NAME, ids["dead"])
        for part in ("policy", "ben", "acme", '"to": "ben"', "another \\x1b[31mred one"):
            assert part in shown
        assert "\x1b" not in shown
        assert '"sent": true' in shell.ok("job", NAME, ids["completed"])
    assert "there is no job 1-1" in shell.error("job", NAME, "1-1")
    assert "job id" in shell.error("job", NAME, "nonsense")
    assert "there is no stream queue 'nothing'" in shell.error("show", "nothing")


async def test_add_waits_for_a_result(shell: Shell, queue: StreamQueue) -> None:
    async with working(queue):
        added = await asyncio.to_thread(shell.json, "add", NAME, '{"to": "ana"}', "--wait", "20s")
        assert added["result"] == {"sent": True}
        done = await asyncio.to_thread(shell.run, "add", NAME, "{}", "--name", "deny", "--wait", "20s")
        assert done.returncode == 1
        assert "is a dead letter (policy)" in done.stderr
    first = shell.json("add", NAME, "{}", "--unique", "once")
    again = shell.json("add", NAME, "{}", "--unique", "once")
    assert (again["id"], again["added"]) == (first["id"], False)
    assert "not JSON at column 2" in shell.error("add", NAME, "{to: ana}")
    assert "priority" in shell.error("add", NAME, "{}", "--priority", "-1")
    assert shell.piped('{"to": "pipe"}', "add", NAME, "-").strip() == (await queue_last(queue))


async def queue_last(queue: StreamQueue) -> str:
    (entry, _), *_ = await queue.redis.command("XREVRANGE", queue.home.level("0"), "+", "-", "COUNT", 1)
    return str(entry.decode())


async def test_add_is_refused_where_the_backlog_is_full(shell: Shell, queue: StreamQueue) -> None:
    await queue.add_bulk([AddJob(data=n) for n in range(100)])
    assert "FULL the backlog is 100 jobs of at most 100" in shell.error("add", NAME, "{}")


async def test_pause_resume_and_cancel(shell: Shell, queue: StreamQueue) -> None:
    await queue.open()
    assert shell.ok("pause", NAME) == "mails is paused.\n"
    assert shell.ok("pause", NAME) == "mails was paused already.\n"
    assert "paused" in shell.ok("ls")
    async with working(queue):
        job = await queue.add({}, name="hang")
        gone = await queue.add({}, delay=60)
        assert shell.json("resume", NAME) == {"queue": NAME, "paused": False, "changed": True}

        async def runs() -> bool:
            return await job.state() == "running"

        await until(runs)
        answer = shell.json("cancel", NAME, job.id, gone.id)
        assert answer == {"queue": NAME, "cancelled": {job.id: "asked", gone.id: "removed"}, "refused": {}}

        async def stopped() -> bool:
            return await job.state() == "cancelled"

        await until(stopped)
    done = shell.run("cancel", NAME, job.id, "1-1")
    assert done.returncode == 1
    assert done.stderr.count("error: there is no job") == 2


@EVERYWHERE
async def test_dead_letters_are_redriven_and_thrown_away(shell: Shell, queue: StreamQueue) -> None:
    async with working(queue):
        ids = await put_everywhere(queue)
    assert "takes the ids of jobs, or --all" in shell.error("redrive", NAME)
    assert "asks first" in shell.error("redrive", NAME, "--all")
    assert shell.ok("redrive", NAME, ids["exhausted"]) == "1 letter redriven.\n"
    assert await queue.job(ids["exhausted"]).state() == "ready"
    assert "no dead letter" in shell.run("redrive", NAME, ids["exhausted"]).stderr
    assert "asks first" in shell.error("discard", NAME, ids["dead"])
    assert shell.ok("discard", NAME, ids["dead"], "--yes") == "1 letter discarded.\n"
    assert await queue.job(ids["waiting"]).state() == "ready"  # what its key's dead head held up
    assert shell.ok("discard", NAME, "--all", "--yes") == "0 letters discarded, 0 left.\n"


async def test_all_dead_letters_at_once(shell: Shell, queue: StreamQueue) -> None:
    await queue.add_bulk([AddJob(data=n, name="deny" if n % 2 else "fail") for n in range(60)])
    async with working(queue):

        async def dead() -> bool:
            return (await queue.metrics()).total.dead == 60

        await until(dead)
    assert shell.ok("redrive", NAME, "--all", "--reason", "policy", "--yes") == (
        "30 letters redriven, 30 left.\n"
    )
    await queue.add_bulk([AddJob(data=n) for n in range(60)])
    done = shell.run("redrive", NAME, "--all", "--yes")  # 30 do not fit into what is left of 100
    assert (done.returncode, done.stdout) == (1, "Stopped: 0 letters redriven, 30 left.\n")
    assert "FULL the backlog is 90 jobs of at most 100" in done.stderr
    assert shell.json("discard", NAME, "--all", "--yes")["discarded"] == 30


async def test_a_terminal_is_asked_first(shell: Shell, queue: StreamQueue) -> None:
    job = await queue.add({}, name="deny")
    async with working(queue):

        async def dead() -> bool:
            return await job.state() == "dead"

        await until(dead)
    question = "Throw all 1 letter of mails away, for good? [y/N]: "
    code, screen = on_terminal(shell, "discard", NAME, "--all", say=[(question, "n\n")])
    assert code == 1
    assert "nothing was changed" in screen
    code, screen = on_terminal(shell, "discard", NAME, "--all", say=[(question, "y\n")])
    assert code == 0
    assert "1 letter discarded, 0 left." in screen


@pytest.mark.parametrize("columns", [60])
async def test_tables_fit_the_screen(shell: Shell, queue: StreamQueue, columns: int) -> None:
    async with working(queue):
        await put_everywhere(queue)
        for command in (("ls",), ("dead", NAME)):
            code, screen = on_terminal(shell, *command, columns=columns)
            assert code == 0
            lines = re.sub(r"\x1b\[[0-9;]*m", "", screen).replace("\r", "").split("\n")
            assert max(map(len, lines)) <= columns, command


async def test_schedules(shell: Shell, queue: StreamQueue) -> None:
    made = shell.json("schedule", NAME, "nightly", "0 3 * * *", "{}", "--timezone", "Europe/Madrid")
    assert (made["id"], made["timezone"]) == ("nightly", "Europe/Madrid")
    assert "nightly" in shell.ok("schedules", NAME)
    assert "five fields" in shell.error("schedule", NAME, "odd", "every day", "{}")
    assert "time zone" in shell.error("schedule", NAME, "odd", "* * * * *", "{}", "--timezone", "Mars")
    assert "asks first" in shell.error("unschedule", NAME, "nightly")
    assert shell.ok("unschedule", NAME, "nightly", "--yes") == "Schedule nightly has ended.\n"
    assert "there is no schedule" in shell.run("unschedule", NAME, "nightly", "--yes").stderr
    assert await queue.schedules() == []


async def test_metrics_for_a_person_a_program_and_prometheus(shell: Shell, queue: StreamQueue) -> None:
    await queue.add({"to": "ana"}, priority=1)
    assert shell.json("metrics", NAME)["total"]["lag_by_level"] == [0, 1, 0]
    assert re.search(r"^backlog +1 *$", shell.ok("metrics", NAME), re.MULTILINE)
    text = shell.ok("metrics", NAME, "--prometheus")
    assert 'toril_stream_ready{queue="mails",level="1"} 1\n' in text
    assert 'toril_stream_added_total{queue="mails"} 1\n' in text
    assert 'toril_stream_drain_seconds{queue="mails"} +Inf\n' in text
    names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(names) == len(set(names)) > 20


async def test_trim_tells_of_jobs_that_somebody_deleted(shell: Shell, queue: StreamQueue) -> None:
    job = await queue.add({})
    await queue.add({})
    assert shell.json("trim", NAME) == {"queue": NAME, "trimmed": 0, "lost": 0}
    await queue.redis.command("XDEL", queue.home.level("0"), job.id)
    done = shell.run("trim", NAME)
    assert "1 job of 'mails' was deleted by somebody before it was done" in done.stderr
    assert "deleted from the stream by somebody" in shell.ok("show", NAME)


APP = """
from toril.queue import Worker
from toril.stream import StreamWorker

stream = StreamWorker("mails", concurrency=3)
queue = Worker("{cli}", concurrency=2)
workers = [queue, stream]

@queue.handler()
async def nothing(job): ...

@stream.handler()
async def send(job):
    return {"sent": job.data["to"]}
"""


async def test_toril_worker_serves_stream_queues_too(
    tmp_path: Path, shell: Shell, queue: StreamQueue
) -> None:
    with running_worker(tmp_path, shell.url, app=APP) as process:
        assert process.stdout is not None
        assert "working on mails, 3 at once" in process.stdout.readline()
        job = await queue.add({"to": "ana"}, result_ttl=60)
        assert await job.result(timeout=20) == {"sent": "ana"}
        process.terminate()
        assert "SIGTERM: finishing what is under way" in process.stdout.readline()
        assert "closed" in process.stdout.readline()
        assert process.wait(timeout=20) == 0
    assert not any(each.alive for each in await queue.workers())


def test_what_is_no_worker_is_refused() -> None:
    assert "it names a module and a Worker or StreamWorker" in run("worker", "json:loads").stderr
