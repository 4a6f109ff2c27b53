"""The promise node-agrees, for batches, which Node does not have: they leave what their parts leave."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tests.conformance import operations as ops
from tests.conformance.agreeing import ENOUGH, Twins, make, read_mistakes, scaled
from tests.conformance.dump import Dump, Key, differences, normalise
from tests.conformance.intents import CHILD, OWN, SHAPES, new_job
from tests.conformance.operations import Add, Fetch
from tests.conformance.oracle import NodeOracle
from tests.conformance.store import Store
from tests.conformance.strategies import random_sequence
from tests.conformance.toril_side import TorilSide, open_toril
from tests.conftest import SCALE, SEED
from toril import InvalidValue
from toril.queue import (
    AddJob,
    Deduplication,
    JobOptions,
    KeepJobs,
    Parent,
    ParentMissing,
    ParentTaken,
    QueueError,
)
from toril.queue.outcomes import Completed, Delayed, Failed, HandedBack, Outcome, Retried
from toril.queue.store import NewJob, TakeOptions
from toril.testing import Server, standalone


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of its own: these tests wipe databases."""
    with standalone({"databases": 8}) as made:
        yield made


@asynccontextmanager
async def open_twins(server: Server) -> AsyncIterator[Twins]:
    """Toril twice: one does in a batch what the other does one by one."""
    async with (
        NodeOracle() as oracle,
        open_toril(oracle, server, db=4) as batch,
        open_toril(oracle, server, db=5) as singles,
    ):
        yield batch, singles


async def dumps(twins: Twins) -> list[Dump]:
    return [normalise(await side.dump()) for side in twins]


async def fill(twins: Twins, chance: random.Random) -> None:
    """Any state, the same in both, with some jobs active and more that wait; sometimes with limits."""
    operations = random_sequence(chance, least=5, most=20)
    match chance.randrange(8):
        case 0:
            operations.append(ops.SetGlobalConcurrency(concurrency=chance.randint(2, 8)))
        case 1:
            operations.append(ops.SetGlobalRateLimit(max=chance.randint(2, 8), duration=60_000))
    jobs = [ops.NewJob(opts=ops.JobOptions(priority=chance.choice((None, None, 1)))) for _ in range(8)]
    fetches = [Fetch(token=f"f{number}") for number in range(chance.randrange(6))]
    for side in twins:
        await side.run([*operations, ops.AddBulk(jobs=tuple(jobs)), *fetches])
    assert not differences(*await dumps(twins))


def held(store: Store) -> list[tuple[str, str]]:
    """The active jobs with their locks; for one whose lock is lost, one that will not do."""
    ids = [job.decode() for job in store.ask("LRANGE", store.key("q", "active"), 0, -1)]
    locks = [store.ask("GET", store.key("q", f"{job}:lock")) for job in ids]
    return [(job, lock.decode() if lock else "lost") for job, lock in zip(ids, locks, strict=True)]


KEPT = (*[KeepJobs(count=-1)] * 2, KeepJobs(count=0), KeepJobs(count=1), KeepJobs(count=2, age=5))
TAKES = (
    *[TakeOptions()] * 3,
    TakeOptions(limiter_max=2, limiter_duration=60_000),
    TakeOptions(worker="w", metrics_points=2),
)


def finished(chance: random.Random, job: str, token: str) -> Outcome:
    """Completed or failed."""
    if chance.random() < 0.5:
        return Completed(job, token, b'{"n":1}', chance.choice(KEPT))
    return Failed(job, token, "boom", chance.choice(KEPT), chance.randrange(3), b'["a trace"]')


def given_up(chance: random.Random, job: str, token: str) -> Outcome:
    """Any way to give up a job, sometimes with a lock that is not its own."""
    token = token if chance.random() < 0.95 else "nobody"
    match chance.randrange(8):
        case 0:
            return Retried(job, token, chance.random() < 0.5, "boom", b'["a trace"]')
        case 1:
            return Delayed(job, token, chance.choice((0, 1, 1000)), chance.random() < 0.5, "boom")
        case 2:
            return HandedBack(job, token)
        case _:
            return finished(chance, job, token)


def same_codes(left: list[int], right: list[int]) -> bool:
    """Codes are the same; times (of jobs handed back to a limited queue) are about the same."""
    pairs = zip(left, right, strict=True)
    return all(a == b if min(a, b) < 0 else abs(a - b) < 5000 for a, b in pairs)


def without_drained(dump: Dump) -> dict[str, Key]:
    """All but the ``drained`` events, which say that the queue was empty when a call ended.

    Calls that end at other moments cannot say the same. K calls that take nothing also tell it when the
    next call finds a job that has become due; and the part of a batch that delays the last job ends after
    the part that finished the one before it.
    """
    return {
        name: replace(key, value=[pairs for _, pairs in key.value if pairs[0] != ("event", "drained")])
        if key.kind == "stream"
        else key
        for name, key in dump.items()
    }


async def check_step(twins: Twins, chance: random.Random) -> None:
    """A step that gives up and takes jobs leaves what as many single steps leave."""
    await fill(twins, chance)
    batch, singles = (side.queue().store for side in twins)
    active = held(twins[0].store)
    outcomes = [given_up(chance, *job) for job in chance.sample(active, chance.randint(0, len(active)))]
    tokens = [f"n{place}" for place in range(chance.randrange(5))]
    take = chance.choice(TAKES)
    what = f"{outcomes} {tokens} {take}"

    whole = await batch.step(outcomes, tokens, take)
    codes = [(await singles.step([outcome], [], take)).codes[0] for outcome in outcomes]
    assert same_codes(whole.codes, codes), what
    # A worker that could not give up a job hears of that first, as in Node: nothing is taken.
    wanted = tokens if min(codes, default=0) >= 0 else []
    parts = [await singles.step([], [token], take) for token in wanted]
    taken = [(job.id, job.token, job.fields) for part in parts for job in part.jobs]
    assert [(job.id, job.token, job.fields) for job in whole.jobs] == taken, what
    left, right = map(without_drained, await dumps(twins))
    assert not differences(left, right), what


async def test_node_agrees_with_batches_a_step_is_its_parts(server: Server, rng: random.Random) -> None:
    async with open_twins(server) as twins:
        for _ in range(scaled(150)):
            await check_step(twins, rng)


async def test_node_agrees_with_batches_that_empty_the_queue(server: Server, rng: random.Random) -> None:
    """Finishes, of which the last also takes, as Node's do: here ``drained`` is the same too."""
    emptied = 0
    async with open_twins(server) as twins:
        for number in range(scaled(100)):
            jobs = [Add() for _ in range(rng.randint(1, 5))]
            later = [Add(opts=ops.JobOptions(delay=1000))] * rng.randrange(2)
            fetches = [Fetch(token=f"f{place}") for place in range(len(jobs) - rng.randrange(2))]
            for side in twins:
                await side.run([*jobs, *later, *fetches])
            batch, singles = (side.queue().store for side in twins)
            outcomes = [finished(rng, *job) for job in held(twins[0].store)]
            tokens = [f"n{place}" for place in range(rng.randrange(3))]

            await batch.step(outcomes, tokens)
            for outcome in outcomes[:-1]:
                await singles.step([outcome])
            await singles.step(outcomes[-1:], tokens[:1])
            for token in tokens[1:]:
                await singles.step([], [token])
            left, right = await dumps(twins)
            assert not differences(left, right), (number, SEED, outcomes, tokens)
            emptied += ("event", "drained") in left["bull:q:events"].value[-1][1]
    assert emptied or SCALE < 1


async def test_node_agrees_with_batches_that_empty_the_queue_beside_a_refusal(server: Server) -> None:
    """The last job ends in one step with a job that someone else has completed meanwhile."""
    async with open_twins(server) as twins:
        operations = [Add(), Add(), Fetch(token="t1"), Fetch(token="t2")]
        someone = ops.Complete(job=ops.Held("t2"), token="0", fetch_next=False)
        for side in twins:
            await side.run([*operations, someone])
        batch, singles = (side.queue().store for side in twins)
        last, gone = (Completed(job, token, b"1", KEPT[0]) for job, token in (("1", "t1"), ("2", "t2")))
        assert (await batch.step([last, gone], ["n1"])).codes == [0, -3]
        assert (await singles.step([last], ["n1"])).codes == [0]
        assert (await singles.step([gone])).codes == [-3]
        assert not differences(*await dumps(twins))


DEDUPLICATIONS = (None, None, Deduplication("d"), Deduplication("d", replace=True))


def new_jobs(chance: random.Random, toril: TorilSide) -> list[NewJob]:
    """Jobs to add; some like any others, some that are likely to be in each other's way."""
    jobs: list[NewJob] = []
    for _ in range(1 + chance.randrange(6)):
        try:
            options = toril.options(new_job(chance.randrange, SHAPES + OWN + CHILD).opts)
        except InvalidValue:
            continue
        names = [job.options.job_id for job in jobs if job.options.job_id]
        if chance.random() < 0.7:
            options = JobOptions(
                job_id=chance.choice((None, "alpha", "beta", "gamma")),
                delay=chance.choice((None, 1000)),
                deduplication=chance.choice(DEDUPLICATIONS),
                parent=Parent(chance.choice(names), f"{toril.prefix}:q") if names else None,
            )
        if options.parent is None and options.job_id in names:
            continue  # known: "another parent after none"
        jobs.append(NewJob("job", b"{}", options))
    return jobs


async def added(toril: TorilSide, jobs: Sequence[NewJob]) -> list[str] | int | None:
    """The ids, or the code of the error."""
    try:
        return await toril.queue().store.add(jobs)
    except QueueError as problem:
        return problem.code


async def check_add(twins: Twins, chance: random.Random) -> bool:
    """Adding jobs together leaves what adding them in turn leaves, or nothing; whether they were added."""
    await fill(twins, chance)
    batch, singles = twins
    jobs = new_jobs(chance, batch)
    what = f"{jobs}"
    before = normalise(await batch.dump())
    result = await added(batch, jobs)
    parts = [await added(singles, [job]) for job in jobs]
    codes = [part for part in parts if not isinstance(part, list)]
    if codes:
        # All or none: what one by one leaves half done, a batch does not begin.
        assert result == codes[0], what
        assert len(jobs) == 1 or not differences(before, normalise(await batch.dump())), what
    else:
        assert result == [part[0] for part in parts if isinstance(part, list)], what
        assert not differences(*await dumps(twins)), what
    return not codes


async def test_node_agrees_with_batches_adding_many_is_adding_each(
    server: Server, rng: random.Random
) -> None:
    async with open_twins(server) as twins:
        added = [await check_add(twins, rng) for _ in range(scaled(150))]
    assert {True, False} == set(added) or SCALE < 1


MISTAKES_WITH_MANY = """
more taken than may be active at once
  - room = math.min(room, here.concurrency - call('LLEN', q .. 'active'))
more taken than the limit lets through
  - return 0, max - started
  + return 0, math.huge
one start counted for all
  - if max and call('INCRBY', q .. 'limiter', #ids) == #ids then
  + if max and call('INCRBY', q .. 'limiter', 1) == 1 then
an end written behind the purge of the next
  - write_finished(q)
  - purge(
  + purge(
a parent that gives way, but is waited for
  - elseif (custom or more.de) and not (more.de and will_give_way(id, more.de)) then
  + elseif custom or more.de then
a parent that is replaced, but is waited for
  - there[q .. owner], delayed[owner] = false, nil
  + delayed[owner] = nil
"""
"""What could be wrong only where there are several jobs."""

MUTATIONS_WITH_MANY = read_mistakes(MISTAKES_WITH_MANY)


@pytest.mark.parametrize("mistake", MUTATIONS_WITH_MANY)
async def test_node_agrees_with_batches_by_no_mistaken_script(
    mistake: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check_both(number: int) -> None:
        for way in (check_step, check_add):
            await way(twins, random.Random(f"many/{number}"))

    async def check_until_found() -> None:
        while len(shown) < ENOUGH:
            shown.append(len(shown))
            await check_both(shown[-1])

    shown: list[int] = []
    make(MUTATIONS_WITH_MANY[mistake], monkeypatch)
    async with open_twins(server) as twins:
        with pytest.raises(AssertionError):
            await check_until_found()
        print(f"batches needed: {len(shown)}")
        monkeypatch.undo()
        await check_both(shown[-1])


IN_THE_WAY = {
    "a parent that gives way": (
        [JobOptions(deduplication=Deduplication("d"))],
        [
            JobOptions(job_id="p", deduplication=Deduplication("d")),
            JobOptions(parent=Parent("p", "bull:q")),
        ],
        ParentMissing,
    ),
    "a parent that is replaced": (
        [JobOptions(job_id="p", delay=1000, deduplication=Deduplication("d", replace=True))],
        [
            JobOptions(delay=1000, deduplication=Deduplication("d", replace=True)),
            JobOptions(parent=Parent("p", "bull:q")),
        ],
        ParentMissing,
    ),
    "two parents for one id": (
        [JobOptions(job_id="a"), JobOptions(job_id="b")],
        [JobOptions(job_id="c", parent=Parent(parent, "bull:q")) for parent in ("a", "b")],
        ParentTaken,
    ),
    "another parent after none": (
        [JobOptions(job_id="a"), JobOptions(job_id="b")],
        [
            JobOptions(job_id="c", parent=Parent("a", "bull:q")),
            JobOptions(job_id="c"),
            JobOptions(job_id="c", parent=Parent("b", "bull:q")),
        ],
        ParentTaken,
    ),
}
"""Jobs that are there; a batch whose last job is refused when it is added by itself, in turn; and how."""


@pytest.mark.parametrize(
    "what",
    [*list(IN_THE_WAY)[:-1], pytest.param("another parent after none")],
)
async def test_node_agrees_with_batches_whose_jobs_are_in_each_others_way(server: Server, what: str) -> None:
    there, batch, refusal = IN_THE_WAY[what]
    async with NodeOracle() as oracle, open_toril(oracle, server, db=6) as toril:
        await toril.reset()
        for options in there:
            await toril.queue().add("job", {}, options)
        before = normalise(await toril.dump())
        with pytest.raises(refusal):
            await toril.queue().add_bulk([AddJob("job", {}, options) for options in batch])
        assert not differences(before, normalise(await toril.dump()))
