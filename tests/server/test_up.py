"""``toril up``: all of it in one process, as a user meets it."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tests.command import toril as command
from toril.connection.embedded import stop
from toril.server.operator import find_running


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    stop(tmp_path)


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TORIL_", "OTEL_"))}
    return {**kept, "TORIL_HOME": str(home), "COLUMNS": "120"}


def toril(home: Path, *arguments: str, fails: bool = False) -> str:
    done = command(*arguments, env=environment(home))
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


class Up:
    """A running ``toril up``."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def end(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        rest, _ = self.process.communicate(timeout=40)
        assert self.process.returncode == 0, rest
        return rest


@contextmanager
def up(home: Path, *options: str) -> Iterator[Up]:
    process = subprocess.Popen(
        [sys.executable, "-m", "toril.cli", "up", "--port", "0", *options],
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = ""
        while "collecting" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        found = re.search(r"(http://\S+)/v1/traces", said)
        assert found is not None, said
        yield Up(process, found[1])
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()


def send(url: str, key: str, name: str) -> str:
    """A trace, sent by the stock SDK."""
    exporter = OTLPSpanExporter(f"{url}/v1/traces", headers={"Authorization": f"Bearer {key}"})
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("test").start_as_current_span(name) as span:
        trace_id = span.get_span_context().trace_id
    provider.shutdown()
    return f"{trace_id:032x}"


def until_seen(home: Path, url: str, key: str, name: str) -> str:
    for _ in range(100):
        seen = toril(home, "traces", "ls", "--server", url, "--key", key)
        if name in seen:
            return seen
        time.sleep(0.05)
    raise AssertionError(f"{name} is not to be seen")


def test_from_a_span_to_a_trace_and_to_nothing_again(home: Path) -> None:
    with up(home) as running:
        key = json.loads(toril(home, "keys", "add", "acme", "--json"))["key"]
        other = json.loads(toril(home, "keys", "add", "globex", "--json"))["key"]
        trace_id = send(running.url, key, "ask the oracle")
        until_seen(home, running.url, key, "ask the oracle")
        asked = ("--server", running.url, "--key")
        assert "ask the oracle" in toril(home, "traces", "show", trace_id, *asked, key)
        assert "ask the oracle" not in toril(home, "traces", "ls", *asked, other)
        assert "ask the oracle" in toril(home, "traces", "ls", "--tenant", "acme")
        assert "ask the oracle" not in toril(home, "traces", "ls", "--tenant", "globex")
        assert httpx.get(f"{running.url}/readyz").status_code == 200

        # The data directory is one process's, and a second one is told so.
        said = toril(home, "up", "--port", "0", fails=True)
        assert f"process {running.process.pid}" in said

        # The process that has the tables erases the tenant itself.
        send(running.url, other, "somebody else's")
        until_seen(home, running.url, other, "somebody else's")
        report = json.loads(toril(home, "tenant", "erase", "acme", "--yes", "--json"))
        assert report["keys"] == 1
        assert report["rows"]["spans"] == 1
        assert report["rows"]["traces"] == 1
        assert report["rows"]["events"] >= 2
        new = json.loads(toril(home, "keys", "add", "acme", "--json"))["key"]
        assert "ask the oracle" not in toril(home, "traces", "ls", *asked, new)
        assert "somebody else's" in toril(home, "traces", "ls", *asked, other)
        revoked = httpx.post(
            f"{running.url}/v1/traces", headers={"Authorization": f"Bearer {key}"}, content=b""
        )
        assert revoked.status_code == 401

        found = find_running(home)
        assert found is not None
        assert found.secret not in repr(found)
        assert oct((home / "server.json").stat().st_mode)[-3:] == "600"
        assert httpx.delete(f"{running.url}/api/tenants/globex").status_code == 401
        assert "closed" in running.end()
    assert find_running(home) is None
    assert "none runs" in toril(home, "traces", "ls", "--tenant", "acme", fails=True)

    # What was collected is there when it is started again.
    with up(home, "--open", "globex") as running:
        assert "somebody else's" in toril(home, "traces", "ls", "--server", running.url)
        running.end()


def test_wrong_settings_are_named(home: Path, rng: random.Random) -> None:
    assert "only this machine may be let in" in toril(
        home, "up", "--host", "0.0.0.0", "--open", "a", fails=True
    )
    assert "--redact 'nonsense'" in toril(home, "up", "--redact", "nonsense", fails=True)
    assert "TORIL_WEBHOOK_SECRET" in toril(home, "up", "--webhook", "http://127.0.0.1:1/", fails=True)
    assert "clickhouse" in toril(home, "up", "--clickhouse", f"ftp://{rng.random()}", fails=True)
    (home / "prices.json").write_text('{"version": 1}')
    assert "version" in toril(home, "up", "--prices", str(home / "prices.json"), fails=True)
