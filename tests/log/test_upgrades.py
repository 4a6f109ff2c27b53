"""Rolling upgrades: workers of several versions share a log.

``frozen/1`` holds the scripts of form 1 as they were first released. They are never changed: whatever
later versions do, they must leave a state that those go on with, and go on with the state those leave.
"""

from __future__ import annotations

import random
import re
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

import toril
from tests.waiting import until_quiet
from toril import Connection
from toril.aggregate import Aggregate
from toril.log import Entry, Log, MemoryColdStore, Partition, Retention, UnknownForm
from toril.log.store import Scripts

FIRST = Path(__file__).parent / "frozen" / "1"
QUIET = timedelta(milliseconds=100)


def order(number: int) -> Aggregate:
    return Aggregate("acme", "order", str(number))


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """Scripts of a version to come, which writes down more about partitions, aggregates and readers."""
    shutil.copytree(Path(toril.__file__).parent / "lua" / "log", tmp_path / "log")
    append = tmp_path / "log" / "append.lua"
    text = append.read_text()
    more = re.sub(r"(?m)^( *)(call\('HSET', key, 'v',.*)\)$", r"\1\2, 'later', now)", text)
    more = more.replace(
        "call('HSET', p .. 'head', 'ordinal', ordinal)",
        "call('HSET', p .. 'head', 'ordinal', ordinal, 'later', now)",
    )
    assert more.count("'later'") == 3
    append.write_text(more)
    return tmp_path


def version(redis: Connection, folder: Path | None, cold: MemoryColdStore) -> Log:
    log = Log(redis, cold=cold, quiet=QUIET)
    if folder is not None:
        log._scripts = Scripts(folder)
    return log


async def test_gap_free_workers_of_several_versions_side_by_side(
    redis: Connection, later: Path, rng: random.Random
) -> None:
    """The first, this one and a later one append, cool, read, trim and resize one log, in any order."""
    cold = MemoryColdStore()
    await Log(redis, partitions=2).choose_retention(Retention.archived_by("lake"))
    logs = [version(redis, folder, cold) for folder in (FIRST, None, later)]
    acknowledged: dict[Aggregate, list[int]] = {order(number): [] for number in range(10)}
    seen: list[Entry] = []
    keys: dict[tuple[Aggregate, str], int] = {}
    for turn in range(120):
        log = rng.choice(logs)
        one = order(rng.randrange(10))
        what = rng.randrange(12)
        if what < 8:
            key = f"key {rng.randrange(30)}"
            done = await log.append(one, [b"x"] * rng.randint(1, 3), idempotency_key=key)
            assert done.repeated == ((one, key) in keys)
            assert keys.setdefault((one, key), done.first_version) == done.first_version
            if not done.repeated:
                acknowledged[one] += range(done.first_version, done.version + 1)
        elif what == 8:
            await until_quiet(log)
            await log.cool()
        elif what == 9:
            async with log.reader("lake", page=7) as reader:
                async for batch in reader.until_now():
                    seen += batch.entries
                    await batch.done()
            await log.trim()
        elif what == 10:
            assert await log.version(one) == len(acknowledged[one])
        elif turn in range(40, 100) and (await log.layout(anew=True)).current.number == 1:
            await log.resize(3)
    async with logs[0].reader("lake") as reader:
        seen += [entry async for batch in reader.until_now() for entry in batch.entries]
    for one, versions in acknowledged.items():
        assert versions == list(range(1, len(versions) + 1))
        assert [entry.version for entry in seen if entry.key == one.key] == versions


async def test_an_entry_of_a_later_form_stops_a_reader(redis: Connection) -> None:
    log = Log(redis, partitions=1)
    done = await log.append(order(1), [b"x"])
    keys = log.store(done.partition).keys
    await redis.command("XADD", keys.entries, "*", "o", 2, "v", 2, "a", order(1).key, "e2", b"packed")
    await redis.command("HSET", keys.head, "ordinal", 2)
    async with log.reader() as reader:
        with pytest.raises(UnknownForm, match="upgrade"):
            await anext(reader.until_now())


async def test_a_log_of_a_later_form_is_not_opened(redis: Connection) -> None:
    log = Log(redis, partitions=1)
    await log.append(order(1), [b"x"])
    await redis.command("HSET", log.keys.meta, "form", 2)
    with pytest.raises(UnknownForm, match="form 2"):
        await Log(redis).append(order(1), [b"y"])
    await redis.command("HSET", log.keys.meta, "form", 1)
    assert [entry.body for entry in await Log(redis).read(order(1))] == [b"x"]
    assert (await log.standings())[0].partition == Partition(1, 0)
