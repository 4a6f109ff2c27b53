"""One job of a queue, and those it waits for."""

from __future__ import annotations

import pytest

from tests.conformance.store import Store
from tests.queue.by_hand import BASE, MINUTE, Clock, add_named, complete, events, fail, take, taken, unchanged
from toril.queue import Job, JobMissing, LockLost, Parent, ParentMissing, Queue, QueueError, WrongState

# ---------------------------------------------------------------------- one job


async def test_a_jobs_log(queue: Queue) -> None:
    (job,) = await add_named(queue, "a")
    assert [await job.log(line) for line in ("one", "two", "tres ✓")] == [1, 2, 3]
    assert await job.logs() == ["one", "two", "tres ✓"]
    assert await job.logs(0, 1) == ["one", "two"]
    assert await job.logs(0, 1, newest_first=True) == ["tres ✓", "two"]
    assert await job.logs(newest_first=True) == ["tres ✓", "two", "one"]
    await job.clear_logs(keep=2)
    assert await job.logs() == ["two", "tres ✓"]
    await job.clear_logs()
    assert await job.logs() == []
    (few,) = await add_named(queue, "b", keep_logs=2)
    assert [await few.log(line) for line in ("one", "two", "three")] == [1, 2, 2]
    assert await few.logs() == ["two", "three"]
    await few.remove()
    with pytest.raises(JobMissing):
        await few.log("four")


async def test_a_job_that_keeps_no_number_of_lines_keeps_all(queue: Queue) -> None:
    """As in Node: 0 is no limit."""
    (job,) = await add_named(queue, "a", keep_logs=0)
    assert [await job.log(line) for line in ("one", "two")] == [1, 2]


async def test_data_and_progress_can_be_replaced(queue: Queue, store: Store) -> None:
    (job,) = await add_named(queue, "a")
    await job.update_data({"n": 2})
    await job.update_progress({"half": True})
    read = await queue.job("a")
    assert read is not None
    assert (job.data, job.progress) == (read.data, read.progress) == ({"n": 2}, {"half": True})
    assert events(store)[-1] == {"event": "progress", "jobId": "a", "data": '{"half":true}'}
    await job.remove()
    for call in (job.update_data, job.update_progress):
        with unchanged(store), pytest.raises(JobMissing):
            await call(1)


async def test_a_job_is_removed_unless_it_is_being_worked_on(queue: Queue, store: Store) -> None:
    free, held = await add_named(queue, "a", "b")
    await free.remove()
    assert await queue.job("a") is None
    await take(queue)
    with unchanged(store), pytest.raises(QueueError, match="locked by another worker"):
        await held.remove()
    assert not await queue.remove("b")
    assert await queue.remove("nobody")


async def test_a_finished_job_runs_again(queue: Queue) -> None:
    done, bad, waiting = await add_named(queue, "a", "b", "c")
    await complete(queue)
    await fail(queue)
    await bad.retry()
    await done.retry("completed")
    assert await queue.ids("waiting", oldest_first=True) == ["c", "b", "a"]
    for job, state in ((bad, "failed"), (waiting, "completed")):
        with pytest.raises(WrongState, match=state):
            await job.retry(state)  # type: ignore[arg-type]
    await bad.remove()
    with pytest.raises(JobMissing):
        await bad.retry()


async def test_a_delayed_job_can_be_hurried_and_put_off(queue: Queue, clock: Clock) -> None:
    soon, late, never = await add_named(queue, "a", "b", "c", delay=1000)
    await late.change_delay(500)
    await never.change_delay(9000)
    clock.now += 1000
    assert await taken(queue) == ["b", "a"]
    await never.promote()
    assert await taken(queue) == ["c"]
    for call in (soon.promote(), soon.change_delay(5)):
        with pytest.raises(WrongState, match="delayed"):
            await call


async def test_a_waiting_job_can_change_its_priority(queue: Queue) -> None:
    a, _, c, d = await add_named(queue, "a", "b", "c", "d", priority=5)
    await c.change_priority(1)
    await d.change_priority(1, lifo=True)
    await a.change_priority()
    assert await taken(queue) == ["a", "d", "c", "b"]
    with pytest.raises(JobMissing):
        await Job(queue.store, "nobody", {}).change_priority(1)


async def test_a_lock_is_renewed_by_its_owner_only(queue: Queue, clock: Clock) -> None:
    await add_named(queue, "a")
    job = await take(queue, "mine")
    assert await job.extend_lock(MINUTE)
    assert not await job.extend_lock(MINUTE, "another's")
    with pytest.raises(LockLost):
        await job.move_to_delayed(clock.now + 5, "another's")
    await job.move_to_delayed(clock.now + 5)
    assert await job.state() == "delayed"
    clock.now += 5
    again = await take(queue)
    assert again.id == "a"
    assert await again.move_to_wait() == 0
    assert await again.state() == "waiting"


# ---------------------------------------------------------------------- families


@pytest.fixture
async def parent(queue: Queue) -> Job:
    """A job that a worker has."""
    await add_named(queue, "parent")
    return await take(queue, "p")


async def test_a_parent_gets_what_its_children_return(queue: Queue, parent: Job) -> None:
    above = Parent("parent", BASE)
    await add_named(queue, "good", parent=above)
    await add_named(queue, "ignored", parent=above, ignore_dependency_on_failure=True)
    await add_named(queue, "last", parent=above)
    keys = {name: f"{BASE}:{name}" for name in ("good", "ignored", "last")}
    assert sorted(await parent.pending_children()) == sorted(keys.values())
    assert await parent.move_to_waiting_children()
    await complete(queue, {"n": [1]})
    await fail(queue, "never mind")
    assert await parent.state() == "waiting-children"
    await complete(queue)
    assert await parent.state() == "waiting"
    assert await parent.children_values() == {keys["good"]: {"n": [1]}, keys["last"]: None}
    assert await parent.ignored_failures() == {keys["ignored"]: "never mind"}
    assert await parent.failed_children() == []
    assert await parent.pending_children() == []
    again = await take(queue)
    assert not await again.move_to_waiting_children(), "there is nothing to wait for"


async def test_a_child_that_fails_its_parent_is_named(queue: Queue, parent: Job) -> None:
    await add_named(queue, "bad", parent=Parent("parent", BASE), fail_parent_on_failure=True)
    await parent.move_to_waiting_children()
    await fail(queue)
    assert await parent.failed_children() == [f"{BASE}:bad"]
    again = await take(queue)
    assert again.deferred_failure == f"child {BASE}:bad failed"


async def test_children_can_leave_and_be_removed(queue: Queue, parent: Job) -> None:
    children = await add_named(queue, "a", "b", "c", "d", parent=Parent("parent", BASE))
    assert await children[0].leave_parent()
    assert f"{BASE}:a" not in await parent.pending_children()
    with pytest.raises(ParentMissing):
        await (await add_named(queue, "alone"))[0].leave_parent()
    await take(queue)  # a
    held = await take(queue, "h")
    assert held.id == "b"
    await parent.remove_unprocessed_children()
    assert await parent.pending_children() == [f"{BASE}:b"]
    assert await queue.job("c") is None
    assert await queue.state("a") == "active"


async def test_a_parent_is_removed_with_its_children(queue: Queue, parent: Job) -> None:
    child, *_ = await add_named(queue, "a", "b", parent=Parent("parent", BASE))
    await parent.move_to_waiting_children()
    await take(queue)
    assert not await queue.remove("parent"), "a child is being worked on"
    await child.move_to_wait("t")
    assert await queue.remove("parent")
    assert await queue.ids() == []
    (parent,) = await add_named(queue, "parent")
    await add_named(queue, "a", parent=Parent("parent", BASE))
    assert await queue.remove("parent", children=False)
    assert await queue.ids() == ["a"]
