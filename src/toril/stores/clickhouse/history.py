"""The events of all aggregates in ClickHouse, for as long as they are wanted."""

from __future__ import annotations

from collections.abc import Sequence

from toril.aggregate import Aggregate
from toril.stores.clickhouse.database import Database
from toril.stores.clickhouse.table import MOMENT, Row, Table, moment
from toril.stores.history import Recorded

EVENTS = Table(
    "event_log",
    (
        ("TenantId", "String"),
        ("AggregateType", "LowCardinality(String)"),
        ("AggregateId", "String"),
        ("Version", "UInt64"),
        ("EventId", "String"),
        ("EventType", "LowCardinality(String)"),
        ("RecordedAt", MOMENT),
        ("Body", "String"),
    ),
)


class ClickHouseHistory:
    """A :class:`~toril.stores.WritableHistory` in ClickHouse."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._writer = database.writer(EVENTS)

    async def write(self, events: Sequence[Recorded]) -> None:
        """As :meth:`WritableHistory.write`: they are on the server's disk when it returns."""
        await self._writer.add([_row(event) for event in events])

    async def read(self, aggregate: Aggregate, first: int, last: int) -> list[tuple[int, int, bytes]]:
        """As :meth:`History.read`, each version once."""
        found = await self._database.query(
            "SELECT Version, RecordedAt, Body FROM {database}.event_log FINAL"
            " WHERE TenantId = {tenant:String} AND AggregateType = {type:String}"
            " AND AggregateId = {id:String} AND Version BETWEEN {first:UInt64} AND {last:UInt64}"
            " ORDER BY Version",
            {
                "tenant": aggregate.tenant,
                "type": aggregate.type,
                "id": aggregate.id,
                "first": max(first, 0),
                "last": max(last, 0),
            },
            formats={"RecordedAt": "int", "Body": "bytes"},
        )
        return [(version, recorded_at, body) for version, recorded_at, body in found]

    async def count(self, tenant: str) -> int:
        """As :meth:`WritableHistory.count`."""
        return await self._database.count(EVENTS, tenant)

    async def erase(self, tenant: str) -> int:
        """As :meth:`WritableHistory.erase`."""
        return await self._database.erase(EVENTS, tenant)


def _row(event: Recorded) -> Row:
    aggregate = event.aggregate
    return (
        aggregate.tenant,
        aggregate.type,
        aggregate.id,
        event.version,
        event.event_id,
        event.event_type,
        moment(event.recorded_at),
        event.body,
    )
