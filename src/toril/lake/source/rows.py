"""Entries of the log as columns of Arrow, without an object for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from toril.log import Partition

SCHEMA = pa.schema(
    [
        ("log_epoch", pa.int32()),
        ("log_partition", pa.int32()),
        ("ordinal", pa.int64()),
        ("entry_id", pa.string()),
        ("tenant", pa.string()),
        ("aggregate_type", pa.string()),
        ("aggregate_id", pa.string()),
        ("version", pa.int64()),
        ("recorded_at", pa.int64()),
        ("event_id", pa.string()),
        ("event_type", pa.string()),
        ("schema_version", pa.int32()),
        ("occurred_at", pa.int64()),
        ("body", pa.binary()),
    ]
)
""":data:`toril.lake.tables.LOG_COLUMNS`, as Arrow has them."""

Raw = Sequence[Any]
"""An entry as the server gives it: its id, and the fields ``o v a e1`` with their values in turn."""


class Header(msgspec.Struct, gc=False):
    """What is read of an event's body."""

    id: str
    type: str
    occurred_at: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    schema_version: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 1


_nothing: Any = None
UNREADABLE = Header(_nothing, _nothing, _nothing, _nothing)

_read_header = msgspec.json.Decoder(Header).decode


def header(body: bytes) -> Header:
    """The header of a body; nothing but nulls where it cannot be read."""
    try:
        found = _read_header(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # the last of what is nested too deep
        return UNREADABLE
    whole = found.id is not None and found.type is not None and found.occurred_at is not None
    return found if whole and found.schema_version is not None else UNREADABLE


def columns(partition: Partition, entries: Sequence[Raw]) -> pa.RecordBatch:
    """Entries with their bodies as one batch; those of erased tenants are left out."""
    kept = [raw for raw in entries if raw[1][5]]
    count = len(kept)
    ids = _text([raw[0] for raw in kept])
    fields = list(zip(*[raw[1] for raw in kept], strict=True)) if kept else [()] * 8
    ordinals, versions, names, bodies = fields[1::2]
    keys = pc.split_pattern(_text(names), ":", max_splits=2)
    headers = list(map(header, bodies))
    recorded_ms = pc.list_element(pc.split_pattern(ids, "-", max_splits=1), 0).cast(pa.int64())
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(partition.epoch, pa.int32()), count),
            pa.repeat(pa.scalar(partition.number, pa.int32()), count),
            _text(ordinals).cast(pa.int64()),
            ids,
            pc.list_element(keys, 0),
            pc.list_element(keys, 1),
            pc.list_element(keys, 2),
            _text(versions).cast(pa.int64()),
            pc.multiply(recorded_ms, 1_000_000),
            pa.array([one.id for one in headers], pa.string()),
            pa.array([one.type for one in headers], pa.string()),
            pa.array([one.schema_version for one in headers], pa.int32()),
            pa.array([one.occurred_at for one in headers], pa.int64()),
            pa.array(bodies, pa.binary()),
        ],
        schema=SCHEMA,
    )


def _text(values: Sequence[bytes]) -> Any:
    return pa.array(values, pa.binary()).cast(pa.string())
