"""The promise node-agrees, live: Node and Toril as producers, workers and administrators of one queue.

Nothing is frozen here. Each story is told with all parts played by Node, and with parts played by Toril;
then everything in Redis but the times must be the same.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import pytest_asyncio

from tests.conformance.dump import Key, normalise
from tests.conformance.fleet import KINDS, NAME, OTHER, PAIRS, Json, Kind, Player, Stage, assert_same
from tests.conformance.operations import (
    Add,
    Advance,
    Backoff,
    ChangeDelay,
    ChangePriority,
    Complete,
    Deduplication,
    ExtendLock,
    Fail,
    Fetch,
    Held,
    Id,
    JobOptions,
    Log,
    LoseLock,
    MoveToDelayed,
    MoveToWait,
    OnJob,
    OnQueue,
    Operation,
    Pause,
    Promote,
    Resume,
    Retry,
    Sweep,
    UpdateData,
    UpdateProgress,
)
from tests.conformance.oracle import NodeOracle
from tests.conformance.replies import Reply, reply_difference
from tests.conformance.sides import START, NodeSide
from tests.conformance.toril_side import TorilSide
from tests.conftest import SCALE
from tests.queue.audit import until
from toril import Connection, connect
from toril.queue.events import QueueEvents
from toril.testing import Cluster, Server

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def oracle() -> AsyncIterator[NodeOracle]:
    """One process for all: it takes longer to start than most tests to run."""
    async with NodeOracle() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def stage(server: Server | Cluster, oracle: NodeOracle) -> AsyncIterator[Stage]:
    async with connect(server.url) as redis:
        node = await NodeSide.open(oracle, server)
        made = Stage(server, node, redis)
        try:
            yield made
        finally:
            await node.close()
        assert not made.problems


# ---------------------------------------------------------------------- one story, every cast


def _job(name: str, script: dict[str, Any], **opts: Any) -> tuple[str, Json, dict[str, Any]]:
    return name, {"script": script, "for": name}, {"jobId": name, **opts}


OK: dict[str, Any] = {"kind": "ok"}
HOUR = 3_600_000
JOBS = [
    _job("plain", {"kind": "ok", "value": {"n": 1, "text": "żubr ☃", "list": [None, True, 0.5]}}),
    _job("echo", {"kind": "echo"}),
    _job("silent", {"kind": "ok", "value": None}),
    _job("plain", {"kind": "ok", "value": "a duplicate"}),
    _job("later", OK, delay=200),
    _job("second", OK, priority=5),
    _job("first", OK, priority=1),
    _job("last-in", OK, lifo=True),
    _job("retried", {"kind": "failTimes", "times": 2}, attempts=3),
    _job("retried-in-front", {"kind": "failTimes", "times": 1}, attempts=2, lifo=True),
    _job("retried-by-priority", {"kind": "failTimes", "times": 1}, attempts=2, priority=3),
    _job(
        "backed-off",
        {"kind": "failTimes", "times": 1},
        attempts=2,
        backoff={"type": "fixed", "delay": 30},
    ),
    _job(
        "exponential",
        {"kind": "failTimes", "times": 2},
        attempts=3,
        backoff={"type": "exponential", "delay": 10},
    ),
    _job("failing", {"kind": "fail", "message": "no ☹"}, attempts=2, stackTraceLimit=1),
    _job("hopeless", {"kind": "fail", "unrecoverable": True}, attempts=5),
    _job("telling", {"kind": "report", "steps": 3}, keepLogs=2),
    _job("moved", {"kind": "delay", "ms": 30}),
    _job("unique", OK, deduplication={"id": "d"}),
    _job("not-unique", OK, deduplication={"id": "d"}),
    _job("throttled", OK, deduplication={"id": "t", "ttl": HOUR}),
    _job("debounced", OK, deduplication={"id": "b", "replace": True}, delay=50),
    _job("debounced-again", OK, deduplication={"id": "b", "replace": True}, delay=50),
    _job("gone", OK, removeOnComplete=True),
    _job("gone-failed", {"kind": "fail"}, removeOnFail=True),
    _job("kept", OK, removeOnComplete={"count": 1000, "age": 3600}),
    # what becomes of these is the administrator's doing
    _job("removed", OK),
    _job("preferred", OK, priority=9),
    _job("promoted", OK, delay=HOUR),
    _job("hastened", OK, delay=HOUR),
    _job("updated", {"kind": "fail"}),
    _job("again", {"kind": "failTimes", "times": 1}),
]


async def tell(stage: Stage, producer: Kind, worker: Kind, admin: Kind) -> dict[str, Key]:
    """The story: the administrator closes the queue, the producer fills it, the worker empties it."""
    await stage.clear()
    queue = stage.queue()
    keeper, supplier = stage.player(admin), stage.player(producer)
    await stage.node.call("startListener", name="listener", queue=NAME, **{"from": "0"})
    async with QueueEvents(NAME, stage.redis, after="0") as listener:
        await keeper.pause()
        for name, data, opts in JOBS:
            await supplier.add(name, data, opts)
        counts = await keeper.counts()
        assert counts == await stage.player("node").counts() == await stage.player("toril").counts()
        assert counts["paused"] + counts["prioritized"] + counts["delayed"] == 28
        await keeper.remove("removed")
        await keeper.change_priority("preferred", 1)
        await keeper.promote("promoted")
        await keeper.change_delay("hastened", 100)
        await keeper.update_data("updated", {"script": OK, "for": "updated"})
        await keeper.log("updated", "a line")
        async with stage.working(worker):
            await stage.blocked()
            await keeper.resume()
            await stage.idle()
            assert await keeper.state("again") == "failed"
            await keeper.retry("again")
            await stage.idle()
            names = [each["name"] for each in await queue.workers()]
            raw = await stage.node.call("getWorkers", queue=NAME)
        if isinstance(stage.server, Cluster):
            # An ioredis cluster drops the name of a connection (FINDINGS), so Node's has none.
            assert names == (["w1"] if worker == "toril" else [])
        else:
            assert names == ["w1"]
            assert [name.rsplit(":", 1)[1] for name in raw] == ["w1"]
        await agree_on_events(stage, listener)
    return stage.ending()


async def agree_on_events(stage: Stage, listener: QueueEvents) -> None:
    """Node's QueueEvents and Toril's have heard the same, and all that there was."""
    count = int(await stage.redis.command("XLEN", stage.queue().keys.events))
    heard: list[dict[str, Any]] = []
    async with asyncio.timeout(10):
        while len(heard) < count:
            event = await anext(listener)
            heard.append({"event": event.name, "job": event.job_id, **event.fields})
            if event.name in ("completed", "progress"):
                field = "returnvalue" if event.name == "completed" else "data"
                heard[-1][field] = event.return_value if event.name == "completed" else event.progress

    async def all_heard() -> bool:
        return len(await stage.node.call("seen", name="listener")) >= count

    await until(all_heard, "Node to hear all events")
    seen = await stage.node.call("stop", name="listener")
    assert [{"job": None, **entry} for entry in seen] == heard


async def test_node_agrees_whoever_produces_works_and_administers(stage: Stage) -> None:
    truth = await tell(stage, "node", "node", "node")
    for cast in product(KINDS, repeat=3):
        if "toril" in cast:
            assert_same(truth, await tell(stage, *cast), f"{cast[0]} → {cast[1]}, kept by {cast[2]},")


async def test_node_agrees_in_a_mixed_fleet(stage: Stage, rng: random.Random) -> None:
    """Both work on one queue, both add, and every job is done once."""
    await stage.clear()
    jobs = round(400 * SCALE)
    async with (
        stage.working("node", name="n", concurrency=3),
        stage.working("toril", name="t", concurrency=3),
    ):

        async def produce(kind: Kind) -> None:
            player = stage.player(kind)
            for number in range(jobs):
                fails = rng.randrange(3)
                opts = {"attempts": 3, "priority": rng.randrange(4), "jobId": f"{kind}-{number}"}
                if rng.random() < 0.2:
                    opts["delay"] = rng.randrange(100)
                await player.add("job", {"script": {"kind": "failTimes", "times": fails}}, opts)

        await asyncio.gather(*map(produce, KINDS))
        await stage.idle()
    workers: Counter[str | None] = Counter()
    for job in await stage.queue().jobs("completed"):
        assert job.attempts_made == job.attempts_started == job.data["script"]["times"] + 1
        assert job.stalled_count == 0
        workers[job.processed_by] += 1
    assert sum(workers.values()) == 2 * jobs
    assert workers.keys() == {"n", "t"}, workers


# ---------------------------------------------------------------------- who sleeps is woken


@pytest.mark.parametrize(("producer", "worker"), PAIRS)
async def test_node_agrees_when_to_wake_an_idle_worker(stage: Stage, producer: Kind, worker: Kind) -> None:
    """By whatever brings work, at once: not when it would look by itself."""
    await stage.clear()
    player = stage.player(producer)
    data = {"script": {"kind": "failTimes", "times": 1}}

    async def add(**opts: Any) -> str:
        return await player.add("job", data, opts)

    async def resume() -> str:
        await player.pause()
        job = await add()
        await stage.blocked()
        await player.resume()
        return job

    async def promote() -> str:
        job = await add(delay=HOUR)
        await player.promote(job)
        return job

    async with stage.working(worker, drain=60) as crew:
        news: dict[str, Callable[[], Awaitable[str]]] = {
            "a job": add,
            "a prioritized job": lambda: add(priority=3),
            "a delayed job": lambda: add(delay=100),
            "a queue that goes on": resume,
            "a promoted job": promote,
        }
        for what, bring in news.items():
            await stage.blocked()
            job = await bring()
            await crew.until_run(job)
            await until(lambda job=job: _is(player, job, "failed"), what)  # type: ignore[misc]
        job = await add()
        await until(lambda: _is(player, job, "failed"), "a job to fail")
        await stage.blocked()
        await player.retry(job)
        await until(lambda: _is(player, job, "completed"), "a job that is retried")


async def _is(player: Player, job: str, state: str) -> bool:
    return await player.state(job) == state


@pytest.mark.parametrize(("first", "second"), PAIRS)
async def test_node_agrees_what_a_pause_is(stage: Stage, first: Kind, second: Kind) -> None:
    """One pauses, both add, workers of both take nothing, the other lets them go on."""
    await stage.clear()
    players = [stage.player(first), stage.player(second)]
    await players[0].pause()
    assert await stage.queue().is_paused()
    assert await stage.node.call("isPaused", queue=NAME)
    async with stage.working("node", name="n"), stage.working("toril", name="t"):
        for number in range(6):
            await players[number % 2].add("job", {"script": OK}, {"priority": number % 3})
        await stage.blocked(2)
        for player in players:
            counts = await player.counts()
            assert (counts["paused"], counts["prioritized"], counts["active"]) == (2, 4, 0)
        await players[1].resume()
        await stage.idle()
    for player in players:
        assert (await player.counts())["completed"] == 6


# ---------------------------------------------------------------------- one job, in turn


class Turns:
    """Operations on one database, done by Node and by Toril in turn, at one time of one clock."""

    def __init__(self, node: NodeSide, redis: Connection, first: int) -> None:
        self._node = node
        self._toril = TorilSide(redis, node.store, node)
        self._turn = first
        self._held: dict[str, str] = {}

    async def reset(self) -> None:
        await self._node.reset()
        self._toril.now = START

    async def execute(self, operation: Operation) -> Reply:
        if isinstance(operation, Advance):
            self._toril.now += operation.ms  # Node's side lets the keys grow older
            return await self._node.execute(operation)
        if isinstance(operation, OnJob) and isinstance(operation.job, Held):
            # Each side knows only what it has activated itself.
            operation = replace(operation, job=Id(self._held[operation.job.held]))
        self._turn += 1
        side = (self._node, self._toril)[self._turn % 2]
        reply = await side.execute(operation)
        if isinstance(operation, Fetch):
            self._held[operation.token] = reply["ok"]["job"]["id"]
        return reply


_OPTIONS = JobOptions(
    attempts=4, backoff=Backoff("exponential", 1000), keep_logs=3, deduplication=Deduplication("d")
)
LIFE: tuple[Operation, ...] = (
    Add(opts=_OPTIONS),
    Add(opts=JobOptions(deduplication=Deduplication("d"))),
    Fetch(token="t1"),
    UpdateProgress(job=Held("t1"), progress={"half": 0.5}),
    Log(job=Held("t1"), row="one"),
    ExtendLock(job=Held("t1"), token="t1"),
    Sweep(),
    LoseLock(job=Held("t1")),
    Advance(ms=30_000),
    Sweep(),  # it has stalled
    Complete(job=Held("t1"), token="t1", value="too late"),
    Fetch(token="t2"),
    Complete(job=Held("t1"), token="t1", value="too late"),
    Fail(job=Held("t2"), token="t2"),  # delayed by the backoff
    ChangeDelay(job=Id("1"), delay=5000),
    Advance(ms=10_000),
    Fetch(token="t3"),
    MoveToDelayed(job=Held("t3"), token="t3", timestamp=START + 100_000),
    Promote(job=Id("1")),
    ChangePriority(job=Id("1"), priority=7),
    Pause(),
    ChangePriority(job=Id("1"), priority=0),
    Resume(),
    Fetch(token="t4"),
    MoveToWait(job=Held("t4"), token="t4"),
    Fetch(token="t5"),
    Fail(job=Held("t5"), token="t5"),
    Promote(job=Id("1")),
    UpdateData(job=Id("1"), data=[1, "two"]),
    Fetch(token="t6"),
    Log(job=Held("t6"), row="two"),
    Fail(job=Held("t6"), token="t6"),
    Promote(job=Id("1")),
    Fetch(token="t7"),
    Fail(job=Held("t7"), token="t7"),  # for good
    Retry(job=Id("1")),
    Fetch(token="t8"),
    Log(job=Held("t8"), row="three"),
    Log(job=Held("t8"), row="four"),
    Complete(job=Held("t8"), token="t8", value={"at": "last"}),
    Add(opts=JobOptions(deduplication=Deduplication("d"))),
)


@pytest.mark.parametrize("first", [0, 1], ids=["node-first", "toril-first"])
async def test_node_agrees_when_every_step_of_a_job_is_done_by_the_other(stage: Stage, first: int) -> None:
    """To the byte: the same clock, the same steps, and the state that Node alone leaves."""
    life = [replace(each, queue=NAME) if isinstance(each, OnQueue) else each for each in LIFE]
    await stage.node.reset()
    alone = [await stage.node.execute(operation) for operation in life]
    truth = normalise(stage.node.store.dump())
    turns = Turns(stage.node, stage.redis, first)
    await turns.reset()
    for place, operation in enumerate(life):
        difference = reply_difference(alone[place], await turns.execute(operation))
        assert difference is None, f"{place}, {operation}: {difference}"
    assert_same(truth, normalise(stage.node.store.dump()), "in turn")
    assert truth[f"bull:{NAME}:1"].value["ats"] == "8"


# ---------------------------------------------------------------------- families

POLICIES = {
    "none": {},
    "fpof": {"failParentOnFailure": True},
    "cpof": {"continueParentOnFailure": True},
    "idof": {"ignoreDependencyOnFailure": True},
    "rdof": {"removeDependencyOnFailure": True},
}
BAD: dict[str, Any] = {"kind": "fail", "message": "bad"}


def member(job: str, queue: str, script: dict[str, Any], *children: Json, **opts: Any) -> Json:
    made = {"name": "member", "queueName": queue, "data": {"script": script}, "opts": {"jobId": job, **opts}}
    return {**made, "children": list(children)} if children else made


def families(policy: str) -> list[Json]:
    """Flows over two queues; one child of each family fails, with that policy."""
    how = POLICIES[policy]

    def child(job: str, script: dict[str, Any] = OK, **opts: Any) -> Json:
        return member(f"{job}-{policy}", OTHER, script, **opts)

    return [
        member(f"happy-{policy}", NAME, OK, child("h1"), child("h2", priority=2), **how),
        member(
            f"root-{policy}",
            NAME,
            OK,
            child("fine"),
            child("bad", BAD, attempts=2, **how),
            member(
                f"middle-{policy}",
                OTHER,
                OK,
                member(f"deep-fine-{policy}", NAME, OK),
                member(f"deep-bad-{policy}", NAME, BAD, **how),
                **how,
            ),
        ),
        member(f"early-{policy}", NAME, OK, child("e1", BAD, **how), child("e2", delay=100), attempts=2),
        member(f"preferred-{policy}", NAME, OK, child("p1", BAD, **how), priority=3),
        member(f"late-{policy}", NAME, OK, child("l1", BAD, **how), delay=100),
        member(f"bereft-{policy}", NAME, OK, child("b1", BAD, removeOnFail=True, **how)),
    ]


async def raise_families(stage: Stage, worker: Kind, policy: str) -> tuple[dict[str, Key], list[Any]]:
    """Node makes the flows. One queue is worked on after the other, so that the order is the same.

    How it ends, and which problems the workers met: jobs that are done before their children, say.
    """
    await stage.clear(NAME, OTHER)
    for flow in families(policy):
        await stage.node.call("addFlow", flow=flow)
    for _ in range(4):
        for queue in (OTHER, NAME):
            async with stage.working(worker, queue):
                await stage.idle(queue)
    problems, stage.problems = stage.problems, []
    return stage.ending(), problems


@pytest.mark.parametrize("policy", POLICIES)
async def test_node_agrees_how_families_end(stage: Stage, policy: str) -> None:
    truth, known = await raise_families(stage, "node", policy)
    found, problems = await raise_families(stage, "toril", policy)
    assert_same(truth, found, "toril")
    assert problems == known
    left = truth.get("bull:{fleet}:waiting-children", Key("zset", [])).value
    assert bool(left) == (policy == "none"), left
