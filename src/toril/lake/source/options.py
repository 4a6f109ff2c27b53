"""The options of ``toril_log``, checked."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toril.connection.url import parse_url
from toril.errors import InvalidValue
from toril.keyspace import LogKeys
from toril.lake.source.positions import Marks, in_order
from toril.log import Partition

MOST_PER_TRIGGER = 250_000
"""Events that one batch of a stream has at most, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a read was asked for."""

    url: str | None = field(repr=False)
    """Where the log is. It is shown nowhere: it may have a password."""
    url_env: str
    """The environment variable that has the URL, on the driver and on the workers."""
    log: str
    start: str | Marks
    after: Marks | None
    upto: Marks | None
    max_events: int
    tasks: int

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Options:
        """From what Spark was given; each value that is wrong is named, with the rule."""
        options = {name.lower(): value for name, value in given.items()}
        if strange := sorted(options.keys() - KNOWN.keys()):
            raise InvalidValue("option", strange[0], f"toril_log knows {', '.join(KNOWN)}")
        if "url" in options and "url_env" in options:
            raise InvalidValue("option url_env", options["url_env"], "url is given too: only one of them")
        if "url" in options:
            parse_url(options["url"])
        if "after" in options and "start" in options:
            raise InvalidValue("option start", options["start"], "after is given too: only one of them")
        log = options.get("log", "log")
        LogKeys(log)
        start = options.get("start", "first")
        return cls(
            url=options.get("url"),
            url_env=options.get("url_env", ""),
            log=log,
            start=start if start in ("first", "tail") else _exact("start", start, "'first', 'tail', or "),
            after=_exact("after", options["after"]) if "after" in options else None,
            upto=_marks("upto", options["upto"]) if "upto" in options else None,
            max_events=_count("max_events", options.get("max_events", str(MOST_PER_TRIGGER))),
            tasks=_count("tasks", options.get("tasks", str(os.cpu_count() or 2))),
        )

    def where(self) -> str | None:
        """The URL; None: as :func:`toril.connect` finds it."""
        if not self.url_env:
            return self.url
        found = os.environ.get(self.url_env)
        if not found:
            raise InvalidValue("option url_env", self.url_env, "no such environment variable is set here")
        return found


KNOWN = {
    "url": "where the log is",
    "url_env": "the environment variable that has the URL",
    "log": "the name of the log",
    "start": "first, tail, or positions as JSON",
    "after": "positions as JSON: exactly what comes after them",
    "upto": "positions as JSON: up to these",
    "max_events": "events in one batch of a stream",
    "tasks": "tasks that read at the same time",
}


def as_json(marks: Mapping[str, tuple[int, str]]) -> str:
    """Positions as an option, and as an offset of a stream: always the same text for the same places."""
    return json.dumps(in_order(marks))


def marks_of(value: Mapping[str, Any]) -> Marks:
    """Positions from JSON that was read."""
    made: Marks = {}
    for name, place in value.items():
        ordinal, ident = place
        ms, dash, seq = ident.partition("-")
        if (
            type(ordinal) is not int
            or ordinal < 0
            or (ident and not (ms.isdigit() and dash and seq.isdigit()))
        ):
            raise ValueError(name)
        made[str(Partition.parse(name))] = (ordinal, ident)
    return made


def _marks(option: str, text: str, else_: str = "") -> Marks:
    try:
        return marks_of(json.loads(text))
    except (ValueError, TypeError, AttributeError):
        rule = f'{else_}positions like {{"07": [120, "1700000000000-0"]}}: ordinal and id by partition'
        raise InvalidValue(f"option {option}", text, rule) from None


def _exact(option: str, text: str, else_: str = "") -> Marks:
    found = _marks(option, text, else_)
    for name, (_, ident) in found.items():
        if not ident:
            raise InvalidValue(f"option {option}", text, f"partition {name} needs the id of its entry")
    return found


def _count(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise InvalidValue(f"option {option}", text, "a whole number from 1")
    return int(text)
