"""What could go wrong inside of an engine, one by one: races, lost answers, deaths, ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conftest import PRODUCTS, Servers, emptied
from tests.runtime.parts import (
    OPTIONS,
    QUICK,
    Place,
    Recorder,
    handler,
    order,
    place_of,
    projection,
    state_of,
)
from tests.waiting import until
from toril import Connection, connect
from toril.events import AnyEvent, HandlerContext, HandlerError, NewEvent, ProjectionError
from toril.log import Log
from toril.log.entry import Partition, Position
from toril.log.errors import ReaderFenced, WrongPosition
from toril.runtime import folding, reading
from toril.runtime.backend import Begin, Change, Done, Lease, Loaded, More, Park, Resume, Trouble
from toril.runtime.decisions import Decision
from toril.runtime.engine import EngineOptions
from toril.runtime.redis import RedisBackend
from toril.runtime.slice import ALONE
from toril.runtime.work import Retry
from toril.runtime.worker import ProcessorWorker
from toril.stores import LogEventStore

STANDALONE = f"{PRODUCTS[0]}-standalone"
NAME = "orders/handler"
ONLY = Partition(1, 0)


class Bare:
    """A log of one partition with a processor, and no worker."""

    def __init__(self, redis: Connection, log: Log) -> None:
        self.redis = redis
        self.log = log
        self.backend = RedisBackend(log)
        self.store = LogEventStore(log)
        self.keys = log.store(ONLY).keys

    async def put(self, number: int, count: int) -> None:
        await self.store.append(order(number), [NewEvent(type="n", data=1) for _ in range(count)])

    async def take(self, worker: str = "one", lasts: float = 10.0) -> Lease:
        (lease,) = await self.backend.take(NAME, worker, [ONLY], lasts)
        return lease

    async def until_lapsed(self) -> None:
        """Until nobody has the partition any more."""

        async def nobody_has_it() -> bool:
            return await self.backend.owner(NAME, ONLY) is None

        await until(nobody_has_it)

    async def at(self, ordinal: int) -> Position:
        return (await self.backend.page(ONLY, Position(0, "0-0"), ordinal))[-1].position

    async def loaded(self, number: int) -> Loaded:
        (found,) = await self.backend.load(NAME, ONLY, [order(number).key])
        return found

    async def list_length(self, number: int) -> int:
        key = self.keys.parked(f"{NAME} {order(number).key}")
        return int(await self.redis.command("LLEN", key))


@pytest.fixture
async def bare(servers: Servers) -> AsyncIterator[Bare]:
    async with (
        connect(emptied(servers.get(STANDALONE)).url) as redis,
        Log(redis, partitions=1) as log,
    ):
        made = Bare(redis, log)
        await made.backend.register(NAME, "first")
        yield made


@pytest.fixture(params=["inline", STANDALONE])
async def place(request: pytest.FixtureRequest, servers: Servers) -> AsyncIterator[Place]:
    async with place_of(request.param, servers) as made:
        yield made


def trouble(version: int) -> Trouble:
    return Trouble(status="retry", version=version, event_id="e")


# ------------------------------------------------------------------------- commits


async def test_once_per_state_a_commit_whose_answer_was_lost_is_made_once(bare: Bare) -> None:
    await bare.put(1, 3)
    lease = await bare.take()
    entries = await bare.backend.page(ONLY, lease.position, 3)
    key = order(1).key
    changes: list[Change] = [Park(key, trouble(1), 0.0, entries[:2]), More(key, entries[2:])]
    for _ in range(2):
        await bare.backend.commit(NAME, lease, 1, entries[-1].position, changes)
    assert await bare.list_length(1) == 3


async def test_once_per_state_what_a_failover_lost_is_processed_again(bare: Bare) -> None:
    """A commit of which nothing is left must not be followed by one that moves the position past it."""
    await bare.put(1, 1)
    await bare.put(2, 1)
    lease = await bare.take()
    await bare.backend.commit(NAME, lease, 1, lease.position, [Done(order(2).key, 1, 1, "e")])
    with pytest.raises(WrongPosition, match="does not follow"):
        await bare.backend.commit(NAME, lease, 3, await bare.at(2), [Done(order(1).key, 1, 1, "e")])
    assert (await bare.loaded(1)).version == 0


async def test_once_per_state_events_parked_late_are_found_by_the_next_worker(bare: Bare) -> None:
    """The last parked event is processed while another one is on its way to be parked."""
    await bare.put(1, 2)
    lease = await bare.take()
    entries, key = await bare.backend.page(ONLY, lease.position, 2), order(1).key
    await bare.backend.commit(NAME, lease, 1, entries[0].position, [Park(key, trouble(1), 0.0, entries[:1])])
    changes: list[Change] = [Resume(key, 1, "e"), More(key, entries[1:])]
    await bare.backend.commit(NAME, lease, 2, entries[1].position, changes)
    assert list(await bare.backend.parked(NAME, ONLY)) == [key]
    assert await bare.list_length(1) == 1


async def test_once_per_state_a_position_waits_for_an_aggregate_that_is_not_here(
    bare: Bare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that went cold: nothing of a commit is done before it is back."""
    await bare.put(1, 1)
    await bare.put(2, 1)
    lease = await bare.take()
    await bare.redis.command("DEL", bare.keys.aggregate(order(1).key))
    brought: list[int] = []

    async def bring_back(*_: Any) -> None:
        (at,) = await bare.backend.positions(ONLY, [NAME])
        assert at is not None
        brought.append(at.ordinal)
        await bare.redis.command("HSET", bare.keys.aggregate(order(1).key), "v", 1)

    monkeypatch.setattr(bare.log, "bring_back", bring_back)
    changes = [Done(order(1).key, 1, 1, "e"), Done(order(2).key, 1, 1, "e")]
    await bare.backend.commit(NAME, lease, 1, await bare.at(2), changes)
    assert brought == [0]
    assert (await bare.loaded(1)).version == (await bare.loaded(2)).version == 1


# ------------------------------------------------------------------------- leases, fences, deaths


async def test_a_partition_taken_again_by_the_same_worker_has_a_new_fence(bare: Bare) -> None:
    first, second = await bare.take(), await bare.take()
    assert second.fence > first.fence
    with pytest.raises(ReaderFenced):
        await bare.backend.commit(NAME, first, 1, first.position, [])


async def test_to_keep_is_not_to_take(bare: Bare) -> None:
    await bare.take("one", 0.02)
    await bare.until_lapsed()
    assert await bare.backend.keep(NAME, "two", [ONLY], 10) == {}
    assert list(await bare.backend.keep(NAME, "one", [ONLY], 10)) == [ONLY]


async def test_nobody_dies_of_a_partition_that_has_nothing(bare: Bare) -> None:
    for worker in ("one", "two", "three"):
        lease = await bare.take(worker, 0.02)
        assert lease.deaths == 0
        await bare.until_lapsed()
    await bare.put(1, 1)
    deaths = []
    for worker in ("four", "five", "six"):
        deaths.append((await bare.take(worker, 0.02)).deaths)
        await bare.until_lapsed()
    assert deaths == [1, 2, 3]


async def test_only_deaths_are_held_against_an_event(bare: Bare) -> None:
    await bare.put(1, 1)
    key = order(1).key
    lease = await bare.take("one", 0.02)
    await bare.backend.commit(NAME, lease, 1, lease.position, [Begin(key, 1)])
    await bare.backend.release(NAME, "one", [ONLY])  # stopped in order
    lease = await bare.take("two", 0.02)
    assert lease.strikes is None
    for count, worker in enumerate(("three", "four"), 1):
        await bare.backend.commit(NAME, lease, lease.commits + 1, lease.position, [Begin(key, 1)])
        await bare.until_lapsed()
        lease = await bare.take(worker, 0.02)
        assert lease.strikes == (count, key, 1)
    await bare.backend.commit(NAME, lease, lease.commits + 1, await bare.at(1), [Done(key, 1, 1, "e")])
    lease = await bare.take("four")
    assert lease.strikes is None


async def test_order_kept_where_workers_died_events_run_one_by_one(bare: Bare) -> None:
    """One at a time, then more and more as they are survived; after the last that was there, as usual."""
    running, at_a_time = 0, list[int]()

    async def act(_: AnyEvent, __: HandlerContext) -> None:
        nonlocal running
        running += 1
        at_a_time.append(running)
        await asyncio.sleep(0.001)
        running -= 1

    for number in range(100):
        await bare.put(number, 2)
    for worker in ("one", "two", "three"):
        await bare.take(worker, 0.02)
        await bare.until_lapsed()
    recorder = Recorder(act)
    options = EngineOptions(lease=2, grace=1)
    async with ProcessorWorker(bare.backend, [handler(recorder)], options):
        await until(lambda: len(recorder.seen) == 200)
        for number in range(100):
            await bare.put(number, 1)
        await until(lambda: len(recorder.seen) == 300)
    assert max(at_a_time[:ALONE]) == 1
    assert max(at_a_time[: 2 * ALONE]) <= 2
    assert 2 < max(at_a_time[:200]) <= 1 << 200 // ALONE


async def test_a_parked_event_that_workers_die_of_is_not_tried_for_ever(bare: Bare) -> None:
    """It failed at first, and its worker dies when it is tried again: other events go on all the time."""
    await bare.put(1, 2)
    lease = await bare.take("one", 0.02)
    entries, key = await bare.backend.page(ONLY, lease.position, 2), order(1).key
    begun = Trouble(status="retry", version=1, event_id="e", attempts=1, begun=3)
    await bare.backend.commit(NAME, lease, 1, entries[-1].position, [Park(key, begun, 0.0, entries)])
    recorder = Recorder()
    async with ProcessorWorker(bare.backend, [handler(recorder)], EngineOptions(lease=2, grace=1)) as worker:
        await until(lambda: worker.engines[0].counts.failed == 1)

        async def on_record() -> bool:
            return (await bare.backend.troubles(NAME, ONLY))[key].status == "failed"

        await until(on_record)
    assert recorder.seen == []


# ------------------------------------------------------------------------- handlers


async def test_a_handler_that_is_alone_is_tried_again(place: Place) -> None:
    """With a concurrency of 1, whoever waits for events must leave room for those that are parked."""

    async def act(_: AnyEvent, context: HandlerContext) -> None:
        if context.attempt < 2:
            raise HandlerError("not yet")

    recorder = Recorder(act)
    await place.put(order(1), 1)
    async with place.worker(handler(recorder, concurrency=1)):
        await until(lambda: recorder.versions(1) == [1])


async def test_handlers_cancelled_before_they_began_leave_their_places(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition is lost between the choice of an event and its first step, again and again."""
    recorder = Recorder()
    async with place.worker(handler(recorder, concurrency=2)) as worker:
        desk: Any = worker.engines[0]._desk
        spawn = desk.spawn
        losses = 0

        def losing(part: Any, work: Any) -> Any:
            nonlocal losses
            task = spawn(part, work)
            if losses < 5:
                losses += 1
                desk.drop(part)
            return task

        monkeypatch.setattr(desk, "spawn", losing)
        for number in range(5):
            await place.put(order(number), 1)
        await until(lambda: len(recorder.seen) == 5)
        assert losses == 5


async def test_a_handler_that_cancels_itself_has_failed(place: Place) -> None:
    async def act(_: AnyEvent, context: HandlerContext) -> None:
        if context.attempt < 3:
            raise asyncio.CancelledError

    recorder = Recorder(act)
    await place.put(order(1), 1)
    async with place.worker(handler(recorder)) as worker:
        await until(lambda: recorder.versions(1) == [1])
        assert worker.engines[0].counts.retried == 2


# ------------------------------------------------------------------------- projections


async def test_a_body_that_is_nested_too_deeply_stops_its_aggregate_and_no_worker(bare: Bare) -> None:
    deep = b'{"type":"n","id":"e","data":%s%s}' % (b"[" * 5000, b"]" * 5000)
    work = projection()
    await bare.put(1, 1)
    await bare.log.append(order(1), [deep])
    await bare.log.append(Decision.home(order(2)), [deep, b'{"type":"\xff"}'])
    await bare.put(2, 1)
    async with ProcessorWorker(bare.backend, [work], OPTIONS) as worker:
        engine = worker.engines[0]
        await until(lambda: (engine.counts.processed, engine.counts.failed) == (2, 1))
    found = (await bare.backend.troubles(work.processor, ONLY))[order(1).key]
    assert (found.version, found.status, found.attempts) == (2, "failed", 1)
    assert found.error == "StoreError: a stored event cannot be read: it is nested too deeply"


async def test_once_per_state_a_state_that_cannot_be_read_holds_up_no_other(place: Place) -> None:
    work = projection()
    read = work.projection.decode

    def decode(raw: bytes) -> Any:
        state = read(raw)
        if state["sum"] == 13:
            raise ValueError("unreadable")
        return state

    await place.put(order(1), 13)
    await place.put(order(2), 1)
    async with place.worker(work) as worker:
        await until(lambda: worker.engines[0].counts.processed == 2)
    work.projection.decode = decode  # type: ignore[method-assign]
    async with place.worker(work) as worker:
        await place.put(order(1), 1)
        await place.put(order(2), 1)
        await until(lambda: worker.engines[0].counts.failed == 1)

        async def built() -> bool:
            return bool(await state_of(place, order(2), work) == {"sum": 2, "events": 2})

        await until(built)
    work.projection.decode = read  # type: ignore[method-assign]
    assert await state_of(place, order(1), work) == {"sum": 13, "events": 1}


async def test_once_per_state_a_state_is_not_let_go_before_it_is_committed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is loaded anew is what was committed last."""
    for most in ("STATES_KEPT", "CHAINS_AT_ONCE", "EVENTS_AT_ONCE"):
        monkeypatch.setattr(folding, most, 1)
    commit = place.backend.commit

    async def slowly(*given: Any, **more: Any) -> None:
        await asyncio.sleep(0.05)
        await commit(*given, **more)

    monkeypatch.setattr(place.backend, "commit", slowly)
    work = projection()
    for number in range(8):
        await place.put(order(number), 1, 2, 3)
    async with place.worker(work) as worker:
        await until(lambda: worker.engines[0].counts.processed == 24)
    for number in range(8):
        assert await state_of(place, order(number), work) == {"sum": 6, "events": 3}


async def test_a_state_that_cannot_be_stored_stops_its_aggregate_at_the_event_that_made_it_so(
    place: Place,
) -> None:
    """Also where its events were taken together with others, which are not to blame."""
    work = projection(retry=Retry(attempts=1))
    write = work.projection.encode

    def encode(state: Any) -> bytes:
        if state["sum"] >= 13:
            raise ProjectionError("too much", retryable=False)
        return write(state)

    work.projection.encode = encode  # type: ignore[method-assign]
    await place.put(order(1), 1, 2, 13, 4)
    await place.put(order(2), 1, 2)
    async with place.worker(work) as worker:
        engine = worker.engines[0]
        await until(lambda: (engine.counts.processed, engine.counts.failed) == (4, 1))
    assert await state_of(place, order(1), work) == {"sum": 3, "events": 2}
    assert await state_of(place, order(2), work) == {"sum": 3, "events": 2}
    troubles = [await place.backend.troubles(work.processor, one) for one in await place.backend.partitions()]
    (found,) = [its[order(1).key] for its in troubles if its]
    assert (found.version, found.status, found.error) == (3, "failed", "ProjectionError: too much")


# ------------------------------------------------------------------------- ends


async def test_a_worker_that_ends_waits_for_what_runs_and_gives_back_what_it_has(bare: Bare) -> None:
    """For longer than it takes to renew a lease, and than the lease lasts."""

    async def lease_ends() -> int:
        line = await bare.redis.command("HGET", bare.keys.leases, NAME)
        return int(line.split()[0])

    async def act(_: AnyEvent, __: HandlerContext) -> None:
        first = await lease_ends()

        async def over() -> bool:
            return await bare.backend.now() > first and await lease_ends() > first

        await until(over)

    recorder = Recorder(act)
    await bare.put(1, 1)
    async with ProcessorWorker(bare.backend, [handler(recorder)], EngineOptions(lease=0.5, grace=5)):
        await until(lambda: bool(recorder.attempts))
    assert recorder.versions(1) == [1]
    assert (await bare.loaded(1)).version == 1
    lease = await bare.take("two")  # at once: it was given back
    assert (lease.position.ordinal, lease.deaths) == (1, 0)


async def test_bells_of_a_new_epoch_are_heard(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LOOK_ANYWAY", 60.0)  # events would not be found without
    recorder = Recorder()
    async with place_of(STANDALONE, servers) as place:
        backend = place.backend
        assert isinstance(backend, RedisBackend)
        await place.put(order(1), 1)
        async with ProcessorWorker(backend, [handler(recorder)], EngineOptions(lease=0.5, grace=1)) as worker:
            await until(lambda: len(recorder.seen) == 1)
            await backend.log.resize(6)
            await until(lambda: len(worker.engines[0].slices) == 6)
            assert all(one.epoch == 2 for one in worker.engines[0].slices)
            for number in range(10, 22):
                await place.put(order(number), 1)
                await until(lambda number=number: recorder.versions(number) == [1])  # type: ignore[misc]


async def test_order_kept_pausing_a_tenant_forgets_no_attempts(place: Place) -> None:
    gate = asyncio.Event()

    async def act(_: AnyEvent, context: HandlerContext) -> None:
        if context.attempt == 2:
            await gate.wait()
        raise HandlerError("never")

    recorder = Recorder(act)
    work = handler(recorder, retry=QUICK)
    await place.put(order(1), 1)
    async with place.worker(work) as worker:
        engine = worker.engines[0]
        desk = engine._desk

        def put_off() -> bool:
            """Whether it is tried later than its retries would have it."""
            return any(
                due > desk.due(2 * QUICK.longest)
                for part in engine.slices.values()
                for due in part.parked.values()
            )

        await until(lambda: recorder.attempts["1", 1] == 2)
        await place.backend.pause("tenant acme", on=True)
        await until(lambda: desk.tenant_is_paused(order(1).key))
        gate.set()
        await until(put_off)
        assert recorder.attempts["1", 1] == 2
        await place.backend.pause("tenant acme", on=False)
        await until(lambda: engine.counts.failed == 1)
    assert recorder.attempts["1", 1] == QUICK.attempts
