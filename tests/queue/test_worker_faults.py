"""One thing goes wrong for a worker, and its jobs end all the same: locks, servers, handlers, wake-ups."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.queue.audit import Audit, describe, until, until_state
from tests.queue.crew import Victim
from tests.queue.victim import Settings, answer_late
from toril import Connection, connect, make_queue_name
from toril.queue import AddJob, Job, JobOptions, Queue, Worker
from toril.queue.store import wall_clock
from toril.testing import Cluster, Server, standalone

NAME = make_queue_name("faults")


# ---------------------------------------------------------------------- a lock that was lost


async def test_no_job_lost_a_worker_that_lost_its_lock_cannot_finish(
    server: Server | Cluster, redis: Connection
) -> None:
    """It was stopped, and goes on as if nothing had happened: while another works on its job, when that is
    done, and when it is gone."""
    queue = Queue(NAME, redis)
    settings = Settings(
        url=server.url, queue=NAME, name="slow", concurrency=3, lock_ms=5000, sweep_ms=200, stubborn=True
    )
    victim = Victim(settings)
    other = Worker(NAME, redis, concurrency=3, stalled_interval=200, max_stalled_count=10)
    begun, go_on = asyncio.Event(), asyncio.Event()

    @other.handler()
    async def take_over(job: Job) -> str:
        if job.id == "running":
            begun.set()
            await go_on.wait()
        return "other"

    try:
        await victim.start()
        for name in ("running", "done", "gone"):
            await queue.add("gate", {}, JobOptions(job_id=name, remove_on_complete=name == "gone" or None))
            await victim.until(f"run {name}")
        victim.signal(signal.SIGSTOP)
        async with other:
            await asyncio.wait_for(begun.wait(), 20)
            await until_state(queue, "done", "completed")
            await until_state(queue, "gone", "unknown")
            lock = await redis.command("GET", queue.keys.lock("running"))
            victim.signal(signal.SIGCONT)
            await redis.command("RPUSH", queue.keys["victim:gate:slow"], 1, 2, 3)
            await victim.until("error Lock mismatch for job running. Cmd moveToFinished")
            await victim.until("error Missing lock for job done. moveToFinished")
            await victim.until("error Missing key for job gone. moveToFinished")
            assert await queue.state("running") == "active"
            assert await redis.command("GET", queue.keys.lock("running")) == lock
            go_on.set()
            await until_state(queue, "running", "completed")
            assert await victim.close() == 0
    finally:
        await victim.kill()
    audit = await Audit.of(queue)
    assert audit.ended.pop(("completed", "gone")) == 1
    audit.check({"running": "completed", "done": "completed"})
    for name in ("running", "done"):
        assert audit.counts[name] == (2, 1, 1)
        found = await queue.job(name)
        assert found is not None
        assert found.return_value == "other"


async def test_no_job_lost_a_stalled_job_may_come_back_to_its_own_worker(redis: Connection) -> None:
    """Of two runs of one job in one worker, the one without the lock is stopped, and only that."""
    queue = Queue(NAME, redis)
    worker = Worker(NAME, redis, concurrency=2, lock_duration=2000, stalled_interval=60_000)
    runs: asyncio.Queue[str] = asyncio.Queue()
    stopped: list[str] = []
    go_on = asyncio.Event()

    @worker.handler()
    async def work(job: Job) -> str:
        runs.put_nowait(job.token)
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            stopped.append(job.token)
            raise
        return job.token

    lost = asyncio.Event()
    worker.on("lock_lost")(lambda _: lost.set())
    async with worker:
        job = (await queue.add("work")).id
        first = await runs.get()
        # As when the server was out of reach for longer than the lock lasts, and another worker's sweep
        # came before this one's renewal.
        await redis.command("DEL", queue.keys.lock(job))
        await redis.command("SADD", queue.keys.stalled, job)
        await redis.command("DEL", queue.keys.stalled_check)
        assert await queue.store.sweep(10, 1) == [job]
        second = await asyncio.wait_for(runs.get(), 10)
        await asyncio.wait_for(lost.wait(), 10)
        go_on.set()
        await until_state(queue, job, "completed")
    assert stopped == [first]
    found = await queue.job(job)
    assert found is not None
    assert found.return_value == second


# ---------------------------------------------------------------------- a server that is away


async def test_no_job_lost_when_the_server_restarts(binary: Path | None) -> None:
    """Jobs end while there is no server; it is told when there is one."""
    with standalone({"appendonly": "yes", "appendfsync": "always"}, binary=binary) as server:
        async with connect(server.url) as redis:
            queue = Queue(NAME, redis)
            worker = Worker(NAME, redis, concurrency=10)
            runs = Counter[str]()
            full, go_on = asyncio.Event(), asyncio.Event()

            @worker.handler()
            async def work(job: Job) -> None:
                runs[job.id] += 1
                if len(runs) >= 10:
                    full.set()
                await go_on.wait()

            async with worker:
                jobs = [job.id for job in await queue.add_bulk([AddJob("work")] * 50)]
                await asyncio.wait_for(full.wait(), 10)
                await asyncio.to_thread(server.kill)
                go_on.set()
                await asyncio.to_thread(server.start)
                for job in jobs:
                    await until_state(queue, job, "completed")
            audit = await Audit.of(queue)
            audit.check(dict.fromkeys(jobs, "completed"))
            assert runs == Counter(jobs)
            assert set(audit.counts.values()) == {(1, 1, 0)}


async def test_no_job_lost_when_the_server_refuses_writes_for_a_while(binary: Path | None) -> None:
    """Its disk is full: it answers MISCONF to every write, until somebody has made room."""
    with standalone(binary=binary) as server:
        async with connect(server.url) as redis:
            queue = Queue(NAME, redis)
            worker = Worker(NAME, redis, concurrency=2, drain_delay=0.2)
            begun, go_on, refused = asyncio.Event(), asyncio.Event(), asyncio.Event()
            worker.on("error")(lambda problem: refused.set() if "MISCONF" in str(problem) else None)

            @worker.handler()
            async def work(job: Job) -> None:  # noqa: ARG001
                begun.set()
                await go_on.wait()

            async with worker:
                job = (await queue.add("work")).id
                await asyncio.wait_for(begun.wait(), 10)
                in_the_way = server.folder / "dump.rdb"
                in_the_way.mkdir()
                await snapshot(server, b"err", "3600 1")
                go_on.set()
                await asyncio.wait_for(refused.wait(), 10)
                in_the_way.rmdir()
                await snapshot(server, b"ok", "")
                await until_state(queue, job, "completed")
                await until_state(queue, (await queue.add("work")).id, "completed")


async def test_no_job_lost_behind_an_id_that_is_no_text(redis: Connection) -> None:
    queue = Queue(NAME, redis)
    await redis.command("RPUSH", queue.keys.wait, b"\xff")
    job = (await queue.add("work")).id
    assert await queue.ids("waiting", oldest_first=True) == ["\N{REPLACEMENT CHARACTER}", job]
    worker = Worker(NAME, redis)
    worker.handler()(lambda job: None)  # noqa: ARG005
    async with worker:
        await until_state(queue, job, "completed")


async def test_no_job_lost_beside_one_whose_parent_is_broken(redis: Connection) -> None:
    """Given up in one step: the one that cannot be stays where it is seen, and the others end."""
    queue = Queue(NAME, redis)
    worker = Worker(NAME, redis, concurrency=20, lock_duration=60_000, stalled_interval=60_000)
    together, problems = asyncio.Event(), asyncio.Queue[BaseException]()
    worker.on("error")(problems.put_nowait)

    @worker.handler()
    async def work(job: Job) -> None:  # noqa: ARG001
        await together.wait()

    jobs = [job.id for job in await queue.add_bulk([AddJob("work")] * 9)]
    broken = jobs.pop(4)
    parent = queue.keys.job("parent")
    await redis.command("HSET", queue.keys.job(broken), "parentKey", parent)
    await redis.command("SET", queue.keys["parent:dependencies"], "no set")
    async with worker:
        while len(await queue.ids("active")) < 9:
            await asyncio.sleep(0.01)
        together.set()
        for job in jobs:
            await until_state(queue, job, "completed")
        assert "WRONGTYPE" in str(await asyncio.wait_for(problems.get(), 10))
        assert await queue.state(broken) == "active"
        await until_state(queue, (await queue.add("work")).id, "completed")
    assert len(await queue.ids("completed")) == 9


async def snapshot(server: Server, status: bytes, save: str) -> None:
    """Let a server save its data, with that result."""
    server.ask("CONFIG", "SET", "save", save)
    server.ask("BGSAVE")

    async def saved() -> bool:
        return b"rdb_last_bgsave_status:" + status in server.ask("INFO", "persistence")

    await until(saved, "a snapshot")


# ---------------------------------------------------------------------- closing


async def test_no_job_lost_a_close_may_meet_a_step_on_its_way(redis: Connection) -> None:
    """Whenever close is called: what was taken is completed or handed back, and no handler runs on."""
    queue = Queue(NAME, redis)
    jobs = [job.id for job in await queue.add_bulk([AddJob("work")] * 60)]
    for turns in range(40):
        worker = Worker(NAME, redis, concurrency=1 + turns % 3)
        running = 0

        @worker.handler()
        async def work(job: Job) -> None:  # noqa: ARG001
            nonlocal running
            running += 1
            try:
                await asyncio.sleep(0.02)
            finally:
                running -= 1

        await worker.start()
        for _ in range(turns):
            await asyncio.sleep(0)
        await worker.close(grace=0.01 * (turns % 2))
        assert running == 0
        left = await queue.ids("active")
        assert not left, f"closed after {turns} turns of the loop: {await describe(queue, left)}"
    audit = await Audit.of(queue)
    assert audit.hashes == set(jobs)
    assert not audit.locks


# ---------------------------------------------------------------------- nothing gets stuck


async def test_no_job_lost_that_is_cancelled_before_it_begins(redis: Connection) -> None:
    queue = Queue(NAME, redis)
    worker = Worker(NAME, redis)
    worker.handler()(lambda job: None)  # noqa: ARG005
    worker.on("active")(lambda job: worker.cancel(job.id, "not wanted") if job.name == "bad" else None)
    async with worker:
        bad, good = (await queue.add("bad")).id, (await queue.add("good")).id
        await until_state(queue, bad, "failed")
        await until_state(queue, good, "completed")
    found = await queue.job(bad)
    assert found is not None
    assert found.failed_reason == "not wanted"


@pytest.mark.parametrize("kind", ["stop-iteration", "exit", "surrogates", "cancelled-inside"])
async def test_no_job_lost_whatever_a_handler_raises(redis: Connection, kind: str) -> None:
    """It is a failure, which is tried again, and not a job that hangs."""
    queue = Queue(NAME, redis)
    worker = Worker(NAME, redis, lock_duration=60_000)

    @worker.handler("stop-iteration")
    def stop(job: Job) -> str:
        return "fine" if job.attempts_made else next(iter(()))

    @worker.handler("exit")
    def leave(job: Job) -> str:
        return "fine" if job.attempts_made else sys.exit("enough")

    @worker.handler("surrogates")
    async def name_a_file(job: Job) -> str:
        if job.attempts_made:
            return "fine"
        raise FileNotFoundError(os.fsdecode(b"no such file: \xff"))

    @worker.handler("cancelled-inside")
    async def cancel(job: Job) -> str:
        if job.attempts_made:
            return "fine"
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await task
        return "never"

    async with worker:
        job = (await queue.add(kind, {}, JobOptions(attempts=2))).id
        await until_state(queue, job, "completed", 5)


async def test_a_killed_worker_leaves_no_process_behind(redis: Connection) -> None:
    """A handler in a process of its own would compute for ever, and nobody would stop it."""
    queue = Queue(NAME, redis)
    victim = Victim(Settings(url=redis.url, queue=NAME, name="parent"))
    computes = 0
    try:
        await victim.start()
        await queue.add("compute")
        await victim.until("computes")
        computes = int(next(line for line in victim.said if line.startswith("computes")).split()[1])
        await asyncio.wait_for(victim.kill(), 10)  # all who share its output are gone then
    except BaseException:
        if computes:
            os.kill(computes, signal.SIGKILL)
        raise
    finally:
        await victim.kill()


async def test_a_process_answers_for_its_own_job(server: Server | Cluster, redis: Connection) -> None:
    """What a handler's process still says of a job that is over is not taken for the next one's result."""
    queue = Queue(NAME, redis)
    primary = server.primary_of(queue.keys.meta) if isinstance(server, Cluster) else server
    worker = Worker(NAME, redis)
    worker.handler(in_process=True)(answer_late)

    @worker.on("active")
    def remove(job: Job) -> None:
        if job.data == 0:  # so that its progress cannot be noted
            primary.ask("DEL", queue.keys.job(job.id))

    async with worker:
        jobs = [job.id for job in await queue.add_bulk([AddJob("report", number) for number in range(3)])]
        for number, job in enumerate(jobs[1:], start=1):
            await until_state(queue, job, "completed")
            found = await queue.job(job)
            assert found is not None
            assert found.return_value == number


async def test_a_delayed_job_runs_when_it_is_due(redis: Connection) -> None:
    """While others come and go, too: not when a worker that has nothing to do looks by itself."""
    queue = Queue(NAME, redis)
    worker = Worker(NAME, redis, concurrency=5, drain_delay=60)
    late: dict[str, int] = {}

    @worker.handler()
    async def work(job: Job) -> None:
        late[job.id] = wall_clock() - job.timestamp - job.opts.get("delay", 0)
        if job.data:
            await queue.add("short", job.data - 1, JobOptions(delay=40))

    async with worker:
        for number in range(10):
            await queue.add("long", 0, JobOptions(delay=250 + 20 * number))
        await queue.add_bulk([AddJob("short", 10)] * 2)

        async def all_begun() -> bool:
            return len(late) == 32

        await until(all_begun, "all jobs to begin")


async def blocked(redis: Connection, queue: Queue, count: int) -> None:
    """Wait until so many workers wait for the queue's marker."""

    async def waiting() -> bool:
        info: bytes = await redis.command("INFO", "clients", near=queue.keys.meta)
        return f"blocked_clients:{count}\r\n".encode() in info

    await until(waiting, f"{count} workers to wait")


@pytest.mark.parametrize("how", ["paused", "closing"])
async def test_a_wake_up_reaches_a_worker_that_can_use_it(redis: Connection, how: str) -> None:
    """A worker that takes no jobs must not keep the news of one from those that do."""
    queue = Queue(NAME, redis)
    first, second = Worker(NAME, redis, concurrency=2, drain_delay=60), Worker(NAME, redis, drain_delay=60)
    begun, go_on, got = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @first.handler()
    async def hold(job: Job) -> None:  # noqa: ARG001
        begun.set()
        await go_on.wait()

    @second.handler()
    async def take(job: Job) -> None:  # noqa: ARG001
        got.set()

    async with first, second:
        second.pause()
        await queue.add("held")
        await asyncio.wait_for(begun.wait(), 5)
        second.resume()
        await blocked(redis, queue, 2)
        closing = asyncio.create_task(first.close()) if how == "closing" else None
        if closing is None:
            first.pause()
        else:
            await asyncio.sleep(0)  # let it begin
        await queue.add("news")
        try:
            await asyncio.wait_for(got.wait(), 5)
        finally:
            go_on.set()
            if closing is not None:
                await closing
