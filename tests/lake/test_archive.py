"""The archive beside other lakes, other processes and trimming: its floors, and where it begins.

The table is a list here, as what is looked at is the log; what Delta does is tested with Spark elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from tests.conftest import emptied
from tests.lake.filling import Row, read, with_log
from toril.aggregate import Aggregate
from toril.errors import InvalidValue
from toril.lake import archive, rewind
from toril.lake.archive import GROUP, EventsStep
from toril.lake.erasures import Stretch, erased_in
from toril.lake.errors import LakeError, SourceDiverged
from toril.lake.lake import Lake, Record, Told
from toril.lake.source import Door, tails
from toril.lake.tables import Table
from toril.log import GapFound, Log, Partition, Position, Retention
from toril.log.layout import kept_by
from toril.testing import Server, standalone


class Shelf:
    """A lake that has ``events`` alone, in memory. Given another one, it is a copy of it."""

    spark = None

    def __init__(self, name: str, of: Shelf | None = None) -> None:
        self.path = self.name = name
        self.told: Told = of.told if of else Told()
        self.rows: list[Row] = list(of.rows) if of else []
        self.identity_: str = of.identity_ if of else name
        self.looks: list[Callable[[], None]] = []
        """What happens right after the next looks at it."""

    @property
    def lake(self) -> Lake:
        return cast("Lake", self)

    def place(self, table: Table) -> str:
        return f"{self.name}/{table.name}"

    def identity(self, _: Table) -> str:
        return self.identity_

    def check_all(self, _: Any) -> None: ...

    def ensure(self, _: Table) -> None: ...

    def wrote(self, _: Table) -> Told:
        told = self.told
        if self.looks:
            self.looks.pop(0)()
        return told

    def last(self, table: Table) -> Record:
        return self.wrote(table).record

    def append(self, rows: list[Row], _: Table, record: Record) -> None:
        if record.batch == self.told.record.batch + 1:
            self.rows += rows
            self.told = Told(record, rows=len(rows))

    @property
    def places(self) -> list[tuple[str, int]]:
        return sorted((row.partition, row.ordinal) for row in self.rows)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One that trims to the entry."""
    with standalone({"stream-node-max-entries": 1}) as made:
        yield made


@pytest.fixture
def url(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A log of two partitions."""
    monkeypatch.setattr(archive, "read_log", lambda _, url, __, after, upto: read(url, after, upto))
    emptied(server)
    with_log(server.url, lambda log: log.choose_retention(Retention.archived_by(GROUP)), partitions=2)
    return server.url


def append(url: str, *partitions: str, tenant: str = "acme", size: int = 10) -> None:
    """An event into each of these partitions in turn."""

    async def go(log: Log) -> None:
        epoch = (await log.layout()).current
        names: dict[str, Aggregate] = {}
        for number in range(1000):
            one = Aggregate(tenant, "thing", f"t{number}")
            names.setdefault(str(epoch.of(one)), one)
        for name in partitions:
            await log.append(names[name], [b"x" * size])

    with_log(url, go)


async def trim_all(log: Log) -> None:
    """All there is was read by somebody else, who lets it go."""
    await log.choose_retention(Retention.archived_by("else"))
    async with log.reader("else") as reader:
        async for batch in reader.until_now():
            await batch.done()
    await log.trim()


def floors(url: str, group: str = GROUP) -> dict[str, int]:
    async def look(log: Log) -> dict[str, int]:
        return {str(one.partition): one.readers[group].position.ordinal for one in await log.standings()}

    return with_log(url, look)


def archived(shelf: Shelf, url: str, **how: Any) -> EventsStep:
    """Archive all there is; the step that did."""
    step = EventsStep(url, **how)
    try:
        step.prepare(shelf.lake)
        while step.once(shelf.lake) is not None:
            pass
    finally:
        step.close(shelf.lake)
    return step


def test_a_lake_that_is_refused_moves_no_floor(url: str) -> None:
    """Neither in the partitions where it is behind nor in those where it is ahead of the one that is fed."""
    append(url, *["00", "01"] * 5)
    own = Shelf("own")
    archived(own, url)
    put_back = Shelf("put back", own)
    append(url, "00", "00")
    archived(own, url)
    append(url, "01", "01")
    archived(ahead := Shelf("ahead", own), url, group="staging")
    ahead.told.record.positions["00"] = put_back.told.record.positions["00"]
    stood = floors(url)
    assert stood == {"00": 7, "01": 5}
    with_log(url, lambda log: log.redis.command("HDEL", log.keys.meta, kept_by(GROUP)))  # as of before
    ahead.identity_ = "another one"
    with pytest.raises(LakeError, match="up to entry 7, and ahead/events has it up to 5"):
        archived(ahead, url)
    assert floors(url) == stood
    archived(own, url)
    assert floors(url) == {"00": 7, "01": 7}


def test_another_lake_is_refused_however_far_it_is_until_the_name_is_retired(url: str) -> None:
    append(url, *["00", "01"] * 5)
    own, other = Shelf("own"), Shelf("other")
    archived(own, url)
    append(url, *["00", "01"] * 5)
    archived(other, url, group="staging")
    stood = floors(url)
    rule = rf"as '{GROUP}', and not in other/events: .* another group.* `toril log retire log {GROUP}`"
    with pytest.raises(LakeError, match=rule):
        archived(other, url)
    assert floors(url) == stood
    archived(Shelf("moved", own), url)
    assert floors(url) == {"00": 10, "01": 10}
    with_log(url, lambda log: log.retire(GROUP))
    anew = Shelf("own")
    anew.identity_ = "made anew"
    assert archived(anew, url).stopped == {}
    with pytest.raises(LakeError, match="another lake"):
        archived(own, url)


@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_a_lake_of_another_log_is_refused_and_nothing_is_changed_there(url: str, partitions: int) -> None:
    """Such as one that was made anew, in whatever number of partitions, after one that was resized."""
    append(url, *["00", "01"] * 5)
    archived(own := Shelf("own"), url)
    with_log(url, lambda log: log.resize(3))
    append(url, *["2:00", "2:01", "2:02"] * 5)
    archived(own, url)

    def of_now(log: Log) -> Any:
        return log.redis.command("HGETALL", log.keys.meta)

    async def readers(log: Log) -> list[set[str]]:
        return [set(one.readers) for one in await log.standings()]

    with_log(url, lambda log: log.redis.command("FLUSHALL"))
    with_log(url, lambda log: log.layout(), partitions=partitions)
    append(url, *[f"{number:02d}" for number in range(partitions)] * 20)
    before = with_log(url, of_now)
    with pytest.raises(SourceDiverged, match="nothing of what own/events was archived from: .* another log"):
        archived(own, url)
    assert (with_log(url, of_now), with_log(url, readers)) == (before, [set()] * partitions)
    assert len(own.rows) == 25


def test_what_was_trimmed_of_a_partition_while_the_archive_was_retired_is_said(url: str) -> None:
    """Of one that the table has nothing of yet, as of others."""
    append(url, *["00"] * 5)
    archived(own := Shelf("own"), url)
    with_log(url, lambda log: log.retire(GROUP))

    append(url, *["01"] * 4)
    with_log(url, trim_all)
    append(url, "00", "01")
    stopped = archived(own, url).stopped
    (said,) = map(str, stopped.values())
    assert said.startswith("partition 01: entries 1 to 4 were trimmed before they were in the table events")
    assert own.places == [("00", ordinal) for ordinal in range(1, 7)]


@pytest.mark.parametrize("another", [False, True])
def test_a_run_whose_name_was_retired_moves_no_floor_when_it_ends(url: str, another: bool) -> None:
    append(url, *["00"] * 3)
    some = tails(url, "log")
    append(url, *["00", "01"] * 5)
    own, other = Shelf("own"), Shelf("other")
    step = EventsStep(url)
    step.prepare(own.lake)
    assert step.once(own.lake) is not None
    with_log(url, lambda log: log.retire(GROUP))
    if another:
        archived(other, url, until=some)
    step.close(own.lake)

    async def readers(log: Log) -> list[dict[str, int]]:
        return [
            {name: state.position.ordinal for name, state in one.readers.items()}
            for one in await log.standings()
        ]

    assert with_log(url, readers) == ([{GROUP: 3}, {GROUP: 0}] if another else [{}, {}])


def test_a_floor_follows_what_another_run_wrote_and_not_what_this_one_would_have(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two runs that write a batch of the same number, one does."""
    append(url, *["00", "01"] * 10)
    shelf, does, others = Shelf("own"), getattr(archive, "read_log"), EventsStep(url, most=4)  # noqa: B009
    others.prepare(shelf.lake)

    def later(*given: Any) -> Any:
        monkeypatch.setattr(archive, "read_log", does)
        assert others.once(shelf.lake) is not None
        return does(*given)

    monkeypatch.setattr(archive, "read_log", later)
    step = EventsStep(url)
    step.prepare(shelf.lake)
    record = step.once(shelf.lake)
    assert record is not None
    assert sum(floors(url).values()) == sum(ordinal for ordinal, _ in record.positions.values()) == 4
    for one in (others, step):
        one.close(shelf.lake)


def test_what_was_erased_is_noted_beside_a_partition_that_was_lost(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a run that comes after one that was killed, whose rows were as many as the places that are left."""
    noted: list[Stretch] = []
    monkeypatch.setattr(archive, "note_stretches", lambda _, some: noted.extend(some))
    append(url, "00", "01")
    archived(shelf := Shelf("own"), url)
    append(url, "00", "00")
    append(url, "00", "00", tenant="gone")
    append(url, "01", "01")
    with_log(url, lambda log: log.erase_tenant("gone"))
    step = EventsStep(url)
    step.prepare(shelf.lake)
    with monkeypatch.context() as killed:
        killed.setattr(EventsStep, "_follow", lambda *_: None)
        assert step.once(shelf.lake) is not None
        step.close(shelf.lake)
    assert (shelf.told.rows, noted) == (4, [])

    async def fail_over(log: Log) -> None:
        store = log.store(Partition(1, 1))
        gone = await store.page_back("+", 2)
        await log.redis.command("XDEL", store.keys.entries, *(entry.id for entry in gone))
        await log.redis.command("HSET", store.keys.head, "ordinal", gone[-1].ordinal - 1)

    with_log(url, fail_over)
    append(url, "01", "01")
    assert list(archived(shelf, url).stopped) == ["01"]
    assert Stretch(1, 0, 4, 5) in noted


@pytest.mark.parametrize("when", ["beginning", "bounding", "reading"])
def test_what_another_run_archives_and_the_log_trims_meanwhile_is_not_lost(
    url: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(url, *["00", "01"] * 5)
    archived(shelf := Shelf("own"), url)
    append(url, *["00", "01"] * 10)
    others: list[int] = []

    def another() -> None:
        """Once, another run is quicker, and then the log is trimmed."""
        if not others:
            others.append(0)
            archived(shelf, url)
            others[0] = with_log(url, lambda log: log.trim()).removed
            append(url, *["00", "01"] * 10)

    if when == "beginning":
        shelf.looks.append(another)
    else:
        where, name = (Door, "next_batch") if when == "bounding" else (archive, "read_log")
        does = getattr(where, name)

        def later(*given: Any) -> Any:
            another()
            return does(*given)

        monkeypatch.setattr(where, name, later)
    step = archived(shelf, url, most=7)
    assert others == [30]
    assert step.stopped == {}
    assert shelf.places == [(name, ordinal) for name in ("00", "01") for ordinal in range(1, 26)]


def test_what_is_missing_for_good_ends_it_with_what_is_missing(url: str) -> None:
    append(url, *["00"] * 6)

    async def remove(log: Log) -> None:
        store = log.store(Partition(1, 0))
        await log.redis.command("XDEL", store.keys.entries, (await store.page("0-0", 3))[-1].id)

    with_log(url, remove)
    with pytest.raises(GapFound, match="partition 00: entry 3 is missing"):
        archived(Shelf("own"), url)


def test_erased_places_are_found_without_the_bodies_of_others(url: str) -> None:
    """One of which may be trimmed just then."""
    append(url, "00", "00", tenant="gone")
    append(url, "00", size=100_000)

    async def look(log: Log) -> list[Stretch]:
        await log.erase_tenant("gone")
        await log.redis.command("UNLINK", log.store(Partition(1, 0)).keys.blob("3"))
        return await erased_in(log, {}, {"00": (3, "")})

    assert with_log(url, look) == [Stretch(1, 0, 1, 2)]


def test_a_log_whose_epochs_were_removed_is_archived_from_what_there_is(url: str) -> None:
    """Before there was an archive; because one was empty; and just when it is looked at."""

    async def read_and_resize(log: Log, *partitions: int) -> None:
        async with log.reader("else") as reader:
            for count in partitions:
                await log.resize(count)
            async for batch in reader.until_now():
                await batch.done()

    async def remove(log: Log) -> int:
        await log.trim()
        removed = 0
        while await log.drop_epoch():
            removed += 1
        return removed

    append(url, *["00", "01"] * 5)
    with_log(url, lambda log: log.choose_retention(Retention.archived_by("else")))
    with_log(url, lambda log: read_and_resize(log, 3))
    assert with_log(url, remove) == 1
    append(url, "2:00", "2:01")
    shelf = Shelf("own")
    assert archived(shelf, url).stopped == {}
    record = shelf.told.record
    assert (shelf.places, record.began) == ([("2:00", 1), ("2:01", 1)], {})
    assert {name: ordinal for name, (ordinal, _) in record.positions.items()} == {"2:00": 1, "2:01": 1}
    with_log(url, lambda log: read_and_resize(log, 4, 2))
    archived(shelf, url)
    shelf.looks.append(lambda: removed.append(with_log(url, remove)))
    removed: list[int] = []
    append(url, "4:01")
    assert archived(shelf, url).stopped == {}
    assert removed == [2]
    append(url, "4:00")
    assert archived(shelf, url).stopped == {}
    assert shelf.places == [("2:00", 1), ("2:01", 1), ("4:00", 1), ("4:01", 1)]


def test_a_rewind_goes_back_to_no_place_that_the_archive_could_not_go_on_from(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies before its floor needs no row, as of an erased tenant; what was trimmed never had one."""

    def places_from(shelf: Shelf, partition: Partition, ordinal: int) -> Iterator[tuple[int, str]]:
        rows = [row for row in shelf.rows if row.partition == str(partition) and row.ordinal >= ordinal]
        return iter(sorted(((row.ordinal, row.entry_id) for row in rows), reverse=True))

    monkeypatch.setattr(rewind, "_places_from", places_from)
    shelf = Shelf("own")

    async def readers(log: Log, one: Partition) -> list[bytes]:
        return list(await log.redis.command("HGETALL", log.store(one).keys.readers))

    async def fail_over(log: Log, one: Partition, then: list[bytes], lost: int) -> None:
        """What a replica is like that had these readers, and had not received so many entries."""
        keys, gone = log.store(one).keys, await log.store(one).page_back("+", lost)
        await log.redis.command("XDEL", keys.entries, *(entry.id for entry in gone))
        await log.redis.command("HSET", keys.head, "ordinal", gone[-1].ordinal - 1)
        await log.redis.command("HSET", keys.readers, *then)

    def lose_and_rewind(name: str, lost: int) -> Position:
        one = Partition.parse(name)
        then = with_log(url, lambda log: readers(log, one))
        append(url, *[name] * lost)
        archived(shelf, url)
        with_log(url, lambda log: fail_over(log, one, then, lost))
        append(url, name, name)
        assert list(archived(shelf, url).stopped) == [name]
        with Door(url, "log") as door:
            for group, rule in (("typo", "readers: else, lake/archive"), ("else", "is another lake's")):
                with pytest.raises(InvalidValue, match=rule):
                    rewind._last_common(shelf.lake, door, one, group)
            to = rewind._last_common(shelf.lake, door, one, GROUP)
        shelf.rows = [row for row in shelf.rows if row.partition != name or row.ordinal <= to.ordinal]
        positions = {**shelf.told.record.positions, name: (to.ordinal, to.id)}
        shelf.told = Told(Record(batch=shelf.told.record.batch + 1, positions=positions))
        assert archived(shelf, url).stopped == {}
        return to

    append(url, *["01"] * 6)
    with_log(url, trim_all)
    with_log(url, lambda log: log.keep_in("else", "another lake"))
    assert archived(shelf, url).missing == 6
    append(url, *["00"] * 7)
    append(url, *["00"] * 3, tenant="gone")
    assert archived(shelf, url).missing == 6
    assert archived(shelf, url).missing == 0, "it was said"
    with_log(url, lambda log: log.erase_tenant("gone"))
    shelf.rows = [row for row in shelf.rows if not row.key.startswith("gone:")]
    assert lose_and_rewind("00", 3).ordinal == 10
    assert lose_and_rewind("01", 3) == (6, "0-0")
    there = [("00", ordinal) for ordinal in (*range(1, 8), 11, 12)]
    assert shelf.places == [*there, ("01", 7), ("01", 8)]
    assert floors(url) == {"00": 12, "01": 8}
