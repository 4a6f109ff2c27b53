"""A room against a model of a few lines, with a clock that the test moves: every answer, every state."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.conftest import SCALE, emptied
from tests.room.clock import Clock
from toril import connect
from toril.room import (
    IdempotencyConflict,
    LaneSettings,
    NotInside,
    NotReady,
    Room,
    RoomError,
    Session,
    Settings,
    Ticket,
    TicketOver,
    check_room,
)
from toril.room.store import Scripts
from toril.testing import Cluster, Server

T = TypeVar("T")

PATIENCE, ENTER, SESSION = 10_000, 5_000, 20_000
UNIT = 10**9


@dataclass
class Person:
    """A ticket, as the model has it."""

    token: str
    number: int
    user: str
    seen: int
    state: str = "waiting"
    ends: int = 0
    told: int | None = None
    used_by: str = ""


@dataclass
class Model:
    """What a room is, without a server, a script or an index."""

    rate: int = 2000
    burst: int = 3
    most: int = 4
    level: int = 3 * UNIT
    at: int = 0
    paused: bool = False
    people: list[Person] = field(default_factory=list)
    users: dict[str, Person] = field(default_factory=dict)
    keys: dict[str, tuple[Person, str]] = field(default_factory=dict)
    admitted: int = 0

    def refill(self, us: int) -> None:
        self.level = min(self.burst * UNIT, self.level + (us - self.at) * self.rate)
        self.at = us

    def waiting(self) -> list[Person]:
        return [one for one in self.people if one.state == "waiting"]

    def active(self, now: int) -> int:
        return sum(one.state in ("ready", "inside") and one.ends > now for one in self.people)

    def end(self, one: Person, how: str) -> None:
        one.state = how
        if self.users.get(one.user) is one:
            del self.users[one.user]

    def look(self, one: Person, now: int) -> None:
        if one.state in ("ready", "inside") and one.ends <= now:
            self.end(one, "lapsed" if one.state == "ready" else "expired")

    def hear(self, one: Person, now: int) -> None:
        self.look(one, now)
        if one.state == "waiting":
            one.seen = now

    def tick(self, us: int) -> int:
        now = us // 1000
        for one in self.people:
            self.look(one, now)
        for one in self.waiting():
            if now - one.seen > PATIENCE:
                self.end(one, "abandoned")
        self.refill(us)
        if self.paused:
            return 0
        came = self.waiting()[: max(0, min(self.level // UNIT, self.most - self.active(now)))]
        for one in came:
            one.state, one.ends = "ready", now + ENTER
        self.level -= len(came) * UNIT
        self.admitted += len(came)
        return len(came)


class RoomMachine(RuleBasedStateMachine):
    """Whatever people and operators do, in any order, at any time."""

    url = ""
    scripts: Scripts
    runs = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).runs += 1
        self.loop = asyncio.new_event_loop()
        self.redis = self.do(connect(self.url).__aenter__())
        self.room = Room(self.redis, f"evt_{self.runs}", scripts=self.scripts)
        self.clock = Clock(self.redis, self.room.name)
        self.model = Model(at=self.clock.us)
        self.do(self.clock.advance())
        its = LaneSettings(rate=2, burst=3, max_active=4)
        times = [timedelta(milliseconds=ms) for ms in (PATIENCE, ENTER, SESSION)]
        self.do(
            self.room.create(Settings(main=its, patience=times[0], enter_within=times[1], session=times[2]))
        )

    def do(self, what: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(what)

    def teardown(self) -> None:
        self.do(self.room.tick())  # a room that nobody looks after has ghosts
        found = self.do(check_room(self.room))
        self.do(self.redis.close())
        self.loop.close()
        assert found.ok, found.violations

    def pick(self, which: int) -> Person:
        return self.model.people[which % len(self.model.people)]

    # ------------------------------------------------------------------ what can happen

    @rule(ms=st.one_of(st.integers(0, 600), st.integers(0, 12_000)))
    def time_passes(self, ms: int) -> None:
        self.do(self.clock.advance(ms))

    @rule(user=st.sampled_from([None, "anonymous", "ana", "bo", "cy"]), key=st.sampled_from([None, *"klmn"]))
    def join(self, user: str | None, key: str | None) -> None:
        model, now = self.model, self.clock.ms
        known = "" if user in (None, "anonymous") else str(user)
        same = model.keys.get(key or "")
        if same and same[1] != (user or ""):
            with pytest.raises(IdempotencyConflict):
                self.do(self.room.join(user=user, key=key))
            return
        ticket = self.do(self.room.join(user=user, key=key))
        if same:
            model.look(same[0], now)
            expected: Person | None = same[0]
        else:
            expected = model.users.get(known)
            if expected is not None:
                model.look(expected, now)
                if expected.state in ("waiting", "ready", "inside"):
                    model.hear(expected, now)
                else:
                    expected = None
        assert ticket.repeated == (expected is not None)
        if expected is None:
            expected = Person(str(ticket.token), len(model.people) + 1, known, now)
            model.people.append(expected)
            if known:
                model.users[known] = expected
        if key:
            model.keys[key] = (expected, user or "")
        assert (str(ticket.token), ticket.state) == (expected.token, expected.state)

    @precondition(lambda self: self.model.people)
    @rule(which=st.integers(0, 50))
    def poll(self, which: int) -> None:
        one = self.pick(which)
        self.model.hear(one, self.clock.ms)
        status = self.do(self.room.status(one.token))
        assert status.state == one.state
        if one.state == "waiting" and status.position is not None:
            assert status.position >= self.model.waiting().index(one) + 1
            assert one.told is None or status.position <= one.told
            one.told = status.position

    @precondition(lambda self: self.model.people)
    @rule(which=st.integers(0, 50))
    def enter(self, which: int) -> None:
        one, now = self.pick(which), self.clock.ms
        self.model.hear(one, now)
        if one.state == "ready":
            one.state, one.ends = "inside", now + SESSION
        session = self.outcome(self.room.enter(one.token), one, NotReady)
        assert session is None or (session.expires_ms, session.ttl_ms) == (one.ends, one.ends - now)

    @precondition(lambda self: self.model.people)
    @rule(which=st.integers(0, 50))
    def renew(self, which: int) -> None:
        one, now = self.pick(which), self.clock.ms
        self.model.look(one, now)
        if one.state == "inside":
            one.ends = now + SESSION
        self.outcome(self.room.renew(one.token), one, NotInside)

    @precondition(lambda self: self.model.people)
    @rule(which=st.integers(0, 50), by=st.sampled_from(["order 1", "order 2"]))
    def redeem(self, which: int, by: str) -> None:
        one, now = self.pick(which), self.clock.ms
        self.model.look(one, now)
        if one.state == "inside":
            one.used_by = one.used_by or by
        try:
            used = self.do(self.room.redeem(one.token.rsplit(".", 1)[0], by)).used_by
        except RoomError:
            assert one.state != "inside" or one.used_by != by
        else:
            assert (one.state, one.used_by) == ("inside", used)

    def outcome(
        self, what: Coroutine[Any, Any, Session], one: Person, unless: type[Exception]
    ) -> Session | None:
        if one.state == "inside":
            return self.do(what)
        expected = unless if one.state in ("waiting", "ready") else TicketOver
        with pytest.raises(expected):
            self.do(what)
        return None

    @precondition(lambda self: self.model.people)
    @rule(which=st.integers(0, 50), how=st.sampled_from(["left", "revoked"]))
    def leave(self, which: int, how: str) -> None:
        one, now = self.pick(which), self.clock.ms
        self.model.look(one, now)
        if one.state in ("waiting", "ready", "inside"):
            self.model.end(one, how)
        ticket: Ticket | None = self.do(
            self.room.leave(one.token) if how == "left" else self.room.revoke(one.token.rsplit(".", 1)[0])
        )
        assert ticket is not None
        assert ticket.state == one.state

    @rule(times=st.integers(1, 3))
    def tick(self, times: int) -> None:
        """Asked more often, no more come in."""
        for _ in range(times):
            assert self.do(self.room.tick()).admitted == self.model.tick(self.clock.us)

    @rule(rate=st.sampled_from([0, 0.5, 2, 7.25]), burst=st.integers(1, 5), most=st.integers(0, 6))
    def configure(self, rate: float, burst: int, most: int) -> None:
        self.do(self.room.configure(main=LaneSettings(rate=rate, burst=burst, max_active=most)))
        model = self.model
        model.refill(self.clock.us)
        model.rate, model.burst, model.most = round(rate * 1000), burst if rate else 0, most
        model.level = min(model.level, model.burst * UNIT)

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.do(self.room.pause() if paused else self.room.resume())
        self.model.paused = paused

    # ------------------------------------------------------------------ what must be so

    @invariant()
    def same_as_the_model(self) -> None:
        keys, people = self.room.keys, self.model.people
        stats = self.do(self.room.stats()).lanes["main"]
        assert stats.joined == len(people)
        assert stats.waiting == len(self.model.waiting())
        assert stats.active == self.model.active(self.clock.ms)
        assert stats.admitted == self.model.admitted
        if people:
            asked = [("HGET", keys.ticket(f"main:{one.number}"), "s") for one in people]
            states = self.do(self.redis.read_many(asked, keys.meta))
            assert [state.decode() for state in states] == [one.state for one in people]


def test_room_fair_whatever_happens_a_room_does_what_its_model_does(
    server: Server | Cluster, clocked: Scripts
) -> None:
    emptied(server)

    class Machine(RoomMachine):
        url = server.url
        scripts = clocked

    # Not made smaller where it fails: that takes longer than a test may.
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=round(25 * SCALE), stateful_step_count=40, deadline=None, phases=[Phase.generate]
        ),
    )
