"""Toril as one side of a comparison."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any

from tests.conformance import operations as ops
from tests.conformance.operations import Operation
from tests.conformance.oracle import NodeOracle
from tests.conformance.sides import QUEUES, DirectSide, NodeSide, error_view
from tests.conformance.store import Store
from toril import Connection, connect
from toril.errors import TorilError
from toril.queue.errors import QueueError, UnrecoverableError, error_of
from toril.queue.handle import Job
from toril.queue.job import JobData
from toril.queue.options import Backoff, Deduplication, JobOptions, KeepJobs, Parent
from toril.queue.outcomes import Failed, Outcome, completed, failed
from toril.queue.queue import AddJob, Queue
from toril.queue.store import StepResult, TakeOptions
from toril.queue.worker.iteration import make_next_run
from toril.queue.worker.verdict import unrecoverable_reason
from toril.testing import Cluster, Server

Json = Any


class TorilSide(DirectSide):
    """The code under test. What only Node can make yet (flows, schedulers), Node makes in this database."""

    name = "toril"
    errors = (TorilError,)

    def __init__(self, redis: Connection, store: Store, node: NodeSide) -> None:
        super().__init__(store)
        self._redis = redis
        self._node = node
        self._queues: dict[str, Queue] = {}

    async def begin(self) -> None:
        self._queues.clear()
        for name in QUEUES:
            await self.queue(name).announce()

    def queue(self, name: str = "q") -> Queue:
        """A queue of this side, on its clock."""
        if name not in self._queues:
            self._queues[name] = Queue(name, self._redis, prefix=self.prefix, clock=lambda: self.now)
        return self._queues[name]

    async def perform(self, operation: Operation, job: str | None) -> Json:
        method: Callable[..., Any] = getattr(self, f"_{operation.op}")
        return await method(operation) if job is None else await method(operation, job)

    async def _by_node(self, operation: Operation) -> Json:
        """Let Node do it here, at the same time of the same clock."""
        await self._node.call("clock", now=self.now)
        await self._node.call("random", value=self.chance)
        replies = await self._node._sequence([operation.to_json(self.prefix)])
        if "error" in replies[0]:
            raise QueueError(replies[0]["error"]["message"], replies[0]["error"].get("code"))
        return replies[0]["ok"]

    # ------------------------------------------------------------------ the queue

    def options(self, given: ops.JobOptions) -> JobOptions:
        """A job's options as Toril has them."""
        made: dict[str, Any] = {}
        for part in fields(given):
            value = getattr(given, part.name)
            match value:
                case ops.Backoff(type=kind, delay=delay, jitter=jitter):
                    value = Backoff(kind, delay, jitter)
                case ops.KeepJobs(count=count, age=age):
                    value = KeepJobs(count, age)
                case ops.Deduplication(id=name, ttl=ttl, extend=extend, replace=replace):
                    value = Deduplication(name, ttl, bool(extend), bool(replace))
                case ops.Parent(id=name, queue=queue):
                    value = Parent(name, f"{self.prefix}:{queue}")
            made[part.name] = value
        return JobOptions(**made)

    async def _add(self, op: ops.Add) -> Json:
        return (await self.queue(op.queue).add(op.name, op.data, self.options(op.opts))).id

    async def _addBulk(self, op: ops.AddBulk) -> Json:  # noqa: N802 - named as the operation is
        queue = self.queue(op.queue)
        jobs = [AddJob(job.name, job.data, self.options(job.opts)) for job in op.jobs]
        try:
            return [job.id for job in await queue.add_bulk(jobs)]
        except QueueError:
            # All or nothing here, and one by one in Node: nothing was added, so the same is done now.
            return [await self._one_of_bulk(queue, job) for job in jobs]

    async def _one_of_bulk(self, queue: Queue, job: AddJob) -> Json:
        try:
            return (await queue.add(job.name, job.data, job.options)).id
        except QueueError as problem:
            return problem.code

    async def _addFlow(self, op: ops.AddFlow) -> Json:  # noqa: N802
        return await self._by_node(op)

    async def _upsertJobScheduler(self, op: ops.UpsertJobScheduler) -> Json:  # noqa: N802
        return await self._by_node(op)

    async def _removeJobScheduler(self, op: ops.RemoveJobScheduler) -> Json:  # noqa: N802
        return await self._by_node(op)

    async def _pause(self, op: ops.Pause) -> None:
        await self.queue(op.queue).pause()

    async def _resume(self, op: ops.Resume) -> None:
        await self.queue(op.queue).resume()

    async def _drain(self, op: ops.Drain) -> None:
        await self.queue(op.queue).drain(delayed=op.delayed)

    async def _clean(self, op: ops.Clean) -> Json:
        state: Any = "waiting" if op.type == "wait" else op.type
        return await self.queue(op.queue).clean(op.grace, limit=op.limit, state=state)

    async def _obliterate(self, op: ops.Obliterate) -> None:
        await self.queue(op.queue).obliterate(force=bool(op.force), count=op.count or 1000)

    async def _retryJobs(self, op: ops.RetryJobs) -> None:  # noqa: N802
        state: Any = op.state or "failed"
        await self.queue(op.queue).retry_jobs(state, until=op.timestamp, count=op.count or 1000)

    async def _promoteJobs(self, op: ops.PromoteJobs) -> None:  # noqa: N802
        await self.queue(op.queue).promote_jobs(count=op.count or 1000)

    async def _setGlobalConcurrency(self, op: ops.SetGlobalConcurrency) -> Json:  # noqa: N802
        return await self.queue(op.queue).set_global_concurrency(op.concurrency)

    async def _removeGlobalConcurrency(self, op: ops.RemoveGlobalConcurrency) -> Json:  # noqa: N802
        return await self.queue(op.queue).remove_global_concurrency()

    async def _getGlobalConcurrency(self, op: ops.GetGlobalConcurrency) -> Json:  # noqa: N802
        return await self.queue(op.queue).global_concurrency()

    async def _setGlobalRateLimit(self, op: ops.SetGlobalRateLimit) -> Json:  # noqa: N802
        return await self.queue(op.queue).set_global_rate_limit(op.max, op.duration)

    async def _removeGlobalRateLimit(self, op: ops.RemoveGlobalRateLimit) -> Json:  # noqa: N802
        return await self.queue(op.queue).remove_global_rate_limit()

    async def _getGlobalRateLimit(self, op: ops.GetGlobalRateLimit) -> Json:  # noqa: N802
        found = await self.queue(op.queue).global_rate_limit()
        return {"max": found[0], "duration": found[1]} if found else None

    async def _rateLimit(self, op: ops.RateLimit) -> None:  # noqa: N802
        await self.queue(op.queue).rate_limit(op.ms)

    async def _removeRateLimitKey(self, op: ops.RemoveRateLimitKey) -> Json:  # noqa: N802
        return int(await self.queue(op.queue).remove_rate_limit())

    async def _getRateLimitTtl(self, op: ops.GetRateLimitTtl) -> Json:  # noqa: N802
        return {"ttl": await self.queue(op.queue).rate_limit_ttl(op.max or 0)}

    async def _getJobCounts(self, op: ops.GetJobCounts) -> Json:  # noqa: N802
        states: Any = op.types or ()
        return await self.queue(op.queue).counts(*states)

    async def _getRanges(self, op: ops.GetRanges) -> Json:  # noqa: N802
        # Node looks for waiting jobs of a paused queue only where it reads jobs; Toril's ids() does too.
        how, found = _range(op), dict[str, None]()
        for state in op.types:
            suffix = "wait" if state == "waiting" else state
            (ids,) = await self.queue(op.queue).store.ranges([suffix], *how.values())
            is_list = suffix in ("wait", "paused", "active")
            found.update(dict.fromkeys(reversed(ids) if is_list and op.asc else ids))
        return list(found)

    async def _getJobs(self, op: ops.GetJobs) -> Json:  # noqa: N802
        queue = self.queue(op.queue)
        how = _range(op)
        if op.end is None:
            how["end"] = -1
        ids = await queue.ids(*_states(op), **how)
        return [job_view(await queue.job(job_id)) for job_id in ids]

    async def _getCountsPerPriority(self, op: ops.GetCountsPerPriority) -> Json:  # noqa: N802
        found = await self.queue(op.queue).counts_per_priority(*dict.fromkeys(op.priorities))
        return {str(priority): count for priority, count in found.items()}

    async def _getMetrics(self, op: ops.GetMetrics) -> Json:  # noqa: N802
        kind: Any = op.type
        end = -1 if op.end is None else op.end
        found = await self.queue(op.queue).metrics(kind, op.start or 0, end)
        meta = {"count": found.count, "prevTS": found.previous_time, "prevCount": found.previous_count}
        return {"meta": meta, "data": found.data, "count": found.points}

    async def _isMaxed(self, op: ops.IsMaxed) -> Json:  # noqa: N802
        return await self.queue(op.queue).is_maxed()

    async def _isPaused(self, op: ops.IsPaused) -> Json:  # noqa: N802
        return await self.queue(op.queue).is_paused()

    async def _trimEvents(self, op: ops.TrimEvents) -> Json:  # noqa: N802
        return await self.queue(op.queue).trim_events(op.max_length)

    async def _getDeduplicationJobId(self, op: ops.GetDeduplicationJobId) -> Json:  # noqa: N802
        return await self.queue(op.queue).deduplication_owner(op.deduplication_id)

    async def _removeDeduplicationKey(self, op: ops.RemoveDeduplicationKey) -> Json:  # noqa: N802
        return int(await self.queue(op.queue).forget_deduplication(op.deduplication_id))

    async def _getJobScheduler(self, op: ops.GetJobScheduler) -> Json:  # noqa: N802
        return scheduler_view(await self.queue(op.queue).scheduler(op.scheduler))

    async def _getJobSchedulers(self, op: ops.GetJobSchedulers) -> Json:  # noqa: N802
        end = -1 if op.end is None else op.end
        found = await self.queue(op.queue).schedulers(op.start or 0, end, latest_first=not op.asc)
        return [scheduler_view(each) for each in found]

    # ------------------------------------------------------------------ one job, by an administrator

    async def _job(self, op: ops.OnJob, job: str) -> Job:
        queue = self.queue(op.queue)
        return await queue.job(job) or Job(queue.store, job, {})

    async def _getJob(self, op: ops.GetJob, job: str) -> Json:  # noqa: N802
        return job_view(await self.queue(op.queue).job(job))

    async def _getJobState(self, op: ops.GetJobState, job: str) -> Json:  # noqa: N802
        return await self.queue(op.queue).state(job)

    async def _getJobLogs(self, op: ops.GetJobLogs, job: str) -> Json:  # noqa: N802
        handle = await self._job(op, job)
        newest_first = op.asc is False
        end = -1 if op.end is None else op.end
        lines = await handle.logs(op.start or 0, end, newest_first=newest_first)
        return {"logs": lines, "count": await self._redis.command("LLEN", handle.store.keys.logs(job))}

    async def _remove(self, op: ops.Remove, job: str) -> Json:
        return int(await self.queue(op.queue).remove(job, children=op.remove_children is not False))

    async def _retry(self, op: ops.Retry, job: str) -> None:
        state: Any = op.state
        await (await self._job(op, job)).retry(state)

    async def _promote(self, op: ops.Promote, job: str) -> None:
        await (await self._job(op, job)).promote()

    async def _changeDelay(self, op: ops.ChangeDelay, job: str) -> None:  # noqa: N802
        await (await self._job(op, job)).change_delay(op.delay)

    async def _changePriority(self, op: ops.ChangePriority, job: str) -> None:  # noqa: N802
        await (await self._job(op, job)).change_priority(op.priority or 0, lifo=bool(op.lifo))

    async def _updateData(self, op: ops.UpdateData, job: str) -> None:  # noqa: N802
        await (await self._job(op, job)).update_data(op.data)

    async def _updateProgress(self, op: ops.UpdateProgress, job: str) -> None:  # noqa: N802
        await (await self._job(op, job)).update_progress(op.progress)

    async def _log(self, op: ops.Log, job: str) -> Json:
        return await (await self._job(op, job)).log(op.row)

    async def _clearLogs(self, op: ops.ClearLogs, job: str) -> None:  # noqa: N802
        await (await self._job(op, job)).clear_logs(op.keep or 0)

    async def _getDependencies(self, op: ops.GetDependencies, job: str) -> Json:  # noqa: N802
        handle = await self._job(op, job)
        return {
            "processed": await handle.children_values(),
            "unprocessed": await handle.pending_children(),
            "failed": await handle.failed_children(),
            "ignored": await handle.ignored_failures(),
        }

    async def _getDependenciesCount(self, op: ops.GetDependenciesCount, job: str) -> Json:  # noqa: N802
        found = await self._getDependencies(ops.GetDependencies(queue=op.queue, job=op.job), job)
        return {name: len(children) for name, children in found.items()}

    async def _getChildrenValues(self, op: ops.GetChildrenValues, job: str) -> Json:  # noqa: N802
        return await (await self._job(op, job)).children_values()

    async def _getIgnoredChildrenFailures(  # noqa: N802
        self, op: ops.GetIgnoredChildrenFailures, job: str
    ) -> Json:
        return await (await self._job(op, job)).ignored_failures()

    async def _removeChildDependency(self, op: ops.RemoveChildDependency, job: str) -> Json:  # noqa: N802
        return await (await self._job(op, job)).leave_parent()

    async def _removeUnprocessedChildren(  # noqa: N802
        self, op: ops.RemoveUnprocessedChildren, job: str
    ) -> None:
        await (await self._job(op, job)).remove_unprocessed_children()

    # ------------------------------------------------------------------ by a worker

    async def _fetch(self, op: ops.Fetch) -> Json:
        return await self._step(op, [], op.token)

    async def _step(self, op: Any, outcomes: list[Outcome], token: str | None) -> Json:
        queue = self.queue(op.queue)
        tokens = [token] if token is not None else []
        result = await queue.store.step(outcomes, tokens, _take(op.worker))
        for outcome, code in zip(outcomes, result.codes, strict=True):
            if code < 0:
                raise error_of(code, outcome.verb, job=outcome.id)
        return await self._next(queue, result)

    async def _next(self, queue: Queue, result: StepResult) -> Json:
        view: dict[str, Any] = {
            "job": None,
            "limitedFor": result.limited_for,
            "nextDelayed": result.next_due,
        }
        for job in result.jobs:
            self.held[job.token] = (job.id, job)
            view["job"] = job_view(job)
            await make_next_run(queue.store, job)
        return view

    async def _held_job(self, op: Any, job: str) -> JobData:
        """A job to work on: as it was when the token activated it, else as it is stored."""
        token = op.job.held if isinstance(op.job, ops.Held) else op.token
        known = self.held.get(token)
        if known is not None and known[0] == job:
            found: JobData = known[1]
            found = JobData(job, dict(found.fields), op.token)
        else:
            stored = await self.queue(op.queue).job(job)
            found = JobData(job, stored.fields if stored else {}, op.token)
        return found

    async def _complete(self, op: ops.Complete, job: str) -> Json:
        held = await self._held_job(op, job)
        outcome = completed(held, op.value, _keep(op.worker.remove_on_complete))
        return await self._step(op, [outcome], op.token if op.fetch_next else None)

    def _failure(self, op: Any, held: JobData, error: ops.Thrown) -> Outcome:
        problem: Exception = Exception(error.message)
        if error.kind == "unrecoverable":
            problem = UnrecoverableError(error.message)
        return self._failed(op, held, problem, error.stack)

    def _failed(self, op: Any, held: JobData, problem: Exception, stack: str) -> Outcome:
        factor = op.worker.custom_backoff
        return failed(
            held,
            problem,
            stack,
            keep=_keep(op.worker.remove_on_fail),
            strategy=None if factor is None else (lambda n, *_: factor if factor < 0 else n * factor),
            chance=lambda: self.chance,
        )

    async def _fail(self, op: ops.Fail, job: str) -> Json:
        held = await self._held_job(op, job)
        if op.error.kind == "rateLimit":
            return await self._rate_limited(op, held)
        outcome = self._failure(op, held, op.error)
        fetches = op.fetch_next and outcome.verb == "moveToFinished"
        return await self._step(op, [outcome], op.token if fetches else None)

    async def _rate_limited(self, op: Any, held: JobData) -> Json:
        ttl = await Job.of(self.queue(op.queue).store, held).move_to_wait(op.token)
        return {"job": None, "limitedFor": ttl, "nextDelayed": 0}

    async def _process(self, op: ops.Process, job: str) -> Json:
        held = await self._held_job(op, job)
        problems: list[Exception] = []
        view = await self._process_noting(op, held, problems)
        if problems:
            view["problems"] = [error_view(problem, self.code_of(problem)) for problem in problems]
        return view

    async def _process_noting(self, op: ops.Process, held: JobData, problems: list[Exception]) -> Json:
        """As Node's worker does it: an error on the way to the end is noted, and then fails the job."""
        error = op.outcome.error
        reason = unrecoverable_reason(held, op.worker.max_started_attempts)
        first: Outcome | None = None
        if reason is not None:
            first = self._failed(op, held, UnrecoverableError(reason), f"Error: {reason}")
        elif error is None:
            first = completed(held, op.outcome.value, _keep(op.worker.remove_on_complete))
        if first is not None:
            try:
                return await self._end(op, first)
            except QueueError as problem:
                problems.append(problem)
                if isinstance(first, Failed):  # Node has put the trace into its copy of the job by now
                    held.fields[b"stacktrace"] = first.stack_traces
        try:
            if problems:
                kind = UnrecoverableError if self.code_of(problems[0]) == -9 else Exception
                text = str(problems[0])
                return await self._end(op, self._failed(op, held, kind(text), f"Error: {text}"))
            assert error is not None
            if error.kind == "rateLimit":
                return await self._rate_limited(op, held)
            return await self._end(op, self._failure(op, held, error))
        except TorilError as problem:
            problems.append(problem)
            return {"job": None, "limitedFor": 0, "nextDelayed": 0}

    async def _end(self, op: ops.Process, outcome: Outcome) -> Json:
        fetches = op.fetch_next and outcome.verb == "moveToFinished"
        return await self._step(op, [outcome], op.token if fetches else None)

    async def _moveToDelayed(self, op: ops.MoveToDelayed, job: str) -> None:  # noqa: N802
        await (await self._job(op, job)).move_to_delayed(op.timestamp, op.token)

    async def _moveToWait(self, op: ops.MoveToWait, job: str) -> Json:  # noqa: N802
        return {"ttl": await (await self._job(op, job)).move_to_wait(op.token)}

    async def _moveToWaitingChildren(self, op: ops.MoveToWaitingChildren, job: str) -> Json:  # noqa: N802
        return await (await self._job(op, job)).move_to_waiting_children(op.token)

    async def _extendLock(self, op: ops.ExtendLock, job: str) -> Json:  # noqa: N802
        return int(await (await self._job(op, job)).extend_lock(op.duration, op.token))

    async def _extendLocks(self, op: ops.ExtendLocks) -> Json:  # noqa: N802
        known = [(self.job_meant(op.queue, reference), token) for reference, token in op.locks]
        locks = [(job, token) for job, token in known if job is not None]
        if not locks:
            return ops.NOTHING
        lost = await self.queue(op.queue).store.renew(locks, op.worker.lock_duration or 30_000)
        return [job for job, _ in lost]

    async def _sweep(self, op: ops.Sweep) -> Json:
        most = op.worker.max_stalled_count
        interval = op.worker.stalled_interval or 30_000
        return await self.queue(op.queue).store.sweep(1 if most is None else most, interval)


@asynccontextmanager
async def open_toril(
    oracle: NodeOracle, server: Server | Cluster, *, db: int = 0, prefix: str = "bull"
) -> AsyncIterator[TorilSide]:
    """Toril in a database. The oracle makes there what only Node can make yet."""
    url = server.url if isinstance(server, Cluster) else f"{server.url}/{db}"
    node = await NodeSide.open(oracle, server, db=db, prefix=prefix)
    try:
        # A queue of Node's writes the version when it is made: else that might come after an obliterate.
        await node.reset()
        async with connect(url) as redis:
            yield TorilSide(redis, node.store, node)
    finally:
        await node.close()


def _states(op: ops.GetRanges | ops.GetJobs) -> Any:
    return ["waiting" if name == "wait" else name for name in op.types]


def _range(op: ops.GetRanges | ops.GetJobs) -> dict[str, Any]:
    """Node's own defaults: the first two."""
    return {"start": op.start or 0, "end": 1 if op.end is None else op.end, "oldest_first": bool(op.asc)}


def _take(worker: ops.WorkerOptions) -> TakeOptions:
    limiter = worker.limiter
    return TakeOptions(
        lock_duration=worker.lock_duration or 30_000,
        limiter_max=limiter.max if limiter else None,
        limiter_duration=limiter.duration if limiter else None,
        worker=worker.name or "",
        metrics_points=worker.metrics.max_data_points if worker.metrics else None,
    )


def _keep(given: ops.KeepJobs | None) -> KeepJobs | None:
    return None if given is None else KeepJobs(given.count, given.age)


_LONG = {
    "de": "deduplication",
    "fpof": "failParentOnFailure",
    "cpof": "continueParentOnFailure",
    "idof": "ignoreDependencyOnFailure",
    "rdof": "removeDependencyOnFailure",
    "kl": "keepLogs",
}


def job_view(job: JobData | None) -> Json:
    """A job as the oracle shows it: fields that Node has as undefined are left out."""
    if job is None:
        return None
    found = {
        "id": job.id,
        "name": job.fields[b"name"].decode() if b"name" in job.fields else None,
        "data": job.data,
        "opts": {_LONG.get(name, name): value for name, value in job.opts.items()},
        "progress": job.progress,
        "delay": job.delay,
        "priority": job.priority,
        "timestamp": job.timestamp,
        "attemptsStarted": job.attempts_started,
        "attemptsMade": job.attempts_made,
        "stalledCounter": job.stalled_count,
        "stacktrace": job.stack_traces,
    }
    optional = {
        "finishedOn": job.finished_on,
        "processedOn": job.processed_on,
        "failedReason": job.failed_reason,
        "parent": job.parent,
        "parentKey": job.parent_key,
        "deduplicationId": job.deduplication_id,
        "repeatJobKey": job.scheduler_id,
        "processedBy": job.processed_by,
        "deferredFailure": job.deferred_failure,
        "nextRepeatableJobId": job.fields[b"nrjid"].decode() if b"nrjid" in job.fields else None,
    }
    found |= {name: value for name, value in optional.items() if value is not None}
    if b"returnvalue" in job.fields:
        found["returnvalue"] = job.return_value
    else:
        found["returnvalue"] = None
    return found


def scheduler_view(scheduler: Any) -> Json:
    """A scheduler as Node shows it."""
    if scheduler is None:
        return None
    found = {
        "key": scheduler.id,
        "name": scheduler.name,
        "next": scheduler.next_run,
        "iterationCount": scheduler.iterations,
        "limit": scheduler.limit,
        "startDate": scheduler.start,
        "endDate": scheduler.end,
        "tz": scheduler.timezone,
        "pattern": scheduler.pattern,
        "every": scheduler.every,
        "offset": scheduler.offset,
        "template": scheduler.template,
    }
    return {name: value for name, value in found.items() if value is not None}
