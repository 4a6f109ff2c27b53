"""The settings of a waiting room: checked once, and written down as the scripts read them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Self, get_args

from toril.errors import InvalidValue
from toril.keyspace import MOST_SHARDS
from toril.room.ticket import Lane, Mode

FASTEST = 1_000_000
"""Admissions per second, and the largest burst: what whole numbers of the budget can hold."""

MILLI = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSettings:
    """How fast a lane lets people in, and how many of them can be inside at a time."""

    rate: float
    """Admissions per second, to a thousandth; 0 lets nobody in."""
    burst: int | None = None
    """Admissions that may come at once after a quiet time; None: those of one second, at least one. With a
    burst smaller than what the rate gives between two looks of a doorkeeper, the rate is not reached."""
    max_active: int | None = None
    """How many may be inside, or on their way in, at a time; None: any number."""

    def __post_init__(self) -> None:
        if not _is_number(self.rate) or not 0 <= self.rate <= FASTEST:
            raise InvalidValue("rate", self.rate, f"admissions per second, from 0 to {FASTEST}")
        if self.rate and round(self.rate * MILLI) < 1:
            raise InvalidValue("rate", self.rate, "at least 0.001 per second, or 0")
        _check_whole("burst", self.burst, 1, FASTEST, none=True)
        _check_whole("max_active", self.max_active, 0, 10**9, none=True)

    @property
    def most_at_once(self) -> int:
        """The burst that holds."""
        if self.rate == 0:
            return 0
        return self.burst if self.burst is not None else max(1, min(FASTEST, round(self.rate)))

    def fields(self, lane: Lane) -> dict[str, str]:
        """As it is written down."""
        most = -1 if self.max_active is None else self.max_active
        return {
            f"{lane}:rate": str(round(self.rate * MILLI)),
            f"{lane}:burst": str(self.most_at_once),
            f"{lane}:max": str(most),
            f"{lane}:own_burst": str(self.burst or 0),
        }

    @classmethod
    def read(cls, lane: Lane, said: Mapping[str, str]) -> Self | None:
        """From what is written down; None where the lane is closed."""
        if f"{lane}:rate" not in said or said[f"{lane}:rate"] == "":
            return None
        most, burst = int(said[f"{lane}:max"]), int(said[f"{lane}:own_burst"])
        return cls(
            rate=int(said[f"{lane}:rate"]) / MILLI,
            burst=burst or None,
            max_active=None if most < 0 else most,
        )


_CLOSED_LANE = {"rate": "", "burst": "0", "max": "0", "own_burst": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a room."""

    main: LaneSettings
    vip: LaneSettings | None = None
    """A second lane with a budget of its own, for those who are sent past the line; None: there is none."""
    mode: Mode = "fifo"
    """``random`` draws among all who wait; ``passthrough`` lets everybody in and holds no limit;
    ``reject`` takes nobody, and lets nobody in."""
    gather: bool = False
    """Whether people are gathered first, and shuffled when the room opens. Not to be changed later."""
    opens_ms: int | None = None
    """When a room that gathers opens (milliseconds since 1970); None: when it is told to."""
    patience: timedelta = timedelta(seconds=60)
    """After so long without a sign of life, somebody who waits is taken for gone."""
    enter_within: timedelta = timedelta(seconds=60)
    """How long whoever was let in has to enter."""
    session: timedelta = timedelta(minutes=10)
    """How long a session lasts, and by how much it is renewed."""
    remember: timedelta = timedelta(seconds=300)
    """How long a ticket that has ended, and its idempotency key, are remembered."""
    max_waiting: int | None = None
    """How many may wait in a lane (of one shard); None: what the server's memory holds."""
    interval: timedelta = timedelta(milliseconds=250)
    """How often the snapshot is published that positions are computed from."""
    shards: int = 1
    """Over how many slots the room is spread. Not to be changed later."""

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise InvalidValue("mode", self.mode, ", ".join(get_args(Mode)))
        for what, least, most in (
            ("patience", timedelta(seconds=1), timedelta(days=1)),
            ("enter_within", timedelta(seconds=1), timedelta(days=1)),
            ("session", timedelta(seconds=1), timedelta(days=7)),
            ("remember", timedelta(seconds=300), timedelta(days=30)),
            ("interval", timedelta(milliseconds=50), timedelta(seconds=10)),
        ):
            value: Any = getattr(self, what)
            if not isinstance(value, timedelta) or not least <= value <= most:
                raise InvalidValue(what, value, f"a time from {least} to {most}")
        _check_whole("max_waiting", self.max_waiting, 1, 10**9, none=True)
        _check_whole("shards", self.shards, 1, MOST_SHARDS)
        _check_whole("opens_ms", self.opens_ms, 1, 2**53, none=True)
        if self.opens_ms is not None and not self.gather:
            raise InvalidValue("opens_ms", self.opens_ms, "only a room that gathers opens at a time")

    def lane(self, lane: Lane) -> LaneSettings | None:
        """The settings of a lane; None where it is closed."""
        return self.main if lane == "main" else self.vip

    def but(self, **changes: Any) -> Self:
        """The same with changes; those that cannot be made later are refused."""
        for what in ("gather", "shards"):
            if what in changes and changes[what] != getattr(self, what):
                raise InvalidValue(what, changes[what], "it is decided when the room is made")
        try:
            return replace(self, **changes)
        except TypeError:
            raise InvalidValue("settings", sorted(changes), "settings that a room has") from None

    def fields(self) -> dict[str, str]:
        """As it is written down for the scripts."""
        return {
            "mode": self.mode,
            "gather": str(int(self.gather)),
            "opens": str(self.opens_ms or 0),
            "patience": str(_ms(self.patience)),
            "enter": str(_ms(self.enter_within)),
            "session": str(_ms(self.session)),
            "remember": str(_ms(self.remember)),
            "most": str(self.max_waiting or 0),
            "interval": str(_ms(self.interval)),
            "shards": str(self.shards),
            **self.main.fields("main"),
            **(self.vip.fields("vip") if self.vip else {f"vip:{k}": v for k, v in _CLOSED_LANE.items()}),
        }

    @classmethod
    def read(cls, said: Mapping[str, str]) -> Self:
        """From what is written down."""
        main = LaneSettings.read("main", said)
        assert main is not None
        return cls(
            main=main,
            vip=LaneSettings.read("vip", said),
            mode=next(mode for mode in get_args(Mode) if mode == said["mode"]),
            gather=said["gather"] == "1",
            opens_ms=int(said["opens"]) or None,
            patience=_time(said["patience"]),
            enter_within=_time(said["enter"]),
            session=_time(said["session"]),
            remember=_time(said["remember"]),
            max_waiting=int(said["most"]) or None,
            interval=_time(said["interval"]),
            shards=int(said["shards"]),
        )


@dataclass(frozen=True, slots=True)
class Seed:
    """What a shuffle is made from: kept secret until the room opens, committed to before."""

    hex: str = field(repr=False)

    @classmethod
    def new(cls) -> Self:
        """256 bits of chance."""
        return cls(secrets.token_hex(32))

    @property
    def commitment(self) -> str:
        """SHA-256 of the seed's bytes: told beforehand, so that nobody can choose another seed later."""
        return hashlib.sha256(bytes.fromhex(self.hex)).hexdigest()


def _ms(time: timedelta) -> int:
    return round(time / timedelta(milliseconds=1))


def _time(ms: str) -> timedelta:
    return timedelta(milliseconds=int(ms))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_whole(what: str, value: object, least: int, most: int, *, none: bool = False) -> None:
    if none and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidValue(what, value, f"a whole number from {least} to {most}{', or None' if none else ''}")
