"""The queue against a simple model of it, on a real server: what hypothesis thinks of, one call at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.conftest import SCALE, Servers, emptied
from toril import Connection, connect
from toril.connection.wire import Argument
from toril.stream import AddJob, BacklogFull, StreamOptions, StreamQueue
from toril.stream.job import Taken, cancelled, dead, done, later
from toril.stream.store import PartitionStore
from toril.testing import Cluster, Server

T = TypeVar("T")

BACKLOG = 12
RETRIES, MAX_DELIVERIES = 2, 3
LONG = 3600.0


@dataclass
class ModelJob:
    """What the model knows of a job."""

    id: str
    key: str
    tenant: str
    level: int
    state: str = "ready"
    attempts: int = 0
    crashes: int = 0


@dataclass
class Model:
    """A queue, as simple as can be: jobs in the order they came, and the turns within each key."""

    jobs: dict[str, ModelJob] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=dict)
    """Of each key, the jobs in the order of their turns; the first one's turn it is, also when it is dead."""
    dead: set[str] = field(default_factory=set)
    done: int = 0
    cancelled: int = 0
    """Jobs that may still have a place in a stream, and are counted until that is passed."""

    def enter(self, job: ModelJob) -> None:
        """A job may run, when those of its key before it are over."""
        line = self.lines.setdefault(job.key, []) if job.key else []
        if job.key and job.id not in line:
            line.append(job.id)
        job.state = "waiting" if job.key and line[0] != job.id else "ready"

    def leave(self, job: ModelJob, keeps_turn: bool = False) -> None:
        """A job is over."""
        del self.jobs[job.id]
        line = self.lines.get(job.key, [])
        if keeps_turn or job.id not in line:
            return
        was_first = line[0] == job.id
        line.remove(job.id)
        if was_first and line:
            self.jobs[line[0]].state = "ready"

    def of(self, *states: str) -> list[ModelJob]:
        """Jobs in these states."""
        return [job for job in self.jobs.values() if job.state in states]


class QueueMachine(RuleBasedStateMachine):
    """Adds, takes, ends, cancels and loses jobs; the queue and the model must stay the same."""

    servers: Servers
    loop: asyncio.AbstractEventLoop
    redis: Connection

    def __init__(self) -> None:
        super().__init__()
        made = self.servers.get("valkey-standalone")
        assert isinstance(made, Server | Cluster)
        emptied(made)
        self.model = Model()
        self.held: dict[str, tuple[str, Taken]] = {}
        options = StreamOptions(
            levels=2, backlog=BACKLOG, retries=RETRIES, max_deliveries=MAX_DELIVERIES, claim_idle=LONG
        )
        self.queue = StreamQueue("model", self.redis, schema=None, options=options)
        (self.store,) = self.wait(self.queue.open()).stores

    def wait(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    # ------------------------------------------------------------------ producers

    @rule(
        key=st.sampled_from(["", "a", "b"]),
        tenant=st.sampled_from(["", "t", "u"]),
        level=st.integers(0, 3),
        delayed=st.booleans(),
        count=st.integers(1, 3),
    )
    def add(self, key: str, tenant: str, level: int, delayed: bool, count: int) -> None:
        new = AddJob(
            data={"x": "y" * 10},
            key=key or None,
            tenant=tenant or None,
            priority=level,
            delay=LONG if delayed else 0.0,
        )
        try:
            added = self.wait(self.queue.add_bulk([new] * count))
        except BacklogFull:
            assert len(self.model.jobs) + self.model.cancelled + count > BACKLOG
            return
        assert len(self.model.jobs) + count <= BACKLOG
        for handle in added:
            job = ModelJob(handle.id, key, tenant, min(level, 1))
            self.model.jobs[job.id] = job
            if delayed:
                job.state = "delayed"
            else:
                self.model.enter(job)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        waiting = self.model.of("ready", "waiting", "delayed")
        if not waiting:
            return
        job = data.draw(st.sampled_from(waiting))
        assert self.wait(self.queue.cancel(job.id)) == "removed"
        self.model.cancelled += not job.key and not job.tenant
        self.model.leave(job)

    @rule(data=st.data())
    def promote(self, data: st.DataObject) -> None:
        """Time passes for one delayed job."""
        delayed = self.model.of("delayed")
        if not delayed:
            return
        job = data.draw(st.sampled_from(delayed))
        self.wait(self.redis.command("ZADD", self.store.keys.delayed, 1, job.id))
        job.state = "due"

    # ------------------------------------------------------------------ workers

    def step(self, consumer: str, wanted: int, given_up: list[tuple[Taken, list[Argument]]]) -> None:
        result = self.wait(self.store.step(consumer, wanted, 100, given_up))
        assert result.codes == [1] * len(given_up)
        if wanted:
            for job in self.model.of("due"):
                self.model.enter(job)
        expected = min(wanted, len(self.model.of("ready")))
        assert len(result.jobs) == expected
        for taken in result.jobs:
            job = self.model.jobs[taken.local_id]
            assert job.state == "ready", f"{job} was given out"
            others = [each for each in self.model.of("ready") if each.level < job.level]
            assert wanted >= len(result.jobs) or not others
            job.state = "running"
            self.received(consumer, job, taken, 1)
        if len(result.jobs) == wanted:
            left = {job.level for job in self.model.of("ready")}
            assert all(int(taken.level) <= min(left, default=1) for taken in result.jobs), (
                "a later level first"
            )

    def received(self, consumer: str, job: ModelJob, taken: Taken, delivery: int) -> None:
        assert (taken.key.decode(), taken.tenant.decode(), int(taken.level)) == (
            job.key,
            job.tenant,
            job.level,
        )
        assert (taken.attempts, taken.crashes, taken.delivery) == (job.attempts, job.crashes, delivery)
        assert taken.data == b'{"x":"yyyyyyyyyy"}'
        self.held[job.id] = (consumer, taken)

    @rule(consumer=st.sampled_from(["c1", "c2"]), wanted=st.integers(1, 4))
    def take(self, consumer: str, wanted: int) -> None:
        self.wait(self.store.renew(consumer, 3_600_000, []))
        self.step(consumer, wanted, [])

    @precondition(lambda self: self.held)
    @rule(
        data=st.data(),
        wanted=st.integers(0, 2),
        how=st.sampled_from(["done", "later", "back", "dead", "cancelled"]),
    )
    def end(self, data: st.DataObject, wanted: int, how: str) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.held)))
        consumer, taken = self.held.pop(job_id)
        job = self.model.jobs[job_id]
        args: dict[str, list[Argument]] = {
            "done": done(taken, 0, b"", []),
            "later": later(taken, 3_600_000, taken.attempts + 1, "failed"),
            "back": later(taken, 0, taken.attempts, ""),
            "dead": dead(taken, "permanent", taken.attempts + 1, "bad", 0, b""),
            "cancelled": cancelled(taken, 0, b""),
        }
        if how in ("later", "back"):
            job.crashes += taken.delivery - 1
            job.attempts += how == "later"
            job.state = "delayed" if how == "later" else "ready"
        else:
            self.model.leave(job, keeps_turn=how == "dead" and bool(job.key))
            self.model.done += how == "done"
            if how == "dead":
                self.model.dead.add(job_id)
        self.step(consumer, wanted, [(taken, args[how])])

    @rule(consumer=st.sampled_from(["c1", "c2"]), heir=st.just("c3"))
    def lose_a_worker(self, consumer: str, heir: str) -> None:
        """A worker is no longer heard of: another one has its jobs, but those that have crashed too often."""
        self.wait(self.store.bury_heartbeat(consumer))
        self.wait(self.store.renew(heir, 3_600_000, []))
        others = {"c1", "c2"} - {consumer}
        for other in others:
            self.wait(self.store.renew(other, 3_600_000, []))
        found = self.wait(self.store.reclaim(heir, 3_600_000, 100, 100, []))
        assert found.lost == []
        taken = {job.local_id: job for job in found.jobs}
        for job_id in [each for each, (who, _) in self.held.items() if who == consumer]:
            _, before = self.held.pop(job_id)
            job = self.model.jobs[job_id]
            if job.crashes + before.delivery + 1 > MAX_DELIVERIES:
                assert job_id not in taken
                self.model.leave(job, keeps_turn=bool(job.key))
                self.model.dead.add(job_id)
            else:
                self.received(heir, job, taken.pop(job_id), before.delivery + 1)
        assert not taken

    # ------------------------------------------------------------------ dead letters

    @precondition(lambda self: self.model.dead)
    @rule(data=st.data(), redrive=st.booleans())
    def decide(self, data: st.DataObject, redrive: bool) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.model.dead)))
        letter = next(each for each in self.wait(self.queue.dead()) if each.id == job_id)
        line = self.model.lines.get(letter.key, [])
        if redrive:
            try:
                assert self.wait(self.queue.redrive([job_id])) == [job_id]
            except BacklogFull:
                assert len(self.model.jobs) + self.model.cancelled >= BACKLOG
                return
            job = ModelJob(job_id, letter.key, letter.tenant, letter.priority)
            self.model.jobs[job_id] = job
            self.model.enter(job)
        else:
            assert self.wait(self.queue.discard([job_id])) == [job_id]
            if job_id in line:
                line.remove(job_id)
                if line:
                    self.model.jobs[line[0]].state = "ready"
        self.model.dead.remove(job_id)

    # ------------------------------------------------------------------ what must be so

    @invariant()
    def agree(self) -> None:
        self.wait(self.store.upkeep())
        metrics = self.wait(self.queue.metrics()).total
        model = self.model
        assert metrics.pending == len(self.held)
        assert metrics.dead == len(model.dead)
        assert metrics.done_total == model.done
        assert metrics.lost_total == 0
        assert metrics.delayed == len(model.of("delayed", "due"))
        # A cancelled job keeps its place in its stream until that is passed, and is counted till then.
        assert metrics.backlog >= len(model.jobs)
        assert metrics.lag >= len(model.of("ready"))

    def teardown(self) -> None:
        """Everything that can run, runs; then the queue is as empty as the model."""
        for _ in range(100):
            for job in self.model.of("delayed"):
                self.wait(self.redis.command("ZADD", self.store.keys.delayed, 1, job.id))
                job.state = "due"
            for job_id, (consumer, taken) in list(self.held.items()):
                del self.held[job_id]
                self.model.leave(self.model.jobs[job_id])
                self.model.done += 1
                self.step(consumer, 0, [(taken, done(taken, 0, b"", []))])
            self.step("c1", 50, [])
            if not self.held and not self.model.of("delayed", "due", "ready"):
                break
        metrics = self.wait(self.queue.metrics()).total
        assert metrics.backlog == len(self.model.jobs) == len(self.model.of("waiting"))
        assert (metrics.lag, metrics.pending, metrics.delayed) == (0, 0, 0)
        assert metrics.backlog_bytes == 18 * metrics.backlog
        held = {key.decode() for key in self.wait(_keys(self.redis, self.store))}
        assert held == {self.store.keys.job(job) for job in self.model.jobs}


async def _keys(redis: Connection, store: PartitionStore) -> list[bytes]:
    return [key async for key in redis.scan(store.keys.job("*").replace("{", "[{]"))]


@pytest.mark.timeout(120 * max(1, SCALE))
def test_no_job_lost_and_order_kept_by_the_model(servers: Servers) -> None:
    loop = asyncio.new_event_loop()
    QueueMachine.servers, QueueMachine.loop = servers, loop
    QueueMachine.redis = loop.run_until_complete(connect(servers.get("valkey-standalone").url).__aenter__())
    try:
        run_state_machine_as_test(
            QueueMachine,
            settings=settings(
                max_examples=round(25 * SCALE),
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        loop.run_until_complete(QueueMachine.redis.close())
        loop.close()
