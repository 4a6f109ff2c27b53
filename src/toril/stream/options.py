"""The options of a stream queue. They are kept in Redis: all who work with the queue have the same."""

from __future__ import annotations

import random
import re
from typing import Any, Literal

import msgspec

from toril import codec
from toril.errors import InvalidValue

LONGEST_TEXT = 256
"""Bytes that names, order keys, tenants and unique names may have."""

MOST_PARTITIONS = 100
MOST_LEVELS = 10

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_text(field: str, value: object) -> str:
    """A name, order key, tenant or unique name; the rule is the same for the inlet."""
    if not isinstance(value, str) or not value:
        raise InvalidValue(field, value, f"text of 1 to {LONGEST_TEXT} bytes")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidValue(field, value, "UTF-8 without control characters") from None
    if size > LONGEST_TEXT:
        raise InvalidValue(field, value, f"text of 1 to {LONGEST_TEXT} bytes")
    if _CONTROL.search(value):
        raise InvalidValue(field, value, "UTF-8 without control characters")
    return value


def check_whole(field: str, value: object, least: int, most: int | None = None) -> int:
    """A whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most and value > most):
        upper = f"to {most}" if most else "up"
        raise InvalidValue(field, value, f"a whole number from {least} {upper}")
    return value


def check_seconds(field: str, value: object, least: float = 0.0) -> int:
    """A number of seconds, as milliseconds."""
    if type(value) not in (int, float) or not least <= value < 2**40:  # type: ignore[operator]
        raise InvalidValue(field, value, f"a number of seconds from {least:g} up")
    return round(value * 1000)  # type: ignore[operator]


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait before a failed job is tried again: longer each time, and never all at once."""

    first: float = 1.0
    """Seconds after the first failure."""
    factor: float = 2.0
    """Each further wait is so many times as long."""
    most: float = 300.0
    """Seconds that no wait exceeds."""
    jitter: float = 0.5
    """The part of the wait that is left to chance: 0 for none, 1 for all of it."""

    def __post_init__(self) -> None:
        check_seconds("backoff first", self.first)
        check_seconds("backoff most", self.most)
        if not self.factor >= 1:
            raise InvalidValue("backoff factor", self.factor, "a number from 1 up")
        if not 0 <= self.jitter <= 1:
            raise InvalidValue("backoff jitter", self.jitter, "a number from 0 to 1")

    def after(self, failures: int) -> int:
        """Milliseconds to wait after so many failures (1 for the first)."""
        wait = min(self.most, self.first * self.factor ** min(failures - 1, 64))
        return round(1000 * wait * (1 - self.jitter * random.random()))


class Route(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which fields of the data say what else is to be known of a job, where it is not said outright."""

    name: str = ""
    """By which its handler is found."""
    key: str = ""
    """Jobs with the same key run one after the other, in the order they were added."""
    tenant: str = ""
    """Tenants take turns."""
    priority: str = ""

    def of(self, data: object) -> dict[str, Any]:
        """What the data says: by the names of this class's fields."""
        if not isinstance(data, dict):
            return {}
        named = ((field, data.get(getattr(self, field))) for field in self.__struct_fields__)
        return {field: value for field, value in named if value is not None and value != ""}


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a stream queue works."""

    partitions: int = 1
    """Over so many slots of a cluster it is spread. Fixed when the queue is made."""
    levels: int = 3
    """Levels of priority; 0 comes first. A priority beyond the last level is the last level's."""
    weights: tuple[int, ...] = ()
    """Of so many turns, each level has its part: (6, 3, 1). Empty: a level is served when those before it
    are empty."""
    block: float = 5.0
    """Seconds after which an idle worker looks for jobs, even if nobody has called it."""
    claim_idle: float = 60.0
    """Seconds without a sign of its worker after which a job is given to another one."""
    backlog: int = 10_000
    """Jobs that may wait and run in a partition; more are refused."""
    backlog_bytes: int = 0
    """Bytes of their data, likewise; 0 for no limit."""
    largest: int = 1_048_576
    """Bytes that the data of one job may have."""
    retries: int = 3
    """How often a job is tried again after its handler has failed."""
    backoff: Backoff = Backoff()
    max_deliveries: int = 5
    """How often a job is given to a worker that is lost with it, before it is a dead letter."""
    dead_head: Literal["block", "skip", "drop"] = "block"
    """What happens to the jobs behind a dead letter with the same key: they wait for its redrive, they go on,
    or they become dead letters themselves."""
    result_ttl: float = 0.0
    """Seconds that results are kept for; 0: only those of jobs added with a ``result_ttl``."""
    unique_for: float = 86_400.0
    """Seconds that the unique name of a job is remembered for."""
    group: str = "workers"
    """The consumer group of the workers."""

    def __post_init__(self) -> None:
        check_whole("partitions", self.partitions, 1, MOST_PARTITIONS)
        check_whole("levels", self.levels, 1, MOST_LEVELS)
        for weight in self.weights:
            check_whole("weights", weight, 1, 1000)
        if self.weights and len(self.weights) != self.levels:
            raise InvalidValue("weights", self.weights, f"one for each of the {self.levels} levels")
        if not self.block > 0:
            raise InvalidValue("block", self.block, "a number of seconds above 0")
        check_seconds("claim_idle", self.claim_idle, 0.05)
        check_whole("backlog", self.backlog, 1)
        check_whole("backlog_bytes", self.backlog_bytes, 0)
        check_whole("largest", self.largest, 1, 512 * 1024 * 1024)
        check_whole("retries", self.retries, 0)
        check_whole("max_deliveries", self.max_deliveries, 1)
        if self.dead_head not in ("block", "skip", "drop"):
            raise InvalidValue("dead_head", self.dead_head, "one of block, skip, drop")
        check_seconds("result_ttl", self.result_ttl)
        check_seconds("unique_for", self.unique_for, 0.001)
        check_text("group", self.group)

    def fields(self) -> list[str | bytes | int]:
        """As the scripts read them: fields and values of the queue's hash."""
        return [
            *("options", codec.encode("options", self)),
            *("group", self.group),
            *("levels", self.levels),
            *("weights", " ".join(map(str, self.weights))),
            *("backlog", self.backlog),
            *("backlog_bytes", self.backlog_bytes),
            *("largest", self.largest),
            *("max_deliveries", self.max_deliveries),
            *("dead_head", self.dead_head),
            *("unique_for", round(self.unique_for * 1000)),
        ]


def options_of(raw: bytes) -> StreamOptions:
    """Options as they are kept in Redis."""
    return msgspec.json.decode(raw, type=StreamOptions)
