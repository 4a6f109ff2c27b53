"""Copying while others go on: old producers and workers, and a new queue that has jobs of its own."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.migrate import rig
from tests.migrate.migrator import Migrator
from tests.migrate.stage import NEW, OLD, Stage
from tests.waiting import until
from toril.keyspace import OLD_TRACKER, QueueKeys
from toril.migrate import Copier, MigrationError, Move, Moves, Superseded, WorkersConnected, rollback
from toril.queue import AddJob, Queue

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions of a few jobs, so that few jobs are many portions."""
    monkeypatch.setattr("toril.migrate.copying.PORTION", 5)
    monkeypatch.setattr("toril.migrate.reading.IDS", 7)


@pytest.mark.usefixtures("small_steps")
async def test_order_kept_old_jobs_come_before_those_of_the_new_queue(stage: Stage) -> None:
    old = await stage.add(count=23)
    urgent = await stage.add(count=4, priority=5)
    await stage.redis.command("SET", QueueKeys(NEW).id, 1000)
    own = await stage.add(NEW, count=3)
    own_urgent = await stage.add(NEW, count=2, priority=5)
    assert (await stage.copy()).total == 27
    own += await stage.add(NEW, count=2)
    late = await stage.add(OLD, count=8)
    assert (await stage.copy()).total == 8
    assert await stage.work_off() == old + late + own + urgent + own_urgent


@pytest.mark.usefixtures("small_steps")
async def test_order_kept_behind_more_jobs_than_can_be_passed_by(stage: Stage) -> None:
    """Putting old jobs before all these would hold the server up, with every step."""
    await stage.redis.command("SET", QueueKeys(NEW).id, 1_000_000)
    new = Queue(NEW, stage.redis)
    own = [job.id for job in await new.add_bulk([AddJob("own") for _ in range(10_050)])]
    old = await stage.add(count=23)
    assert (await stage.copy()).total == 23
    own_later = await stage.add(NEW, count=3)
    late = await stage.add(count=8)
    assert (await stage.copy()).total == 8
    waiting = await stage.redis.command("LRANGE", QueueKeys(NEW).wait, 0, -1)
    assert [each.decode() for each in reversed(waiting)] == own + old + late + own_later


async def test_migrate_whole_while_old_producers_go_on(stage: Stage) -> None:
    added = await stage.add(count=20)
    stop = asyncio.Event()
    copier = stage.copier()
    following = asyncio.create_task(copier.follow(stop.is_set))
    for _ in range(10):
        added += await stage.add(count=3)
    flow = await stage.node.call(
        "addFlow",
        flow={"name": "top", "queueName": OLD, "children": [{"name": "child", "queueName": OLD, "data": {}}]},
    )
    assert flow

    async def arrived() -> bool:
        return copier.reports[0].total == len(added) + 2

    await until(arrived)
    stop.set()
    await following
    done = await stage.work_off()
    assert done[: len(added)] == added
    assert len(done) == len(added) + 2  # the child, and then its parent
    assert (await stage.verify()).reasons() == []


async def test_migrate_whole_while_new_workers_run_what_arrives(
    stage: Stage, migrator: Migrator, rng: random.Random
) -> None:
    added = await stage.add(count=300, removeOnComplete=True)
    await stage.node.call(
        "startWorker", name="w", queue=NEW, processor={"kind": "ok"}, worker={"concurrency": 1}
    )
    task = {"url": stage.redis.url, "names": {OLD: NEW}, "verb": "copy"}
    await rig.with_kills(migrator, rng, **task)
    added += await stage.add(count=50, removeOnComplete=True)
    await rig.with_kills(migrator, rng, **task)
    await stage.node.call("until", name="w", event="completed", count=len(added), timeout=30_000)
    seen = await stage.node.call("stop", name="w")
    assert [entry["job"] for entry in seen if entry["event"] == "run"] == added
    assert (await stage.verify()).reasons() == []


async def test_old_workers_finish_what_they_have_and_take_nothing_new(stage: Stage) -> None:
    first, *others = await stage.add(count=3)
    await stage.node.call(
        "startWorker", name="w", queue=OLD, processor={"kind": "gate"}, worker={"name": "reader"}
    )
    await stage.node.call("until", name="w", event="run", job=first)
    with pytest.raises(WorkersConnected, match=r"'mail'.*reader at 127"):
        await stage.copy(pause=False)
    report = await stage.copy()
    assert (report.total, report.busy) == (2, 1)
    assert any(worker.startswith("reader at ") for worker in report.workers or ())
    await stage.node.call("release", name="w", job=first)
    await stage.node.call("until", name="w", event="completed", job=first)
    report = await stage.copy()
    assert (report.copied["completed"], report.left) == (1, 0)
    seen = await stage.node.call("stop", name="w")
    assert [entry["job"] for entry in seen if entry["event"] == "run"] == [first]
    assert await stage.work_off() == others
    assert await stage.state(NEW, first) == "completed"


async def test_a_parent_waits_until_its_child_is_not_worked_on(stage: Stage) -> None:
    child = {"name": "c", "queueName": OLD, "data": {}, "opts": {"jobId": "c"}}
    flow = {"name": "top", "queueName": OLD, "opts": {"jobId": "top"}, "children": [child]}
    await stage.node.call("addFlow", flow=flow)
    assert await stage.fetch(OLD, "t") == "c"
    report = await stage.copy()
    assert (report.total, report.busy) == (0, 2)
    await stage.node.call(
        "complete", queue=OLD, job={"held": "t"}, token="t", value=7, fetchNext=False, worker={}
    )
    assert (await stage.copy()).left == 0
    assert await stage.work_off() == ["top"]
    assert await stage.node.call("getChildrenValues", queue=NEW, job="top") == {f"bull:{NEW}:c": 7}


async def test_locked_jobs_are_taken_on_request(stage: Stage) -> None:
    (ident,) = await stage.add()
    await stage.fetch(OLD, "t")
    assert (await stage.copy()).busy == 1
    assert (await stage.copy(take_active=True)).copied == {"active": 1}
    assert await stage.state(NEW, ident) == "active"


async def test_nothing_is_copied_twice_after_the_copies_are_gone(stage: Stage) -> None:
    await stage.add(count=5, removeOnComplete=True)
    await stage.copy()
    assert len(await stage.work_off()) == 5
    report = await stage.copy()
    assert (report.total, report.already) == (0, 5)
    check = await stage.verify()
    assert (check.gone_on["waiting"], check.reasons()) == (5, [])


async def test_ids_that_meet_are_reported_and_renumbered_on_request(stage: Stage) -> None:
    await stage.add(NEW, removeOnComplete=True)
    await stage.add(count=2)
    report = await stage.copy()
    assert [(problem.queue, problem.job) for problem in report.problems] == [(OLD, "1")]
    assert "another job has this id" in report.problems[0].what
    (own,) = await stage.add(NEW)
    assert int(own) > 1_000_000  # beyond what old producers give out
    report = await stage.copy(renumber=True)
    assert (report.renumbered, report.left) == (1, 0)
    assert len(await stage.work_off()) == 4
    assert (await stage.verify()).reasons() == []


async def test_two_at_once_the_last_one_goes_on(stage: Stage) -> None:
    await stage.add(count=3)
    first = stage.copier()
    await first._begin()
    await stage.copy()
    await stage.add()
    with pytest.raises(Superseded, match="another process has taken over"):
        await first.look()
    assert (await stage.copy()).total == 1


async def test_what_an_older_tool_has_copied_stays_copied(stage: Stage) -> None:
    await stage.add(count=3)
    await stage.redis.command("SADD", OLD_TRACKER, f"{OLD}:1", f"{OLD}:3")
    await stage.copy()
    assert await stage.work_off() == ["2"]
    assert (await stage.verify()).reasons() == []


async def test_a_paused_queue_arrives_paused_with_its_limits(stage: Stage) -> None:
    await stage.add()
    await stage.node.call("setGlobalConcurrency", queue=OLD, concurrency=3)
    await stage.node.call("pause", queue=OLD)
    await stage.copy()
    assert await stage.node.call("isPaused", queue=NEW)
    assert await stage.node.call("getGlobalConcurrency", queue=NEW) == 3
    await stage.node.call("resume", queue=NEW)
    assert await stage.work_off() == ["1"]


async def test_a_debounced_job_replaces_its_copy(stage: Stage) -> None:
    dedup: dict[str, Any] = {"id": "d", "ttl": 60_000, "extend": True, "replace": True}
    await stage.add(delay=60_000, deduplication=dedup)
    await stage.copy()
    (newer,) = await stage.add(delay=60_000, deduplication=dedup)
    await stage.copy()
    counts = await stage.node.call("getJobCounts", queue=NEW)
    assert counts["delayed"] == 1
    assert await stage.node.call("getDeduplicationJobId", queue=NEW, deduplicationId="d") == newer


async def test_a_scheduler_that_the_new_code_has_made_stays(stage: Stage) -> None:
    every = {"every": 3_600_000, "startDate": 4_000_000_000_000}
    for queue in (OLD, NEW):
        await stage.node.call(
            "upsertJobScheduler", queue=queue, scheduler="s", repeat=every, template={"name": queue}
        )
    report = await stage.copy()
    assert (report.superseded, report.schedulers, report.left) == (1, 0, 0)
    counts = await stage.node.call("getJobCounts", queue=NEW)
    assert counts["delayed"] == 1
    assert (await stage.verify()).reasons() == []


async def test_an_id_without_a_job_is_no_obstacle(stage: Stage) -> None:
    await stage.add(count=2)
    await stage.redis.command("DEL", QueueKeys(OLD).job("1"))
    report = await stage.copy()
    assert (report.missing, report.left) == (1, 0)
    assert (await stage.verify()).reasons() == []
    assert await stage.work_off() == ["2"]


async def test_an_unreadable_job_stops_nobody_else(stage: Stage) -> None:
    await stage.add(count=3)
    await stage.redis.command("DEL", QueueKeys(OLD).job("2"))
    await stage.redis.command("SET", QueueKeys(OLD).job("2"), "no hash")
    report = await stage.copy()
    assert (report.total, [problem.job for problem in report.problems]) == (2, ["2"])
    assert await stage.work_off() == ["1", "3"]


async def test_an_id_that_is_no_text_stops_nobody_else(stage: Stage) -> None:
    await stage.add()
    await stage.redis.command("LPUSH", QueueKeys(OLD).wait, b"\xff7")
    await stage.add()
    assert (await stage.copy()).total == 2
    report = await stage.copy()
    (problem,) = report.problems
    assert (problem.job, problem.what) == ("\\xff7", "its id is not text in UTF-8")
    assert (report.already, report.left) == (2, 1)
    assert (await stage.verify()).reasons() == ["1 job of 'mail' not copied"]
    (done,) = await rollback(stage.redis, stage.redis, stage.moves)
    assert (done.back, done.whole) == (2, True)
    assert await stage.redis.command("LRANGE", QueueKeys(OLD).wait, 0, -1) == [b"2", b"\xff7", b"1"]


async def test_two_queues_cannot_fill_one(stage: Stage) -> None:
    await stage.add(count=1)
    await stage.copy()
    await stage.add("other")
    moves = Moves([Move(QueueKeys("other"), QueueKeys(NEW))])
    with pytest.raises(Exception, match="filled from bull:mail"):
        await Copier(stage.redis, stage.redis, moves).copy()


@pytest.mark.parametrize("queue", [OLD, NEW])
async def test_queues_of_bullmq_6_are_refused(stage: Stage, queue: str) -> None:
    await stage.add()
    await stage.redis.command("HSET", QueueKeys(queue).meta, "version", "bullmq:6.0.1")
    with pytest.raises(MigrationError, match=r"belongs to bullmq:6.0.1"):
        await stage.copy()
    assert await stage.state(OLD, "1") == "waiting"
