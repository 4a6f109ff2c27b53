"""Workers share partitions; tenants share workers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from tests.conftest import PRODUCTS, SCALE, Servers, emptied
from tests.queue.audit import until
from tests.runtime.parts import Recorder, handler, order, place_of
from toril import connect
from toril.events import AnyEvent, HandlerContext, NewEvent
from toril.log import Log
from toril.log.entry import Entry, Partition
from toril.runtime.engine import EngineOptions
from toril.runtime.redis import RedisBackend
from toril.runtime.slice import Slice
from toril.runtime.worker import ProcessorWorker
from toril.stores import LogEventStore

SHAPES = ("standalone", "cluster")


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_worker_that_joins_has_its_share_within_two_leases(servers: Servers, shape: str) -> None:
    """And when it leaves, or is gone without a word, the first one has all again."""
    lease, partitions = 4, 16
    options = EngineOptions(lease=lease, grace=1)
    async with (
        connect(emptied(servers.get(f"{PRODUCTS[0]}-{shape}")).url) as redis,
        Log(redis, partitions=partitions) as log,
    ):
        work = handler(Recorder())
        owners: dict[Partition, list[tuple[int, str]]] = {}

        class Noting(RedisBackend):
            async def take(self, *args, **kwargs):  # type: ignore[no-untyped-def]
                taken = await super().take(*args, **kwargs)
                for one in taken:
                    owners.setdefault(one.partition, []).append((one.fence, one.worker))
                return taken

        backend = Noting(log)

        def has(worker: ProcessorWorker, least: int) -> bool:
            return sum(not part.draining for part in worker.engines[0].slices.values()) >= least

        async def within(worker: ProcessorWorker, least: int, seconds: float) -> float:
            started = time.monotonic()

            async def there() -> bool:
                return has(worker, least)

            await until(there, f"a worker to have {least} of {partitions} partitions", seconds)
            return time.monotonic() - started

        async with ProcessorWorker(backend, [work], options) as first:
            await within(first, partitions, 10)
            async with ProcessorWorker(backend, [work], options) as second:
                await within(second, round(0.4 * partitions), 2 * lease)
                assert set(first.engines[0].slices).isdisjoint(second.engines[0].slices)
            await within(first, partitions, 2 * lease)
            lost = ProcessorWorker(backend, [work], options)
            await lost.__aenter__()
            await within(lost, round(0.4 * partitions), 2 * lease)
            for task in lost._tasks:  # as when its process is killed: nothing is given back
                task.cancel()
            await within(first, partitions, 4 * lease)
        for taken in owners.values():
            fences = [fence for fence, _ in taken]
            assert fences == sorted(set(fences))


async def test_tenant_walls_a_quiet_tenant_does_not_wait_for_a_loud_one(servers: Servers) -> None:
    """Inside the read-ahead its first event runs at once; beyond, as soon as it is read."""
    concurrency, read_ahead, partitions = 8, 500, 4
    loud = round(20_000 * SCALE)
    options = EngineOptions(lease=10, grace=2, read_ahead=read_ahead)
    gate = asyncio.Event()
    starts: list[tuple[str, Partition]] = []

    async def act(event: AnyEvent, _: HandlerContext) -> None:
        starts.append((event.tenant, epoch.of(event.aggregate)))
        await gate.wait()

    async with (
        connect(emptied(servers.get(f"{PRODUCTS[0]}-standalone")).url) as redis,
        Log(redis, partitions=partitions) as log,
    ):
        store, epoch = LogEventStore(log), (await log.layout()).current

        async def write(first: int, last: int) -> None:
            for number in range(first, last, 200):
                await asyncio.gather(
                    *(
                        store.append(order(one, "loud"), [NewEvent(type="n", data=one)])
                        for one in range(number, min(number + 200, last))
                    )
                )

        await write(0, read_ahead)
        await store.append(order(1, "quiet"), [NewEvent(type="n", data=1)])
        await write(read_ahead, loud // 2)
        await store.append(order(1, "later"), [NewEvent(type="n", data=1)])
        before = Counter(epoch.of(order(number, "loud")) for number in range(loud // 2))
        await write(loud // 2, loud)
        work = handler(Recorder(act), concurrency=concurrency)
        async with ProcessorWorker(RedisBackend(log), [work], options) as worker:
            reading = worker.engines[0]._reading
            feed = reading._feed
            read_at: dict[str, int] = {}

            def noting(part: Slice, entry: Entry, blocked: set[str]) -> None:
                read_at[entry.key.partition(":")[0]] = len(starts)
                feed(part, entry, blocked)

            reading._feed = noting  # type: ignore[method-assign]

            async def read() -> bool:
                parts = worker.engines[0].slices.values()
                full = len(parts) == partitions and all(len(part.window) == read_ahead for part in parts)
                return full and len(starts) == concurrency

            await until(read, "all partitions to be read ahead", 20)
            gate.set()

            async def both() -> bool:
                return {"quiet", "later"} <= {tenant for tenant, _ in starts}

            await until(both, "both tenants to have run", 60)
        tenants = [tenant for tenant, _ in starts]
        assert tenants.index("quiet") < 2 * concurrency
        # The other one was not read at first: it waited for those of its partition that were more than the
        # read-ahead before it, and overtook the rest as soon as it was read.
        at = tenants.index("later")
        assert at - read_at["later"] < 2 * concurrency
        home = epoch.of(order(1, "later"))
        overtaken = before[home] - sum(where == home for _, where in starts[:at])
        assert overtaken <= read_ahead


@pytest.mark.parametrize("kind", ["inline", f"{PRODUCTS[0]}-standalone"])
async def test_tenant_walls_a_paused_tenant_stops_also_where_its_events_were_read(
    servers: Servers, kind: str
) -> None:
    gate = asyncio.Event()

    async def act(_: AnyEvent, __: HandlerContext) -> None:
        await gate.wait()

    recorder = Recorder(act)
    async with place_of(kind, servers) as place:
        for number in range(20):
            await place.put(order(number), 1)
        async with place.worker(handler(recorder, concurrency=2)) as worker:
            engine = worker.engines[0]

            async def read() -> bool:
                return len(recorder.attempts) == 2

            await until(read, "two to run")
            await place.backend.pause("tenant acme", on=True)

            async def known() -> bool:
                return "tenant acme" in engine._desk.paused

            await until(known, "the pause to be known")
            gate.set()

            async def parked() -> bool:
                return engine.counts.parked == 18

            await until(parked, "the others to be parked")
            assert len(recorder.seen) == 2
            await place.backend.pause("tenant acme", on=False)

            async def all_seen() -> bool:
                return len(recorder.seen) == 20

            await until(all_seen, "all to run")
