"""Cleanup refuses in each unsafe case, and otherwise removes exactly what was copied."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.migrate.stage import NEW, OLD, Stage
from tests.waiting import until
from toril.keyspace import QueueKeys
from toril.migrate import MigrationError, NotSafe, rollback, verify

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def not_copied(stage: Stage) -> None:
    await stage.add()


async def added_later(stage: Stage) -> None:
    await stage.copy()
    await stage.add()


async def being_worked_on(stage: Stage) -> None:
    await stage.add(count=2)
    await stage.fetch(OLD, "t")
    await stage.copy()


async def changed_later(stage: Stage) -> None:
    (ident,) = await stage.add()
    await stage.copy()
    await stage.node.call("updateData", queue=OLD, job=ident, data={"n": 2})


async def damaged_copy(stage: Stage) -> None:
    (ident,) = await stage.add()
    await stage.copy()
    await stage.redis.command("HSET", QueueKeys(NEW).job(ident), "data", '{"n": "other"}')


async def lost_from_its_state(stage: Stage) -> None:
    await stage.add(count=3)
    await stage.copy()
    await stage.redis.command("LPOP", QueueKeys(NEW).wait)


async def linked_outside(stage: Stage) -> None:
    child = {"name": "c", "queueName": OLD, "data": {}, "opts": {"jobId": "c"}}
    await stage.node.call("addFlow", flow={"name": "top", "queueName": "other", "children": [child]})
    report = await stage.copy()
    assert [(each.job, "not moved along" in each.what) for each in report.problems] == [("c", True)]


async def filled_from_another(stage: Stage) -> None:
    await stage.add()
    await stage.copy()
    await stage.redis.command("HSET", QueueKeys(NEW).migration, "source", "bull:other")


async def collided(stage: Stage) -> None:
    await stage.add(NEW)
    await stage.add()
    report = await stage.copy()
    assert [problem.job for problem in report.problems] == ["1"]


async def scheduler_not_copied(stage: Stage) -> None:
    await stage.add()
    await stage.copy()
    await stage.node.call(
        "upsertJobScheduler", queue=OLD, scheduler="s", repeat={"every": 3_600_000}, template={"name": "s"}
    )
    await stage.redis.command("DEL", QueueKeys(OLD).delayed)


async def being_rolled_back(stage: Stage) -> None:
    await stage.add(count=2)
    await stage.copy()
    await stage.fetch(NEW, "t")
    (done,) = await rollback(stage.redis, stage.redis, stage.moves)
    assert done.busy == 1


UNSAFE: dict[str, tuple[Callable[[Stage], Awaitable[None]], str]] = {
    "not copied": (not_copied, "'mail' was not copied"),
    "added later": (added_later, "1 job of 'mail' not copied"),
    "being worked on": (being_worked_on, "1 job of 'mail' being worked on by old workers"),
    "changed later": (changed_later, "1 job of 'mail' changed in the old queue after being copied"),
    "damaged": (damaged_copy, "1 job of 'mail' not the same in '{mail}'"),
    "in no state": (lost_from_its_state, "1 job of 'mail' in no state of '{mail}'"),
    "linked outside": (linked_outside, "1 job of 'mail' not copied"),
    "another's copy": (filled_from_another, "'mail' was not copied"),
    "collided": (collided, "1 job of 'mail' not copied"),
    "scheduler": (scheduler_not_copied, "1 scheduler of 'mail' not copied"),
    "rolling back": (being_rolled_back, "'mail' is being rolled back"),
}


@pytest.mark.parametrize("case", UNSAFE)
async def test_cleanup_refuses(stage: Stage, case: str) -> None:
    make, reason = UNSAFE[case]
    await make(stage)
    before = stage.old_keys()
    with pytest.raises(NotSafe) as refused:
        await stage.cleanup(allow_workers=True)
    assert reason in refused.value.reasons
    assert stage.old_keys() == before
    assert not await asyncio.to_thread(stage.manifest.exists)


async def test_cleanup_refuses_while_old_workers_are_connected(stage: Stage) -> None:
    await stage.add()
    await stage.copy()
    await stage.node.call(
        "startWorker", name="w", queue=OLD, processor={"kind": "ok"}, worker={"name": "reader"}
    )
    with pytest.raises(NotSafe, match="old workers of 'mail' are connected: .*reader at "):
        await stage.cleanup()
    await stage.node.call("stop", name="w")

    async def gone() -> bool:
        return not (await stage.verify()).workers

    await until(gone)
    assert (await stage.cleanup()).removed


async def test_migrate_whole_cleanup_removes_exactly_the_old_keys(stage: Stage) -> None:
    await stage.add("mail-archive")
    await stage.add(count=250)
    await stage.add(count=3, delay=60_000)
    await stage.add(count=3, priority=2)
    await stage.add(deduplication={"id": "d", "ttl": 60_000})
    await stage.node.call("log", queue=OLD, job="1", row="hello")
    await stage.node.call(
        "upsertJobScheduler", queue=OLD, scheduler="s", repeat={"every": 3_600_000}, template={"name": "s"}
    )
    await stage.work_off(OLD)
    await stage.copy()
    before = stage.node.store.dump()
    done = await stage.cleanup(allow_workers=True)
    after = stage.node.store.dump()
    assert {
        name: key for name, key in before.items() if not name.startswith(f"bull:{OLD}:")
    }.keys() == after.keys()
    assert (done.left, done.added) == (0, 0)
    lines = await asyncio.to_thread(stage.manifest.read_text)
    written = [json.loads(line)["key"] for line in lines.splitlines()]
    assert len(written) == done.removed
    assert f"bull:{OLD}:1" in written
    assert f"bull:{OLD}:1:logs" in written
    with pytest.raises(MigrationError, match="were removed"):
        await rollback(stage.redis, stage.redis, stage.moves)


async def test_cleanup_leaves_what_comes_meanwhile(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.add(count=120)
    await stage.copy()

    async def then_add(*args: Any) -> Any:
        checks = await verify(*args)
        late.extend(await stage.add(count=2) + await stage.add(lifo=True))
        return checks

    late: list[str] = []
    monkeypatch.setattr("toril.migrate.cleaning.verify", then_add)
    done = await stage.cleanup()
    monkeypatch.undo()
    assert done.added >= 3
    assert {await stage.state(OLD, ident) for ident in late} == {"waiting"}
    assert (await stage.copy()).total == 3
    assert (await stage.cleanup()).added == 0
    assert stage.old_keys() == {}
    assert len(await stage.work_off()) == 123


async def test_a_late_job_under_a_used_id_is_another_job(stage: Stage) -> None:
    await stage.add(removeOnComplete=True)
    await stage.copy()
    assert await stage.work_off() == ["1"]
    await stage.cleanup(allow_workers=True)
    assert await stage.add() == ["1"]  # the old counter began anew
    assert (await stage.copy()).total == 1
    assert await stage.work_off() == ["1"]
    assert (await stage.copy()).total == 0
