"""Any projection by its own class: the events of each aggregate in order, over Arrow batches.

An aggregate's events come one after the other, across batches: what is held is one state and the last
events, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

from toril.events.event import AnyEvent, blank_event, fill_in
from toril.events.projection import AnyProjection
from toril.events.upcasters import Upcasters
from toril.lake.errors import NotWhole

FOLDED = (
    "tenant string, aggregate_type string, aggregate_id string, version bigint, state binary, "
    "failed_version bigint, failed string"
)
"""What folding gives. Where an event could not be taken, its version and why: the state is that before it."""

_SCHEMA = pa.schema(
    [
        ("tenant", pa.string()),
        ("aggregate_type", pa.string()),
        ("aggregate_id", pa.string()),
        ("version", pa.int64()),
        ("state", pa.binary()),
        ("failed_version", pa.int64()),
        ("failed", pa.string()),
    ]
)

KEYS = ("tenant", "aggregate_type", "aggregate_id")
STATES_AT_ONCE = 2000

HELD = 1000
"""After so many events a state is encoded: those since then are at hand, should that not be possible."""

Row = tuple[str, int, int, bytes | None]
"""An event: its aggregate's key, its version, when it was recorded, and its body; None: it only counts."""


def folded(
    projection: AnyProjection,
    events: DataFrame,
    upcasters: Upcasters | None = None,
    *,
    whole: bool = False,
) -> DataFrame:
    """The states of all aggregates that have one of these events, as :data:`FOLDED`.

    ``events`` are rows as the table ``events`` has them; where they have a column ``skipped``, an event of
    which it is true is passed over, as a person has decided. As live, an event that cannot be read or taken
    stops its aggregate there, and so does one after which the state cannot be encoded. ``whole``: versions
    that are not 1, 2, 3 … up to there are an error; of a part of history they may be any.
    """
    is_taken = "NOT skipped" if "skipped" in events.columns else "true"
    # Live, events of all types are read, also those that it does not take: one that cannot be read stops it.
    chosen = events.selectExpr(
        "concat(tenant, ':', aggregate_type, ':', aggregate_id) AS key",
        "version",
        "recorded_at",
        f"CASE WHEN {is_taken} THEN body END AS body",
    )
    ordered = chosen.repartition("key").sortWithinPartitions("key", "version")

    def fold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _fold(_Way(projection, upcasters, whole), batches)

    return ordered.mapInArrow(fold, FOLDED)


class _Way:
    """How events are taken."""

    def __init__(self, projection: AnyProjection, upcasters: Upcasters | None, whole: bool) -> None:
        self.projection = projection
        self.whole = whole
        self.types = projection.event_types
        self.upcast = None if upcasters is None else upcasters.apply


def _fold(way: _Way, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Events in order of aggregate and version; those without a body only count."""
    one: _Folding | None = None
    made: list[tuple[Any, ...]] = []
    for batch in batches:
        columns = [batch.column(number).to_pylist() for number in range(batch.num_columns)]
        for key, rows in groupby(zip(*columns, strict=True), itemgetter(0)):
            if one is None or key != one.key:
                if one is not None:
                    made.append(one.done())
                    if len(made) >= STATES_AT_ONCE:
                        yield _batch(made)
                        made = []
                one = _Folding(way, key)
            one.take(list(rows))
    if one is not None:
        made.append(one.done())
        yield _batch(made)


class _Folding:
    """One aggregate, as far as its events have come."""

    def __init__(self, way: _Way, key: str) -> None:
        self.key = key
        self._way = way
        self._blank: Callable[[], AnyEvent] = blank_event(key).__copy__  # type: ignore[attr-defined]
        self._state = way.projection.initial()
        self._reached = 0
        self._failed: tuple[int, str] | None = None
        """The event that stopped it, and why."""
        self._encoded: tuple[int, bytes | None] = (0, None)
        """The last version whose state was encoded, and as what."""
        self._held: list[Row] = []
        """The events after that."""

    def take(self, rows: list[Row]) -> None:
        """Some more of its events, in order."""
        if self._failed is not None:
            return
        self._held += rows
        self._apply(rows)
        if len(self._held) >= HELD:
            self._encode()

    def done(self) -> tuple[Any, ...]:
        """A row of :data:`FOLDED`."""
        if self._held:
            self._encode()
        return (*self.key.split(":", 2), *self._encoded, *(self._failed or (None, None)))

    def _apply(self, rows: list[Row]) -> None:
        way, blank, state, reached = self._way, self._blank, self._state, self._reached
        types, upcast, apply, whole = way.types, way.upcast, way.projection.apply, way.whole
        for _, version, recorded_at, body in rows:
            if version != reached + 1 and whole:
                raise NotWhole(_gap(self.key, reached, version))
            if body is not None:
                try:
                    event = fill_in(blank(), body, version, recorded_at)
                    if upcast is not None:
                        event = upcast(event)
                    if types is None or event.type in types:
                        state = apply(state, event)
                except Exception as problem:  # noqa: BLE001 - whatever it is, it belongs to this event
                    self._failed = version, _said(problem)
                    break
            reached = version
        self._state, self._reached = state, reached

    def _encode(self) -> None:
        try:
            self._encoded = self._reached, self._way.projection.encode(self._state)
        except Exception:  # noqa: BLE001 - which event it belongs to is found one by one
            self._one_by_one()
        self._held = []

    def _one_by_one(self) -> None:
        """Take what is held once more, and encode after each event, as live does where it cannot."""
        projection, (self._reached, encoded) = self._way.projection, self._encoded
        self._state = projection.initial() if encoded is None else projection.decode(encoded)
        self._failed = None
        for row in self._held:
            self._apply([row])
            if self._failed is not None:
                break
            try:
                self._encoded = self._reached, projection.encode(self._state)
            except Exception as problem:  # noqa: BLE001 - a state that cannot be kept belongs to its event
                self._failed = row[1], _said(problem)
                break
        if self._encoded[1] is None:
            with suppress(Exception):
                self._encoded = 0, projection.encode(projection.initial())


def _gap(key: str, reached: int, version: int) -> str:
    _, kind, ident = key.split(":", 2)
    return (
        f"version {version} of {kind} {ident!r} comes after {reached or 'none'}: the lake does not go back "
        "to the first event, or has lost some, or has some twice; `toril lake audit` says which"
    )


def _said(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    arrays = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
