"""The source of the lake without Spark: what its plans and tasks read from the log."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.lake.filling import asked, event, everything, fill, filled, planned, read, rows, with_log
from toril.errors import InvalidValue
from toril.keyspace import slot_of
from toril.lake.errors import SourceDiverged
from toril.lake.source import Door, Marks, between, bounded, next_batch, tails
from toril.lake.source.options import Options, as_json, marks_of
from toril.lake.source.positions import refuse_removed, shares
from toril.lake.source.rows import header
from toril.lake.source.stream import StreamReader
from toril.lake.source.tasks import read_task
from toril.log import Log, Partition, Position, Retention
from toril.log.errors import GapFound
from toril.log.layout import Epoch, Layout
from toril.testing import Cluster, Server, cluster, standalone


def test_it_reads_what_the_logs_own_reader_reads(server: Server | Cluster) -> None:
    bodies = [event(n, size=(n % 7) * 100) for n in range(700)] + [b"no json"]
    with_log(server.url, lambda log: fill(log, bodies), partitions=4, inline=300)
    own = with_log(server.url, everything)
    assert len(own) == 701
    assert sorted(read(server.url)) == sorted(own)
    readers = with_log(server.url, lambda log: log.standings())
    assert not any(standing.readers for standing in readers), "a read that is done leaves no floor"


def test_a_bounded_batch_ends_at_exact_entries_and_all_batches_are_all_events(
    server: Server | Cluster,
) -> None:
    filled(server.url, 400)
    own = sorted(with_log(server.url, everything))

    async def claim(log: Log) -> dict[Partition, int]:
        layout = await log.layout()
        await log.each(lambda store: store.register("archive", "first"), layout.partitions())
        return {one: (await log.store(one).claim("archive")).fence for one in layout.partitions()}

    fences = with_log(server.url, claim)
    seen, after = [], Marks()
    while between(after, upto := next_batch(server.url, "log", after, 37)):
        assert between(after, upto) <= 37
        batch = read(server.url, after, upto)
        assert len(batch) == between(after, upto)
        seen += batch
        after = upto

        async def advance(log: Log, marks: Marks = after) -> None:
            for name, place in marks.items():
                partition = Partition.parse(name)
                await log.store(partition).advance("archive", fences[partition], Position(*place))

        with_log(server.url, advance)  # which refuses a place where no entry is
    assert sorted(seen) == own
    assert after == tails(server.url, "log")
    with_log(server.url, lambda log: log.retire("archive"))


@given(some.dictionaries(some.text(min_size=1), some.integers(1, 10**6)), some.integers(1, 10**6))
def test_a_batch_is_shared_by_all_and_takes_no_more_than_it_may(left: dict[str, int], most: int) -> None:
    taken = shares(left, most)
    assert sum(taken.values()) == min(most, sum(left.values()))
    assert all(0 < taken[name] <= left[name] for name in taken)
    assert len(taken) == min(len(left), most), "as many as can have a turn"


def test_the_end_of_a_batch_is_found_by_looking_at_few_entries() -> None:
    with standalone() as server:
        filled(server.url, 20_000, partitions=1)
        there = tails(server.url, "log")
        server.ask("CONFIG", "RESETSTAT")
        rng = random.Random(8)
        ends = [rng.randrange(1, 20_000) for _ in range(20)]
        with Door(server.url, "log") as door:
            found = [door.next_batch({}, end, there) for end in ends]
        assert [marks["00"][0] for marks in found] == ends
        looks = server.ask("INFO", "commandstats").decode().split("cmdstat_xrange:calls=")[1].split(",")[0]
        assert int(looks) <= 20 * 25


def test_an_epoch_is_read_to_its_end_before_the_next_one_begins(server: Server | Cluster) -> None:
    filled(server.url, 100, partitions=4)
    with_log(server.url, lambda log: log.resize(2))
    filled(server.url, 60, partitions=2)
    assert list(tails(server.url, "log")) == ["00", "01", "02", "03", "2:00", "2:01"]
    after, epochs, seen = Marks(), [], []
    while between(after, upto := next_batch(server.url, "log", after, 30)):
        batch = read(server.url, after, upto)
        epochs.append({row.partition.startswith("2:") for row in batch})
        seen += batch
        after = upto
    assert epochs == [{False}] * 4 + [{True}] * 2
    assert sorted(seen) == sorted(with_log(server.url, everything))


def test_an_epoch_that_can_still_grow_hides_the_next_one() -> None:
    with standalone() as server:
        filled(server.url, 40, partitions=2)
        with_log(server.url, lambda log: log.resize(1))
        filled(server.url, 5, partitions=1)
        head = Partition(1, 0).keys("log").head
        server.ask("HDEL", head, "sealed")  # as while a resize is under way
        assert list(tails(server.url, "log")) == ["00", "01"]


def test_what_is_not_there_is_an_error_that_says_what_and_why() -> None:
    with standalone({"stream-node-max-entries": 5}) as server:
        url = server.url
        filled(url, 200, partitions=1, inline=10)
        end = tails(url, "log")
        last = end["00"][0]
        with pytest.raises(SourceDiverged, match=r"partition 00: entry 205@9-9 .* is 200@"):
            bounded({"00": (205, "9-9")}, end, 10)
        with pytest.raises(SourceDiverged, match="entry 200@9-9 was read from this log, and is not in it"):
            bounded({"00": (last, "9-9")}, end, 10)
        with pytest.raises(SourceDiverged, match="entry 7@9-9 was read from this log, and is not in it"):
            read(url, {"00": (7, "9-9")}, end)
        with pytest.raises(SourceDiverged, match="entry 200@9-9"):
            read(url, {}, {"00": (last, "9-9")})
        own = with_log(url, everything)
        keys = Partition(1, 0).keys("log")
        server.ask("UNLINK", keys.blob("150"))
        with pytest.raises(GapFound, match=f"the body of {own[149].entry_id}, kept outside, is missing"):
            read(url, {"00": (149, own[148].entry_id)}, end)
        server.ask("XDEL", keys.entries, own[99].entry_id)
        with pytest.raises(GapFound, match=r"00: entry 100 is missing \(the next one there is 101\)"):
            read(url, {}, {"00": (110, "")})

        async def trim(log: Log) -> None:
            await log.retire("~test")  # tasks that failed may be tried again: their floor stays for a while
            await log.choose_retention(Retention.archived_by("lake"))
            await log.store(Partition(1, 0)).register("lake", Position(60, own[59].entry_id))
            await log.trim()

        with_log(url, trim)
        trimmed = "entries 1 to 60 were trimmed before they were read here; the first one there is 61"
        with pytest.raises(GapFound, match=trimmed):
            read(url, {}, end)
        with pytest.raises(GapFound, match=trimmed):
            next_batch(url, "log", {}, 10)
        assert [row.ordinal for row in read(url, upto={"00": (70, "")})] == list(range(61, 71)), "the first"


BEFORE = (Epoch(1, 2), Epoch(2, 3), Epoch(3, 1))


@pytest.mark.parametrize(
    ("after", "ends", "said"),
    [
        ({}, {}, "partition 00: entries from 1 on were removed with epoch 1"),
        ({"01": 9}, {}, "partition 2:00: entries from 1 on were removed with epoch 2"),
        ({"2:01": 9}, {}, None),  # where nobody has noted where they ended
        ({"3:00": 0}, {}, None),
        ({}, {1: (0, 9), 2: (0, 0, 0)}, "partition 01: entries from 1 on were removed with epoch 1"),
        ({"01": 8}, {1: (0, 9), 2: (0, 0, 0)}, "partition 01: entries from 9 on were removed with epoch 1"),
        ({"01": 9}, {1: (0, 9), 2: (0, 0, 0)}, None),
        ({"00": 4}, {1: (4, 9), 2: (0, 0, 0)}, "partition 01: entries from 1 on were removed with epoch 1"),
        ({"01": 9}, {1: (0, 9), 2: (0, 5, 0)}, "partition 2:01: entries from 1 on were removed with epoch 2"),
        ({"01": 9, "2:01": 5}, {1: (4, 9), 2: (0, 5, 0)}, None),  # 00 was read before 2:01 was
        ({"01": 8, "2:01": 5}, {1: (4, 9), 2: (0, 5, 0)}, "partition 01: entries from 9 on"),
        ({"3:00": 0}, {1: (4, 9), 2: (0, 5, 0)}, None),
    ],
)
def test_epochs_that_were_removed_must_have_been_read_to_their_ends(
    after: dict[str, int], ends: dict[int, tuple[int, ...]], said: str | None
) -> None:
    layout = Layout(BEFORE, oldest=3, ends=ends)
    marks = {name: (ordinal, "1-1") for name, ordinal in after.items()}
    with pytest.raises(GapFound, match=said) if said else nullcontext():
        refuse_removed(layout, marks)


def test_a_start_in_an_epoch_that_is_gone_skips_nothing_in_silence() -> None:
    """Whether it is a stream's, a batch's, or a checkpoint's."""
    with standalone({"stream-node-max-entries": 5}) as server:
        url = server.url
        filled(url, 120, partitions=2)
        end = tails(url, "log")
        part = next_batch(url, "log", {}, 50)

        async def resize(log: Log) -> None:
            await log.choose_retention(Retention.archived_by("lake"))
            await log.resize(3)

        async def drop(log: Log) -> None:
            for partition in Epoch(1, 2).all():
                place = await log.store(partition).look()
                await log.store(partition).register("lake", place.tail)
            await log.trim()
            assert await log.drop_epoch() is not None

        with_log(url, resize)
        filled(url, 60, partitions=3)
        with_log(url, drop)
        new = sorted(with_log(url, everything))
        assert {row.partition for row in new} == {"2:00", "2:01", "2:02"}
        assert sorted(read(url, end)) == new
        gone = f"partition 00: entries from {part['00'][0] + 1} on were removed with epoch 1"
        for fails in (
            lambda: next_batch(url, "log", part, 1000),
            lambda: read(url, part),
            lambda: read(url, start=as_json(part)),
            lambda: begun(url, as_json(part)),
        ):
            with pytest.raises(GapFound, match=gone):
                fails()
        offset = begun(url, as_json(end))
        assert offset == {f"2:0{number}": [0, "0-0"] for number in range(3)}, "all of what came later"
        never: Marks = {"3:00": (1, "1-1")}
        misspelt: dict[str, Callable[[], object]] = {
            "start": lambda: read(url, start=as_json(never)),
            "after": lambda: read(url, never, end),
            "upto": lambda: read(url, end, never),
        }
        for option, reads in misspelt.items():
            with pytest.raises(InvalidValue, match=f"option {option} '3:00' .* 00 to 01, 2:00 to 2:02"):
                reads()

        async def trim(log: Log) -> None:
            for partition in Epoch(2, 3).all():
                place = await log.store(partition).look()
                await log.store(partition).register("lake", place.tail)
            await log.trim()

        with_log(url, trim)
        with pytest.raises(GapFound, match="partition 2:0[0-2]: entries 1 to .* were trimmed before"):
            begun(url, as_json(end))


def begun(url: str, start: str) -> dict[str, Any]:
    """Where a stream begins."""
    stream = StreamReader(Options.read({"url": url, "start": start}))
    try:
        return stream.initialOffset()
    finally:
        stream.stop()


def test_a_stream_from_the_tail_of_what_is_there_now_is_empty(server: Server | Cluster) -> None:
    """Also where events come after it was seen how much there is, and before it was seen where to begin."""
    filled(server.url, 60)
    before = tails(server.url, "log")
    stream = StreamReader(Options.read({"url": server.url, "start": "tail"}))
    try:
        stream.prepareForTriggerAvailableNow()
        filled(server.url, 60)
        start = stream.initialOffset()
        assert between(before, marks_of(start)) == 60
        assert stream.latestOffset(start, ReadAllAvailable()) == start
        assert stream.partitions(start, start) == []
    finally:
        stream.stop()
    # A checkpoint past the end is another thing: what it has read was lost.
    again = StreamReader(Options.read({"url": server.url}))
    try:
        again.prepareForTriggerAvailableNow()
        with pytest.raises(SourceDiverged, match="partition 00: entry 1000@9-9 was read from this log"):
            again.latestOffset({"00": [1000, "9-9"]}, ReadAllAvailable())
    finally:
        again.stop()


def test_erased_tenants_are_left_out_and_positions_go_on(server: Server | Cluster) -> None:
    filled(server.url, 90, partitions=2)
    with_log(server.url, lambda log: log.erase_tenant("tenant1"))
    upto = next_batch(server.url, "log", {}, 50)
    found = read(server.url, {}, upto) + read(server.url, upto, tails(server.url, "log"))
    assert sorted(found) == sorted(with_log(server.url, everything))
    assert len(found) == 60
    assert not any(row.key.startswith("tenant1") for row in found)


def test_retention_safe_a_read_that_was_planned_loses_nothing_to_trimming() -> None:
    with standalone({"stream-node-max-entries": 5}) as server:
        url = server.url
        bodies = [event(n, size=3000) for n in range(4000)]
        with_log(url, lambda log: fill(log, bodies), partitions=2, inline=2000)
        own = sorted(with_log(url, everything))

        async def read_and_trim(log: Log) -> int:
            """Everyone else is done with everything."""
            for partition in (await log.layout()).partitions():
                place = await log.store(partition).look()
                await log.store(partition).register("lake", Position(place.ordinal, place.last_id))
            return (await log.trim()).removed

        with_log(url, lambda log: log.choose_retention(Retention.archived_by("lake")))
        tasks = planned(url)
        assert with_log(url, read_and_trim) == 0
        found = []
        for task in tasks:
            for place, batch in enumerate(read_task(asked(url), task)):
                if place % 4 == 0:
                    with_log(url, read_and_trim)
                found += rows(batch)
        assert sorted(found) == own
        with_log(url, read_and_trim)
        left = [standing.length for standing in with_log(url, lambda log: log.standings())]
        assert max(left) <= 5, "and holds up nothing when it is done"


def test_pages_are_bounded_by_bytes_also_where_bodies_are_kept_outside() -> None:
    with standalone() as server:
        bodies = [event(n, size=3_000_000 if n % 10 == 0 else 20_000) for n in range(100)]
        with_log(server.url, lambda log: fill(log, bodies), partitions=1)
        (task,) = planned(server.url)
        batches = list(read_task(asked(server.url), task))
        assert sum(batch.num_rows for batch in batches) == 100
        assert max(batch.nbytes for batch in batches) < 8_000_000
        assert [row.body for batch in batches for row in rows(batch)] == bodies


@pytest.mark.timeout(180)
def test_a_reshard_and_a_failover_in_the_middle_of_a_read_change_nothing(rng: random.Random) -> None:
    with cluster() as nodes:
        bodies = [event(n, size=400) for n in range(6000)]
        with_log(nodes.url, lambda log: fill(log, bodies), partitions=4)
        own = sorted(with_log(nodes.url, everything))
        key = Partition(1, 2).keys("log").entries

        def move() -> None:
            others = [one for one in nodes.primaries() if one is not nodes.primary_of(key)]
            nodes.move_slot(slot_of(key), others[0])

        def fail_over() -> None:
            nodes.fail_over(nodes.primary_of(key))

        blows = [move, fail_over]
        found = []
        for task in planned(nodes.url, tasks="1"):
            for batch in read_task(asked(nodes.url), task):
                found += rows(batch)
                if blows and rng.random() < 0.7:
                    blows.pop(0)()
        while blows:
            blows.pop(0)()
        assert sorted(found) == own
        assert sorted(read(nodes.url)) == own


def test_tasks_read_from_one_server_each_and_are_no_more_than_are_worth_it(server: Server | Cluster) -> None:
    filled(server.url, 12_000, partitions=16, name="wide")
    tasks = planned(server.url, log="wide", tasks="4")
    assert 3 <= len(tasks) <= 5
    if isinstance(server, Cluster):
        for task in tasks:
            keys = [stretch.partition.keys("wide").entries for stretch in task.stretches]
            assert len({server.primary_of(key) for key in keys}) == 1
    assert sum(len(task.stretches) for task in tasks) == 16
    few = planned(server.url, upto={"00": (3, "")}, log="wide", tasks="4")
    assert len(few) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"id": "1", "type": "t"}',
        b'{"id": "1", "type": "t", "occurred_at": null}',
        b'{"id": 1, "type": "t", "occurred_at": 1}',
        b'{"id": "1", "type": "t", "occurred_at": 9223372036854775808}',
        b'{"id": "1", "type": "t", "occurred_at": 1, "schema_version": 2147483648}',
        b'{"id": "\\ud800", "type": "t", "occurred_at": 1}',
        b'{"id": "1", "type": "t", "occurred_at": 1, "data": {',
        b'{"id": "1", "type": "t", "occurred_at": 1, "data": %s%s}' % (b"[" * 5000, b"]" * 5000),
    ],
)
def test_a_body_that_cannot_be_read_has_no_header(body: bytes) -> None:
    found = header(body)
    said: tuple[object, ...] = (found.id, found.type, found.occurred_at, found.schema_version)
    assert said == (None, None, None, None)


def test_a_log_that_is_not_there_is_not_made() -> None:
    with standalone() as server:
        with pytest.raises(InvalidValue, match="log 'shpo' is not valid: there is no log of this name"):
            tails(server.url, "shpo")
        assert server.ask("DBSIZE") == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"partitions": "4"}, "option 'partitions' is not valid: toril_log knows url, url_env, log"),
        ({"url": "http://x"}, "Redis URL 'http://x' is not valid: the scheme must be one of"),
        ({"url": "redis://x", "url_env": "X"}, "option url_env 'X' is not valid: url is given too"),
        ({"log": "a{b"}, "a{b"),
        ({"start": "begin"}, "option start 'begin' is not valid: 'first', 'tail', or positions like"),
        ({"start": "first", "after": "{}"}, "option start 'first' is not valid: after is given too"),
        ({"after": '{"00": 5}'}, "option after .* is not valid: positions like"),
        ({"after": '{"xx": [5, "1-1"]}'}, "option after .* is not valid: positions like"),
        ({"after": '{"00": [5, ""]}'}, "option after .* is not valid: partition 00 needs the id"),
        ({"upto": "[]"}, "option upto .* is not valid: positions like"),
        ({"max_events": "0"}, "option max_events '0' is not valid: a whole number from 1"),
        ({"tasks": "many"}, "option tasks 'many' is not valid: a whole number from 1"),
    ],
)
def test_a_bad_option_is_refused_by_its_name_its_value_and_the_rule(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        Options.read(given)


def test_the_url_can_be_in_the_environment_and_is_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_REDIS", "redis://:secret@h")
    named = Options.read({"url_env": "SHOP_REDIS"})
    assert named.where() == "redis://:secret@h"
    assert "secret" not in repr(named) + repr(Options.read({"url": "redis://:secret@h"}))
    monkeypatch.delenv("SHOP_REDIS")
    with pytest.raises(InvalidValue, match="url_env 'SHOP_REDIS' is not valid: no such environment variable"):
        named.where()
