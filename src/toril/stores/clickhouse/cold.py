"""Quiet aggregates in ClickHouse."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from toril.aggregate import Aggregate
from toril.log import Frozen
from toril.stores.clickhouse.database import Database
from toril.stores.clickhouse.table import Table

PAGE = 1000

AT_ONCE = 50
"""Aggregates that are asked for in one question: they stand in its address, which may not be long."""

FROZEN = Table(
    "frozen_aggregates",
    (
        ("TenantId", "String"),
        ("AggregateType", "LowCardinality(String)"),
        ("AggregateId", "String"),
        ("Epoch", "Int64"),
        ("Changes", "UInt64"),
        ("Body", "String"),
    ),
)


class ClickHouseColdStore:
    """A :class:`~toril.log.ColdStore` in ClickHouse. What was put is on the server's disk."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._writer = database.writer(FROZEN)

    async def put(self, batch: Sequence[Frozen]) -> None:
        """As :meth:`ColdStore.put`: of snapshots of one aggregate, reads see the one with most changes."""
        await self._writer.add(
            [
                (
                    one.aggregate.tenant,
                    one.aggregate.type,
                    one.aggregate.id,
                    one.epoch,
                    one.changes,
                    one.fields,
                )
                for one in batch
            ]
        )

    async def get(self, aggregate: Aggregate) -> Frozen | None:
        """As :meth:`ColdStore.get`."""
        found = await self._database.query(
            "SELECT Epoch, Changes, Body FROM {database}.frozen_aggregates WHERE TenantId = {tenant:String}"
            " AND AggregateType = {type:String} AND AggregateId = {id:String} ORDER BY Changes DESC LIMIT 1",
            {"tenant": aggregate.tenant, "type": aggregate.type, "id": aggregate.id},
            formats={"Body": "bytes"},
        )
        return Frozen(aggregate, *found[0]) if found else None

    async def get_many(self, aggregates: Sequence[Aggregate]) -> list[Frozen | None]:
        """As :meth:`ColdStore.get_many`, some in each question."""
        found: dict[tuple[str, str, str], list[Any]] = {}
        keys = [(one.tenant, one.type, one.id) for one in aggregates]
        for first in range(0, len(keys), AT_ONCE):
            rows = await self._database.query(
                "SELECT TenantId, AggregateType, AggregateId, Epoch, Changes, Body"
                " FROM {database}.frozen_aggregates WHERE (TenantId, AggregateType, AggregateId)"
                " IN {keys:Array(Tuple(String, String, String))}"
                " ORDER BY Changes DESC LIMIT 1 BY TenantId, AggregateType, AggregateId",
                {"keys": keys[first : first + AT_ONCE]},
                formats={"Body": "bytes"},
            )
            found |= {(tenant, kind, ident): rest for tenant, kind, ident, *rest in rows}
        return [
            Frozen(one, *found[key]) if key in found else None
            for one, key in zip(aggregates, keys, strict=True)
        ]

    async def erase(self, tenant: str) -> int:
        """As :meth:`ColdStore.erase`."""
        return await self._database.erase(FROZEN, tenant)

    async def aggregates(self) -> AsyncIterator[Aggregate]:
        """As :meth:`ColdStore.aggregates`, page by page; it is the one question that is for all tenants."""
        after = ("", "", "")
        while True:
            page = await self._database.query(
                "SELECT TenantId, AggregateType, AggregateId FROM {database}.frozen_aggregates"
                " WHERE (TenantId, AggregateType, AggregateId)"
                " > ({tenant:String}, {type:String}, {id:String})"
                " ORDER BY TenantId, AggregateType, AggregateId"
                " LIMIT 1 BY TenantId, AggregateType, AggregateId LIMIT {page:UInt32}",
                {"tenant": after[0], "type": after[1], "id": after[2], "page": PAGE},
            )
            for row in page:
                yield Aggregate(*row)
            if len(page) < PAGE:
                return
            after = page[-1]
