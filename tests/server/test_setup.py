"""What a set-up is made of."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from toril.connection import DurabilityRefused
from toril.server.setup import KNOWN, Settings, Setup
from toril.stores.clickhouse import Database
from toril.stores.clickhouse.place import Embedded


def test_a_trace_knows_its_spans_for_longer_than_a_log_usually_does(tmp_path: Path) -> None:
    setup = Setup(Settings(home=tmp_path, most_entries=7), Database(Embedded(tmp_path, "toril")))
    assert setup.sourcing._log_settings["most_entries"] == 7
    assert setup.sourcing._log_settings["idempotency_window"] == KNOWN
    assert timedelta(days=30) <= KNOWN


@pytest.mark.parametrize("what", ["durability", "room_durability"])
async def test_a_durability_that_the_server_cannot_promise_is_refused_at_the_start(
    tmp_path: Path, redis_url: str, what: str
) -> None:
    settings = Settings(home=tmp_path, redis=redis_url, **{what: "fsync"})  # type: ignore[arg-type]
    setup = Setup(settings, Database(Embedded(tmp_path, "toril")))
    async with setup.sourcing:
        with pytest.raises(DurabilityRefused, match="appendfsync"):
            await setup._begin()
