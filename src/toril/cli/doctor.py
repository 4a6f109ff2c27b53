"""``toril doctor``: is everything Toril needs here, and right? If not, what to do."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Literal

import click
from rich.text import Text

from toril.cli.show import as_json, console, table
from toril.connection import CommandRefused, Connection, connect
from toril.errors import TorilError

Verdict = Literal["ok", "warning", "wrong", "absent"]

_LOOKS: dict[Verdict, Text] = {
    "ok": Text("✔ ok", style="green"),
    "warning": Text("! look", style="yellow"),
    "wrong": Text("✘ wrong", style="bold red"),
    "absent": Text("- absent", style="dim"),
}

OLDEST_SERVER = (7, 0)
JAVA = 17


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    found: str
    fix: str = ""


@click.command()
@click.option("--url", help="The server to look at (default: TORIL_REDIS_URL, else the embedded one).")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def doctor(url: str | None, json_: bool) -> None:
    """Check Python, the server and its settings, Java and ClickHouse; say how to fix what is wrong.

    Exits with 1 when something is wrong. Java and ClickHouse are only needed by their extras.
    """
    findings = [check_python(), *asyncio.run(check_server(url)), check_java(), check_clickhouse()]
    if json_:
        as_json([asdict(finding) for finding in findings])
    else:
        rows: list[list[str | Text]] = [[f.what, _LOOKS[f.verdict], f.found] for f in findings]
        table("toril doctor", ["", "", "found"], rows)
        for finding in findings:
            if finding.fix:
                console.print(Text.assemble((f"{finding.what}: ", "bold"), finding.fix), soft_wrap=True)
    if any(finding.verdict == "wrong" for finding in findings):
        sys.exit(1)


def check_python() -> Finding:
    """The interpreter."""
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("Python", "ok", f"{version}, {sys.executable}")


async def check_server(url: str | None) -> list[Finding]:
    """The server, its persistence, its eviction policy, and its cluster."""
    try:
        async with connect(url) as redis:
            facts = redis.facts
            release = tuple(int(part) for part in facts.version.split(".")[:2])
            old = release < OLDEST_SERVER
            server = Finding(
                "Server",
                "wrong" if old else "ok",
                f"{facts.product} {facts.version} at {redis.url}",
                "Toril needs Redis 7.0 or later, or Valkey" if old else "",
            )
            return [server, await _persistence(redis), await _eviction(redis), await _cluster(redis)]
    except TorilError as problem:
        return [Finding("Server", "wrong", "cannot be used", str(problem))]


async def _setting(redis: Connection, name: str) -> str:
    """A setting on all primaries: one value, or all that differ."""
    values = {reply[1].decode() for reply in (await redis.each_primary("CONFIG", "GET", name)).values()}
    return "/".join(sorted(values))


async def _persistence(redis: Connection) -> Finding:
    try:
        appendonly = await _setting(redis, "appendonly")
        appendfsync = await _setting(redis, "appendfsync")
    except (CommandRefused, IndexError) as problem:
        return Finding("Persistence", "warning", f"not shown by the server ({problem})")
    if appendonly != "yes":
        return Finding(
            "Persistence",
            "warning",
            f"appendonly is {appendonly}",
            "a restart loses what was written since the last snapshot: CONFIG SET appendonly yes",
        )
    if appendfsync != "always":
        return Finding(
            "Persistence",
            "ok",
            f"append-only file, appendfsync {appendfsync}: a crash of the machine may lose a second; "
            "durability 'fsync' is refused here",
        )
    return Finding("Persistence", "ok", "append-only file, appendfsync always")


async def _eviction(redis: Connection) -> Finding:
    try:
        policy = await _setting(redis, "maxmemory-policy")
    except (CommandRefused, IndexError) as problem:
        return Finding("Eviction", "warning", f"not shown by the server ({problem})")
    if policy == "noeviction":
        return Finding("Eviction", "ok", "noeviction: a full server refuses new work and drains the old")
    return Finding(
        "Eviction",
        "wrong",
        f"maxmemory-policy is {policy}",
        "a full server would delete jobs and events: CONFIG SET maxmemory-policy noeviction",
    )


async def _cluster(redis: Connection) -> Finding:
    if not redis.clustered:
        return Finding("Cluster", "ok", "no: a standalone server")
    infos = await redis.each_primary("CLUSTER", "INFO")
    sick = [str(address) for address, info in infos.items() if b"cluster_state:ok" not in info]
    if sick:
        return Finding(
            "Cluster",
            "wrong",
            f"not ok as seen by {', '.join(sick)}",
            "some slots are not served: look at CLUSTER NODES, bring the missing servers back",
        )
    shards = await redis.shards()
    alone = [str(shard.primary) for shard in shards if not shard.replicas]
    if alone:
        return Finding(
            "Cluster",
            "warning",
            f"ok, {len(shards)} shards, without replicas: {', '.join(alone)}",
            "if such a server dies, its queues stand still and may lose work: add a replica to each",
        )
    return Finding("Cluster", "ok", f"{len(shards)} shards, each with a replica")


def check_java() -> Finding:
    """Java, for the lake (Spark)."""
    how = f"the lake (Spark) needs Java {JAVA} or later: apt-get install openjdk-{JAVA}-jre-headless"
    binary = shutil.which("java")
    if binary is None:
        return Finding("Java", "absent", "not on the path", how)
    said = subprocess.run([binary, "-version"], capture_output=True, text=True, check=False).stderr
    quoted = said.split('"')
    if len(quoted) < 2:
        return Finding("Java", "warning", f"{binary} does not say its version", how)
    version = quoted[1]
    major = int(version.split(".")[1] if version.startswith("1.") else version.split(".")[0])
    if major < JAVA:
        return Finding("Java", "warning", f"{version}, {binary}", how)
    return Finding("Java", "ok", f"{version}, {binary}")


def check_clickhouse() -> Finding:
    """ClickHouse: the engine in this process, or the client for a server."""
    parts = [name for name in ("chdb", "clickhouse_connect") if find_spec(name)]
    if parts:
        return Finding("ClickHouse", "ok", " and ".join(parts))
    return Finding(
        "ClickHouse", "absent", "not installed", "the stores need it: pip install toril[clickhouse]"
    )
