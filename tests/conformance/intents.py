"""What there is to do to a queue, and how often each of it comes.

An intent is drawn by choosing numbers, and knows nothing of what came before: so any of them can be left
out of a sequence. Who chooses is not said here: hypothesis, or chance (see ``strategies.py``).
The first of several possibilities is the plainest, since that is what a sequence shrinks to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tests.conformance.author import Author
from tests.conformance.operations import (
    STATES,
    Add,
    AddBulk,
    AddFlow,
    At,
    Backoff,
    ChangeDelay,
    ChangePriority,
    Clean,
    ClearLogs,
    Complete,
    Deduplication,
    Drain,
    ExtendLock,
    Fail,
    Flow,
    GetCountsPerPriority,
    GetDependencies,
    GetDependenciesCount,
    GetIgnoredChildrenFailures,
    GetJob,
    GetJobCounts,
    GetJobLogs,
    GetJobs,
    GetJobSchedulers,
    GetJobState,
    GetMetrics,
    GetRanges,
    GetRateLimitTtl,
    Id,
    IsMaxed,
    IsPaused,
    JobOptions,
    JobRef,
    Json,
    KeepJobs,
    Limiter,
    Log,
    LoseLock,
    Metrics,
    MoveToWait,
    MoveToWaitingChildren,
    NewJob,
    Obliterate,
    Operation,
    Outcome,
    Parent,
    Pause,
    Process,
    Promote,
    PromoteJobs,
    Random,
    RateLimit,
    Remove,
    RemoveChildDependency,
    RemoveDeduplicationKey,
    RemoveGlobalConcurrency,
    RemoveGlobalRateLimit,
    RemoveJobScheduler,
    RemoveRateLimitKey,
    RemoveUnprocessedChildren,
    Repeat,
    Resume,
    Retry,
    RetryJobs,
    SetGlobalConcurrency,
    SetGlobalRateLimit,
    Sweep,
    Template,
    Thrown,
    UpdateData,
    UpdateProgress,
    UpsertJobScheduler,
    WorkerOptions,
)
from tests.conformance.sides import START

Below = Callable[[int], int]
"""Chooses a number below the one it is given."""

Intent = Callable[[Author], None]
T = TypeVar("T")

# ---------------------------------------------------------------------- what to choose from

NAMES = ("alpha", "beta", "gamma", "delta")
"""Custom ids; few, so that they meet again."""

BAD_NAMES = ("5", "a:b", "a:b:c", "0:x")
"""Ids that BullMQ refuses, and one that it does not (a:b:c)."""

ROOTS = {"q": ("f1", "f2"), "p": ("g1", "g2")}
"""Ids of parents, by the queue they live in."""

DATA: tuple[Json, ...] = (
    {},
    {"n": 1},
    {"text": "año ✓"},
    {"list": [], "deep": {"x": None}},
    [1, "a"],
    "text",
    7,
)
VALUES: tuple[Json, ...] = (None, "done", 0, {"ok": True}, [1, 2], 1.5)
DELAYS = (1000, 1, 10, 1000, 5000, 60_000)
PRIORITIES = (1, 1, 2, 5, 2_097_152, 0)

ERRORS = (
    Thrown(),
    Thrown(),
    Thrown("other"),
    Thrown("never again", "unrecoverable"),
    Thrown("slow", "rateLimit"),
)

KEEPS: tuple[bool | int | KeepJobs, ...] = (
    True,
    False,
    0,
    1,
    2,
    KeepJobs(count=1),
    KeepJobs(count=0),
    KeepJobs(age=5),
    KeepJobs(count=2, age=60),
    KeepJobs(count=1, age=1),
)

BACKOFFS: tuple[int | Backoff, ...] = (
    0,
    1000,
    Backoff("fixed", 1000),
    Backoff("exponential", 1000),
    Backoff("fixed", 3001, 0.5),
    Backoff("exponential", 333, 1),
    Backoff("own", 5),
)

WORKERS = (
    *[WorkerOptions()] * 8,
    WorkerOptions(name="w1"),
    WorkerOptions(limiter=Limiter(2, 60_000)),
    WorkerOptions(limiter=Limiter(1, 10_000), name="w2"),
    WorkerOptions(metrics=Metrics(2)),
    WorkerOptions(remove_on_complete=KeepJobs(count=1), remove_on_fail=KeepJobs(count=0)),
    WorkerOptions(custom_backoff=1000, max_started_attempts=2),
    WorkerOptions(custom_backoff=-1),
    WorkerOptions(lock_duration=60_000),
)

SWEEPERS = (
    WorkerOptions(),
    WorkerOptions(),
    WorkerOptions(max_stalled_count=0),
    WorkerOptions(max_stalled_count=3),
)

DEDUPLICATIONS = (
    Deduplication("d1"),
    Deduplication("d2"),
    Deduplication("d1", ttl=10_000),
    Deduplication("d2", ttl=60_000),
    Deduplication("d1", ttl=60_000, extend=True),
    Deduplication("d1", replace=True),
    Deduplication("d2", replace=True),
    Deduplication("d1", ttl=60_000, replace=True),
    Deduplication("d1", ttl=10_000, extend=True, replace=True),
)

PARENTS = (*(Parent(root, queue) for queue, roots in ROOTS.items() for root in roots), Parent("nobody", "q"))

POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"fail_parent_on_failure": True},
    {"continue_parent_on_failure": True},
    {"ignore_dependency_on_failure": True},
    {"remove_dependency_on_failure": True},
)

SCHEDULERS = ("s1", "s2")

REPEATS = (
    Repeat(every=1000),
    Repeat(every=10_000),
    Repeat(every=7000, limit=2),
    Repeat(every=5000, start_date=START + 20_000),
    Repeat(every=5000, end_date=START + 60_000),
    Repeat(pattern="*/5 * * * * *"),
    Repeat(pattern="0 15 3 * * *", tz="Europe/Madrid"),
    Repeat(pattern="*/10 * * * * *", limit=3, immediately=True),
)

TEMPLATES = (
    Template(),
    Template(name="tick", data={"n": 1}),
    Template(name="tick", data={"n": 2}, opts=JobOptions(priority=3, attempts=2)),
    Template(opts=JobOptions(lifo=True, remove_on_complete=True)),
)

# ---------------------------------------------------------------------- choosing


def pick(below: Below, values: Sequence[T]) -> T:
    """One of these."""
    return values[below(len(values))]


def queue(below: Below) -> str:
    """Mostly ``q``."""
    return "p" if below(6) == 5 else "q"


def slot(below: Below) -> int:
    """Which of the tokens that will do."""
    return below(4)


def maybe(below: Below) -> bool:
    """Yes or no."""
    return bool(below(2))


def outcome(below: Below) -> Outcome:
    """How processing ends."""
    return Outcome(error=pick(below, ERRORS)) if maybe(below) else Outcome(pick(below, VALUES))


def job_of(below: Below, *states: str) -> JobRef:
    """Mostly a job of these states; sometimes one of any state, or one that never was."""
    match below(8):
        case 5 | 6:
            return any_job(below)
        case 7:
            return Id(pick(below, (*NAMES, "1", "2", "nobody")))
        case _:
            return At(pick(below, states), -below(2))


def any_job(below: Below) -> JobRef:
    """A job of any state, if there is one at all."""
    return At(pick(below, STATES), -below(2), or_next=True)


Trait = Callable[[Below], dict[str, Any]]

SHAPES: tuple[Trait, ...] = (
    lambda below: {"delay": pick(below, DELAYS)},
    lambda below: {"priority": pick(below, PRIORITIES)},
    lambda _: {"lifo": True},
    lambda below: {"attempts": 2 + below(2), "backoff": pick(below, BACKOFFS)},
    lambda below: {"attempts": 1 + below(3)},
    lambda below: {"remove_on_complete": pick(below, KEEPS)},
    lambda below: {"remove_on_fail": pick(below, KEEPS)},
    lambda below: {"remove_on_complete": pick(below, KEEPS), "remove_on_fail": pick(below, KEEPS)},
)
"""Traits that any job can have, in a flow too."""

OWN: tuple[Trait, ...] = (
    lambda below: {"job_id": pick(below, NAMES)},
    lambda below: {"job_id": pick(below, (*NAMES, *BAD_NAMES))},
    lambda below: {"deduplication": pick(below, DEDUPLICATIONS)},
    lambda below: {"deduplication": pick(below, DEDUPLICATIONS), "delay": pick(below, DELAYS)},
    lambda below: {"keep_logs": 1 + below(2)},
    lambda below: {"stack_trace_limit": below(2), "attempts": 3},
    lambda below: {"timestamp": pick(below, (START - 5000, START + 5000))},
    lambda below: {"size_limit": pick(below, (1000, 8))},
)
"""Traits of jobs that are added by themselves."""

CHILD: tuple[Trait, ...] = (lambda below: {"parent": pick(below, PARENTS), **pick(below, POLICIES)},)
"""The trait of having a parent."""


def traits(below: Below, known: Sequence[Trait], most: int) -> dict[str, Any]:
    """Some of these traits together."""
    chosen: dict[str, Any] = {}
    for _ in range(below(most + 1)):
        chosen |= pick(below, known)(below)
    return chosen


def new_job(below: Below, known: Sequence[Trait] = SHAPES + OWN) -> NewJob:
    """A job to add."""
    return NewJob(data=pick(below, DATA), opts=JobOptions(**traits(below, known, 3)))


def tree(below: Below) -> Flow:
    """A parent with children, some of which are parents, in one queue or two."""
    where = queue(below)
    root = pick(below, ROOTS[where])
    children = tuple(child(below, root, place) for place in range(1 + below(3)))
    return Flow(where, JobOptions(job_id=root, **traits(below, SHAPES, 2)), children, data=pick(below, DATA))


def child(below: Below, parent: str, place: int, *, deeper: bool = True) -> Flow:
    """One child; its id may be one that is there already."""
    own = f"{parent}-{place}" if below(5) < 4 else "alpha"
    options = JobOptions(job_id=own, **pick(below, POLICIES), **traits(below, SHAPES, 2))
    nested = deeper and own != "alpha" and below(4) == 3
    children = (child(below, own, 0, deeper=False),) if nested else ()
    return Flow(queue(below), options, children)


# ---------------------------------------------------------------------- intents


def write(operation: Operation) -> Intent:
    """The intent to do just this."""
    return lambda author: author.write(operation)


def add(below: Below) -> Intent:
    job = new_job(below)
    return write(Add(queue=queue(below), data=job.data, opts=job.opts))


def add_bulk(below: Below) -> Intent:
    jobs = tuple(new_job(below) for _ in range(1 + below(4)))
    return write(AddBulk(queue=queue(below), jobs=jobs))


def add_child(below: Below) -> Intent:
    job = new_job(below, SHAPES + OWN + CHILD * 8)
    return write(Add(queue=queue(below), data=job.data, opts=job.opts))


def family(below: Below) -> Intent:
    flow, worker = tree(below), pick(below, WORKERS)
    outcomes = [outcome(below) if maybe(below) else Outcome(error=Thrown()) for _ in range(1 + below(4))]
    return lambda author: author.family(flow, worker, outcomes)


def wear_out(below: Below) -> Intent:
    where, worker = queue(below), pick(below, WORKERS)
    always = {"attempts": 2 + below(2), "backoff": pick(below, BACKOFFS)}
    options = JobOptions(**{**traits(below, SHAPES + OWN, 2), **always})
    outcomes = [Outcome(error=pick(below, ERRORS)) for _ in range(1 + below(4))]
    return lambda author: author.wear_out(where, options, worker, outcomes)


def work(below: Below) -> Intent:
    where, worker, how, more = queue(below), pick(below, WORKERS), outcome(below), maybe(below)
    return lambda author: author.work(where, worker, how, fetch_next=more)


def fetch(below: Below) -> Intent:
    where, which, worker = queue(below), slot(below), pick(below, WORKERS)

    def act(author: Author) -> None:
        author.fetch(where, which, worker)

    return act


def finish(below: Below) -> Intent:
    where, which, worker, more = queue(below), slot(below), pick(below, WORKERS), maybe(below)
    how, args = (
        (Process, {"outcome": outcome(below)}),
        (Complete, {"value": pick(below, VALUES)}),
        (Fail, {"error": pick(below, ERRORS)}),
    )[below(3)]
    return lambda author: author.finish(
        where, which, how, goes_on=more, fetch_next=more, worker=worker, **args
    )


def leave(below: Below) -> Intent:
    where, which = queue(below), slot(below)
    match below(5):
        case 0:
            after = pick(below, (1000, 0, 10, 60_000))
            return lambda author: author.delay(where, which, after)
        case 1:
            return lambda author: author.finish(where, which, MoveToWait)
        case 2:
            return lambda author: author.finish(where, which, MoveToWaitingChildren)
        case 3:
            return lambda author: author.finish(where, which, ExtendLock, goes_on=True)
        case _:
            wrong = maybe(below)
            return lambda author: author.extend_all(where, wrong=wrong)


def trespass(below: Below) -> Intent:
    where, which = queue(below), slot(below)
    ways = (Complete, Fail, Process, MoveToWait, MoveToWaitingChildren, ExtendLock)
    how, token = pick(below, ways), pick(below, ("nobody", "t1", "0"))
    return lambda author: author.finish_wrongly(where, which, how, token)


def stall(below: Below) -> Intent:
    where, worker = queue(below), pick(below, SWEEPERS)
    match below(4):
        case 0 | 1:
            return lambda author: author.stall(where, worker)
        case 2:
            return write(Sweep(queue=where, worker=worker))
        case _:
            return write(LoseLock(queue=where, job=job_of(below, "active")))


def pass_time(below: Below) -> Intent:
    if below(5) == 4:
        return write(Random(value=pick(below, (0.0, 0.25, 0.999))))
    ms = pick(below, (1000, 1, 10, 5000, 10_000, 60_000))
    return lambda author: author.advance(ms)


def switch(below: Below) -> Intent:
    where = queue(below)
    return write(
        pick(
            below,
            (
                Resume(queue=where),
                Pause(queue=where),
                Pause(queue=where),
                Resume(queue=where),
                SetGlobalConcurrency(queue=where, concurrency=1 + below(2)),
                RemoveGlobalConcurrency(queue=where),
                SetGlobalRateLimit(queue=where, max=1 + below(2), duration=60_000),
                RemoveGlobalRateLimit(queue=where),
                RateLimit(queue=where, ms=pick(below, (10_000, 60_000))),
                RemoveRateLimitKey(queue=where),
            ),
        )
    )


def administer(below: Below) -> Intent:
    where = queue(below)
    ways: tuple[Callable[[], Operation], ...] = (
        lambda: Remove(queue=where, job=any_job(below)),
        lambda: Remove(queue=where, job=any_job(below), remove_children=False),
        lambda: Retry(queue=where, job=job_of(below, "failed")),
        lambda: Retry(queue=where, job=job_of(below, "completed"), state="completed"),
        lambda: Promote(queue=where, job=job_of(below, "delayed")),
        lambda: ChangeDelay(
            queue=where, job=job_of(below, "delayed"), delay=pick(below, (1000, 0, 1, 60_000))
        ),
        lambda: ChangePriority(
            queue=where,
            job=job_of(below, "wait", "prioritized", "paused", "delayed", "waiting-children"),
            priority=pick(below, PRIORITIES),
            lifo=pick(below, (None, True)),
        ),
        lambda: UpdateData(queue=where, job=any_job(below), data=pick(below, DATA)),
        lambda: UpdateProgress(queue=where, job=any_job(below), progress=pick(below, VALUES)),
        lambda: Log(
            queue=where, job=job_of(below, "active", "wait"), row=pick(below, ("one", "two", "tres ✓"))
        ),
        lambda: ClearLogs(queue=where, job=any_job(below), keep=pick(below, (None, 1))),
        lambda: RemoveDeduplicationKey(queue=where, deduplication_id=pick(below, ("d1", "d2"))),
    )
    return write(pick(below, ways)())


def meddle(below: Below) -> Intent:
    where = queue(below)
    parents = ("waiting-children", "wait", "completed", "failed")
    ways: tuple[Callable[[], Operation], ...] = (
        lambda: RemoveChildDependency(queue=where, job=job_of(below, "wait", "delayed", "active", "failed")),
        lambda: RemoveUnprocessedChildren(queue=where, job=job_of(below, *parents)),
        lambda: GetDependencies(queue=where, job=job_of(below, *parents)),
        lambda: GetDependenciesCount(queue=where, job=job_of(below, *parents)),
        lambda: GetIgnoredChildrenFailures(queue=where, job=job_of(below, *parents)),
    )
    return write(pick(below, ways)())


def sweep_out(below: Below) -> Intent:
    where = queue(below)
    cleaned = ("completed", "failed", "wait", "active", "delayed", "prioritized", "paused")
    ways: tuple[Callable[[], Operation], ...] = (
        lambda: Drain(queue=where, delayed=maybe(below)),
        lambda: Clean(
            queue=where, grace=pick(below, (0, 0, 1000)), limit=below(3), type=pick(below, cleaned)
        ),
        lambda: RetryJobs(
            queue=where, state=pick(below, ("failed", "failed", "completed")), count=pick(below, (None, 1))
        ),
        lambda: PromoteJobs(queue=where, count=pick(below, (None, 1))),
    )
    return write(pick(below, ways)())


def schedule(below: Below) -> Intent:
    which = pick(below, SCHEDULERS)
    match below(6):
        case 4:
            return write(RemoveJobScheduler(scheduler=which))
        case 5:
            return write(GetJobSchedulers(asc=maybe(below)))
        case _:
            repeat, template = pick(below, REPEATS), pick(below, TEMPLATES)
            return write(UpsertJobScheduler(scheduler=which, repeat=repeat, template=template))


def look(below: Below) -> Intent:
    where = queue(below)
    ranges = (("waiting",), ("wait", "paused"), ("delayed", "active"), ("completed",))
    ways: tuple[Callable[[], Operation], ...] = (
        lambda: GetJobCounts(queue=where),
        lambda: GetRanges(
            queue=where, types=pick(below, ranges), start=below(2), end=1 - 2 * below(2), asc=maybe(below)
        ),
        lambda: GetJobs(queue=where, types=pick(below, (("failed", "completed"), ("waiting", "delayed")))),
        lambda: GetJob(queue=where, job=any_job(below)),
        lambda: GetJobState(queue=where, job=any_job(below)),
        lambda: GetJobLogs(queue=where, job=any_job(below), asc=maybe(below)),
        lambda: GetCountsPerPriority(queue=where, priorities=(0, 1, 2, 5)),
        lambda: GetMetrics(queue=where, type=pick(below, ("completed", "failed"))),
        lambda: GetRateLimitTtl(queue=where, max=pick(below, (None, 1))),
        lambda: IsMaxed(queue=where),
        lambda: IsPaused(queue=where),
    )
    return write(pick(below, ways)())


def obliterate(below: Below) -> Intent:
    return write(Obliterate(queue=queue(below), force=pick(below, (None, True))))


def add_flow(below: Below) -> Intent:
    return write(AddFlow(flow=tree(below)))


KINDS: dict[str, tuple[tuple[int, Callable[[Below], Intent]], ...]] = {
    "plain": (
        (18, add),
        (4, add_bulk),
        (16, work),
        (8, fetch),
        (12, finish),
        (9, pass_time),
        (5, leave),
        (2, trespass),
        (6, stall),
        (4, wear_out),
        (12, administer),
        (4, look),
    ),
    "switches": ((7, switch),),
    "mass": ((4, sweep_out), (1, obliterate)),
    "flows": ((2, add_flow), (7, family), (2, add_child), (3, meddle)),
    "schedulers": ((5, schedule),),
}
"""What there is to do, by kind, each with how often it comes."""

BEGINNING = ((6, add), (3, add_bulk), (2, add_flow), (1, add_child), (2, schedule), (1, switch))
"""What a sequence begins with: something must be there before something can happen to it."""


def choices(without: frozenset[str] = frozenset()) -> tuple[list[Any], list[Any]]:
    """What a sequence begins with and what it goes on with, each as often as it should come."""
    left_out = {make for kind in without for _, make in KINDS[kind]}
    known = [each for kind in KINDS.values() for each in kind]
    first, later = (
        [make for weight, make in some if make not in left_out for _ in range(weight)]
        for some in (BEGINNING, known)
    )
    return first, later
