"""Replay: all of history up to an exact cut, whatever archive, trimming and interruptions do meanwhile."""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from tests.conftest import Servers, emptied
from tests.lake import filling
from tests.lake.rows import at_most_sent_round
from tests.lake.shop import Basket, BasketInCents, Shop, archive, during, folded, states
from tests.lake.span_events import a_span, body_of
from tests.queue.audit import until
from toril import connect
from toril.aggregate import Aggregate
from toril.errors import InvalidValue
from toril.events import AnyEvent
from toril.lake.archive import GROUP
from toril.lake.diff import Diff
from toril.lake.errors import LakeError, NotWhole, OtherWriter
from toril.lake.generations import RETIRED, Generation, Plan, find, generations, read
from toril.lake.history import history
from toril.lake.lake import Lake
from toril.lake.live import diff_live
from toril.lake.progress import Tasks
from toril.lake.promote import promote, retire
from toril.lake.replay import Progress, check_whole, replay
from toril.lake.source import tails
from toril.lake.spans import SpansStep
from toril.lake.subjects import TRACE_SUMMARY, find_subject
from toril.lake.tables import EVENTS, SPANS
from toril.lake.travel import state_at, states_at
from toril.log import Entry, HistoryTrimmed, Log, Retention
from toril.log.upkeep import trim
from toril.stores import MemoryProjectionStore
from toril.testing import standalone

pytestmark = pytest.mark.timeout(900)

NAME = "shop/basket"

OTHER = "acme${x}"
"""A tenant whom Spark would take for acme, were it let."""


@pytest.fixture
def url(servers: Servers) -> str:
    return emptied(servers.get("valkey-standalone")).url


def buy(shop: Shop, bought: dict[str, list[int]]) -> None:
    """By ``tenant:basket``, prices."""

    async def go() -> None:
        for key, prices in bought.items():
            tenant, _, basket = key.partition(":")
            await shop.buy(basket, *prices, tenant=tenant)

    during(shop, go)


def some(first: int, baskets: int = 12) -> dict[str, list[int]]:
    return {f"{tenant}:b{n}": [first + n, 7] for tenant in ("acme", OTHER) for n in range(baskets)}


def joined(*parts: dict[str, list[int]]) -> dict[str, list[int]]:
    return {
        key: [price for part in parts for price in part.get(key, [])] for key in {**parts[0], **parts[-1]}
    }


def test_a_replay_is_of_all_events_up_to_the_cut_and_of_none_after(url: str, lake: Lake) -> None:
    first, second, third = some(10), some(100, 14), some(1000, 3)
    shop = Shop(url)
    subject = shop.subjects[NAME]
    buy(shop, first)
    archive(lake, url)
    half_way = tails(url, "log")
    buy(Shop(url), second)  # these are in the log alone
    made = replay(lake, subject, url=url, label="v1")
    assert (made.number, made.state, made.rows) == (2, "whole", 28)
    assert made.plan.cut == tails(url, "log")
    assert states(read(lake, made)) == folded(Basket(), joined(first, second))
    buy(Shop(url), third)
    archive(lake, url)
    again = find(lake, NAME, 2)
    assert (again.plan, again.state, again.rows, again.failed) == (made.plan, "whole", 28, 0)
    assert "v1 (basket version 1, code" in str(again.plan.code)
    # An older cut, which the lake is past by now, in two portions; and a part of all that there is.
    own, looks = Shop(url, store=MemoryProjectionStore()), Looks()
    past = replay(lake, own.subjects[NAME], url=url, cut=half_way, portions=2, progress=looks)
    assert "would be in the rows of generation 1: both are of version 1" in looks.why
    there = during(own, lambda: own.pipeline.service.generations.standings())
    assert [one.number for one in there] == [1, 2], "nothing was changed"
    assert (past.plan.portions, past.number) == (2, 3)
    assert past.as_value()["portions_done"] == 2
    assert states(read(lake, past)) == folded(Basket(), first)
    part = replay(lake, subject, url=url, tenant=OTHER)
    assert (part.plan.filters.tenant, part.plan.cut) == (OTHER, tails(url, "log"))
    all_of_it = joined(joined(first, second), third)
    of_other = {key: prices for key, prices in all_of_it.items() if key.startswith(f"{OTHER}:")}
    assert states(read(lake, part)) == folded(Basket(), of_other)
    assert [(one.number, one.state) for one in generations(lake)] == [(n, "whole") for n in (2, 3, 4)]
    ordinal, ident = made.plan.cut["00"]
    for wrong, rule in (
        ({"00": (ordinal + 10_000, ident)}, "it is in the future: the last event of partition 00 is"),
        ({"77": (1, ident)}, "has no such partition"),
        ({"00": (-1, ident)}, "an ordinal from 0"),
        ({"00": (ordinal, "5-5")}, f"cut 00 '{ordinal}@5-5' .* event {ordinal} .* has the id {ident}"),
        ({**half_way, "00": (ordinal - 1, ident)}, f"event {ordinal - 1} .* has the id"),
    ):
        with pytest.raises(InvalidValue, match=rule):
            replay(lake, subject, url=url, cut=wrong)
    with pytest.raises(InvalidValue, match="must be after since"):
        replay(lake, subject, url=url, since=5, until=5)
    with pytest.raises(LakeError, match="basket cannot run natively"):
        replay(lake, subject, url=url, engine="native")
    with pytest.raises(InvalidValue, match="there is none; there are: shop/basket"):
        find_subject("nothing", shop.subjects)
    assert find_subject("basket", shop.subjects) is subject
    assert len(generations(lake)) == 3, "nothing was changed"
    lake.spark.sql(f"DELETE FROM {lake.sql_name(EVENTS)} WHERE aggregate_id = 'b1' AND version = 1")
    with pytest.raises(NotWhole, match="basket/5 is not whole: version 2 of basket 'b1' comes after none"):
        replay(lake, subject, url=url)


class Looks(Progress):
    """Says why the generation can be looked at and not be promoted."""

    why = ""

    def not_kept(self, why: str) -> None:
        self.why = why


def test_a_replay_is_refused_where_rows_of_spans_or_events_are_missing_or_twice(url: str, lake: Lake) -> None:
    """One of them, or one missing and another twice; without its first events it is replayed all the same."""
    traces = [f"{number:032x}" for number in (1, 2, 3)]

    async def record(log: Log) -> None:
        for trace in traces:
            bodies = [body_of(a_span(number, trace_id=trace)) for number in range(4)]
            await log.append(Aggregate("acme", "span", trace), bodies)
        # These are folded, whatever spans has of them.
        await log.append(Aggregate("acme", "span", traces[2]), [b"{", body_of(a_span(7, trace_id=traces[2]))])

    def again(engine: str, **part: Any) -> Generation:
        return replay(lake, TRACE_SUMMARY, url=url, engine=engine, keep=False, **part)

    def put(table: str, rows: DataFrame) -> None:
        lake.spark.sql(f"DELETE FROM {lake.sql_name(table)}")
        rows.write.format("delta").mode("append").save(lake.place(table))

    filling.with_log(url, record)
    archive(lake, url)
    step = SpansStep()
    step.prepare(lake)
    assert step.once(lake) is not None
    made = again("native")
    assert (made.rows, made.failed) == (3, 1)
    spans, events = (lake.read(table).localCheckpoint() for table in (SPANS, EVENTS))
    its = f"trace_id = '{traces[0]}'"
    lost = spans.where(f"NOT ({its} AND version = 3)")
    beheaded = spans.where(f"NOT ({its} AND version = 1)")
    exchanged = lost.union(spans.where(f"{its} AND version = 2"))
    for rows in (lost, beheaded, exchanged):
        put(SPANS.name, rows)
        with pytest.raises(NotWhole, match=f"is not whole: the versions that spans has of .*{traces[0]}"):
            again("native")
    with pytest.raises(NotWhole, match="is not whole: the versions that spans has of"):
        again("native", tenant="acme")
    put(SPANS.name, lost)
    assert again("native", since=0).rows == 3
    put(SPANS.name, spans.where(f"NOT ({its})"))
    with pytest.raises(NotWhole, match="is not whole: history has 8 events, and its states are of 4"):
        again("native")
    its = f"aggregate_id = '{traces[0]}'"
    doubled = events.where(f"{its} AND version = 2")
    put(EVENTS.name, events.where(f"NOT ({its} AND version = 3)").union(doubled))
    with pytest.raises(NotWhole, match=f"is not whole: version 2 of span '{traces[0]}' comes after 2"):
        again("fold")
    with pytest.raises(NotWhole, match=f"is not whole: version 2 of span '{traces[0]}' comes after 2"):
        again("fold", until=time.time_ns())
    assert again("fold", since=0).rows == 3


class Interrupted(Exception):
    pass


class Stops(Progress):
    """Ends the replay after its first portion, as a signal would."""

    def wrote(self, portion: int) -> None:
        raise Interrupted(portion)


class Begins(Progress):
    """Says which generation it is, and ends it before it has begun."""

    def began(self, plan: Plan, events: int, done: int) -> None:
        assert events > done
        raise Interrupted(f"generation {plan.number}")


class Retires(Progress):
    """Lets somebody retire the generation that is just being written."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def began(self, plan: Plan, events: int, done: int) -> None:
        assert events > done
        retired(self._lake, plan.number)


def retired(lake: Lake, number: int) -> None:
    asyncio.run(retire(lake, find(lake, NAME, number), None, "basket", number))
    assert find(lake, NAME, number).state == "retired"


def priced(base: type[Basket]) -> Basket:
    """A projection whose own code is the same, whatever it is based on."""

    class Priced(base):  # type: ignore[misc, valid-type]
        """As its base says."""

    return Priced()


class Dearer(Basket):
    times = 2


class Watches(Progress):
    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.done_before = -1
        self.seen: list[Tasks] = []

    def began(self, plan: Plan, events: int, done: int) -> None:
        assert events > 0
        self.plan, self.done_before = plan, done

    def tasks(self, portion: int, tasks: Tasks) -> None:
        assert portion >= 0
        self.seen.append(tasks)


def test_a_replay_that_was_stopped_is_taken_up_where_it_was(url: str, lake: Lake) -> None:
    shop = Shop(url)
    first, second = some(10), some(100)
    buy(shop, first)
    archive(lake, url)
    with pytest.raises(Interrupted):
        replay(lake, shop.subjects[NAME], url=url, portions=2, progress=Stops())
    stopped = find(lake, NAME, 2)
    assert (stopped.state, stopped.done) == ("unfinished", 1)
    with pytest.raises(LakeError, match="unfinished .1 of 3 commits are there.: `toril lake replay`"):
        read(lake, stopped)
    buy(Shop(url), second)
    # Other code has a number of its own, and the same code goes on.
    cents = Shop(url, both=True).subjects[NAME]
    other = replay(lake, cents, url=url)
    assert (other.number, states(read(lake, other))) == (3, folded(BasketInCents(), joined(first, second)))
    for base, number in ((Basket, 4), (Basket, 4), (Dearer, 5), (Basket, 4)):
        changed = replace(shop.subjects[NAME], projection=priced(base))
        with pytest.raises(Interrupted, match=f"generation {number}$"):
            replay(lake, changed, url=url, progress=Begins())
    # Nothing comes into one that is retired: whoever writes it ends, and begins the next one.
    changed = replace(shop.subjects[NAME], projection=priced(Dearer))
    with pytest.raises(OtherWriter, match="or it was retired"):
        replay(lake, changed, url=url, progress=Retires(lake))
    # Half retired, it is retired by the same call.
    half = lake.sql_name(other.plan.name)
    lake.spark.sql(f"ALTER TABLE {half} SET TBLPROPERTIES ('{RETIRED}' = '7')")
    retired(lake, other.number)
    assert find(lake, NAME, other.number).retired_at == 7
    for number in (other.number, 5):
        table = find(lake, NAME, number).plan.name
        assert lake.read(table).isEmpty()
        assert not list(Path(lake.place(table)).glob("*.parquet"))
    with pytest.raises(Interrupted, match="generation 6$"):
        replay(lake, changed, url=url, progress=Begins())
    of_one = dict([next((name, at) for name, at in stopped.plan.cut.items() if at[0])])
    for _ in range(2):  # a cut need not name all partitions to be the same
        with pytest.raises(Interrupted, match="generation 7$"):
            replay(lake, changed, url=url, cut=of_one, progress=Begins())
    watches = Watches()
    made = replay(lake, shop.subjects[NAME], url=url, progress=watches)
    assert (watches.plan, watches.done_before) == (stopped.plan, 1)
    assert (made.number, made.state) == (2, "whole")
    assert states(read(lake, made)) == folded(Basket(), first), "with the cut that it was begun with"
    assert watches.seen, "Spark's own tasks were told of"
    assert all(0 <= done <= of for done, of in watches.seen)


def test_what_people_decided_live_is_decided_the_same_in_replay(url: str, lake: Lake) -> None:
    shop = Shop(url)

    async def trade() -> dict[str, int]:
        service = shop.pipeline.service
        await shop.buy("good", 1, 2, 3)
        await shop.buy("skipped", 1, "broken", 3)
        await shop.buy("last", 1, "broken")
        await shop.buy("waits", 5, "broken", 7)

        async def failed() -> bool:
            return len(await service.get_failed_events("acme")) == 3

        await until(failed, "three events to fail")
        for basket in ("skipped", "last"):
            await service.skip_failed("basket", "acme", basket, by="ann", reason="no price")

        async def done() -> bool:
            found = [await service.get_projection("basket", "acme", one) for one in ("skipped", "last")]
            return [one.version for one in found if one is not None] == [3, 2]

        await until(done, "the others to be processed")
        return {
            one: found.version
            for one in ("good", "skipped", "last", "waits")
            if (found := await service.get_projection("basket", "acme", one)) is not None
        }

    live = during(shop, trade, worker=True)
    archive(lake, url)
    made = replay(lake, shop.subjects[NAME], url=url)
    assert [sent_round(lake, made, shop, most) for most in (1, 0)] == [1, 0]
    rows = {row["aggregate_id"]: row for row in read(lake, made).collect()}
    assert {name: row["version"] for name, row in rows.items()} == live
    assert live == {"good": 3, "skipped": 3, "last": 2, "waits": 1}
    assert Basket().decode(bytes(rows["skipped"]["state"])) == {"sum": 4, "events": 2}
    assert (rows["waits"]["failed_version"], rows["waits"]["failed"]) == (2, "ValueError: broken")
    assert rows["skipped"]["failed_version"] is None
    # Readers see the second generation from now on, and people decide about that one.
    undecided = during(shop := Shop(url), lambda: promoted_and_skipped(shop, lake, made), worker=True)
    subject, later = shop.subjects[NAME], Aggregate("acme", "basket", "later")
    third = replay(lake, subject, url=url)
    assert third.number == 3
    rows = {row["aggregate_id"]: row for row in read(lake, third).collect()}
    assert {name: row["version"] for name, row in rows.items()} == {**live, "later": 3}
    assert [name for name, row in rows.items() if row["failed_version"] is not None] == ["waits"]
    found = state_at(lake, subject, later, url=url)
    assert (found.version, found.state, found.failed) == (3, {"sum": 4, "events": 2}, None)
    assert state_at(lake, subject, later, url=url, at=undecided).failed_version == 2
    with states_at(lake, subject, url=url, at=undecided) as then:
        failed = {row["aggregate_id"]: row["failed_version"] for row in then.collect()}
    assert failed == {"good": None, "skipped": None, "last": None, "waits": 2, "later": 2}
    diffs = during(shop := Shop(url), lambda: compared_later(shop, lake, third), worker=True)
    assert [(one.differences, one.compared, one.equal) for one in diffs] == [([], 6, 6), ([], 6, 6)]


def sent_round(lake: Lake, made: Generation, shop: Shop, most: int) -> int:
    """How often a check has keys sent to every task, where so many may be; it finds the same."""
    with at_most_sent_round(most) as sent, history(lake, shop.url, "log", made.plan.cut) as all_of_it:
        assert check_whole(lake, made.plan, all_of_it, shop.subjects[NAME]) == (made.rows, made.failed)
    return len(sent)


async def compared_later(shop: Shop, lake: Lake, made: Generation) -> list[Diff]:
    """Live goes on with what it cannot take, or read, and people decide about it: it is no difference.

    What it says with the log, and with a log that was trimmed.
    """
    service, subject, backend = shop.pipeline.service, shop.subjects[NAME], shop.sourcing.backend
    assert backend is not None
    await shop.buy("good", "broken", 5)
    await shop.buy("new", "broken", 5)
    await shop.buy("skipped", 8, schema_version=2)
    await shop.log.append(Aggregate("acme", "basket", "last"), [b"{"])
    await shop.buy("last", 6)

    async def failed() -> bool:
        found = await service.get_failed_events("acme", processor="basket@2")
        return {one.aggregate.id for one in found} == {"waits", "good", "new", "last"}

    await until(failed, "what cannot be taken to fail")
    await service.skip_failed("basket@2", "acme", "last", by="ann", reason="no JSON")

    async def done() -> bool:
        found = [await service.get_projection("basket", "acme", one) for one in ("skipped", "last")]
        return [one.version for one in found if one is not None] == [4, 4]

    await until(done, "the rest to be processed")
    with_log = await diff_live(lake, made, subject, service, backend)
    await asyncio.to_thread(archive, lake, shop.url)
    read = Log.read

    async def trimmed(self: Log, aggregate: Aggregate, *asked: int, **how: int) -> list[Entry]:
        if aggregate.type == "basket":
            raise HistoryTrimmed(1, 1000)
        return await read(self, aggregate, *asked, **how)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Log, "read", trimmed)
        return [with_log, await diff_live(lake, made, subject, service, backend)]


async def promoted_and_skipped(shop: Shop, lake: Lake, made: Generation) -> int:
    """Promotes a generation, and has it skip an event; says a time when that was not decided yet."""
    service = shop.pipeline.service
    await promote(lake, made, service, url=shop.url)
    await shop.buy("later", 1, "broken", 3)

    async def failed() -> bool:
        found = await service.get_failed_events("acme", processor="basket@2")
        return {one.aggregate.id for one in found} == {"waits", "later"}

    await until(failed, "an event of the second generation to fail")
    undecided = time.time_ns()
    await asyncio.sleep(0.005)  # a millisecond on the server is after it
    await service.skip_failed("basket@2", "acme", "later", by="ann", reason="no price")

    async def done() -> bool:
        found = await service.get_projection("basket", "acme", "later")
        return found is not None and found.version == 3

    await until(done, "the rest of it to be processed")
    return undecided


class Tolerant(Basket):
    """It takes what live cannot."""

    def apply(self, state: dict[str, int], event: AnyEvent) -> dict[str, int]:
        return state if event.data["price"] == "broken" else super().apply(state, event)


def test_what_live_has_not_read_or_cannot_take_is_no_difference_and_what_it_has_lost_is(
    url: str, lake: Lake
) -> None:
    shop = Shop(url)
    subject = replace(shop.subjects[NAME], projection=Tolerant())

    async def trade() -> None:
        service, backend = shop.pipeline.service, shop.sourcing.backend
        assert backend is not None
        async with shop.sourcing.worker(upkeep=False):
            for basket in ("good", "fewer", "gone"):
                await shop.buy(basket, 1, 2)
            await shop.buy("waits", 5, "broken", 7)
            await backend.pause("tenant globex", on=True)

            async def paused() -> bool:
                await shop.buy("paused", 1, tenant="globex")
                return (await service.standing("basket")).waiting == 1

            async def settled() -> bool:
                standing = await service.standing("basket")
                return (standing.behind, standing.waiting, standing.failed) == (0, 1, 1)

            await until(paused, "the tenant to be paused")
            await until(settled, "all to be read, and a failed event to wait")
        await shop.buy("good", 3)
        await shop.buy("new", 4)
        # Of the one it loses an event, of the other all.
        for basket, *command in (
            ("fewer", "HSET", f"c:{NAME}", "p1 e1 1"),
            ("gone", "HDEL", f"c:{NAME}", f"s:{NAME}"),
        ):
            key = Aggregate("acme", "basket", basket)
            home = shop.log.store((await shop.log.layout()).current.of(key)).keys.aggregate(key.key)
            await shop.log.redis.command(command[0], home, *command[1:])

    async def compared() -> Diff:
        backend = shop.sourcing.backend
        assert backend is not None
        return await diff_live(lake, made, subject, shop.pipeline.service, backend)

    async def caught_up() -> Diff:
        async def done() -> bool:
            return (await shop.pipeline.service.standing("basket")).behind == 0

        await until(done, "live to have read all")
        return await compared()

    during(shop, trade)
    archive(lake, url)
    made = replay(lake, subject, url=url, keep=False)
    for worker, equal, not_read in ((False, 0, 2), (True, 2, 0)):
        shop = Shop(url)
        found = during(shop, caught_up if worker else compared, worker=worker)
        assert {(one.kind, one.samples[0].aggregate_id) for one in found.differences} == {
            ("other version", "fewer"),
            ("only in one", "gone"),
        }
        assert (found.compared, found.equal) == (2 + equal, equal)
        assert (found.not_read, found.waiting) == (not_read, 2)


def test_retention_safe_while_a_replay_reads(lake: Lake, tmp_path: Path) -> None:
    with standalone({"stream-node-max-entries": 5}) as server:  # whole nodes are trimmed
        _while_it_reads(server.url, lake, tmp_path)


def _while_it_reads(url: str, lake: Lake, tmp_path: Path) -> None:
    shop = Shop(url)
    first, second = some(10), some(100)
    buy(shop, first)
    archive(lake, url)
    shutil.copytree(lake.path, tmp_path / "old")
    buy(Shop(url), second)

    half_way = lake.last(EVENTS).positions

    class Trims(Progress):
        """When the replay is about to read, all is archived, and all that may go is trimmed."""

        def began(self, plan: Plan, events: int, done: int) -> None:
            assert (done, events) == (0, sum(ordinal for ordinal, _ in plan.cut.values()))
            archive(lake, url)
            assert trimmed(url) > 0
            for name, ordinal in firsts(url).items():
                assert ordinal <= half_way[name][0], "what the replay is still to read is kept"

    made = replay(lake, shop.subjects[NAME], url=url, progress=Trims())
    assert states(read(lake, made)) == folded(Basket(), joined(first, second))
    # Its place at the cut is kept until it is promoted or retired: what comes after it stays.
    buy(Shop(url), some(1000))
    archive(lake, url)
    assert trimmed(url) > 0
    for name, ordinal in firsts(url).items():
        assert ordinal <= made.plan.cut[name][0]
    # A lake that is behind what the log still has cannot be replayed up to its end.
    with pytest.raises(LakeError, match="the log no longer has what comes after the lake's events"):
        replay(Lake(lake.spark, tmp_path / "old"), shop.subjects[NAME], url=url, keep=False)


def trimmed(url: str) -> int:
    """Trim what may go; how many entries did."""

    async def go() -> int:
        async with connect(url) as redis:
            log = Log(redis)
            await log.choose_retention(Retention.archived_by(GROUP))
            return (await trim(log)).removed

    return asyncio.run(go())


def firsts(url: str) -> dict[str, int]:
    """By partition, the last ordinal that is trimmed."""

    async def go() -> dict[str, int]:
        async with connect(url) as redis:
            return {str(one.partition): one.trimmed for one in await Log(redis).standings()}

    return asyncio.run(go())
