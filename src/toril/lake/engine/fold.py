"""Any projection by its own class: the events of each aggregate in order, over Arrow batches.

An aggregate's events come one after the other, across batches: what is held is one state, however many
there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

from toril.events.event import AnyEvent, blank_event, fill_in
from toril.events.projection import AnyProjection
from toril.events.upcasters import Upcasters

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


def folded(projection: AnyProjection, events: DataFrame, upcasters: Upcasters | None = None) -> DataFrame:
    """The states of all aggregates that have one of these events, as :data:`FOLDED`.

    ``events`` are rows as the table ``events`` has them; where they have a column ``skipped``, an event of
    which it is true is passed over, as a person has decided. As live, an event that cannot be read or taken
    stops its aggregate there.
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
        return _fold(projection, upcasters, batches)

    return ordered.mapInArrow(fold, FOLDED)


def _fold(
    projection: AnyProjection, upcasters: Upcasters | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Events in order of aggregate and version; those without a body only count."""
    types, initial, apply = projection.event_types, projection.initial, projection.apply
    upcast = None if upcasters is None else upcasters.apply
    at, blank, state = "", _copies("::"), initial()
    reached, failed, error = 0, None, None
    made: list[tuple[Any, ...]] = []
    for batch in batches:
        columns = [batch.column(number).to_pylist() for number in range(batch.num_columns)]
        for key, version, recorded_at, body in zip(*columns, strict=True):
            if key != at:
                if at:
                    made.append(_done(projection, at, reached, state, failed, error))
                    if len(made) >= STATES_AT_ONCE:
                        yield _batch(made)
                        made = []
                at, blank, state = key, _copies(key), initial()
                reached, failed, error = 0, None, None
            if failed is not None:
                continue
            if body is not None:
                try:
                    event = fill_in(blank(), body, version, recorded_at)
                    if upcast is not None:
                        event = upcast(event)
                    if types is None or event.type in types:
                        state = apply(state, event)
                except Exception as problem:  # noqa: BLE001 - whatever it is, it belongs to this event
                    failed, error = version, f"{type(problem).__name__}: {problem}"
                    continue
            reached = version
    if at:
        made.append(_done(projection, at, reached, state, failed, error))
    if made:
        yield _batch(made)


def _copies(key: str) -> Callable[[], AnyEvent]:
    made: Callable[[], AnyEvent] = blank_event(key).__copy__  # type: ignore[attr-defined]
    return made


def _done(
    projection: AnyProjection, key: str, reached: int, state: Any, failed: int | None, error: str | None
) -> tuple[Any, ...]:
    names = key.split(":", 2)
    try:
        return (*names, reached, projection.encode(state), failed, error)
    except Exception as problem:  # noqa: BLE001 - a state that cannot be kept belongs to its events
        return (*names, 0, None, failed or reached, error or f"{type(problem).__name__}: {problem}")


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    arrays = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
