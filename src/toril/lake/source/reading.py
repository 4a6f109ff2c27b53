"""Reading stretches of partitions: page after page, each entry after the one before, with its body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from toril.lake.errors import SourceDiverged
from toril.lake.source.places import why_missing
from toril.lake.source.positions import diverged
from toril.lake.source.rows import Raw
from toril.log import Log, Partition, Position
from toril.log.entry import OUTSIDE, decode, ordinal_of
from toril.log.errors import GapFound

PAGE_BYTES = 1024 * 1024
"""Bytes of entries that are asked for at a time, as far as that can be told from those before."""

PAGE = (16, 2000)
"""Entries that are asked for at a time: at least, and at most."""

FIRST_PAGE = 200


class Stretch(NamedTuple):
    """Entries of one partition: after the one, up to the other."""

    partition: Partition
    after: Position
    upto: Position
    """Its id may be empty: then only the ordinal counts."""


class Page(NamedTuple):
    """Entries of one partition in order, with their bodies."""

    partition: Partition
    entries: Sequence[Raw]


async def pages(log: Log, stretch: Stretch) -> AsyncIterator[Page]:
    """All entries of a stretch; an error where one is missing, or is not the one that was meant."""
    partition, at, upto = stretch
    key = log.store(partition).keys.entries
    most = FIRST_PAGE
    while at.ordinal < upto.ordinal:
        count = min(most, upto.ordinal - at.ordinal)
        found = await log.redis.command("XRANGE", key, f"({at.id}", "+", "COUNT", count)
        if [int(raw[1][1]) for raw in found] != list(range(at.ordinal + 1, at.ordinal + 1 + len(found))):
            raise await _first_missing(log, partition, at, found)
        if not found:
            raise await why_missing(log, partition, at, None)
        at = Position(at.ordinal + len(found), found[-1][0].decode())
        size = 0
        for page, its_size in _by_size(partition, found):
            size += its_size
            yield Page(partition, await _with_bodies(log, partition, page))
        most = min(max(PAGE_BYTES * len(found) // max(size, 1), PAGE[0]), PAGE[1], most * 4)
    if upto.id and at.id != upto.id:
        raise diverged(partition, upto, f"{at.id} is where it was")


async def _first_missing(
    log: Log, partition: Partition, at: Position, found: Sequence[Raw]
) -> GapFound | SourceDiverged:
    for raw in found:
        if ordinal_of(raw) != at.ordinal + 1:
            break
        at = Position(at.ordinal + 1, raw[0].decode())
    return await why_missing(log, partition, at, ordinal_of(raw))


def _by_size(partition: Partition, found: Sequence[Raw]) -> list[tuple[Sequence[Raw], int]]:
    """Cut a page so that large bodies that are kept outside are not all fetched at once."""
    if {(len(raw[1]), raw[1][6]) for raw in found} == {(8, b"e1")}:
        return [(found, sum([len(raw[1][7]) for raw in found]) + 100 * len(found))]
    cut: list[tuple[Sequence[Raw], int]] = []
    part: list[Raw] = []
    size = 0
    for raw in found:
        fields = raw[1]
        if len(fields) != 8 or fields[6] not in (b"e1", OUTSIDE):
            decode(partition, [raw])  # which says what is wrong with it
        bytes_of = len(fields[7]) if fields[6] == b"e1" else int(fields[7])
        if part and size + bytes_of > 4 * PAGE_BYTES:
            cut.append((part, size))
            part, size = [], 0
        part.append(raw)
        size += bytes_of + 100
    cut.append((part, size))
    return cut


async def _with_bodies(log: Log, partition: Partition, entries: Sequence[Raw]) -> Sequence[Raw]:
    outside = [raw for raw in entries if raw[1][6] == OUTSIDE]
    if outside:
        await asyncio.gather(*(_fetch(log, partition, raw) for raw in outside))
    return entries


async def _fetch(log: Log, partition: Partition, raw: Any) -> None:
    keys = log.store(partition).keys
    body = await log.redis.command("GET", keys.blob(raw[1][1].decode()))
    if body is None:  # its tenant may have been erased since the entry was read
        now = await log.redis.command("XRANGE", keys.entries, raw[0], raw[0])
        if not now or now[0][1][5]:
            entry_id = raw[0].decode()
            raise GapFound(f"GAP partition {partition}: the body of {entry_id}, kept outside, is missing")
        raw[1][:] = now[0][1]
    else:
        raw[1][6:] = [b"e1", body]
