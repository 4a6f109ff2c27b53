"""Any projection by its own class: the events of each aggregate in order, over Arrow batches.

An aggregate's events come one after the other, across batches: what is held is one state, however many
there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql.functions import col

from toril.events.event import restore_event
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
    is_skipped = "skipped" if "skipped" in events.columns else "false"
    chosen = events.selectExpr(
        *KEYS, "version", "recorded_at", "event_type", "body", f"{is_skipped} AS skipped"
    )
    ordered = chosen.repartition(*map(col, KEYS)).sortWithinPartitions(*KEYS, "version")

    def fold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _fold(projection, upcasters, batches)

    return ordered.mapInArrow(fold, FOLDED)


class _Aggregate:
    """One aggregate while its events come."""

    def __init__(self, key: tuple[str, str, str], state: Any) -> None:
        self.key = key
        self.state = state
        self.version = 0
        self.failed: int | None = None
        self.error: str | None = None


def _fold(
    projection: AnyProjection, upcasters: Upcasters | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    types, apply = projection.event_types, projection.apply
    wanted = types or frozenset()
    upcast = None if upcasters is None else upcasters.apply
    # Live, events of all types are brought into today's form, and one that cannot be stops its aggregate.
    look_at_all = types is None or upcast is not None
    initial = projection.initial
    at: _Aggregate | None = None
    made: list[tuple[Any, ...]] = []
    name = ""
    for batch in batches:
        columns = [batch.column(number).to_pylist() for number in range(batch.num_columns)]
        for tenant, kind, ident, version, recorded_at, event_type, body, skipped in zip(
            *columns, strict=True
        ):
            key = (tenant, kind, ident)
            if at is None or at.key != key:
                if at is not None:
                    made.append(_done(projection, at))
                    if len(made) >= STATES_AT_ONCE:
                        yield _batch(made)
                        made = []
                at, name = _Aggregate(key, initial()), f"{tenant}:{kind}:{ident}"
            if at.failed is not None:
                continue
            if not skipped and (look_at_all or event_type is None or event_type in wanted):
                try:
                    event = restore_event(body, name, version=version, recorded_at=recorded_at)
                    if upcast is not None:
                        event = upcast(event)
                    if types is None or event.type in types:
                        at.state = apply(at.state, event)
                except Exception as problem:  # noqa: BLE001 - whatever it is, it belongs to this event
                    at.failed, at.error = version, f"{type(problem).__name__}: {problem}"
                    continue
            at.version = version
    if at is not None:
        made.append(_done(projection, at))
    if made:
        yield _batch(made)


def _done(projection: AnyProjection, at: _Aggregate) -> tuple[Any, ...]:
    try:
        state = projection.encode(at.state)
    except Exception as problem:  # noqa: BLE001 - a state that cannot be kept belongs to its events
        failed, error = at.failed or at.version, at.error or f"{type(problem).__name__}: {problem}"
        return (*at.key, 0, None, failed, error)
    return (*at.key, at.version, state, at.failed, at.error)


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    arrays = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
