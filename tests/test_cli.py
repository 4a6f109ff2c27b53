"""The command line, as a person or a script uses it."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import toril
from tests.command import toril as command
from toril.cli.lazy import Lazy, LazyGroup
from toril.connection.embedded import stop
from toril.errors import TorilError
from toril.testing import Cluster, Server, standalone

NAMES = ("collector", "evaluations", "span_ingestion/command/record_span")


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return command(*args, env={**os.environ, "COLUMNS": "120", **env})


def value(*args: str, **env: str) -> Any:
    done = run(*args, "--json", **env)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_what_an_error_quotes_does_not_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise TorilError("no table at \x1b]0;mine\x07\x1b[2J\u202elake:\r\nmake it")

    program = importlib.import_module("toril.cli.main")  # whose function is toril.cli.main
    monkeypatch.setattr(program, "cli", fails)
    with pytest.raises(SystemExit):
        program.main()
    assert capsys.readouterr().err == (
        "error: no table at \\x1b]0;mine\\x07\\x1b[2J\\u202elake:\\x0d\nmake it\n"
    )


def test_help_and_version() -> None:
    assert "toril" in run("--version").stdout
    assert toril.__version__ in run("--version").stdout
    shown = run("--help").stdout
    for name in ("slots", "doctor", "up", "embedded"):
        assert name in shown
        assert run(name, "--help").returncode == 0


def test_a_command_whose_extra_is_missing_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    group = LazyGroup(called="toril lake", lazy={"look": Lazy("needy", "Look.")}, extra="spark")
    context = click.Context(group)
    assert group.get_command(context, "leave") is None
    (tmp_path / "needy.py").write_text("import not_there.at_all\n")
    needs = "`toril lake look` needs not_there, which is not installed: pip install 'toril[spark]'"
    with pytest.raises(TorilError, match=re.escape(needs)):
        group.get_command(context, "look")
    (tmp_path / "needy.py").write_text("import toril.not_there\n")
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError, match="toril.not_there"):  # a mistake of ours is shown as it is
        group.get_command(context, "look")


def test_the_lake_needs_no_other_extra_than_its_own() -> None:
    """On a driver that has `toril[spark]` alone, every command of it can be given."""
    others = ("chdb", "clickhouse_connect", "httptools", "httpx", "jwt", "opentelemetry", "prometheus_client")
    hidden = (*others, "starlette", "uvicorn", "polars", "deltalake")
    program = f"""
import sys
for name in {hidden}:
    sys.modules[name] = None
import click
from toril.cli.lake import lake
context = click.Context(lake)
names = lake.list_commands(context)
for name in names:
    assert lake.get_command(context, name) is not None
print(len(names))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 15


def test_slots_plans_a_fresh_cluster() -> None:
    done = run("slots", *NAMES)
    assert done.returncode == 0
    for shown in ("{collector}", "3357", "shard 1", "times its fair share"):
        assert shown in done.stdout
    plan = value("slots", *NAMES, "--shards", "2")
    assert [row["name"] for row in plan["names"]] == [f"{{{name}}}" for name in NAMES]
    assert plan["names"][0] == {"name": "{collector}", "tag": "collector", "slot": 3357, "shard": "shard 1"}
    assert set(plan["per_shard"]) == {"shard 1", "shard 2"}


def test_slots_shows_the_real_shards_and_counts_keys(server: Server | Cluster) -> None:
    nodes = server if isinstance(server, Cluster) else None
    for number in range(25):
        key = f"bull:{{collector}}:{number}"
        where = nodes.primary_of(key) if nodes else server
        assert isinstance(where, Server)
        where.ask("SET", key, "x")
    plan = value("slots", *NAMES, "--url", server.url)
    assert [row["keys"] for row in plan["names"]] == [25, 0, 0]
    owner = nodes.primary_of("{collector}") if nodes else server
    assert isinstance(owner, Server)
    assert plan["names"][0]["shard"] == str(owner.address)
    assert len(plan["per_shard"]) == (3 if nodes else 1)
    assert "Where the queues are" in run("slots", *NAMES, "--url", server.url).stdout


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("slots", "a:b"), "queue name 'a:b' is not valid: BullMQ queue names hold no ':'"),
        (("slots", "a", "--url", "redis://localhost:1"), "redis://localhost:1 cannot be reached"),
        (("slots", "a", "--url", "ftp://x"), "the scheme must be one of"),
        (("slots", "a", "--shards", "0"), "shards 0 is not valid"),
        (("embedded", "up", "--home", "/proc/nowhere"), "cannot be used"),
    ],
)
def test_errors_are_one_line(args: tuple[str, ...], problem: str) -> None:
    done = run(*args)
    assert done.returncode == 1
    assert problem in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def findings(url: str) -> dict[str, dict[str, str]]:
    return {finding["what"]: finding for finding in value("doctor", "--url", url)}


def test_doctor_on_every_server(server: Server | Cluster) -> None:
    found = findings(server.url)
    assert found["Python"]["verdict"] == "ok"
    assert found["Server"]["verdict"] == "ok"
    assert found["Eviction"]["verdict"] == "ok"
    assert found["Persistence"]["verdict"] == "warning"
    assert "appendonly yes" in found["Persistence"]["fix"]
    assert found["Cluster"]["found"].startswith("3 shards" if isinstance(server, Cluster) else "no")
    assert found["Java"]["verdict"] == "ok", "make test installs Java"


def test_doctor_says_what_is_wrong_and_how_to_fix_it() -> None:
    with standalone({"maxmemory-policy": "allkeys-lru", "appendonly": "yes"}) as server:
        found = findings(server.url)
        assert found["Eviction"]["verdict"] == "wrong"
        assert "CONFIG SET maxmemory-policy noeviction" in found["Eviction"]["fix"]
        assert "everysec" in found["Persistence"]["found"]
        done = run("doctor", "--url", server.url)
        assert done.returncode == 1
        assert "✘ wrong" in done.stdout
    found = findings(server.url)
    assert found["Server"]["verdict"] == "wrong"
    assert "cannot be reached" in found["Server"]["fix"]


def test_doctor_looks_at_the_embedded_server_by_default(tmp_path: Path) -> None:
    done = run("doctor", TORIL_HOME=str(tmp_path), TORIL_REDIS_URL="")
    assert done.returncode == 0, done.stdout
    assert "appendfsync always" in done.stdout
    stop(tmp_path)


def test_doctor_without_java_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from toril.cli.doctor import check_java

    monkeypatch.setenv("PATH", str(tmp_path))
    assert check_java().verdict == "absent"
    java = tmp_path / "java"
    for version, verdict in (("1.8.0_392", "warning"), ("11.0.2", "warning"), ("17.0.1", "ok"), ("25", "ok")):
        modules = "echo jdk.incubator.vector@17"
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n{modules}\n")
        java.chmod(0o755)
        assert check_java().verdict == verdict
