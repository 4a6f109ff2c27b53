"""``toril run``, ``pipelines``, ``processors``, ``aggregate``, as an operator uses them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.command import toril as command
from tests.conftest import Servers, emptied

APP = """
from toril.events import CommandHandler, Count, DeclaredProjection, EventHandler, NewEvent, Sum
from toril.runtime import EngineOptions, EventSourcing, Retry


class Place(CommandHandler[dict]):
    @classmethod
    def get_aggregate_id(cls, payload):
        return payload["order"]

    def handle(self, command):
        return [NewEvent(type="shop.order.placed", data=command.data)]


class Mail(EventHandler):
    async def handle(self, event, context):
        if event.data["amount"] == 13:
            raise RuntimeError("no mail for 13")


class Totals(DeclaredProjection):
    amount = Sum("data.amount")
    events = Count()


sourcing = EventSourcing(partitions=4, options=EngineOptions(lease=2, grace=2))
orders = (
    sourcing.register_pipeline()
    .with_name("orders")
    .with_aggregate_type("order")
    .with_command_handler(Place)
    .with_event_handler("mail", Mail(), retry=Retry(attempts=2, first=0.01))
    .with_projection("totals", None, Totals)
    .build()
)
nothing = 3
inline = EventSourcing("memory://")
"""

FILL = """
import asyncio
import shop

async def main():
    async with shop.sourcing:
        for amount in (1, 13, 5):  # one by one: what is sent is executed in no order
            await shop.orders.commands.place.execute({"order": "o-1", "amount": amount}, tenant="acme")
        await shop.orders.commands.place.send({"order": "o-2", "amount": 7}, tenant="acme")
        while not (await shop.orders.service.get_events("acme", "o-2")).events:
            await asyncio.sleep(0.05)

asyncio.run(main())
"""


class Shop:
    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.env = {**os.environ, "TORIL_REDIS_URL": url, "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}
        (folder / "shop.py").write_text(APP)
        (folder / "fill.py").write_text(FILL)

    def toril(self, *args: str, code: int = 0) -> str:
        done = command(*args, cwd=self.folder, env=self.env)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def json(self, *args: str) -> Any:
        return json.loads(self.toril(*args, "--json"))

    @contextmanager
    def running(self, *args: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "toril.cli", "run", "shop:sourcing", *args],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
            process.communicate()

    def until(self, true: Any, seconds: float = 40.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, self.toril("processors", "ls", "shop:sourcing")
            time.sleep(0.2)


@pytest.fixture
def shop(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> Shop:
    return Shop(tmp_path, emptied(servers.get(getattr(request, "param", "valkey-standalone"))).url)


@pytest.mark.parametrize("shop", ["valkey-cluster"], indirect=True)
def test_pipelines_run_fail_and_are_looked_after(shop: Shop) -> None:
    with shop.running("--processes", "2") as process:
        subprocess.run([sys.executable, "fill.py"], cwd=shop.folder, env=shop.env, check=True)

        def failed() -> bool:
            standings = {one["name"]: one for one in shop.json("processors", "ls", "shop:sourcing")}
            return bool(standings["mail"]["failed"] == 1 and standings["totals"]["behind"] == 0)

        shop.until(failed)
        listed = shop.toril("processors", "ls", "shop:sourcing")
        assert "orders/mail" in listed
        assert "handler" in listed
        (pipeline,) = shop.json("pipelines", "ls", "shop:orders")
        assert (pipeline["commands"], pipeline["processors"], pipeline["failed"]) == (1, 2, 1)
        assert "{orders/command/place}" in shop.toril("pipelines", "show", "shop:sourcing", "orders")
        (event,) = shop.json("processors", "failed", "shop:sourcing", "acme")
        assert (event["aggregate_id"], event["version"], event["attempts"]) == ("o-1", 2, 2)
        assert "no mail for 13" in shop.toril("processors", "failed", "shop:sourcing", "acme")
        assert "Nothing has failed" in shop.toril("processors", "failed", "shop:sourcing", "other")
        shown = shop.toril("aggregate", "show", "shop:sourcing", "acme", "o-1")
        assert "totals.amount: 14 → 19" in shown
        assert shop.json("aggregate", "show", "shop:orders", "acme", "o-2")["states"] == {
            "totals": {"amount": 7, "events": 1}
        }
        target = ("shop:sourcing", "orders/mail", "acme", "o-1")
        assert "add --yes" in shop.toril("processors", "skip", *target, code=1)
        shop.toril("processors", "skip", *target, "--yes", "--reason", "unlucky")
        shop.until(lambda: shop.json("processors", "failed", "shop:sourcing", "acme") == [])
        assert "is paused" in shop.toril("processors", "pause", "shop:sourcing", "orders/mail")
        assert "paused" in shop.toril("processors", "ls", "shop:sourcing")
        assert "goes on" in shop.toril("processors", "resume", "shop:sourcing", "orders/mail")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stdout is not None
        assert process.stdout.read().count("closed") == 2
    standings = {one["name"]: one for one in shop.json("processors", "ls", "shop:sourcing")}
    assert standings["mail"]["owners"] == {}
    assert "forgotten" in shop.toril("processors", "retire", "shop:sourcing", "orders/totals", "--yes")


def test_wrong_names_are_answered_with_the_right_ones(shop: Shop) -> None:
    assert "EventSourcing" in shop.toril("run", "shop:nothing", code=1)
    assert "there is no module" in shop.toril("pipelines", "ls", "shopp:sourcing", code=1)
    assert "orders/mail, orders/totals" in shop.toril(
        "processors", "pause", "shop:sourcing", "orders/x", code=1
    )
    assert "one of: orders" in shop.toril("pipelines", "show", "shop:sourcing", "x", code=1)
    assert "there are: orders" in shop.toril("run", "shop:sourcing", "--pipeline", "x", code=1)
    assert "memory://" in shop.toril("processors", "ls", "shop:inline", code=1)
    assert "no order 'o-9'" in shop.toril("aggregate", "show", "shop:sourcing", "acme", "o-9", code=1)
    assert "no failed event" in shop.toril(
        "processors", "retry", "shop:sourcing", "orders/mail", "acme", "o-1", code=1
    )
