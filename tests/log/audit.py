"""What a test finds in a log when all is over, looked at from every side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.log.journal import Answer, Ask, Journal, Life
from tests.log.victim import aggregate
from toril.connection import load_script
from toril.log import Entry, Log, Partition
from toril.log.store import PartitionStore


async def everything(log: Log) -> list[Entry]:
    """All entries that are in the log, each partition in its order."""
    async with log.reader() as reader:
        return [entry async for batch in reader.until_now() for entry in batch.entries]


async def check_gap_free(log: Log, journals: Iterable[Journal]) -> int:
    """See that nothing is missing, nothing is twice, and all is as the writers were told; how many events."""
    journals = list(journals)
    asked = {key: ask for journal in journals for key, ask in journal.asked.items()}
    entries = await everything(log)
    ordinals: dict[Partition, list[int]] = defaultdict(list)
    versions: dict[str, list[int]] = defaultdict(list)
    appends: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        ordinals[entry.partition].append(entry.ordinal)
        versions[entry.key].append(entry.version)
        appends[entry.body.decode().split("/")[0]].append(entry)
    for partition, found in ordinals.items():
        assert found == list(range(1, len(found) + 1)), f"ordinals of partition {partition}"
    for key, found in versions.items():
        assert found == list(range(1, len(found) + 1)), f"versions of {key}"
    for key, found_entries in appends.items():
        check_append(asked[key], found_entries)
    for journal in journals:
        for key, answer in journal.answers.items():
            first = appends[key][0] if appends[key] else None
            assert first is not None, f"{key} was acknowledged and is not there"
            there = Answer(first.partition, first.version, len(appends[key]), first.ordinal)
            assert there == answer, f"{key} is not as its writer was told"
        for key in journal.conflicts:
            assert key not in appends, f"{key} was refused and is there"
    for key, found in versions.items():
        one = aggregate(int(key.rpartition(":")[2]))
        assert one.key == key
        assert await log.version(one) == len(found)
        assert [entry.version for entry in await log.read(one)] == found
    return len(entries)


def check_append(ask: Ask, entries: list[Entry]) -> None:
    """All events of one append, once, one after the other, of one aggregate."""
    assert [entry.body for entry in entries] == ask.bodies(), f"{ask.key} is there in part, or twice"
    assert {entry.key for entry in entries} == {aggregate(ask.aggregate).key}
    for before, after in pairwise(entries):
        assert (after.version, after.ordinal) == (before.version + 1, before.ordinal + 1), ask.key
    if ask.expected is not None:
        assert entries[0].version == ask.expected + 1, f"{ask.key} expected another version"


LAG = load_script("log/lag", Path(__file__).parent.parent / "lua")


@dataclass(frozen=True)
class Books:
    """How a partition stood at one moment."""

    ordinal: int
    trimmed: int
    floors: dict[str, int]


async def check_books(store: PartitionStore) -> Books:
    """See that our own books and standard tools say the same of a partition, and that floors are kept."""
    answer = await store._redis.run(LAG, store.keys)
    ordinal, trimmed, first, last = (int(text or 0) for text in answer[:4])
    about, groups = _pairs(answer[4]), [_pairs(group) for group in answer[5]]
    readers = {name.decode(): line.decode().split(" ") for name, line in _pairs(answer[6]).items()}
    if about:
        assert about[b"length"] == ordinal - trimmed, (about, ordinal, trimmed)
        assert about[b"entries-added"] == ordinal, (about, ordinal)
        if about[b"length"]:
            assert (first, last) == (trimmed + 1, ordinal)
    named = {name: int(line[0]) for name, line in readers.items() if line[3] == "0"}
    lags = {group[b"name"].decode(): (group[b"entries-read"], group[b"lag"]) for group in groups}
    assert lags == {name: (floor, ordinal - floor) for name, floor in named.items()}, "lag is not the backlog"
    floors = {name: int(line[0]) for name, line in readers.items()}
    assert all(trimmed <= floor <= ordinal for floor in floors.values()), (floors, trimmed, ordinal)
    return Books(ordinal, trimmed, floors)


def _pairs(flat: Sequence[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def check_lives(journal: Journal, partition: Partition, last: int) -> int:
    """See that a named reader saw every ordinal in order, again only from its last commit; how many twice."""
    position, attempt, seen, again = 0, 0, 0, 0
    for life in journal.lives[partition]:
        assert life.start in (position, attempt), f"{partition}: it went on at {life.start}, not {position}"
        check_in_order(life)
        again += max(0, min(seen, life.start + len(life.saw)) - life.start)
        position, attempt, seen = life.start, life.start, max(seen, life.start + len(life.saw))
        if life.committed is not None:
            position = life.committed
        attempt = max(position, life.commits or 0)
    assert max((life.start + len(life.saw) for life in journal.lives[partition]), default=0) == last
    return again


def check_in_order(life: Life) -> None:
    """What it saw begins after its start, without a gap, and it committed nothing that it had not seen."""
    assert life.saw == list(range(life.start + 1, life.start + 1 + len(life.saw))), life.start
    assert (life.commits or 0) <= life.start + len(life.saw)
