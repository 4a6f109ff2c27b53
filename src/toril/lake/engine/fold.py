"""Any projection by its own class: the events of each aggregate in order, over Arrow batches.

An aggregate's events come one after the other, across batches: what is held is one state and one batch,
however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
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


Failed = tuple[int | None, str | None]
"""The event that stopped an aggregate, and why; neither, where none did."""

Kept = tuple[int, bytes | None]
"""The last version whose state was encoded, and as what."""

_NONE: Failed = (None, None)


class _Way:
    """How events are taken."""

    def __init__(self, projection: AnyProjection, upcasters: Upcasters | None, whole: bool) -> None:
        self.projection = projection
        self.whole = whole
        self.types = projection.event_types
        self.upcast = None if upcasters is None else upcasters.apply

    def take(
        self, blank: Callable[[], AnyEvent], state: Any, version: int, recorded_at: int, body: bytes | None
    ) -> Any:
        """A state after one more event."""
        if body is None:
            return state
        event = fill_in(blank(), body, version, recorded_at)
        if self.upcast is not None:
            event = self.upcast(event)
        if self.types is None or event.type in self.types:
            return self.projection.apply(state, event)
        return state


def _fold(way: _Way, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Events in order of aggregate and version; those without a body only count."""
    initial, apply = way.projection.initial, way.projection.apply
    types, upcast, whole = way.types, way.upcast, way.whole
    at, blank, state = "", _copies("::"), initial()
    reached, failed = 0, _NONE
    kept: Kept = (0, None)
    made: list[tuple[Any, ...]] = []
    for batch in batches:
        columns = [batch.column(number).to_pylist() for number in range(batch.num_columns)]
        # Of this aggregate, in this batch; none, where it has failed before.
        first = 0 if failed is _NONE else batch.num_rows
        for place, (key, version, recorded_at, body) in enumerate(zip(*columns, strict=True)):
            if key != at:
                if at:
                    kept, failed = _keep(way, state, reached, failed, kept, columns, first, place)
                    made.append((*at.split(":", 2), *kept, *failed))
                    if len(made) >= STATES_AT_ONCE:
                        yield _batch(made)
                        made = []
                at, blank, state = key, _copies(key), initial()
                reached, failed, first = 0, _NONE, place
                kept = (0, None)
            if failed is not _NONE:
                continue
            if version != reached + 1 and whole:
                raise NotWhole(gap(key, reached, version))
            if body is not None:
                try:  # as _Way.take, without the call
                    event = fill_in(blank(), body, version, recorded_at)
                    if upcast is not None:
                        event = upcast(event)
                    if types is None or event.type in types:
                        state = apply(state, event)
                except Exception as problem:  # noqa: BLE001 - whatever it is, it belongs to this event
                    failed = version, _said(problem)
                    continue
            reached = version
        # What is let go with the batch could not be taken once more.
        kept, failed = _keep(way, state, reached, failed, kept, columns, first, batch.num_rows)
        reached = kept[0]
    if at:
        yield _batch([*made, (*at.split(":", 2), *kept, *failed)])


def _copies(key: str) -> Callable[[], AnyEvent]:
    made: Callable[[], AnyEvent] = blank_event(key).__copy__  # type: ignore[attr-defined]
    return made


def _keep(
    way: _Way,
    state: Any,
    reached: int,
    failed: Failed,
    kept: Kept,
    columns: list[list[Any]],
    first: int,
    end: int,
) -> tuple[Kept, Failed]:
    """Encode a state. Where that cannot be, it is found which of its rows has made it so, as live."""
    version, encoded = kept
    if encoded is not None and reached == version:
        return kept, failed
    projection = way.projection
    try:
        return (reached, projection.encode(state)), failed
    except Exception:  # noqa: BLE001 - which event it belongs to is found one by one
        state = projection.initial() if encoded is None else projection.decode(encoded)
    if encoded is None:
        with suppress(Exception):  # else not even this one can be
            encoded = projection.encode(state)
    for key, *row in zip(*(column[first:end] for column in columns), strict=True):
        try:
            state = way.take(_copies(key), state, *row)
            encoded, version = projection.encode(state), row[0]
        except Exception as problem:  # noqa: BLE001 - it belongs to this event
            return (version, encoded), (row[0], _said(problem))
    return (version, encoded), failed


def gap(key: str, reached: int, version: int) -> str:
    """What is said where a version is not the next one of its aggregate."""
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
