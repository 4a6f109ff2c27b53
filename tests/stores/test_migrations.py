"""The schema: each step once, by however many at once, never backwards; and what programs know of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.stores.places import EMBEDDED, Places, fresh
from toril.events.errors import StoreError
from toril.pipelines.contracts import FULL, row, span, trace
from toril.pipelines.spans.clickhouse import FIELDS, SPANS, TRACES, ClickHouseSpanTable, ClickHouseTraceTable
from toril.pipelines.spans.summary import recompute
from toril.stores.clickhouse import Database
from toril.stores.clickhouse.cold import FROZEN
from toril.stores.clickhouse.history import EVENTS
from toril.stores.clickhouse.migrations import Migration, known, migrate

TABLES = (EVENTS, FROZEN, SPANS, TRACES)


def test_steps_are_numbered_without_a_gap() -> None:
    assert [step.number for step in known()] == list(range(1, len(known()) + 1))


async def test_programs_and_migrations_agree_on_the_tables(place: str) -> None:
    async with fresh(place) as database:
        for table in TABLES:
            found = await database.query(
                "SELECT name, type FROM system.columns WHERE database = {d:String} AND table = {t:String}"
                " ORDER BY position",
                {"d": database.name, "t": table.name},
            )
            assert found == list(table.columns)
            sorting = await database.query(
                "SELECT sorting_key, engine FROM system.tables"
                " WHERE database = {d:String} AND name = {t:String}",
                {"d": database.name, "t": table.name},
            )
            assert sorting[0][0].startswith("TenantId, ")
            assert sorting[0][1] == "ReplacingMergeTree"


def test_every_column_of_a_trace_has_a_field_of_the_summary() -> None:
    assert {field for _, field, _, _ in FIELDS} <= set(recompute([row(FULL)]).as_dict())


async def test_steps_are_applied_once_and_can_be_repeated(place: str) -> None:
    async with fresh(place) as database:

        def again(client: Any) -> Any:
            migrate(client, database.name)
            for step in known():
                for statement in step.statements(database.name):
                    client.command(statement)
            return client.query(f"SELECT Number, Name FROM {database.name}.schema_migrations").result_rows

        found = await database.run("migrate", again)
        assert found == [(step.number, step.name) for step in known()]


async def test_a_step_that_was_cut_off_is_taken_up_and_later_ones_follow(place: str) -> None:
    first = Migration(
        len(known()) + 1, "more", "CREATE TABLE {database}.a (x Int8) ENGINE = Log;\nnonsense;\n"
    )
    mended = Migration(
        first.number, "more", "CREATE TABLE IF NOT EXISTS {database}.a (x Int8) ENGINE = Log;\n"
    )
    later = Migration(
        first.number + 1, "later", "ALTER TABLE {database}.event_log ADD COLUMN IF NOT EXISTS X Int8;"
    )
    async with fresh(place) as database:
        with pytest.raises(StoreError, match="could not migrate: UNKNOWN_IDENTIFIER"):
            await database.run("migrate", lambda client: migrate(client, database.name, (*known(), first)))
        steps = (*known(), mended, later)
        await database.run("migrate", lambda client: migrate(client, database.name, steps))
        found = await database.query("SELECT max(Number) FROM {database}.schema_migrations")
        assert found == [(later.number,)]
        assert await database.query("SELECT count(X) FROM {database}.event_log") == [(0,)]


async def test_a_database_that_is_newer_is_refused(place: str) -> None:
    async with fresh(place) as database:
        newer = f"INSERT INTO {database.name}.schema_migrations (Number, Name) SELECT 9999, 'future'"
        await database.run("write", lambda client: client.command(newer))
        with pytest.raises(StoreError, match="has schema 9999, and this program knows") as caught:
            await database.run("migrate", lambda client: migrate(client, database.name))
        assert not caught.value.retryable


async def test_many_may_start_at_once(place: str, stores: Places) -> None:
    """Where there is nothing yet, and each with connections of its own."""
    where = stores.where(place)
    opened = await asyncio.gather(*(Database.open(**where) for _ in range(6)))
    for database in opened:
        assert await database.query("SELECT count() FROM {database}.spans") == [(0,)]
    found = await opened[0].query("SELECT DISTINCT Number FROM {database}.schema_migrations ORDER BY 1")
    assert found == [(step.number,) for step in known()]
    await opened[0].run("drop", lambda client: client.command(f"DROP DATABASE {opened[0].name} SYNC"))
    await asyncio.gather(*(database.close() for database in opened))


async def test_people_can_ask_in_plain_sql() -> None:
    """The views show each span once, and each trace as it is; attributes and times can be asked for."""
    async with fresh(EMBEDDED) as database:
        spans, traces = ClickHouseSpanTable(database), ClickHouseTraceTable(database)
        for _ in range(2):
            await spans.insert([row(FULL), row(span(2), 2)])
        await traces.insert([trace(1, 1, cost=5)])
        await traces.insert([trace(1, 2, cost=2**70)])
        found = await database.query(
            "SELECT SpanAttributes['zero'], SpanAttributes['list'], toUnixTimestamp64Nano(StartTime),"
            " toUnixTimestamp64Nano(EndTime), InputTokens, Cost, Model, ParentSpanId"
            " FROM {database}.spans WHERE StatusCode = 2",
            {},
        )
        expected = ("0", '[1,"2",null,[true]]', 0, 2**63 - 1, 0, 0, "m-1", "00f067aa0ba902b7")
        assert found == [expected]
        assert await database.query("SELECT count() FROM {database}.spans") == [(2,)]
        assert await database.query("SELECT Cost, Version FROM {database}.traces") == [(2**70, 2)]
