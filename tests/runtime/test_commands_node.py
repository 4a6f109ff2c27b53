"""Sent commands as Node sees them: what a send leaves is what calls of BullMQ 5.62.0 leave, key by key."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance.dump import differences, normalise
from tests.conformance.oracle import NodeError, NodeOracle
from tests.conformance.sides import START, NodeSide
from tests.conftest import MATRIX, SCALE, Servers, emptied
from tests.queue.audit import LISTS, SETS
from tests.runtime.commanding import stored, until, until_quiet
from tests.runtime.probes import Note, Probe
from toril import Connection, codec, connect
from toril.errors import TorilError
from toril.queue import Backoff, UnrecoverableError
from toril.queue.options import KEEP_ALL, KeepJobs
from toril.queue.outcomes import Completed, Failed, failed
from toril.runtime import commands
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


# ---------------------------------------------------------------------- any order of calls


class Story:
    """Sends, workers of both kinds and administrators, by chance, one call after the other, on one queue.

    After each call every job is in one state, and what waits behind others waits for some that will end.
    """

    KEYS = ("a", "b")

    def __init__(self, node: NodeSide, redis: Connection, rng: random.Random) -> None:
        self.now = START
        self.node, self.rng = node, rng
        self.notes = CommandDispatcher(
            Probe().command(wait=rng.choice((0, 1000))),
            pipeline="notes",
            aggregate_type="note",
            store=MemoryEventStore(),
            redis=redis,
            options=CommandOptions(
                attempts=rng.choice((1, 3)),
                backoff=Backoff("fixed", rng.choice((0, 500))),
                remove_on_complete=rng.choice((True, False)),
                remove_on_fail=rng.choice((True, False)),
            ),
            clock=lambda: self.now,
        )
        assert self.notes.queue is not None
        self.store = self.notes.queue.store
        self._keep = KeepJobs(count=0) if self.notes.options.remove_on_complete else KEEP_ALL
        self.last = dict.fromkeys(self.KEYS, 0)
        self.count = 0
        self.held: dict[str, tuple[str, str, int]] = {}
        """By token: the job, its key and the payload it was taken with."""
        self.executed: set[int] = set()
        self.gave_up: set[int] = set()
        """Payloads that have failed for good, or that an administrator has removed."""
        self.stalled: set[int] = set()
        """Payloads whose worker was lost once too often: those, and no others, fail without being run."""
        self.did: list[str] = []

    async def _ask(self, op: str, **args: Any) -> Any:
        return await self.node.call(op, queue=NAME, **args)

    async def send(self) -> None:
        key = self.rng.choice(self.KEYS)
        self.count += 1
        self.last[key] = self.count
        await self.notes.send(Note(key, self.count), tenant="acme")

    async def take(self) -> None:
        self.count += 1
        token = f"t{self.count}"
        if self.rng.random() < 0.5:
            job = (await self._ask("fetch", token=token, worker={}))["job"]
            if job is not None:
                self._hold(token, job["id"], job["data"], "deferredFailure" in job)
        else:
            for taken in (await self.store.step(tokens=[token])).jobs:
                self._hold(token, taken.id, taken.data, taken.deferred_failure is not None)

    def _hold(self, token: str, job: str, data: Any, doomed: bool) -> None:
        n = data["payload"]["n"]
        assert not doomed or n in self.stalled, f"send {n} would fail without being run: {self.did}"
        self.held[token] = job, data["payload"]["key"], n

    async def end(self) -> None:
        if not self.held:
            return
        token = self.rng.choice(list(self.held))
        job, _, n = self.held[token]
        if n not in self.stalled and self.rng.random() < 0.5:
            await self._finish(token)
            return
        del self.held[token]
        for_good = n in self.stalled or self.rng.random() < 0.5
        found = await self.store.job(job)
        lock = await self.store.redis.command("GET", self.store.keys.lock(job))
        if lock is not None and lock.decode() == token and found is not None:
            last_try = found.attempts_made + 1 >= self.notes.options.attempts
            if for_good or last_try:
                self.gave_up.add(n)
        if self.rng.random() < 0.5:
            error = {"message": "no", "stack": "s"} | ({"kind": "unrecoverable"} if for_good else {})
            with suppress(NodeError):  # the lock may be lost
                await self._ask("fail", job=job, token=token, error=error, fetchNext=False, worker={})
        elif found is not None:
            found.token = token
            problem = UnrecoverableError("no") if for_good else ValueError("no")
            await self.store.step([failed(found, problem, "s")])

    async def lose_locks(self) -> None:
        """The worker of a job is gone; two sweeps later it is back."""
        if not self.held:
            return
        token = self.rng.choice(list(self.held))
        job, _, n = self.held.pop(token)
        allowed = self.rng.choice((0, 100))
        lock = self.store.keys.lock(job)
        held = await self.store.redis.command("GET", lock)
        if held is not None and held.decode() == token:
            await self.store.redis.command("DEL", lock)
            if not allowed:
                self.stalled.add(n)
        for _ in range(2):
            await self.store.redis.command("DEL", self.store.keys.stalled_check)
            if self.rng.random() < 0.5:
                await self._ask("sweep", worker={"maxStalledCount": allowed})
            else:
                await self.store.sweep(allowed)

    async def pass_time(self) -> None:
        await self._forward(self.rng.choice((100, 600, 2000)))

    async def _forward(self, ms: int) -> None:
        self.now += ms
        await self._ask("advance", ms=ms)

    async def retry(self) -> None:
        state = self.rng.choice(("failed", "completed"))
        found = await self._ask("getRanges", types=[state], start=0, end=-1)
        if found:
            with suppress(NodeError):
                await self._ask("retry", job=self.rng.choice(found), state=state)

    async def promote(self) -> None:
        found = await self._ask("getRanges", types=["delayed"], start=0, end=-1)
        if found:
            await self._ask("promote", job=self.rng.choice(found))

    async def pause(self) -> None:
        await self._ask(self.rng.choice(("pause", "resume", "resume")))

    async def remove(self) -> None:
        """An administrator removes a job; what it carried is given up, knowingly."""
        states = ["waiting", "delayed", "completed", "failed", "waiting-children"]
        found = await self._ask("getRanges", types=states, start=0, end=-1)
        if found:
            with suppress(NodeError):
                await self._ask("removeJob", job=self.rng.choice(found))
            jobs = await self._jobs()
            there = {job["payload"]["n"] for job in jobs.values()}
            # A job goes with the one that follows it, also while it runs: then it is not tried again.
            there |= {n for job, _, n in self.held.values() if job in jobs}
            self.gave_up |= {n for n in self.last.values() if n not in there}

    async def _jobs(self) -> dict[str, Any]:
        """The data of all jobs, by id."""
        prefix = f"bull:{NAME}:"
        return {
            name.removeprefix(prefix): codec.decode(key.value["data"].encode())
            for name, key in (await self.node.dump()).items()
            if key.kind == "hash" and "data" in key.value
        }

    async def check(self) -> None:
        dump, prefix = await self.node.dump(), f"bull:{NAME}:"
        places: dict[str, list[str]] = defaultdict(list)
        for state in (*LISTS, *SETS):
            key = dump.get(prefix + state)
            for job in key.value if key is not None else ():
                places[job].append(state)
        hashes = {
            name.removeprefix(prefix)
            for name, key in dump.items()
            if key.kind == "hash" and "name" in key.value
        }
        assert set(places) == hashes, (self.did, dict(places), hashes)
        assert all(len(states) == 1 for states in places.values()), (self.did, dict(places))
        for job, states in places.items():
            if states == ["waiting-children"]:
                children = dump.get(f"{prefix}{job}:dependencies")
                assert children is not None, (self.did, job)
                alive = [places[child.removeprefix(prefix)] for child in children.value]
                assert alive, (self.did, job)
                assert all(each and each[0] not in ("completed", "failed") for each in alive), self.did

    async def _finish(self, token: str) -> None:
        """As a worker does whose handler has returned."""
        job, _, n = self.held.pop(token)
        (self.gave_up if n in self.stalled else self.executed).add(n)
        if self.rng.random() < 0.5:
            (code,) = (await self.store.step([Completed(job, token, b"1", self._keep)])).codes
            refused = code in (-4, -9)
        else:
            work = {"job": job, "token": token, "fetchNext": False, "worker": {}}
            try:
                await self._ask("complete", value=1, **work)
                refused = False
            except NodeError as problem:
                refused = problem.code in (-4, -9)
        if refused:
            # Somebody runs a child again that was done. So this one has failed, as in every worker.
            await self.store.step([Failed(job, token, "refused", KEEP_ALL, 1)])

    async def run(self, length: int) -> None:
        acts = [self.send] * 6 + [self.take] * 4 + [self.end] * 4 + [self.pass_time] * 2
        acts += [self.lose_locks, self.retry, self.promote, self.pause, self.remove]
        await self.send()
        for _ in range(length):
            act = self.rng.choice(acts)
            self.did.append(act.__name__)
            await act()
            await self.check()
        await self._ask("resume")
        for token in list(self.held):
            await self._finish(token)
        for _ in range(200):
            await self._forward(2000)
            self.count += 1
            token = f"t{self.count}"
            job = (await self._ask("fetch", token=token, worker={}))["job"]
            if job is None:
                break
            self._hold(token, job["id"], job["data"], "deferredFailure" in job)
            await self._finish(token)
        await self.check()
        for key, n in self.last.items():
            if n:
                assert n in self.executed | self.gave_up, f"send {n} of {key} was lost: {self.did}"


@pytest.mark.timeout(120 + 60 * SCALE)
async def test_no_job_lost_in_any_order_of_calls(servers: Servers, rng: random.Random) -> None:
    server = emptied(servers.get("valkey-standalone"))
    assert isinstance(server, Server)
    async with NodeOracle() as oracle, connect(server.url) as redis:
        node = await NodeSide.open(oracle, server)
        for _ in range(round(150 * SCALE)):
            await node.call("reset", now=START, random=0.5, queues=[NAME])
            await Story(node, redis, rng).run(40)
        await node.close()


MISTAKES = {
    "a follower that no failure starts": ("rdof = true", "other = true"),
    "a follower that is not linked": ("call('SADD', q .. id .. ':dependencies', other.key)", ""),
    "a link that its child does not know": (
        "call('HSET', other.key, 'parentKey', q .. id, 'parent', link)",
        "",
    ),
    "data that is ignored": ("call('HSET', job.key, 'data', data, 'opts', options_of(job.id))", ""),
    "a failure that was meant for another payload": ("'defa', ", ""),
    "one that runs is not seen": ("call('LPOS', q .. 'active', id) and 'active' or 'waiting'", "'waiting'"),
    "one that has finished is taken for one that waits": (
        "{ 'delayed', 'waiting-children', 'completed', 'failed' }",
        "{ 'delayed', 'waiting-children', 'failed' }",
    ),
    "a record that stays": ("call('ZREM', q .. job.state, job.id)", ""),
    "a follower that is not let go": ("remove_from(follower)", ""),
    "the second place is not looked at": ("if place > 1 and job.state == 'none' then", "if true then"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_mistake_in_the_script_would_be_found(
    mistake: str, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the session's seed: that so many stories find it is a fact about the suite."""
    was, becomes = MISTAKES[mistake]
    source = commands.SEND.source
    assert source.count(was) == 1
    source = source.replace(was, becomes)
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    monkeypatch.setattr(commands, "SEND", replace(commands.SEND, source=source, sha=sha))
    server = emptied(servers.get("valkey-standalone"))
    assert isinstance(server, Server)
    async with NodeOracle() as oracle, connect(server.url) as redis:
        node = await NodeSide.open(oracle, server)
        found = False
        for number in range(100):
            await node.call("reset", now=START, random=0.5, queues=[NAME])
            try:
                await Story(node, redis, random.Random(f"mistakes/{number}")).run(40)
            except (AssertionError, TorilError, NodeError):
                found = True
                break
        await node.close()
    assert found, "100 stories did not find it"
