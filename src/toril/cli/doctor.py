"""``toril doctor``: is everything Toril needs here, and right? If not, what to do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Literal

import click
from rich.text import Text

from toril.cli.show import as_json, console, table
from toril.connection import CommandRefused, Connection, connect
from toril.errors import TorilError
from toril.lake import jars, java
from toril.lake.errors import SparkMissing

Verdict = Literal["ok", "warning", "wrong", "absent"]

_LOOKS: dict[Verdict, Text] = {
    "ok": Text("✔ ok", style="green"),
    "warning": Text("! look", style="yellow"),
    "wrong": Text("✘ wrong", style="bold red"),
    "absent": Text("- absent", style="dim"),
}

OLDEST_SERVER = (7, 0)


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
    """Check Python, the server and its settings, Java, Spark and ClickHouse; say how to fix what is wrong.

    Exits with 1 when something is wrong. Java, Spark and ClickHouse are only needed by their extras.
    """
    server = asyncio.run(check_server(url))
    findings = [check_python(), *server, check_java(), *check_spark(), check_clickhouse()]
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
    release = ".".join(map(str, sys.version_info[:3]))
    return Finding("Python", "ok", f"{release}, {sys.executable}")


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
    found = java.find()
    if found is None:
        home = os.environ.get("JAVA_HOME")
        return Finding(
            "Java",
            "wrong" if home else "absent",
            f"JAVA_HOME is {home}, and has no bin/java" if home else "not on the path",
            f"the lake (Spark) needs Java {java.OLDEST} or later: {java.HOW}",
        )
    try:
        java.require()
    except SparkMissing as problem:
        return Finding(
            "Java", "warning", f"{found.version or 'of no known version'}, {found.binary}", str(problem)
        )
    return Finding("Java", "ok", f"{found.version}, {found.binary}")


def check_spark() -> list[Finding]:
    """The packages of Spark, its jars, and the Python that its workers run."""
    if find_spec("pyspark") is None:
        how = "the lake (Spark) needs it: pip install 'toril[spark]'"
        return [Finding("Spark", "absent", "not installed", how)]
    spark = Finding("Spark", "ok", f"pyspark {version('pyspark')}, {jars.PACKAGE}")
    absent = jars.missing()
    if absent:
        found = f"{len(absent)} of {len(jars.pinned())} are not in {jars.folder()}, or not as they must be"
        kept = Finding("Jars", "absent", found, "`toril lake setup` fetches them")
    else:
        kept = Finding("Jars", "ok", f"all {len(jars.pinned())} in {jars.folder()}")
    return [spark, kept, check_workers()]


def check_workers() -> Finding:
    """The Python that Spark's workers run on this machine: it must be this version, and have Toril."""
    said, chosen = "PYSPARK_PYTHON", os.environ.get("PYSPARK_PYTHON")
    if not chosen:
        from toril.lake.given import at_start  # needs an extra

        said = "spark.pyspark.python"
        chosen = at_start().get(said)
    if not chosen:
        return Finding("Workers", "ok", f"run {sys.executable}")
    how = f"unset {said}, or let it name an interpreter with the same packages: {sys.executable}"
    ask = "import sys, pyarrow, pyspark, toril.lake; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([chosen, "-c", ask], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return Finding("Workers", "wrong", f"{said} is {chosen}: {problem}", how)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it does not start"])[-1]
        return Finding("Workers", "wrong", f"{said} is {chosen}: {last}", how)
    theirs, ours = done.stdout.strip(), f"{sys.version_info[0]}.{sys.version_info[1]}"
    if theirs != ours:
        return Finding("Workers", "wrong", f"{said} is {chosen}, Python {theirs}, not {ours}", how)
    return Finding("Workers", "ok", f"run {chosen} ({said})")


def check_clickhouse() -> Finding:
    """ClickHouse: the engine in this process, or the client for a server."""
    parts = [name for name in ("chdb", "clickhouse_connect") if find_spec(name)]
    if parts:
        return Finding("ClickHouse", "ok", " and ".join(parts))
    return Finding(
        "ClickHouse", "absent", "not installed", "the stores need it: pip install toril[clickhouse]"
    )
