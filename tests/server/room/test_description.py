"""The API is what its description says: schemathesis tries to prove otherwise."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import pytest

from tests.conftest import SCALE, Servers, emptied
from tests.server.parts import serving
from tests.server.room.parts import ADMIN, TOKENS
from toril import connect
from toril.server.room import USUAL, Rate, RoomApi, RoomOptions

SEED = 7
EXAMPLES = int(10 * SCALE)
"""Of each operation, besides those that cover its description."""

MANY = Rate(rate=100_000, burst=100_000)


@pytest.mark.timeout(300)
async def test_schemathesis_finds_nothing(servers: Servers, tmp_path: Path) -> None:
    """In the server as it runs, with the operator's secret: every route of the room is reached."""
    url = emptied(servers.get("valkey-standalone")).url
    async with connect(url) as redis:
        options = RoomOptions(tokens=TOKENS, admin=ADMIN, new_rooms=USUAL, calls=MANY, making=MANY)
        api = RoomApi(redis, options)
        async with serving(url, groups=[api.group()]) as served:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}/openapi.json"),
                *("--include-tag", "room", "--phases", "examples,coverage,fuzzing"),
                # How long an answer takes says nothing on a machine that runs other tests.
                *("--checks", "all", "--request-timeout", "60"),
                *("--seed", str(SEED), "--max-examples", str(EXAMPLES), "--generation-database", "none"),
                *("--header", f"Authorization: Bearer {ADMIN}", "--no-color"),
                stdout=PIPE,
                stderr=STDOUT,
                cwd=tmp_path,
            )
            try:
                said, _ = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            assert process.returncode == 0, said.decode()
            assert b"Tested: 24" in said
            assert api.rooms.kept, "some of it must have come through"
