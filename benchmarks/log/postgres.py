"""A PostgreSQL of the benchmark's own: in a temporary folder, on loopback, gone with this process."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toril.connection.server import free_port

ROOT = Path(__file__).parents[2]
STRICT, RELAXED = "strict", "relaxed"
"""Two databases: a commit waits for the disk, or (``synchronous_commit`` off) does not."""
SECONDS = 30


class NoPostgres(RuntimeError):
    """It is not installed, or does not start."""


def install() -> None:
    """Install it from Debian's packages, where it is missing."""
    done = subprocess.run([ROOT / "tools" / "parts.sh", "bench-log"], check=False)
    if done.returncode or not _programs():
        raise NoPostgres("install PostgreSQL first (Debian's package postgresql)")


def _programs() -> list[Path]:
    return sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))


def version() -> str:
    """As it says itself."""
    said = subprocess.check_output([_programs()[-1].with_name("postgres"), "--version"], text=True)
    return said.split()[2]


@contextmanager
def postgres() -> Iterator[int]:
    """A server with both databases, and with fsync on; its port."""
    programs = _programs()[-1].parent
    folder = Path(tempfile.mkdtemp(prefix="toril-bench-"))
    own: list[str] = []
    if os.getuid() == 0:  # which it refuses to run as
        shutil.chown(folder, "postgres", "postgres")
        own = ["--reuid=postgres", "--regid=postgres", "--init-groups"]
    data, log = folder / "data", folder / "log"
    server: subprocess.Popen[bytes] | None = None
    try:
        init = [
            "-D",
            str(data),
            "-U",
            "postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ]
        subprocess.run(
            ["setpriv", *own, str(programs / "initdb"), *init],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=folder,
        )
        port = free_port()
        settings = {
            "port": str(port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "on",
            "synchronous_commit": "on",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with log.open("wb") as output:
            server = subprocess.Popen(
                ["setpriv", *own, "--pdeathsig=QUIT", programs / "postgres", "-D", data, *options],
                stdout=output,
                stderr=output,
                cwd=folder,
            )
        _wait(programs, port, server, log)
        for statement in (
            f"CREATE DATABASE {STRICT}",
            f"CREATE DATABASE {RELAXED}",
            f"ALTER DATABASE {RELAXED} SET synchronous_commit = off",
        ):
            _psql(programs, port, statement)
        yield port
    finally:
        if server is not None:
            server.terminate()
            try:
                server.wait(SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(programs: Path, port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + SECONDS
    ready = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    while subprocess.run(ready, check=False).returncode:
        if server.poll() is not None or time.monotonic() > until:
            raise NoPostgres(f"PostgreSQL did not start: {log.read_text(errors='replace')[-500:]}")
        time.sleep(0.05)


def _psql(programs: Path, port: int, statement: str) -> None:
    where = ["-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-d", "postgres"]
    subprocess.run(
        [str(programs / "psql"), "-q", "-X", "-v", "ON_ERROR_STOP=1", *where, "-c", statement], check=True
    )
