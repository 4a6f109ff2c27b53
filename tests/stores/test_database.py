"""The door to ClickHouse: who may have a directory, what errors say, what closing waits for."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.stores.clickhouse_http import clickhouse_server
from tests.stores.places import Places, fresh
from tests.waiting import until
from toril.events.errors import StoreError
from toril.stores.clickhouse import Database, Table
from toril.stores.clickhouse.failures import RETRYABLE

SECRET = "acme-secret"
NUMBERS = Table("numbers", (("TenantId", "String"), ("N", "Int64"), ("Body", "String")))


async def make(database: Database, settings: str = "") -> None:
    text = (
        f"CREATE TABLE {database.name}.numbers (TenantId String, N Int64, Body String)"
        f" ENGINE = ReplacingMergeTree ORDER BY (TenantId, N) {settings}"
    )
    await database.run("make a table", lambda client: client.command(text))


async def test_large_inserts_arrive_whole(place: str) -> None:
    async with fresh(place) as database:
        await make(database)
        rows = [("t", n, os.urandom(300)) for n in range(30_000)]
        await database.insert(NUMBERS, rows)
        found = await database.query(
            "SELECT N, Body FROM {database}.numbers ORDER BY N", {}, formats={"Body": "bytes"}
        )
        assert found == [(n, body) for _, n, body in rows]


async def test_the_event_loop_goes_on_meanwhile(place: str) -> None:
    """And several statements run at once."""
    async with fresh(place) as database:
        began = time.monotonic()
        sleeping = asyncio.gather(*(database.query("SELECT sleep(2)") for _ in range(3)))
        turns = 0
        while not sleeping.done():
            await asyncio.sleep(0.01)
            turns += 1
        assert turns > 10
        assert time.monotonic() - began < 5.9


async def test_errors_say_what_follows_and_show_no_values(
    place: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async with fresh(place) as database:
        await make(database)
        with caplog.at_level(logging.INFO), pytest.raises(StoreError) as caught:
            await database.query(
                "SELECT nope FROM {database}.numbers WHERE TenantId = {t:String}", {"t": SECRET}
            )
        assert str(caught.value) == "ClickHouse could not read: UNKNOWN_IDENTIFIER (code 47)"
        assert not caught.value.retryable
        assert caught.value.__cause__ is None
        for wrong in (("t", SECRET, b""), ("t", 2**63, b""), ("t", 1, SECRET, "one too many")):
            with pytest.raises(StoreError) as caught:
                await database.insert(NUMBERS, [wrong, ("t", 1, SECRET.encode())])
            assert not caught.value.retryable
            assert SECRET not in str(caught.value)
        with pytest.raises(StoreError, match="UNKNOWN_TABLE") as caught:
            await database.insert(Table("nowhere", NUMBERS.columns), [("t", 1, b"")])
        assert not caught.value.retryable
        assert await database.count(NUMBERS, "t") == 0
    assert SECRET not in caplog.text + "".join(capfd.readouterr())


async def test_a_server_that_is_pressed_is_asked_again_later(place: str) -> None:
    async with fresh(place) as database:
        await make(database, "SETTINGS parts_to_throw_insert = 1, parts_to_delay_insert = 1")
        await database.run(
            "stop", lambda client: client.command(f"SYSTEM STOP MERGES {database.name}.numbers")
        )
        await database.insert(NUMBERS, [("t", 1, b"")])
        with pytest.raises(StoreError, match="TOO_MANY_PARTS") as caught:
            await database.insert(NUMBERS, [("t", 2, b"")])
        assert caught.value.retryable
        assert caught.value.retry_after == 1.0


async def test_codes_have_the_names_that_the_engine_gives_them(place: str) -> None:
    async with fresh(place) as database:
        found = await database.query("SELECT number, errorCodeToName(number) FROM numbers(1100)")
        names = {name: code for code, name in found}
        assert {name: names.get(name) for name in RETRYABLE} == RETRYABLE


async def test_a_bad_row_in_a_real_batch_fails_alone(place: str) -> None:
    async with fresh(place) as database:
        await make(database)
        writer = database.writer(NUMBERS)
        rows = [("t", n if n != 7 else "seven", b"x") for n in range(30)]
        found = await asyncio.gather(*(writer.add([row]) for row in rows), return_exceptions=True)
        assert [n for n, one in enumerate(found) if one is not None] == [7]
        assert await database.count(NUMBERS, "t") == 29
        assert database.writer(NUMBERS) is writer


async def test_closing_waits_for_what_is_under_way(place: str, stores: Places) -> None:
    where = stores.where(place)
    database = await Database.open(**where)
    await make(database)
    adding = [asyncio.create_task(database.writer(NUMBERS).add([("t", n, b"")])) for n in range(200)]
    begun = threading.Event()

    def read_slowly(client: Any) -> None:
        begun.set()
        client.query("SELECT sleep(0.5), 1")

    reading = asyncio.create_task(database.run("read", read_slowly))
    await until(begun.is_set)
    await asyncio.gather(database.close(), database.close())
    assert reading.done()
    await asyncio.gather(*adding)
    with pytest.raises(StoreError, match="closed"):
        await database.query("SELECT 1")
    with pytest.raises(StoreError, match="closed"):
        await database.writer(NUMBERS).add([("t", 1, b"")])
    async with await Database.open(**where) as again:
        assert await again.count(NUMBERS, "t") == 200
        await again.run("drop", lambda client: client.command(f"DROP DATABASE {again.name} SYNC"))


async def test_a_reader_that_gives_up_harms_nobody(place: str) -> None:
    async with fresh(place) as database:
        for _ in range(8):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(database.query("SELECT sleep(0.2)"), 0.01)
        assert await database.query("SELECT {n:UInt8} + 1", {"n": 1}) == [(2,)]


async def test_a_server_that_is_gone_can_be_waited_for(tmp_path: Path) -> None:
    """The error says where it was sought, and nothing of who asked; what was stored is there again."""
    with clickhouse_server(tmp_path) as server:
        async with await Database.open(f"{server.url}/gone") as database:
            await make(database)
            await database.insert(NUMBERS, [("t", n, b"") for n in range(10)])
            server.kill()
            for work in (database.insert(NUMBERS, [("t", 11, b"")]), database.count(NUMBERS, SECRET)):
                with pytest.raises(StoreError, match="could not be reached") as caught:
                    await work
                assert caught.value.retryable
                text = str(caught.value)
                assert f"127.0.0.1:{server.port}/gone" in text
                assert not any(hidden in text for hidden in ("s3cret", SECRET))
            with pytest.raises(StoreError, match="could not be reached"):
                await Database.open(f"{server.url}/gone")
            server.start()
            assert await database.count(NUMBERS, "t") == 10
            await database.insert(NUMBERS, [("t", 10, b"")])
            assert await database.count(NUMBERS, "t") == 11
            assert "s3cret" not in repr(database)
        with pytest.raises(StoreError, match="AUTHENTICATION_FAILED") as caught:
            await Database.open(f"{server.url}/gone".replace("s3cret", "wr0ng"))
        assert not caught.value.retryable
        assert "wr0ng" not in str(caught.value)
