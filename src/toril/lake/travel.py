"""Time travel: the state of an aggregate, or of all of them, as it was at a version or at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from toril.aggregate import Aggregate
from toril.errors import InvalidValue
from toril.events.event import LARGEST_TIME, LARGEST_VERSION
from toril.events.projection import wants
from toril.lake.engine import engine_for
from toril.lake.engine.fold import gap
from toril.lake.errors import NotWhole
from toril.lake.generations import Filters
from toril.lake.history import history
from toril.lake.lake import Lake
from toril.lake.quoting import quoted
from toril.lake.replay import states_of, typing_for
from toril.lake.subjects import Subject
from toril.runtime.decisions import DECISIONS, Decision, decision_in, skipped
from toril.runtime.work import ANY_TYPE

AHEAD = 60 * 10**9
"""Nanoseconds by which the clocks of client and server may differ."""


@dataclass(frozen=True, slots=True)
class StateThen:
    """A state as it was."""

    state: Any
    """None where the aggregate had no events yet."""
    version: int
    """Events up to this version are in it."""
    recorded_at: int | None
    """When the last of them was recorded (ns)."""
    failed_version: int | None = None
    """The event at which it stopped, as the projection could not take it."""
    failed: str | None = None


def state_at(
    lake: Lake,
    subject: Subject,
    aggregate: Aggregate,
    *,
    url: str | None,
    log: str = "log",
    version: int | None = None,
    at: int | None = None,
) -> StateThen:
    """The state of one aggregate when it was at a version, or at a time (ns); now, without either.

    Events are taken from the lake, and from the log where the lake does not have them yet. What people had
    skipped is skipped, as far as they had decided so by then. :class:`NotWhole` where some are missing.
    """
    _check(subject, aggregate, version, at)
    last = LARGEST_VERSION if version is None else version
    until = LARGEST_TIME if at is None else at
    with history(lake, url, log, of=aggregate) as all_of_it:
        # Later ones too: by the next one it is seen whether those that are asked for are all there.
        events = all_of_it.events(filters=Filters(tenant=aggregate.tenant)).where(
            f"aggregate_id = {quoted(aggregate.id)} AND (aggregate_type = {quoted(DECISIONS)} AND "
            f"recorded_at <= {until} OR aggregate_type = {quoted(aggregate.type)})"
        )
        # Decisions first: they say what is to be skipped.
        ordered = events.orderBy(expr(f"aggregate_type <> {quoted(DECISIONS)}"), "version")
        return _folded(subject, aggregate, ordered, last, until)


@contextmanager
def states_at(
    lake: Lake,
    subject: Subject,
    *,
    url: str | None,
    log: str = "log",
    at: int | None = None,
    cut: Mapping[str, tuple[int, str]] | None = None,
    tenant: str | None = None,
    engine: str | None = None,
) -> Iterator[DataFrame]:
    """The states of all aggregates at a time (ns), or at a cut; now, without either.

    ``tenant``, ``aggregate_type``, ``aggregate_id``, ``version``, ``state`` as it is encoded, and where an
    event could not be taken, ``failed_version`` and ``failed``. Use it while it is entered. An aggregate of
    which events are missing is an error.
    """
    _check_time(at)
    filters = Filters(tenant=tenant, until=None if at is None else at + 1)
    chosen = engine_for(subject.projection, typing_for(lake, subject), engine).engine
    with history(lake, url, log, cut, spans=chosen == "native") as all_of_it:
        yield states_of(all_of_it, subject, filters, engine=chosen, decided_until=filters.until)


def _check(subject: Subject, aggregate: Aggregate, version: int | None, at: int | None) -> None:
    if subject.aggregate_type not in (ANY_TYPE, aggregate.type):
        rule = f"{subject.processor} is of aggregates of type {subject.aggregate_type}"
        raise InvalidValue("aggregate type", aggregate.type, rule)
    if version is not None and at is not None:
        raise InvalidValue("at", at, "give a version or a time, and not both")
    if version is not None and (type(version) is not int or version < 0):
        raise InvalidValue("version", version, "a whole number from 0")
    _check_time(at)


def _check_time(at: int | None) -> None:
    if at is not None and (type(at) is not int or at < 0):
        raise InvalidValue("at", at, "whole nanoseconds since 1970")
    if at is not None and at > time.time_ns() + AHEAD:
        raise InvalidValue("at", at, "it is in the future")


def _folded(subject: Subject, aggregate: Aggregate, events: DataFrame, last: int, until: int) -> StateThen:
    projection = subject.projection
    home = Decision.home(aggregate)
    state, version, recorded_at = projection.initial(), 0, None
    decided: list[tuple[str, Decision]] = []
    left_out: set[int] | None = None
    for row in events.toLocalIterator():
        body = bytes(row["body"])
        if row["aggregate_type"] == DECISIONS:
            if made := decision_in(home.key, body):
                decided.append(made)
            continue
        if version == last:
            break
        if row["version"] != version + 1:
            raise NotWhole(gap(aggregate.key, version, row["version"]))
        if row["recorded_at"] > until:
            break
        if left_out is None:
            its = (one for one in skipped(decided, subject.anew) if one.aggregate == aggregate.key)
            left_out = {one.version for one in its}
        try:
            if row["version"] not in left_out:
                event = subject.event(aggregate.key, row["version"], row["recorded_at"], body)
                state = projection.apply(state, event) if wants(projection.event_types, event) else state
        except Exception as problem:  # noqa: BLE001 - whatever it is, it belongs to this event
            error = f"{type(problem).__name__}: {problem}"
            return StateThen(state if version else None, version, recorded_at, row["version"], error)
        version, recorded_at = row["version"], row["recorded_at"]
    return StateThen(state if version else None, version, recorded_at)
