"""Seats are never lost and never sold twice, whoever dies in between."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from tests.conftest import SCALE
from tests.waiting import until
from toril import Connection, connect
from toril.errors import InvalidValue
from toril.keyspace import SeatKeys
from toril.room.seat_check import check_seats
from toril.room.seats import (
    MOST_AT_ONCE,
    Hold,
    HoldConflict,
    HoldGone,
    Seats,
    SeatsError,
    SeatsTaken,
    SeatsUnconserved,
    TooManySeats,
    UnknownSeats,
)
from toril.testing import Cluster, Server

NAMES = [f"A-{number}" for number in range(1, 9)]
NUMBERS = itertools.count()


@pytest.fixture
async def seats(redis: Connection) -> Seats:
    made = Seats(redis, "evt")
    assert await made.add(NAMES) == len(NAMES)
    return made


async def ended(redis: Connection, keys: SeatKeys, epoch: int) -> None:
    """A hold's time is over: what waiting would bring about, at once."""
    raw = await redis.command("HGET", keys.holds, epoch)
    state, _, rest = raw.decode().split(" ", 2)
    await redis.command("HSET", keys.holds, epoch, f"{state} 1 {rest}")
    await redis.command("ZADD", keys.due, 1, epoch)


async def counts(seats: Seats) -> tuple[int, int, int, int]:
    found = await seats.counts()
    return found.total, found.available, found.held, found.sold


async def test_hold_confirm_release_refund(seats: Seats) -> None:
    hold = await seats.hold("ana", ["A-2", "A-1"])
    assert (hold.seats, hold.state, hold.epoch) == (("A-1", "A-2"), "held", 1)
    assert await counts(seats) == (8, 6, 2, 0)
    assert await seats.look(["A-1", "A-3", "Z-9"]) == {"A-1": "held", "A-3": "available", "Z-9": None}
    assert await seats.confirm("ana", hold.epoch) == ("A-1", "A-2")
    assert await seats.confirm("ana", hold.epoch) == ("A-1", "A-2")  # the answer was lost
    assert await counts(seats) == (8, 6, 0, 2)
    with pytest.raises(HoldGone, match="are sold"):
        await seats.release("ana", hold.epoch)
    assert await seats.refund("ana", hold.epoch) == ("A-1", "A-2")
    assert await seats.refund("ana", hold.epoch) == ()
    other = await seats.hold("ben", ["A-1"])
    assert other.epoch > hold.epoch
    with pytest.raises(HoldGone, match="nothing is sold"):
        await seats.refund("ben", other.epoch)
    assert await seats.release("ben", other.epoch) == ("A-1",)
    assert await seats.release("ben", other.epoch) == ()
    assert await counts(seats) == (8, 8, 0, 0)
    assert (await check_seats(seats._redis, "evt")).ok


async def test_all_or_none(seats: Seats) -> None:
    await seats.hold("ana", ["A-2"])
    before = await seats.counts()
    with pytest.raises(SeatsTaken, match="A-2 are taken") as taken:
        await seats.hold("ben", ["A-1", "A-2", "A-3"])
    assert taken.value.seats == ("A-2",)
    with pytest.raises(UnknownSeats, match="no seats B-1, B-2") as unknown:
        await seats.hold("ben", ["A-1", "B-2", "B-1"])
    assert unknown.value.seats == ("B-1", "B-2")
    assert await seats.counts() == before


async def test_a_hold_is_its_owners(seats: Seats) -> None:
    hold = await seats.hold("ana", ["A-1"])
    with pytest.raises(HoldGone):
        await seats.confirm("eve", hold.epoch)
    assert await seats.release("eve", hold.epoch) == ()
    with pytest.raises(HoldGone):
        await seats.confirm("ana", hold.epoch + 1)
    assert await seats.confirm("ana", hold.epoch) == ("A-1",)


async def test_a_lost_answer_can_be_asked_for_again(seats: Seats) -> None:
    hold = await seats.hold("ana", ["A-1", "A-2"], key="k")
    assert await seats.hold("ana", ["A-2", "A-1"], key="k") == hold
    assert await counts(seats) == (8, 6, 2, 0)
    for owner, names in (("ben", ["A-1", "A-2"]), ("ana", ["A-1"])):
        with pytest.raises(HoldConflict, match="used before"):
            await seats.hold(owner, names, key="k")
    await seats.confirm("ana", hold.epoch)
    assert (await seats.hold("ana", ["A-1", "A-2"], key="k")).state == "sold"


async def test_a_hold_ends_and_its_seats_come_back(seats: Seats, redis: Connection) -> None:
    swept, lazily, late = [await seats.hold("ana", [name], key=name) for name in NAMES[:3]]
    for hold in (swept, lazily, late):
        await ended(redis, seats.keys, hold.epoch)
    assert set((await seats.look(NAMES[:3])).values()) == {"available"}
    assert (await seats.counts()).overdue == 3
    # Whoever wants the seat does not wait for a sweep, and whoever is late has nothing.
    again = await seats.hold("ben", [*lazily.seats, "A-8"])
    with pytest.raises(HoldGone):
        await seats.confirm("ana", late.epoch)
    with pytest.raises(HoldGone):
        await seats.confirm("ana", lazily.epoch)
    assert await seats.sweep() == 1
    assert await seats.sweep() == 0
    assert await seats.confirm("ben", again.epoch) == ("A-2", "A-8")
    assert (await seats.hold("cyd", swept.seats, key=swept.key)).epoch > again.epoch
    assert (await check_seats(redis, "evt")).ok


async def test_a_hold_ends_by_the_servers_clock(redis: Connection) -> None:
    seats = Seats(redis, "evt", hold_for=timedelta(milliseconds=50))
    await seats.add(NAMES)
    await seats.hold("ana", NAMES[:3])
    hold = await seats.hold("ben", NAMES[3:])

    async def back() -> bool:
        return await seats.sweep(1) == 1

    await until(back)
    await until(back)
    assert await counts(seats) == (8, 8, 0, 0)
    with pytest.raises(HoldGone):
        await seats.confirm("ben", hold.epoch)


async def test_one_owner_has_so_many_seats(redis: Connection) -> None:
    seats = Seats(redis, "evt", per_owner=3)
    await seats.add(NAMES)
    first = await seats.hold("ana", ["A-1", "A-2"])
    await seats.confirm("ana", first.epoch)
    with pytest.raises(TooManySeats, match="this one 1 more") as many:
        await seats.hold("ana", ["A-3", "A-4"])
    assert many.value.left == 1
    second = await seats.hold("ana", ["A-3"])
    await ended(redis, seats.keys, second.epoch)
    await seats.sweep()
    await seats.hold("ana", ["A-3"])
    await seats.hold("ben", ["A-4", "A-5", "A-6"])


async def test_a_reset_leaves_nothing_but_the_epochs(seats: Seats, redis: Connection) -> None:
    hold = await seats.hold("ana", ["A-1"])
    await seats.confirm("ana", hold.epoch)
    assert await seats.reset() == 8
    assert await counts(seats) == (0, 0, 0, 0)
    with pytest.raises(UnknownSeats):
        await seats.hold("ana", ["A-1"])
    await seats.add(NAMES)
    assert (await seats.hold("ana", ["A-1"])).epoch > hold.epoch
    assert (await check_seats(redis, "evt")).ok


@pytest.mark.parametrize(
    ("owner", "names", "field"),
    [
        ("", ["A-1"], "owner"),
        ("a b", ["A-1"], "owner"),
        ("ana", [], "seats"),
        ("ana", ["A-1", "A-1"], "seats"),
        ("ana", ["A 1"], "seat"),
        ("ana", ["{evt}"], "seat"),
        ("ana", [f"A-{n}" for n in range(MOST_AT_ONCE + 1)], "seats"),
        ("x" * 257, ["A-1"], "owner"),
    ],
)
async def test_bad_input_is_refused(redis: Connection, owner: str, names: list[str], field: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        await Seats(redis, "evt").hold(owner, names)
    assert refused.value.field == field


def test_bad_settings_are_refused() -> None:
    nowhere: Any = None
    for how in ({"hold_for": timedelta(0)}, {"hold_for": timedelta(days=2)}, {"per_owner": 0}):
        with pytest.raises(InvalidValue):
            Seats(nowhere, "evt", **how)
    with pytest.raises(InvalidValue, match="room name"):
        Seats(nowhere, "{evt}")


# ---------------------------------------------------------------------------- the checker can fail


async def test_the_checker_finds_what_is_wrong(seats: Seats, redis: Connection) -> None:
    hold = await seats.hold("ana", ["A-1", "A-2"], key="k")
    keys = seats.keys
    for damage, problem in (
        (("HSET", keys.seats, "A-1", "a"), "hold 1 says 'h'"),
        (("HSET", keys.seats, "A-8", "h 7"), "nobody has it"),
        (("HDEL", keys.seats, "A-8"), "there are 7 seats"),
        (("HINCRBY", keys.head, "sold", 1), "do not add up"),
        (("HSET", keys.holds, 9, "h 1 eve k2 A-1"), "newer than the newest"),
        (("HSET", keys.holds, 1, "h 1 ana k A-1"), "nobody has it"),
        (("ZREM", keys.due, hold.epoch), "holds that will end"),
        (("HDEL", keys.asked, "k"), "keys that holds"),
        (("HINCRBY", keys.owners, "ana", 1), "what owners have"),
    ):
        saved = {
            key: await redis.command("DUMP", key)
            for key in (keys.seats, keys.head, keys.holds, keys.due, keys.asked, keys.owners)
        }
        assert (await check_seats(redis, "evt")).ok
        await redis.command(*damage)
        found = await check_seats(redis, "evt")
        assert not found.ok
        assert any(problem in one for one in found.problems), (damage, found.problems)
        if "sold" in damage:
            with pytest.raises(SeatsUnconserved):
                await seats.hold("ben", ["A-5"])
        for key, dump in saved.items():
            await redis.command("RESTORE", key, 0, dump, "REPLACE")


# ---------------------------------------------------------------------------- the promise


class SeatMachine(RuleBasedStateMachine):
    """Any order of calls by several owners, who may die after any of them, against a model of sets."""

    holds = Bundle("holds")
    runner: asyncio.Runner
    redis: Connection

    @initialize()
    def start(self) -> None:
        self.event = f"evt_{next(NUMBERS)}"
        self.seats = Seats(self.redis, self.event, per_owner=5)
        self.has: dict[int, tuple[str, str, set[str]]] = {}
        """By epoch: held or sold, the owner, the seats."""
        self.over: set[int] = set()
        self.last = 0
        self.go(self.seats.add(NAMES))

    def go(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    def taken(self) -> set[str]:
        return {seat for epoch, (_, _, its) in self.has.items() if epoch not in self.over for seat in its}

    @rule(
        target=holds,
        owner=st.sampled_from("xyz"),
        names=st.sets(st.sampled_from([*NAMES, "Z"]), min_size=1, max_size=4),
    )
    def hold(self, owner: str, names: set[str]) -> Any:
        own = [len(its) for _, who, its in self.has.values() if who == owner]
        try:
            made: Hold = self.go(self.seats.hold(owner, names))
        except UnknownSeats:
            assert "Z" in names
        except SeatsTaken:
            assert names & self.taken()
        except TooManySeats:
            # What is over, and not swept, still counts for its owner.
            assert sum(own) + len(names) > 5
        else:
            assert not names & self.taken()
            assert "Z" not in names
            assert made.epoch > self.last, "an epoch is larger than any before"
            self.last = made.epoch
            self.has[made.epoch] = ("held", owner, names)
            return made.epoch
        finally:
            self.forget_over(names)
        return multiple()

    def forget_over(self, names: set[str]) -> None:
        """Whoever asks for seats finds holds that are over, and gives them back."""
        for epoch in [one for one in self.over if self.has[one][2] & names]:
            self.drop(epoch)

    def drop(self, epoch: int) -> None:
        self.over.discard(epoch)
        self.has.pop(epoch, None)

    @rule(epoch=holds, owner=st.sampled_from("xyz"))
    def confirm(self, epoch: int, owner: str) -> None:
        state, who, names = self.has.get(epoch, ("gone", "", set()))
        may = who == owner and epoch not in self.over
        try:
            sold = self.go(self.seats.confirm(owner, epoch))
        except HoldGone:
            assert not may
            if who == owner:
                self.drop(epoch)
        else:
            assert may
            assert set(sold) == names
            self.has[epoch] = ("sold", who, names)
        del state

    @rule(epoch=holds, owner=st.sampled_from("xyz"), what=st.sampled_from(["held", "sold"]))
    def give_back(self, epoch: int, owner: str, what: str) -> None:
        state, who, names = self.has.get(epoch, ("gone", "", set()))
        act = self.seats.release if what == "held" else self.seats.refund
        try:
            back = self.go(act(owner, epoch))
        except HoldGone:
            assert who == owner
            assert state != what
        else:
            assert set(back) == (names if (who, state) == (owner, what) else set())
            if back:
                self.drop(epoch)

    @rule(epoch=consumes(holds))
    def time_is_over(self, epoch: int) -> None:
        if self.has.get(epoch, ("",))[0] == "held":
            self.go(ended(self.redis, self.seats.keys, epoch))
            self.over.add(epoch)

    @rule(most=st.integers(1, 3))
    def sweep(self, most: int) -> None:
        swept = self.go(self.seats.sweep(most))
        assert swept == min(most, len(self.over))
        if swept == len(self.over):
            for epoch in list(self.over):
                self.drop(epoch)
        else:
            # Which of several that are over were swept is the server's choice: ask it.
            left = {int(raw) for raw in self.go(self.redis.command("HKEYS", self.seats.keys.holds))}
            for epoch in self.over - left:
                self.drop(epoch)

    @invariant()
    def conserved(self) -> None:
        if not hasattr(self, "event"):
            return
        tally = Counter[str]()
        for state, _, its in self.has.values():
            tally[state] += len(its)
        found = self.go(self.seats.counts())
        assert (found.held, found.sold) == (tally["held"], tally["sold"])
        assert found.available + found.held + found.sold == found.total == len(NAMES)
        checked = self.go(check_seats(self.redis, self.event))
        assert checked.ok, checked


def test_seat_conserved_by_any_calls_in_any_order(server: Server | Cluster) -> None:
    with asyncio.Runner() as runner:
        redis = runner.run(connected(server.url))

        class Here(SeatMachine):
            pass

        Here.runner, Here.redis = runner, redis
        try:
            run_state_machine_as_test(
                Here,
                settings=settings(
                    max_examples=int(12 * SCALE),
                    stateful_step_count=25,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(redis.close())


async def connected(url: str) -> Connection:
    return await connect(url)


async def test_seat_conserved_with_many_buyers_at_once(server: Server | Cluster, rng: random.Random) -> None:
    """Each seat is sold at most once, however many want it at the same time."""
    names = [f"S{number}" for number in range(30)]
    sold: list[tuple[str, int, str]] = []

    async def buyer(redis: Connection, name: str, chance: random.Random) -> None:
        seats = Seats(redis, "evt")
        for _ in range(int(25 * SCALE)):
            wanted = chance.sample(names, chance.randrange(1, 5))
            try:
                hold = await seats.hold(name, wanted)
                if chance.random() < 0.3:
                    sold.extend((seat, hold.epoch, name) for seat in await seats.confirm(name, hold.epoch))
                else:
                    await seats.release(name, hold.epoch)
            except SeatsTaken:
                continue

    async with AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(connect(server.url)) for _ in range(4)]
        await Seats(lines[0], "evt").add(names)
        await asyncio.gather(
            *(buyer(lines[n % 4], f"buyer{n}", random.Random(rng.random())) for n in range(24))
        )
        checked = await check_seats(lines[0], "evt")
        assert checked.ok, checked
        assert len({seat for seat, _, _ in sold}) == len(sold) == checked.counts.sold
        assert checked.counts.held == 0


async def test_seat_conserved_when_buyers_are_killed(server: Server | Cluster, rng: random.Random) -> None:
    """Processes die in the middle of buying; what they held comes back, what is sold is sold once."""
    async with connect(server.url) as redis:
        seats = Seats(redis, "evt")
        await seats.add(f"S{number}" for number in range(12))
        for _ in range(max(1, round(2 * SCALE))):
            async with buyers(server.url, "evt", ["p", "q", "r"]) as running:
                started = (await seats.counts()).changes
                goal = started + rng.randrange(100, 200)

                async def busy(goal: int = goal) -> bool:
                    return (await seats.counts()).changes >= goal

                await until(busy)
                for process in running:
                    process.kill()
            await until(lambda: no_holds(seats))
            checked = await check_seats(redis, "evt")
            assert checked.ok, checked
            assert checked.counts.available + checked.counts.sold == 12


@asynccontextmanager
async def buyers(url: str, event: str, names: Sequence[str]) -> AsyncIterator[list[Process]]:
    command = [sys.executable, "-m", "tests.room.buyer", url, event]
    started = [await asyncio.create_subprocess_exec(*command, name, stdout=PIPE) for name in names]
    try:
        for process in started:
            assert process.stdout is not None
            await process.stdout.readline()
        yield started
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def no_holds(seats: Seats) -> bool:
    while await seats.sweep():
        pass
    return (await seats.counts()).held == 0


def test_every_error_is_an_error_of_the_seats() -> None:
    for kind in (UnknownSeats, SeatsTaken, TooManySeats, HoldGone, HoldConflict, SeatsUnconserved):
        assert issubclass(kind, SeatsError)
