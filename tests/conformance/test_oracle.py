"""The rig itself: Node against Node leaves no difference, and no difference goes unseen."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings

from tests.conformance import oracle as oracle_module
from tests.conformance.dump import Dump, Key, differences, normalise
from tests.conformance.operations import (
    NOTHING,
    Add,
    AddFlow,
    Advance,
    At,
    Backoff,
    Complete,
    Fail,
    Fetch,
    Flow,
    GetJob,
    GetJobCounts,
    Held,
    Id,
    JobOptions,
    Log,
    OnJob,
    Operation,
    Outcome,
    Process,
    Random,
    RemoveChildDependency,
    Sweep,
    Thrown,
    UpdateProgress,
    WorkerOptions,
)
from tests.conformance.oracle import BULLMQ, NodeError, NodeOracle, OracleDied, OracleMissing
from tests.conformance.replies import crashed, reply_difference
from tests.conformance.sides import START, DirectSide, NodeSide, compare, locate, open_store
from tests.conformance.strategies import random_sequence, sequences, shortest
from tests.conftest import SCALE, SEED
from toril.testing import Cluster, Server, cluster, standalone

SEQUENCES = int(100 * SCALE)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of its own: these tests wipe databases."""
    with standalone({"databases": 8}) as made:
        yield made


@pytest.fixture
async def node(server: Server) -> AsyncIterator[NodeSide]:
    async with NodeOracle() as oracle, _side(oracle, server) as side:
        await side.reset()
        yield side


@asynccontextmanager
async def _side(
    oracle: NodeOracle, server: Server | Cluster, db: int = 0, prefix: str = "bull"
) -> AsyncIterator[NodeSide]:
    side = await NodeSide.open(oracle, server, db=db, prefix=prefix)
    try:
        yield side
    finally:
        await side.close()


@asynccontextmanager
async def _two_nodes(server: Server) -> AsyncIterator[tuple[NodeSide, NodeSide]]:
    async with (
        NodeOracle() as one,
        NodeOracle() as two,
        _side(one, server, 0) as left,
        _side(two, server, 1) as right,
    ):
        yield left, right


# ---------------------------------------------------------------------- Node against Node


async def test_node_agrees_with_node_after_random_sequences(server: Server) -> None:
    chance = random.Random(SEED)
    async with _two_nodes(server) as (left, right):
        for number in range(SEQUENCES):
            operations = random_sequence(chance)
            found = await compare(left, right, operations, past_crashes=True)
            assert not found, (number, await locate(left, right, operations) or found)


def test_node_agrees_with_node_after_drawn_sequences(server: Server) -> None:
    with asyncio.Runner() as runner:
        sides = _two_nodes(server)
        left, right = runner.run(sides.__aenter__())
        try:

            @seed(SEED)
            @settings(
                max_examples=SEQUENCES // 4,
                deadline=None,
                database=None,
                suppress_health_check=[HealthCheck.too_slow],
            )
            @given(sequences())
            def agrees(operations: list[Operation]) -> None:
                assert not runner.run(compare(left, right, operations, past_crashes=True))

            agrees()
        finally:
            runner.run(sides.__aexit__(None, None, None))


class ThroughDirect(DirectSide):
    """Node again, with what DirectSide does (time, references) done in Python instead of in the oracle."""

    name = "direct"
    errors = (NodeError,)

    def __init__(self, node: NodeSide) -> None:
        super().__init__(node.store)
        self._node = node

    async def begin(self) -> None:
        await self._node.reset()

    async def perform(self, operation: Operation, job: str | None) -> Any:
        await self._node.call("clock", now=self.now)
        await self._node.call("random", value=self.chance)
        known = isinstance(operation, OnJob) and not isinstance(operation.job, Held)
        if known and job is not None:
            operation = replace(operation, job=Id(job))  # type: ignore[call-arg]
        body = operation.to_json(self.prefix)
        reply = await self._node.call(body.pop("op"), **body)
        token = getattr(operation, "token", None)
        if token and isinstance(reply, dict) and reply.get("job"):
            self.held[token] = (reply["job"]["id"], None)
        return reply


async def test_a_direct_side_ages_keys_and_finds_jobs_as_the_oracle_does(server: Server) -> None:
    chance = random.Random(SEED + 1)
    async with _two_nodes(server) as (left, right):
        direct = ThroughDirect(right)
        for _ in range(max(SEQUENCES // 10, 1)):
            operations = random_sequence(chance)
            assert not await compare(left, direct, operations, past_crashes=True)


async def test_prefixes_of_one_cluster_agree_with_each_other() -> None:
    chance = random.Random(SEED + 2)
    with cluster(masters=3, replicas=0) as nodes:
        async with (
            NodeOracle() as oracle,
            _side(oracle, nodes, prefix="{a}") as left,
            _side(oracle, nodes, prefix="{b}") as right,
        ):
            for _ in range(max(SEQUENCES // 20, 1)):
                # Of a job without a parent, Node asks for the key "undefined", which lies on the
                # server of one prefix and not on that of the other.
                operations = [
                    each for each in random_sequence(chance) if not isinstance(each, RemoveChildDependency)
                ]
                assert not await compare(left, right, operations, past_crashes=True)


def test_every_operation_is_drawn() -> None:
    chance = random.Random(0)
    drawn = {type(each).__name__ for _ in range(1500) for each in random_sequence(chance)}
    not_drawn = {
        # their replies are part of other operations', or trivial
        "GetChildrenValues",
        "GetDeduplicationJobId",
        "GetGlobalConcurrency",
        "GetGlobalRateLimit",
        "GetJobScheduler",
        # it would take the evidence away
        "TrimEvents",
    }
    assert {each.__name__ for each in _concrete(Operation)} - drawn == not_drawn


def _concrete(kind: type[Operation]) -> Iterator[type[Operation]]:
    for each in kind.__subclasses__():
        if "op" in vars(each):
            yield each
        yield from _concrete(each)


async def test_what_fails_is_made_short(node: NodeSide) -> None:
    operations = [
        *[Add(opts=JobOptions(job_id=f"job-{number}")) for number in range(20)],
        Fetch(token="t1"),
        Complete(job=Held("t1"), token="t1", fetch_next=False),
        GetJobCounts(),
    ]

    async def completes_one(some: Any) -> bool:
        await node.run(some)
        return "bull:q:completed" in await node.dump()

    left = await shortest(operations, completes_one)
    assert [each.op for each in left] == ["add", "fetch", "complete"]


# ---------------------------------------------------------------------- no difference goes unseen


@pytest.fixture(scope="module")
def dump(server: Server) -> Dump:
    """A state with every kind of key in it."""
    family = Flow("q", JobOptions(job_id="r"), (Flow("p", JobOptions(job_id="c")),))
    operations = [
        Add(opts=JobOptions(delay=1000)),
        Add(opts=JobOptions(delay=1000)),
        Add(),
        Add(),
        Add(),
        Fetch(token="t1"),
        UpdateProgress(job=Held("t1"), progress={"half": True}),
        Log(job=Held("t1"), row="here"),
        Sweep(),
        AddFlow(flow=family),
    ]

    async def made() -> Dump:
        async with NodeOracle() as oracle, _side(oracle, server, db=3) as side:
            await side.run(operations)
            return await side.dump()

    return asyncio.run(made())


def _changed(key: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Key]], None]:
    def corrupt(found: dict[str, Key]) -> None:
        found[key] = replace(found[key], value=change(found[key].value))

    return corrupt


CORRUPTIONS: dict[str, Callable[[dict[str, Key]], Any]] = {
    "score off by one": _changed("bull:q:delayed", lambda value: {**value, "2": value["2"] + 1}),
    "score of the marker": _changed("bull:q:marker", lambda value: {**value, "1": value["1"] + 0.5}),
    "order of a list": _changed("bull:q:wait", lambda value: value[::-1]),
    "no marker": lambda found: found.pop("bull:q:marker"),
    "member of the marker": _changed("bull:q:marker", lambda _: {"0": 0.0}),
    "extra field of a job": _changed("bull:q:4", lambda value: {**value, "attemptsMade": "0"}),
    "missing field of a job": _changed(
        "bull:q:3", lambda value: {k: v for k, v in value.items() if k != "ats"}
    ),
    "another timestamp": _changed("bull:q:3", lambda value: {**value, "processedOn": str(START + 1)}),
    "space in JSON": _changed("bull:q:3", lambda value: {**value, "progress": '{"half": true}'}),
    "option": _changed("bull:q:1", lambda value: {**value, "opts": '{"attempts":1,"delay":1000}'}),
    "parent": _changed("bull:p:c", lambda value: {**value, "parent": '{"id":"x","queueKey":"bull:q"}'}),
    "event missing": _changed("bull:q:events", lambda value: value[:3] + value[4:]),
    "event at the end missing": _changed("bull:q:events", lambda value: value[:-1]),
    "events in another order": _changed("bull:q:events", lambda value: [value[1], value[0], *value[2:]]),
    "event with another field": _changed(
        "bull:q:events", lambda value: [(value[0][0], [*value[0][1], ("prev", "x")]), *value[1:]]
    ),
    "lock of another": _changed("bull:q:3:lock", lambda value: value + "x"),
    "lock for longer": lambda found: found.update(
        {"bull:q:3:lock": replace(found["bull:q:3:lock"], ttl=found["bull:q:3:lock"].ttl + 10_000)}
    ),
    "lock for ever": lambda found: found.update({"bull:q:3:lock": replace(found["bull:q:3:lock"], ttl=-1)}),
    "set without a member": _changed("bull:q:stalled", lambda _: []),
    "a key too many": lambda found: found.update({"bull:q:pc": Key("string", "1")}),
    "another type": lambda found: found.update({"bull:q:stalled": Key("list", ["3"])}),
    "another id counter": _changed("bull:q:id", lambda _: "99"),
}


@pytest.mark.parametrize("what", CORRUPTIONS)
def test_corruption_is_seen(dump: Dump, what: str) -> None:
    corrupted = dict(dump)
    CORRUPTIONS[what](corrupted)
    found = differences(normalise(dump), normalise(corrupted))
    assert len(found) == 1, found


def test_what_must_differ_does_not_count(dump: Dump) -> None:
    other = dict(dump)
    events = dump["bull:q:events"]
    other["bull:q:events"] = replace(
        events, value=[(f"1-{n}", pairs) for n, (_, pairs) in enumerate(events.value)]
    )
    job = dump["bull:q:1"]
    reordered = '{ "delay":1000, "attempts":0 }'
    other["bull:q:1"] = replace(job, value={**job.value, "opts": reordered})
    lock = dump["bull:q:3:lock"]
    other["bull:q:3:lock"] = replace(lock, ttl=lock.ttl - 300)
    assert differences(normalise(dump), normalise(other)) == []


def test_prefixes_are_taken_out_wherever_they_stand(dump: Dump) -> None:
    renamed = {key.replace("bull:", "{x}:"): value for key, value in dump.items()}
    child = renamed["{x}:p:c"]
    fields = {name: text.replace("bull:", "{x}:") for name, text in child.value.items()}
    renamed["{x}:p:c"] = replace(child, value=fields)
    waiting = renamed["{x}:q:r:dependencies"]
    renamed["{x}:q:r:dependencies"] = replace(waiting, value=["{x}:p:c"])
    assert differences(normalise(dump, prefix="bull"), normalise(renamed, prefix="{x}")) == []


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ({"ok": 1}, {"ok": 1}, True),
        ({"ok": 1}, {"ok": 2}, False),
        ({"ok": ["1", "2"]}, {"ok": ["2", "1"]}, False),
        ({"ok": {"ttl": 59_000}}, {"ok": {"ttl": 60_000}}, True),
        ({"ok": {"ttl": 10_000}}, {"ok": {"ttl": 60_000}}, False),
        ({"ok": {"limitedFor": 0}}, {"ok": {"limitedFor": 3}}, False),
        ({"ok": {"unprocessed": ["a", "b"]}}, {"ok": {"unprocessed": ["b", "a"]}}, True),
        ({"error": {"name": "Error", "message": "a", "code": -1}}, {"ok": None}, False),
        (
            {"error": {"name": "Error", "message": "a", "code": -1}},
            {"error": {"name": "X", "message": "b", "code": -1}},
            True,
        ),
        (
            {"error": {"name": "Error", "message": "a", "code": -1}},
            {"error": {"name": "Error", "message": "a", "code": -2}},
            False,
        ),
        ({"ok": {"stacktrace": ["at x.js"]}}, {"ok": {"stacktrace": ["File x.py"]}}, True),
        ({"ok": {"stacktrace": ["at x.js"]}}, {"ok": {"stacktrace": []}}, False),
    ],
)
def test_replies_are_compared(left: dict[str, Any], right: dict[str, Any], same: bool) -> None:
    assert (reply_difference(left, right) is None) == same


# ---------------------------------------------------------------------- the oracle


async def test_time_and_chance_are_the_callers(node: NodeSide) -> None:
    backoff = Backoff("exponential", 1000, jitter=1)
    await node.execute(Random(value=0.25))
    await node.execute(Add(opts=JobOptions(attempts=3, backoff=backoff)))
    await node.execute(Advance(ms=7))
    await node.execute(Fetch(token="t1"))
    await node.execute(Fail(job=Held("t1"), token="t1"))
    found = await node.dump()
    job = found["bull:q:1"].value
    assert job["timestamp"] == str(START)
    assert job["processedOn"] == str(START + 7)
    assert job["delay"] == "250"
    assert found["bull:q:delayed"].value == {"1": (START + 7 + 250) * 4096}
    assert found["bull:q:meta"].value["version"] == f"bullmq:{BULLMQ}"


async def test_keys_expire_with_the_callers_clock(node: NodeSide) -> None:
    await node.execute(Add())
    await node.execute(Fetch(token="t1"))
    await node.execute(Advance(ms=20_000))
    assert 5_000 < (await node.dump())["bull:q:1:lock"].ttl <= 10_000
    await node.execute(Advance(ms=10_000))
    assert "bull:q:1:lock" not in await node.dump()


async def test_errors_carry_bullmqs_codes(node: NodeSide) -> None:
    await node.execute(Add())
    missing = await node.execute(Complete(job=Id("9"), token="t1"))
    assert missing["error"]["code"] == -1
    unlocked = await node.execute(Complete(job=Id("1"), token="t1"))
    assert unlocked["error"] == {
        "name": "Error",
        "message": "Missing lock for job 1. moveToFinished",
        "code": -2,
    }
    invalid = await node.execute(Add(opts=JobOptions(job_id="5")))
    assert invalid == {"error": {"name": "Error", "message": "Custom Id cannot be integers"}}
    assert await node.execute(GetJob(job=At("failed"))) == {"ok": NOTHING}
    with pytest.raises(NodeError, match="knows no operation"):
        await node.call("dance")


async def test_a_worker_fails_a_job_that_is_to_fail(node: NodeSide) -> None:
    await node.run(
        [
            Add(),
            Fetch(token="t1"),
            Sweep(),
            Advance(ms=30_000),
            Sweep(worker=WorkerOptions(max_stalled_count=0)),
            Fetch(token="t2"),
            Process(job=Held("t2"), token="t2", outcome=Outcome("fine")),
        ]
    )
    found = normalise(await node.dump())
    assert found["bull:q:1"].value["failedReason"] == "job stalled more than allowable limit"
    assert found["bull:q:1"].value["stacktrace"] == ["<a stack of the implementation's own>"]


async def test_a_given_stack_is_kept(node: NodeSide) -> None:
    error = Thrown("boom")
    await node.run([Add(), Fetch(token="t1"), Fail(job=Held("t1"), token="t1", error=error)])
    assert normalise(await node.dump())["bull:q:1"].value["stacktrace"] == [error.stack]


async def test_a_broken_script_is_told_from_a_refusal(node: NodeSide) -> None:
    policy = JobOptions(job_id="c", continue_parent_on_failure=True)
    replies = await node.run(
        [
            AddFlow(flow=Flow("q", JobOptions(job_id="r"), (Flow("q", policy),))),
            Fetch(token="t1"),
            Fail(job=Held("t1"), token="t1", fetch_next=False),
        ]
    )
    assert not any(crashed(reply) for reply in replies)
    with pytest.raises(NodeError, match="WRONGTYPE") as caught:
        await node.call("retry", queue="q", job={"id": "c"}, state="failed")
    assert crashed({"error": {"name": caught.value.name, "message": "", "code": None}})


async def test_the_process_ends_when_its_input_does(server: Server) -> None:
    oracle = NodeOracle()
    await oracle.__aenter__()
    side = await NodeSide.open(oracle, server)
    await side.call("startWorker", name="w", queue="q", processor={"kind": "ok"})
    await side.call("startListener", name="l", queue="q")
    await side.execute(Fetch(token="t1"))
    await asyncio.wait_for(oracle.close(), 30)
    side.store.close()
    assert oracle.ended_with == 0


async def test_a_death_of_the_process_is_told() -> None:
    async with NodeOracle() as oracle:
        os.kill(oracle.process_id, signal.SIGKILL)
        with pytest.raises(OracleDied, match="is gone"):
            await oracle.call("open", place="a", host="127.0.0.1", port=1)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(oracle_module, "NODE", tmp_path)
    with pytest.raises(OracleMissing, match="npm ci"):
        oracle_module.find_node()


# ---------------------------------------------------------------------- workers that run by themselves


@pytest.fixture(params=["standalone", "cluster"])
async def fleet(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[NodeSide]:
    """A place in real time."""
    if request.param == "standalone":
        async with NodeOracle() as oracle, _side(oracle, server, db=2) as side:
            await side.call("reset", queues=["q"])
            yield side
    else:
        with cluster(masters=3, replicas=0) as nodes:
            async with NodeOracle() as oracle, _side(oracle, nodes, prefix="{c}") as side:
                await side.call("reset", queues=["q"])
                yield side


async def _add(side: NodeSide, **opts: Any) -> str:
    data = opts.pop("data", {})
    added: str = await side.call("add", queue="q", name="job", data=data, opts=opts)
    return added


async def test_a_fleet_works(fleet: NodeSide) -> None:
    await fleet.call("startListener", name="listener", queue="q", **{"from": "0"})
    scripts: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"kind": "ok", "value": 5}, {}),
        ({"kind": "fail", "message": "no"}, {}),
        ({"kind": "fail", "message": "never", "unrecoverable": True}, {"attempts": 3}),
        ({"kind": "failTimes", "times": 2}, {"attempts": 3}),
        ({"kind": "report", "steps": 2}, {}),
        ({"kind": "delay", "ms": 20}, {}),
        ({"kind": "rateLimit", "ms": 20}, {}),
    ]
    ids = [await _add(fleet, data={"script": script}, **opts) for script, opts in scripts]
    options = {"concurrency": 2, "name": "w1", "limiter": {"max": 100, "duration": 1000}}
    await fleet.call("startWorker", name="w", queue="q", processor={"kind": "fromData"}, worker=options)
    assert await fleet.call("until", name="w", event="completed", count=5)
    assert await fleet.call("until", name="w", event="failed", count=4)
    assert await fleet.call("until", name="listener", event="completed", count=5)
    assert not await fleet.call("until", name="w", event="completed", count=6, timeout=10)
    seen = await fleet.call("stop", name="w")
    runs = [entry["job"] for entry in seen if entry["event"] == "run"]
    assert {job: runs.count(job) for job in ids} == dict(zip(ids, (1, 1, 1, 3, 1, 2, 2), strict=True))
    assert not [entry for entry in seen if entry["event"] == "error"]
    heard = await fleet.call("stop", name="listener")
    progress = [entry["data"] for entry in heard if entry["event"] == "progress"]
    assert progress == [{"step": 1, "of": 2}, {"step": 2, "of": 2}]
    assert {entry["job"]: entry["returnvalue"] for entry in heard if entry["event"] == "completed"}[
        ids[0]
    ] == 5


async def test_a_gate_holds_a_job_until_it_is_told(fleet: NodeSide) -> None:
    job = await _add(fleet)
    await fleet.call("startWorker", name="w", queue="q", processor={"kind": "gate"})
    assert await fleet.call("until", name="w", event="run")
    waiting = asyncio.create_task(fleet.call("until", name="w", event="completed"))
    counts = await fleet.call("getJobCounts", queue="q")
    assert counts["active"] == 1
    await fleet.call("release", name="w", job=job)
    assert await waiting
    assert len(await fleet.call("getWorkers", queue="q")) == (0 if "{" in fleet.prefix else 1)


def test_the_lock_file_names_no_place_to_download_from() -> None:
    lock = (oracle_module.NODE / "package-lock.json").read_text()
    assert '"resolved"' not in lock
    assert lock.count('"integrity"') >= 20


async def test_the_store_finds_keys_of_a_cluster() -> None:
    with cluster(masters=3, replicas=0) as nodes:
        store = open_store(nodes, prefix="{s}")
        for number in range(3):
            for prefix in ("{s}", f"{{{number}}}"):
                nodes.primary_of(prefix).ask("RPUSH", f"{prefix}:q:wait", number)
        assert store.dump() == {"{s}:q:wait": Key("list", ["0", "1", "2"])}
        assert store.job_at("q", At("wait", -1)) == "2"
        store.close()
