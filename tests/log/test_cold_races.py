"""gap-free with a cold store: aggregates leave Redis and come back all the time, and nobody can tell.

Several processes append, several let go whatever was quiet for a blink, the cold store is slow, and all of
them are killed in the middle.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from datetime import timedelta
from pathlib import Path

import pytest

from tests.conftest import SCALE
from tests.log.audit import check_gap_free, everything
from tests.log.blows import storm
from tests.log.crew import Crew
from tests.log.victim import Settings, aggregate
from tests.waiting import until
from toril import Connection
from toril.log import Entry, Log, Partition
from toril.log.records import records_of
from toril.stores import SqliteColdStore
from toril.testing import Cluster, Server

QUIET_MS = 80
AGGREGATES = 40


@pytest.mark.timeout(120 + 30 * SCALE)
async def test_gap_free_while_aggregates_go_cold_and_come_back(
    server: Server | Cluster,
    redis: Connection,
    rng: random.Random,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started = time.monotonic()
    cold = str(tmp_path / "cold.sqlite")
    log = Log(redis, partitions=2, cold=SqliteColdStore(cold), quiet=timedelta(milliseconds=QUIET_MS))
    await log.layout()
    members = [
        Settings(
            url=server.url,
            name=name,
            journal=str(tmp_path / name),
            role="writer" if name.startswith("w") else "cooler",
            aggregates=AGGREGATES,
            tasks=3,
            pause_ms=60 if name.startswith("w") else 20,
            cold=cold,
            cold_ms=QUIET_MS / 3,
            quiet_ms=QUIET_MS,
        )
        for name in ("w1", "w2", "w3", "c1", "c2")
    ]
    async with Crew(members, rng) as crew:
        dealt = await storm(
            rng,
            [
                lambda: crew.kill_one("cooler"),
                lambda: crew.kill_one("cooler"),
                lambda: crew.kill_one("writer"),
            ],
            seconds=4 * SCALE,
        )
        await until(lambda: gone_cold(crew) > 20)
        await crew.close("writer")
        await crew.close("cooler")
    journals = crew.journals().values()
    assert not [ask for journal in journals for ask in journal.unanswered()]
    events = await check_gap_free(log, journals)
    await compare_with_twin(log, Log(redis, "twin", partitions=1))
    with capsys.disabled():
        print(
            f"\n  cold races: {events} events, {sum(len(one.answers) for one in journals)} appends, "
            f"{gone_cold(crew)} times one went cold, {sum(one.repeats for one in journals)} repeats, "
            f"{dealt} blows, {crew.kills} processes killed, {time.monotonic() - started:.1f} s"
        )
    assert events > 100


def gone_cold(crew: Crew) -> int:
    return sum(journal.gone_cold for journal in crew.journals("cooler").values())


async def compare_with_twin(log: Log, twin: Log) -> None:
    """The same appends, in the order of their versions, to aggregates that never go cold."""
    found: dict[str, dict[str, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for entry in await everything(log):
        found[entry.key][entry.body.decode().split("/")[0]].append(entry)
    assert found
    for number in range(AGGREGATES):
        one = aggregate(number)
        for key, entries in found[one.key].items():
            done = await twin.append(one, [entry.body for entry in entries], idempotency_key=key)
            assert (done.first_version, done.repeated) == (entries[0].version, False)
        assert comparable(await log.fields(one)) == comparable(await twin.fields(one))
        # A repeat is known, wherever the aggregate is.
        for key, entries in list(found[one.key].items())[-3:]:
            again = await log.append(one, [entry.body for entry in entries], idempotency_key=key)
            assert (again.repeated, again.first_version) == (True, entries[0].version)


def comparable(flat: list[bytes]) -> dict[bytes, object]:
    """An aggregate's hash without what cannot be equal: times, places, and the count of changes."""
    fields: dict[bytes, object] = dict(zip(flat[::2], flat[1::2], strict=True))
    records = {record.first_version: record.events for record in records_of(flat, Partition(1, 0))}
    kept = {name: value for name, value in fields.items() if not name.isdigit() and name not in (b"t", b"c")}
    return {**kept, b"records": records}
