"""``toril room …``, as an operator and a script use it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from tests.conftest import MATRIX, Servers, emptied
from tests.test_cli import run
from toril import Connection, connect
from toril.cli.main import cli
from toril.cli.show import console
from toril.errors import TorilError
from toril.keyspace import SeatKeys
from toril.room import Room
from toril.room.seats import Seats


@dataclass
class Shell:
    """Runs ``toril room …`` on one server, in this process: a command is one of a hundred here."""

    url: str

    def run(self, *args: str, **env: str) -> Done:
        result = CliRunner().invoke(cli, ["room", *args, "--url", self.url], env=env)
        if isinstance(result.exception, TorilError):
            return Done(1, result.stdout, f"{result.stderr}error: {result.exception}")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Done(result.exit_code, result.stdout, result.stderr)

    def ok(self, *args: str, **env: str) -> str:
        done = self.run(*args, **env)
        assert done.returncode == 0, done
        return done.stdout

    def json(self, *args: str) -> Any:
        return json.loads(self.ok(*args, "--json"))


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(params=MATRIX)
def shell(request: pytest.FixtureRequest, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Shell:
    # The screen of this process is as wide as it was when the first command ran in it.
    monkeypatch.setattr(console, "_width", None)
    return Shell(emptied(servers.get(request.param)).url)


def do(shell: Shell, work: Any) -> Any:
    async def connected() -> Any:
        async with connect(shell.url) as redis:
            return await work(redis)

    return asyncio.run(connected())


def test_the_life_of_a_room(shell: Shell) -> None:
    assert "No rooms" in shell.ok("ls")
    made = shell.json("create", "evt", "--rate", "2", "--burst", "1", "--vip-rate", "1", "--session", "15m")
    assert (made["patience_sec"], made["session_sec"]) == (300, 900)
    refused = shell.run("create", "evt", "--rate", "2")
    assert (refused.returncode, "already a room" in refused.stderr) == (1, True)

    async def three_join(redis: Connection) -> str:
        room = Room(redis, "evt")
        tickets = [await room.join() for _ in range(3)]
        await room.tick()
        return tickets[0].token.session

    session = do(shell, three_join)
    seen = shell.json("ls")
    assert (seen["total"], seen["rooms"][0]["lanes"]["main"]["waiting"]) == (1, 2)
    assert "evt" in shell.ok("ls", COLUMNS="60")
    shown = shell.ok("show", "evt", COLUMNS="100")
    assert "main" in shown
    assert "vip" in shown

    changed = shell.json(
        "configure", "evt", "--max-active", "7", "--no-vip", "--title", "Nights", "--target", "/in"
    )
    assert changed["lanes"]["main"] | {"rate": 2, "max_active": 7, "burst": 1} == changed["lanes"]["main"]
    assert "vip" not in changed["lanes"]
    assert shell.json("pause", "evt")["paused"]
    assert "paused" in shell.ok("show", "evt")
    assert not shell.json("resume", "evt")["paused"]
    assert shell.json("revoke", "evt", session)["state"] == "revoked"

    checked = shell.json("check")
    assert [one["ok"] for one in checked["rooms"]] == [True]
    assert "P1 to P10 are kept" in shell.ok("check", "evt")
    asked = shell.run("reset", "evt")
    assert (asked.returncode, "--yes" in asked.stderr) == (1, True)
    assert shell.json("reset", "evt", "--yes")["sent_away"] == 2
    missing = shell.run("show", "other")
    assert "there is no room 'other'" in missing.stderr


def test_a_draw(shell: Shell) -> None:
    made = shell.json("create", "draw", "--rate", "10", "--prequeue")
    assert made["phase"] == "gathering"
    assert "SHA-256" in shell.ok("show", "draw")
    assert len(shell.json("start", "draw")["seed"]) == 64


def test_seats(shell: Shell) -> None:
    assert shell.json("seats", "add", "evt", "A-1..10", "B-1")["added"] == 11
    assert shell.json("seats", "add", "evt", "A-10..11")["there_already"] == 1

    async def hold(redis: Connection) -> None:
        await Seats(redis, "evt").hold("ana", ["A-1", "A-2"])

    do(shell, hold)
    assert "10 available + 2 held + 0 sold = 12" in shell.ok("seats", "show", "evt")
    assert shell.json("seats", "sweep", "evt")["holds"] == 0
    assert shell.json("seats", "check", "evt")["ok"]
    assert "= 12" in shell.ok("check")

    async def break_it(redis: Connection) -> None:
        await redis.command("HSET", SeatKeys("evt").seats, "A-1", "a")

    do(shell, break_it)
    for command in (("check",), ("seats", "check", "evt")):
        broken = shell.run(*command)
        assert broken.returncode == 1
        assert "P11" in broken.stderr
    assert shell.json("seats", "reset", "evt", "--yes")["removed"] == 12


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("create", "evt"), "--rate"),
        (("create", "evt", "--rate", "-1"), "rate"),
        (("create", "{evt}", "--rate", "1"), "room name"),
        (("create", "evt", "--rate", "1", "--patience", "5"), "--patience"),
        (("create", "evt", "--rate", "1", "--vip-burst", "5"), "--vip-rate"),
        (("create", "evt", "--rate", "1", "--target", "javascript:x"), "target"),
        (("seats", "add", "evt", "A-5..1"), "a row like"),
    ],
)
def test_bad_input_is_one_line(servers: Servers, args: tuple[str, ...], says: str) -> None:
    shell = Shell(emptied(servers.get("valkey-standalone")).url)
    done = shell.run(*args)
    assert done.returncode == 1
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_keys_are_rotated(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    first = run("room", "key", str(file))
    assert "EdDSA" in first.stdout
    assert "HS256" in run("room", "key", str(file), "--hmac").stdout
    assert file.read_text().count('"kid"') == 2
