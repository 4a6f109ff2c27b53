"""Node and Toril as producers, workers and administrators of one queue, and what they leave in Redis."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from tests.conformance.dump import Dump, Key, differences, normalise
from tests.conformance.sides import NodeSide
from tests.queue.audit import until
from toril import Connection
from toril import queue as toril
from toril.queue import DelayedError, Job, Queue, UnrecoverableError, Worker
from toril.queue.store import wall_clock
from toril.testing import Cluster, Server

NAME, OTHER = "{fleet}", "{fleet}-other"
"""Two queues in one slot."""

Kind = Literal["node", "toril"]
KINDS: tuple[Kind, Kind] = ("node", "toril")
PAIRS: list[tuple[Kind, Kind]] = [("node", "toril"), ("toril", "node")]

Json = Any


# ---------------------------------------------------------------------- who plays


class Player(Protocol):
    """Someone who adds jobs, and keeps order among them."""

    async def add(self, name: str, data: Json, opts: dict[str, Any]) -> str: ...
    async def counts(self) -> dict[str, int]: ...
    async def state(self, job: str) -> str: ...
    async def pause(self) -> None: ...
    async def resume(self) -> None: ...
    async def remove(self, job: str) -> None: ...
    async def retry(self, job: str) -> None: ...
    async def promote(self, job: str) -> None: ...
    async def change_delay(self, job: str, delay: int) -> None: ...
    async def change_priority(self, job: str, priority: int) -> None: ...
    async def update_data(self, job: str, data: Json) -> None: ...
    async def log(self, job: str, row: str) -> None: ...


class NodePlayer:
    """BullMQ's Queue."""

    def __init__(self, node: NodeSide, queue: str) -> None:
        self._node = node
        self._queue = queue

    async def _call(self, op: str, **args: Any) -> Any:
        return await self._node.call(op, queue=self._queue, **args)

    async def add(self, name: str, data: Json, opts: dict[str, Any]) -> str:
        job: str = await self._call("add", name=name, data=data, opts=opts)
        return job

    async def counts(self) -> dict[str, int]:
        found: dict[str, int] = await self._call("getJobCounts")
        return found

    async def state(self, job: str) -> str:
        found: str = await self._call("getJobState", job=job)
        return found

    async def pause(self) -> None:
        await self._call("pause")

    async def resume(self) -> None:
        await self._call("resume")

    async def remove(self, job: str) -> None:
        await self._call("remove", job=job)

    async def retry(self, job: str) -> None:
        await self._call("retry", job=job, state="failed")

    async def promote(self, job: str) -> None:
        await self._call("promote", job=job)

    async def change_delay(self, job: str, delay: int) -> None:
        await self._call("changeDelay", job=job, delay=delay)

    async def change_priority(self, job: str, priority: int) -> None:
        await self._call("changePriority", job=job, priority=priority)

    async def update_data(self, job: str, data: Json) -> None:
        await self._call("updateData", job=job, data=data)

    async def log(self, job: str, row: str) -> None:
        await self._call("log", job=job, row=row)


class TorilPlayer:
    """Toril's Queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def _job(self, job: str) -> Job:
        found = await self._queue.job(job)
        assert found is not None
        return found

    async def add(self, name: str, data: Json, opts: dict[str, Any]) -> str:
        return (await self._queue.add(name, data, toril_options(opts))).id

    async def counts(self) -> dict[str, int]:
        return await self._queue.counts()

    async def state(self, job: str) -> str:
        return await self._queue.state(job)

    async def pause(self) -> None:
        await self._queue.pause()

    async def resume(self) -> None:
        await self._queue.resume()

    async def remove(self, job: str) -> None:
        assert await self._queue.remove(job)

    async def retry(self, job: str) -> None:
        await (await self._job(job)).retry()

    async def promote(self, job: str) -> None:
        await (await self._job(job)).promote()

    async def change_delay(self, job: str, delay: int) -> None:
        await (await self._job(job)).change_delay(delay)

    async def change_priority(self, job: str, priority: int) -> None:
        await (await self._job(job)).change_priority(priority)

    async def update_data(self, job: str, data: Json) -> None:
        await (await self._job(job)).update_data(data)

    async def log(self, job: str, row: str) -> None:
        await (await self._job(job)).log(row)


def toril_options(opts: dict[str, Any]) -> toril.JobOptions:
    """Options as a Node producer writes them, in Toril's words."""
    made = {re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", name): opts[name] for name in opts}
    for name, kind in (("backoff", toril.Backoff), ("deduplication", toril.Deduplication)):
        if name in made:
            made[name] = kind(**made[name])
    for name in ("remove_on_complete", "remove_on_fail"):
        if isinstance(made.get(name), dict):
            made[name] = toril.KeepJobs(**made[name])
    return toril.JobOptions(**made)


# ---------------------------------------------------------------------- who works


async def obey(job: Job) -> Json:
    """Do what a job's data says, as the processor ``fromData`` of node/fleet.mjs does."""
    script = job.data["script"]
    value = script.get("value", "ok")
    match script["kind"]:
        case "ok":
            return value
        case "echo":
            return job.data
        case "fail":
            kind = UnrecoverableError if script.get("unrecoverable") else ValueError
            raise kind(script.get("message", "failed"))
        case "failTimes":
            if job.attempts_made < script["times"]:
                raise ValueError(script.get("message", "not yet"))
            return value
        case "report":
            for step in range(1, script["steps"] + 1):
                await job.update_progress({"step": step, "of": script["steps"]})
                await job.log(f"step {step}")
            return value
        case "delay":
            if job.attempts_started > 1:
                return value
            await job.move_to_delayed(wall_clock() + script["ms"])
            raise DelayedError
        case unknown:
            raise AssertionError(unknown)


class Crew(Protocol):
    """A worker under way."""

    async def until_run(self, job: str) -> None:
        """Return when it has begun to work on a job."""
        ...


class NodeCrew:
    def __init__(self, node: NodeSide, name: str) -> None:
        self._node = node
        self._name = name

    async def until_run(self, job: str) -> None:
        assert await self._node.call("until", name=self._name, event="run", job=job, timeout=10_000), job


class TorilCrew:
    def __init__(self) -> None:
        self.begun: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def until_run(self, job: str) -> None:
        await asyncio.wait_for(self.begun[job].wait(), 10)


@dataclass
class Stage:
    """A server with both players on it."""

    server: Server | Cluster
    node: NodeSide
    redis: Connection
    problems: list[int | str | None] = field(default_factory=list)
    """The codes of errors that workers have met; there should be none that a test has not looked at."""

    async def clear(self, *queues: str) -> None:
        """No keys; Node's queues have written their meta key."""
        await self.node.call("reset", queues=list(queues or (NAME,)))

    def queue(self, name: str = NAME) -> Queue:
        return Queue(name, self.redis)

    def player(self, kind: Kind, queue: str = NAME) -> Player:
        return NodePlayer(self.node, queue) if kind == "node" else TorilPlayer(self.queue(queue))

    @asynccontextmanager
    async def working(
        self,
        kind: Kind,
        queue: str = NAME,
        *,
        name: str = "w1",
        concurrency: int = 1,
        drain: int = 5,
        max_started: int = 0,
    ) -> AsyncIterator[Crew]:
        """A worker that obeys."""
        if kind == "node":
            member = f"{kind}/{queue}/{name}"
            options = {"name": name, "concurrency": concurrency, "drainDelay": drain}
            options["maxStartedAttempts"] = max_started
            await self.node.call(
                "startWorker", name=member, queue=queue, processor={"kind": "fromData"}, worker=options
            )
            try:
                yield NodeCrew(self.node, member)
            finally:
                seen = await self.node.call("stop", name=member)
                self.problems += [entry["error"].get("code") for entry in seen if entry["event"] == "error"]
        else:
            worker = Worker(
                queue,
                self.redis,
                worker_name=name,
                concurrency=concurrency,
                drain_delay=float(drain),
                max_started_attempts=max_started or None,
            )
            crew = TorilCrew()
            worker.handler()(obey)
            worker.on("active")(lambda job: crew.begun[job.id].set())
            worker.on("error")(lambda problem: self.problems.append(getattr(problem, "code", str(problem))))
            async with worker:
                yield crew

    async def idle(self, *queues: str) -> None:
        """Wait until there is nothing left to work on."""
        for queue in queues or (NAME,):
            counts: Any = self.queue(queue).counts

            async def empty(counts: Any = counts) -> bool:
                found = await counts("waiting", "paused", "active", "delayed", "prioritized")
                return not any(found.values())

            await until(empty, f"queue {queue} to be empty")

    async def blocked(self, clients: int = 1) -> None:
        """Wait until so many workers of the queue wait for its marker."""

        async def waiting() -> bool:
            found: bytes = await self.redis.command("CLIENT", "LIST", near=self.queue().keys.meta)
            return found.count(b" cmd=bzpopmin ") >= clients

        await until(waiting, "a worker to wait")

    def ending(self) -> dict[str, Key]:
        """All that is in Redis, without the times."""
        return timeless(self.node.store.dump())


# ---------------------------------------------------------------------- what must be the same

_TIMES = frozenset({"timestamp", "processedOn", "finishedOn"})
_OF_THE_MOMENT = ("marker", "stalled-check")


def timeless(dump: Dump) -> dict[str, Key]:
    """A dump without what no two runs have in common: times, and the order among jobs that they decide."""
    found = {}
    for name, key in normalise(without_run_times(dump)).items():
        if name.endswith(_OF_THE_MOMENT):
            continue
        value = key.value
        if key.kind == "hash" and "name" in value:
            value = {field: text for field, text in value.items() if field not in _TIMES}
        elif key.kind == "zset" and not name.endswith(":repeat"):
            value = sorted(value)
        elif key.kind == "stream":
            value = by_job(value)
        found[name] = Key(key.kind, value)
    return found


def by_job(stream: Sequence[tuple[str, list[tuple[str, str]]]]) -> dict[str, list[Any]]:
    """Events of each job in their order; those of the queue itself are only counted."""
    found: dict[str, list[Any]] = defaultdict(list)
    others: Counter[str] = Counter()
    for _, pairs in stream:
        fields = dict(pairs)
        event, job = fields.pop("event"), fields.pop("jobId", None)
        if event in ("delayed", "drained"):
            fields.pop("delay", None)  # a time
        if job is not None:
            found[job].append((event, fields))
        elif event != "drained":  # how often the queue was empty depends on who was faster
            others[event] += 1
    return {**found, "": sorted(others.items())}


_RUN = re.compile(r"repeat:([^:]+):([0-9]{13})")


def without_run_times(dump: Dump) -> dict[str, Key]:
    """Runs of schedulers, named by their time, become the ms since the first one."""
    first: dict[str, int] = {}
    for name in dump:
        for scheduler, due in _RUN.findall(name):
            first[scheduler] = min(int(due), first.get(scheduler, int(due)))
    if not first:
        return dict(dump)

    def named(text: str) -> str:
        return _RUN.sub(lambda run: f"repeat:{run[1]}:+{int(run[2]) - first[run[1]]}", text)

    def plain(value: Any) -> Any:
        match value:
            case str():
                text = re.sub(r'"(delay|timestamp|offset|prevMillis)":[0-9]+,?', "", named(value))
                return text.replace(",}", "}")
            case list() | tuple():
                return type(value)(plain(item) for item in value)
            case dict():
                return {plain(k): plain(v) for k, v in value.items() if k not in ("offset", "delay")}
        return value

    found = {}
    for name, key in dump.items():
        value = plain(key.value)
        if name.endswith(":repeat"):
            value = {scheduler: due - first[scheduler] for scheduler, due in value.items()}
        found[named(name)] = replace(key, value=value)
    return found


def assert_same(expected: Dump, found: Dump, who: str) -> None:
    differing = differences(expected, found, names=("node", who))
    assert not differing, "\n".join(differing)
