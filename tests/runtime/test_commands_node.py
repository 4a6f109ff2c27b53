"""Sent commands as Node sees them: what a send leaves is what calls of BullMQ 5.62.0 leave, key by key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conformance.dump import differences, normalise
from tests.conformance.oracle import NodeOracle
from tests.conformance.sides import START, NodeSide
from tests.conftest import MATRIX, Servers, emptied
from tests.runtime.probes import Note, Probe
from tests.runtime.test_commands import stored, until, until_quiet
from toril import Connection, connect
from toril.runtime.commands import CommandDispatcher, CommandOptions
from toril.stores import MemoryEventStore
from toril.testing import Cluster, Server

NAME, JOB = "{notes/command/record_note}", "record_note"
A, B = "acme/a", "acme/a~2"


class Twins:
    """Node alone in one database; Toril's sends and Node's workers in another."""

    def __init__(self, alone: NodeSide, shared: NodeSide, redis: Connection, wait: int) -> None:
        self.now = START
        self.alone, self.shared = alone, shared
        self.notes = CommandDispatcher(
            Probe().command(wait=wait),
            pipeline="notes",
            aggregate_type="note",
            store=MemoryEventStore(),
            redis=redis,
            clock=lambda: self.now,
        )
        self.opts = self.notes.options.job_options(wait).stored()

    async def both(self, op: str, **args: Any) -> Any:
        """The same, on both sides."""
        first = await self.alone.call(op, queue=NAME, **args)
        assert await self.shared.call(op, queue=NAME, **args) == first
        return first

    async def send(self, n: int, job: str) -> Any:
        """Send; the job that carries it, and its data, for Node to do the same with."""
        sent = await self.notes.send(Note("a", n), tenant="acme")
        assert sent.job_id == job
        return (await self.shared.call("getJob", queue=NAME, job=job))["data"]

    async def add(self, data: Any, job: str) -> None:
        await self.alone.call("add", queue=NAME, name=JOB, data=data, opts={**self.opts, "jobId": job})

    async def advance(self, ms: int) -> None:
        self.now += ms
        await self.both("advance", ms=ms)

    async def check(self) -> None:
        left, right = normalise(await self.alone.dump()), normalise(await self.shared.dump())
        found = differences(left, right, names=("node", "toril"))
        assert not found, "\n".join(found)


@pytest.fixture(params=[0, 1000], ids=["at once", "delayed"])
async def twins(request: pytest.FixtureRequest, servers: Servers) -> AsyncIterator[Twins]:
    server = emptied(servers.get("valkey-standalone"))
    assert isinstance(server, Server)
    async with NodeOracle() as oracle, connect(f"{server.url}/1") as redis:
        alone = await NodeSide.open(oracle, server, db=0)
        shared = await NodeSide.open(oracle, server, db=1)
        for side in (alone, shared):
            await side.call("reset", now=START, random=0.5, queues=[NAME])
        yield Twins(alone, shared, redis, request.param)
        await alone.close()
        await shared.close()


@pytest.mark.parametrize("end", ["complete", "fail"])
async def test_node_agrees_with_what_a_send_leaves(twins: Twins, end: str) -> None:
    """Every step of a life: new, sent again while it waits, while it runs, and when it has finished."""
    wait = twins.notes.delay
    await twins.add(await twins.send(1, A), A)
    await twins.check()
    for n in (2, 3):  # while it waits
        await twins.advance(300)
        data = await twins.send(n, A)
        await twins.alone.call("updateData", queue=NAME, job=A, data=data)
        if wait:
            await twins.alone.call("changeDelay", queue=NAME, job=A, delay=wait)
        await twins.check()
    await twins.advance(wait + 1)
    taken = await twins.both("fetch", token="t", worker={})
    assert taken["job"]["data"]["payload"]["n"] == 3
    data = await twins.send(4, B)  # while it runs
    child = {"name": JOB, "queueName": NAME, "opts": {"jobId": A, "removeDependencyOnFailure": True}}
    parent = {"name": JOB, "queueName": NAME, "data": data, "opts": {**twins.opts, "jobId": B}}
    await twins.alone.call("addFlow", flow={**parent, "children": [child]})
    await twins.check()
    data = await twins.send(5, B)
    await twins.alone.call("updateData", queue=NAME, job=B, data=data)
    await twins.check()
    assert await twins.both("getJobState", job=B) == "waiting-children"
    what: dict[str, Any] = {"value": {"version": 1}}
    if end == "fail":
        what = {"error": {"message": "no", "kind": "unrecoverable", "stack": "s"}}
    await twins.both(end, job=A, token="t", fetchNext=False, worker={}, **what)
    await twins.check()
    assert await twins.both("getJobState", job=B) == ("delayed" if wait else "waiting")
    await twins.advance(wait + 1)
    taken = await twins.both("fetch", token="u", worker={})
    assert (taken["job"]["id"], taken["job"]["data"]["payload"]["n"]) == (B, 5)
    await twins.both("complete", job=B, token="u", value=None, fetchNext=False, worker={})
    data = await twins.send(6, A)  # when both have finished
    await twins.alone.call("removeJob", queue=NAME, job=A)
    await twins.add(data, A)
    await twins.check()


async def test_node_retries_and_removes_what_was_sent(twins: Twins) -> None:
    """The same calls of an administrator leave the same on both sides, from wherever."""
    await twins.add(await twins.send(1, A), A)
    await twins.advance(twins.notes.delay + 1)
    await twins.both("fetch", token="t", worker={})
    data = await twins.send(2, B)
    child = {"name": JOB, "queueName": NAME, "opts": {"jobId": A, "removeDependencyOnFailure": True}}
    parent = {"name": JOB, "queueName": NAME, "data": data, "opts": {**twins.opts, "jobId": B}}
    await twins.alone.call("addFlow", flow={**parent, "children": [child]})
    wrong = {"message": "no", "kind": "unrecoverable", "stack": "s"}
    await twins.both("fail", job=A, token="t", error=wrong, fetchNext=False, worker={})
    await twins.both("retry", job=A, state="failed")
    await twins.check()
    await twins.advance(twins.notes.delay + 1)
    for token in ("t", "u"):
        taken = await twins.both("fetch", token=token, worker={})
        job = taken["job"]["id"]
        await twins.both("complete", job=job, token=token, value=1, fetchNext=False, worker={})
    await twins.check()
    await twins.both("retry", job=A, state="completed")
    await twins.both("removeJob", job=A)
    await twins.check()
    await twins.both("pause")
    await twins.both("obliterate", force=True)
    await twins.check()


async def test_obliterate_leaves_nothing_of_a_follower(twins: Twins) -> None:
    await twins.send(1, A)
    await twins.advance(twins.notes.delay + 1)
    await twins.shared.call("fetch", queue=NAME, token="t", worker={})
    await twins.send(2, B)
    await twins.shared.call("obliterate", queue=NAME, force=True)
    left = [key for key in await twins.shared.dump() if not key.endswith(":marker")]
    assert left == []


# ---------------------------------------------------------------------- a fleet of both


@pytest.fixture(params=[name for name in MATRIX if name.startswith("valkey")])
async def fleet(
    request: pytest.FixtureRequest, servers: Servers
) -> AsyncIterator[tuple[NodeSide, Connection]]:
    server: Server | Cluster = emptied(servers.get(request.param))
    async with NodeOracle() as oracle, connect(server.url) as redis:
        node = await NodeSide.open(oracle, server)
        await node.call("reset", queues=[NAME])
        yield node, redis
        await node.close()


def made(redis: Connection, probe: Probe, **options: Any) -> CommandDispatcher[Note]:
    return CommandDispatcher(
        probe.command(),
        pipeline="notes",
        aggregate_type="note",
        store=MemoryEventStore(),
        redis=redis,
        options=CommandOptions(**options),
    )


@pytest.mark.parametrize("keep", [True, False], ids=["removed", "kept"])
async def test_what_a_node_worker_finishes_is_followed(
    fleet: tuple[NodeSide, Connection], keep: bool
) -> None:
    """No worker of Toril's is there: BullMQ itself starts the follower."""
    node, redis = fleet
    notes = made(redis, Probe(), remove_on_complete=keep)
    await node.call("startListener", name="ear", queue=NAME)
    await node.call(
        "startWorker", name="w", queue=NAME, processor={"kind": "gate"}, worker={"concurrency": 5}
    )
    await notes.send(Note("a", 1), tenant="acme")
    assert await node.call("until", name="w", event="run", job=A)
    for n in (2, 3):
        assert (await notes.send(Note("a", n), tenant="acme")).job_id == B
    assert await node.call("getJobState", queue=NAME, job=A) == "active"
    assert await node.call("getJobState", queue=NAME, job=B) == "waiting-children"
    assert (await node.call("getJob", queue=NAME, job=B))["data"]["payload"]["n"] == 3
    counts = await node.call("getJobCounts", queue=NAME)
    assert (counts["active"], counts["waiting-children"]) == (1, 1)
    await node.call("release", name="w", job=A)
    assert await node.call("until", name="w", event="run", job=B)
    assert (await notes.send(Note("a", 4), tenant="acme")).job_id == A
    await node.call("release", name="w", job=B)
    assert await node.call("until", name="w", event="run", job=A, count=2)
    await node.call("release", name="w", job=A)
    assert await node.call("until", name="w", event="completed", count=3)
    await until_quiet(notes)
    assert await node.call("until", name="ear", event="completed", count=3)
    heard = [(each["event"], each["job"]) for each in await node.call("seen", name="ear") if "job" in each]
    assert [event for event, job in heard if job == B] == [
        "added", "waiting-children", "waiting", "active", "duplicated", "completed"
    ]  # fmt: skip


async def test_node_and_toril_work_on_one_queue_of_commands(fleet: tuple[NodeSide, Connection]) -> None:
    """A Node worker takes some; whoever finishes, the last payload of each id is run last, by somebody."""
    node, redis = fleet
    probe = Probe()
    notes = made(redis, probe)
    await node.call(
        "startWorker", name="w", queue=NAME, processor={"kind": "echo"}, worker={"concurrency": 2}
    )
    last = {}
    async with notes.worker(concurrency=2):
        for n in range(400):
            key = f"k{n % 7}"
            sent = await notes.send(Note(key, n), tenant="acme")
            last[key] = n, sent.job_id
            if n % 20 == 0:
                await asyncio.sleep(0.01)
        await until_quiet(notes)
    assert await node.call("until", name="w", event="completed", count=1)
    by_node = {each["value"]["payload"]["n"] for each in await _completed(node)}
    for key, (n, job) in last.items():
        assert n in by_node or n in probe.seen(key), f"the last payload of {key} was lost"
        assert (await node.call("getJob", queue=NAME, job=job))["data"]["payload"]["n"] == n
    assert probe.runs, "Toril had some of them"


async def _completed(node: NodeSide) -> list[Any]:
    return [each for each in await node.call("seen", name="w") if each["event"] == "completed"]


async def test_node_sends_a_command(fleet: tuple[NodeSide, Connection]) -> None:
    node, redis = fleet
    probe = Probe()
    notes = made(redis, probe)
    data = {"tenant": "acme", "payload": {"key": "a", "n": 1}}
    async with notes.worker():
        await node.call("add", queue=NAME, name=JOB, data=data, opts={"jobId": A, "attempts": 3})
        await until(lambda: probe.runs, "it to run")
        await until_quiet(notes)
        assert await stored(notes, "a") == [1]
        await notes.send(Note("a", 2), tenant="acme")
        await until_quiet(notes)
        assert await stored(notes, "a") == [1, 2]
        assert (await node.call("getJob", queue=NAME, job=A))["returnvalue"] == {
            "version": 2,
            "repeated": False,
        }
