"""Bad input: refused with an error that names the field, the value and the rule, before anything has changed.

Where Node's BullMQ 5.62.0 can be asked, it is said what Node does with the same.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import math
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.conformance.dump import differences
from tests.conformance.oracle import NodeError, NodeOracle
from tests.conformance.sides import NodeSide, open_store
from tests.conformance.store import Store
from toril import Connection, InvalidName, InvalidValue, TorilError, connect
from toril.queue import (
    AddJob,
    Backoff,
    Deduplication,
    Job,
    JobOptions,
    KeepJobs,
    Parent,
    ParentMissing,
    Queue,
    QueueError,
    UntaggedName,
)
from toril.queue.options import HIGHEST_PRIORITY
from toril.testing import Cluster, Server, standalone

LONE = "\ud800"
"""Half of a character: Python's strings can hold it, UTF-8 cannot."""

wrong: Any = lambda value: value  # noqa: E731 - what no type checker would let through


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One server: what is refused here never reaches any."""
    with standalone() as made:
        yield made


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    server.ask("FLUSHALL")
    made = open_store(server)
    yield made
    made.close()


@pytest.fixture
def queue(redis: Connection, store: Store) -> Queue:  # noqa: ARG001 - emptied first
    return Queue("q", redis)


@contextmanager
def unchanged(store: Store) -> Iterator[None]:
    """Nothing in the server may differ afterwards."""
    before = store.dump()
    yield
    assert not differences(before, store.dump())


def check(problem: InvalidValue, field: str, value: object = ...) -> None:
    """The error says what is wrong with what."""
    assert problem.field == field
    if value is not ...:
        assert problem.value == value or problem.value is value
    assert problem.rule
    shown = str(problem)
    assert shown.startswith(f"{field} ")
    assert shown.endswith(f"is not valid: {problem.rule}")


# ---------------------------------------------------------------------- options, when they are made

TOO_LARGE = 2**53  # JavaScript and Lua cannot count on from there
A_TIME = [-1, 1.5, True, "5", math.nan, timedelta(seconds=-1), TOO_LARGE]
A_NUMBER = [-1, 1.5, True, "3", math.nan, timedelta(seconds=1), TOO_LARGE]
SOME_TEXT = ["", 5, None, b"text"]
YES_OR_NO = ["no", 1, 0, math.nan]

REFUSED: list[tuple[str, Callable[[Any], object], list[Any]]] = [
    ("delay", lambda value: JobOptions(delay=value), A_TIME),
    ("backoff", lambda value: JobOptions(backoff=value), [*A_TIME, {"type": "fixed", "delay": 1}]),
    ("backoff delay", lambda value: Backoff("fixed", value), [*A_TIME, None]),
    ("backoff type", lambda value: Backoff(value), SOME_TEXT),
    (
        "backoff jitter",
        lambda value: Backoff("fixed", 1, value),
        [-0.1, 1.1, math.nan, math.inf, "half", True],
    ),
    ("priority", lambda value: JobOptions(priority=value), [*A_NUMBER, HIGHEST_PRIORITY + 1]),
    ("attempts", lambda value: JobOptions(attempts=value), A_NUMBER),
    ("lifo", lambda value: JobOptions(lifo=value), YES_OR_NO),
    ("keep_logs", lambda value: JobOptions(keep_logs=value), A_NUMBER),
    ("size_limit", lambda value: JobOptions(size_limit=value), A_NUMBER),
    ("stack_trace_limit", lambda value: JobOptions(stack_trace_limit=value), A_NUMBER),
    ("timestamp", lambda value: JobOptions(timestamp=value), [*A_NUMBER, datetime(2026, 8, 1, tzinfo=UTC)]),
    ("kept count", lambda value: KeepJobs(count=value), [-2, *A_NUMBER[1:]]),
    ("kept age", lambda value: KeepJobs(age=value), [-1, -0.5, True, "3", math.nan, math.inf, timedelta(1)]),
    ("remove_on_complete", lambda value: JobOptions(remove_on_complete=value), ["yes", 1.5, {"count": 1}]),
    ("remove_on_fail", lambda value: JobOptions(remove_on_fail=value), ["yes", 1.5, {"age": 1}]),
    ("deduplication", lambda value: JobOptions(deduplication=value), ["d", {"id": "d"}, {"ttl": 1}]),
    ("deduplication id", lambda value: Deduplication(value), [*SOME_TEXT, LONE]),
    ("deduplication ttl", lambda value: Deduplication("d", ttl=value), A_TIME),
    ("deduplication extend", lambda value: Deduplication("d", extend=value), YES_OR_NO),
    ("deduplication replace", lambda value: Deduplication("d", replace=value), YES_OR_NO),
    ("parent", lambda value: JobOptions(parent=value), ["p", {"id": "p", "queue": "bull:q"}]),
    ("parent id", lambda value: Parent(value, "bull:q"), [*SOME_TEXT, LONE]),
    ("parent queue", lambda value: Parent("p", value), [*SOME_TEXT, LONE]),
    ("fail_parent_on_failure", lambda value: JobOptions(fail_parent_on_failure=value), YES_OR_NO),
    ("job id", lambda value: JobOptions(job_id=value), [*SOME_TEXT[:2], b"x", LONE]),
    # BullMQ counts its own ids, and gives some a meaning.
    (
        "job id",
        lambda value: JobOptions(job_id=value),
        ["0", "5", "-5", "NaN", "9007199254740993", "1" * 5000],
    ),
    ("job id", lambda value: JobOptions(job_id=value), ["0:a", "0:a:b", "a:b", "a:b:c:d", ":"]),
    # In Node, `wait` makes the list a hash, and no job can be added any more.
    (
        "job id",
        lambda value: JobOptions(job_id=value),
        ["wait", "active", "events", "meta", "id", "pc", "marker", "limiter", "metrics:completed:data"],
    ),
]


@pytest.mark.parametrize(
    ("field", "make", "value"),
    [
        pytest.param(field, make, value, id=f"{field} {value!r}"[:60])
        for field, make, values in REFUSED
        for value in values
    ],
)
def test_an_option_that_breaks_its_rule_is_refused(
    field: str, make: Callable[[Any], object], value: Any
) -> None:
    with pytest.raises(InvalidValue) as caught:
        make(value)
    check(caught.value, field, value)


FLAGS = ("fail_parent", "continue_parent", "ignore_dependency", "remove_dependency")


@pytest.mark.parametrize(("one", "other"), [(a, b) for a in FLAGS for b in FLAGS if a < b])
def test_two_answers_to_a_childs_failure_are_refused(one: str, other: str) -> None:
    with pytest.raises(InvalidValue, match="cannot be used together") as caught:
        JobOptions(**wrong({f"{one}_on_failure": True, f"{other}_on_failure": True}))
    check(caught.value, "options")
    assert one in str(caught.value)
    assert other in str(caught.value)


def test_what_only_looks_bad_is_taken() -> None:
    JobOptions(delay=0, priority=HIGHEST_PRIORITY, attempts=0, backoff=0, remove_on_complete=-1, lifo=False)
    for name in ("05", "٣", "5 ", "5.0", "a b", "a:b:c", "año ✓", "\0", "Wait"):
        JobOptions(job_id=name)
    assert JobOptions(delay=timedelta(minutes=1)).stored()["delay"] == 60_000
    assert JobOptions(delay=timedelta(microseconds=600)).stored()["delay"] == 1
    assert Backoff("own", timedelta(seconds=1), 0).stored() == {"type": "own", "delay": 1000, "jitter": 0}
    assert JobOptions(fail_parent_on_failure=True, continue_parent_on_failure=False).stored()["fpof"]


# ---------------------------------------------------------------------- what a job carries

itself: list[Any] = []
itself.append(itself)
deep: list[Any] = []
for _ in range(100_000):
    deep = [deep]


class Text(str):
    """A string of one's own."""

    __slots__ = ()


NOT_JSON: dict[str, Any] = {
    "an object": object(),
    "an object inside": {"a": [1, object()]},
    "a set of objects": {object()},
    "a function": len,
    "a class": int,
    "a generator": (letter for letter in ""),
    "a range": range(3),
    "a complex number": 1j,
    "an error": ValueError("x"),
    "half a character": LONE,
    "half a character as a key": {LONE: 1},
    "None as a key": {None: 1},
    "a bool as a key": {True: 1},
    "a tuple as a key": {(1, 2): 1},
    "itself inside": itself,
    "too deep": deep,
    "a kind of str": Text("x"),
}


@pytest.mark.parametrize("what", NOT_JSON)
async def test_data_that_is_not_json_is_refused(what: str, queue: Queue, store: Store) -> None:
    for add in (
        lambda data: queue.add("job", data),
        lambda data: queue.add_bulk([AddJob("job", {}), AddJob("job", data)]),
    ):
        with unchanged(store), pytest.raises(InvalidValue, match="it must be JSON") as caught:
            await add(NOT_JSON[what])
        check(caught.value, "data")
        assert len(str(caught.value)) < 500
    assert not store.dump()


@pytest.mark.parametrize("what", NOT_JSON)
async def test_progress_and_new_data_that_are_not_json_are_refused(
    what: str, queue: Queue, store: Store
) -> None:
    job = await queue.add("job", {"n": 1})
    with unchanged(store), pytest.raises(InvalidValue) as caught:
        await job.update_progress(NOT_JSON[what])
    check(caught.value, "progress")
    with unchanged(store), pytest.raises(InvalidValue) as caught:
        await job.update_data(NOT_JSON[what])
    check(caught.value, "data")
    assert job.data == {"n": 1}


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int


BECOMES: list[tuple[Any, bytes]] = [
    (None, b"null"),
    ((1, (2,)), b"[1,[2]]"),
    ({1}, b"[1]"),
    (frozenset({1}), b"[1]"),
    ({1: 2}, b'{"1":2}'),
    ("año ✓", '"año ✓"'.encode()),
    (Colour.RED, b'"red"'),
    (Point(1), b'{"x":1}'),
    (uuid.UUID(int=1), b'"00000000-0000-0000-0000-000000000001"'),
    (Decimal("1.10"), b'"1.10"'),
    (date(2026, 8, 1), b'"2026-08-01"'),
    (datetime(2026, 8, 1, 12, tzinfo=UTC), b'"2026-08-01T12:00:00Z"'),
    (timedelta(seconds=1), b'"PT1S"'),
    (b"\xff", b'"/w=="'),
    # Whole in Python; a Node worker reads 9007199254740992.
    (2**53 + 1, b"9007199254740993"),
    (2**70, b"1180591620717411303424"),
]


@pytest.mark.parametrize(("value", "raw"), BECOMES, ids=lambda value: str(value)[:40])
async def test_what_json_has_no_type_for_becomes_its_nearest(
    value: Any, raw: bytes, queue: Queue, store: Store
) -> None:
    await queue.add("job", value)
    assert store.ask("HGET", "bull:q:1", "data") == raw


@pytest.mark.parametrize("value", [math.nan, {"a": [-math.inf]}, {"a": ({"b": math.inf},), "c": None}])
async def test_numbers_that_would_become_null_are_refused(value: Any, queue: Queue, store: Store) -> None:
    """Node writes null."""
    with unchanged(store), pytest.raises(InvalidValue, match="would become null") as caught:
        await queue.add("job", value)
    check(caught.value, "data")


async def test_data_beyond_the_jobs_limit_is_refused(queue: Queue, store: Store) -> None:
    limited = JobOptions(size_limit=10)
    await queue.add("job", "12345678", limited)  # ten bytes, with its quotes
    with unchanged(store), pytest.raises(InvalidValue, match="size_limit is 10") as caught:
        await queue.add("job", "123456789", limited)
    check(caught.value, "data", "11 bytes")
    with unchanged(store), pytest.raises(InvalidValue):
        await queue.add("job", "ñññññ", limited)  # bytes, not characters
    with unchanged(store), pytest.raises(InvalidValue):
        await queue.add_bulk([AddJob("job", 1), AddJob("job", "x" * 100, limited)])
    by_default = Queue("q", queue.store.redis, defaults=limited)
    with unchanged(store), pytest.raises(InvalidValue):
        await by_default.add("job", "x" * 100)
    with unchanged(store), pytest.raises(InvalidValue):
        await queue.add("job", options=JobOptions(size_limit=0))  # Node takes 0 for no limit


# ---------------------------------------------------------------------- adding


async def test_a_name_must_be_text(queue: Queue, store: Store) -> None:
    for name in (None, 5, b"job", ["job"], LONE):
        with unchanged(store), pytest.raises(InvalidValue) as caught:
            await queue.add(wrong(name))
        check(caught.value, "job name", name)
    assert not store.dump()


async def test_one_bad_job_keeps_a_whole_bulk_out(queue: Queue, store: Store) -> None:
    good = [AddJob("job", number) for number in range(500)]
    with unchanged(store), pytest.raises(InvalidValue):
        await queue.add_bulk([*good, AddJob("job", object())])
    with unchanged(store), pytest.raises(InvalidValue):
        await queue.add_bulk([*good, AddJob(wrong(5))])
    assert not store.dump()


async def test_a_parent_that_is_not_there_is_told(queue: Queue, store: Store) -> None:
    await queue.announce()
    child = JobOptions(parent=Parent("nobody", "bull:q"))
    with unchanged(store), pytest.raises(ParentMissing, match="bull:q:nobody") as caught:
        await queue.add("job", {}, child)
    assert caught.value.code == -5
    with unchanged(store), pytest.raises(ParentMissing):
        await queue.add_bulk([AddJob("job"), AddJob("job", {}, child)])


BADLY_ADDED: list[tuple[str, Callable[[Queue], Any]]] = [
    ("job options", lambda queue: queue.add("job", 1, wrong({"delay": 1}))),
    ("job options", lambda queue: queue.add("job", 1, wrong({}))),
    ("job options", lambda queue: queue.add_bulk([AddJob("job", 1, wrong("urgent"))])),
    ("durability", lambda queue: queue.add("job", durability=wrong("bogus"))),
    ("durability", lambda queue: queue.add_bulk([AddJob("job")], durability=wrong(None))),
    ("job", lambda queue: queue.add_bulk(wrong(["job"]))),
    ("job", lambda queue: queue.add_bulk(wrong([("job", {})]))),
    ("jobs", lambda queue: queue.add_bulk(wrong(None))),
]


@pytest.mark.parametrize(("field", "call"), BADLY_ADDED)
async def test_what_cannot_be_added_is_refused(
    field: str, call: Callable[[Queue], Any], queue: Queue, store: Store
) -> None:
    with pytest.raises(InvalidValue) as caught:
        await call(queue)
    check(caught.value, field)
    assert not store.dump(), "not even the queue's own key is written"


async def test_what_is_no_job_cannot_be_removed(queue: Queue) -> None:
    """In Node, with ``meta`` go the pause, the limits and the version of the queue."""
    await queue.pause()
    await queue.remove("meta")
    assert await queue.is_paused()


# ---------------------------------------------------------------------- names of queues


@pytest.mark.parametrize("name", ["", "a:b", LONE, None, 5, b"q"])
async def test_a_name_that_makes_no_key_is_refused(name: Any, redis: Connection, store: Store) -> None:
    with unchanged(store), pytest.raises(InvalidName) as caught:
        Queue(name, redis)
    check(caught.value, "queue name", name)


@pytest.mark.parametrize("prefix", ["", LONE, None, 5])
async def test_a_prefix_that_makes_no_key_is_refused(prefix: Any, redis: Connection, store: Store) -> None:
    with unchanged(store), pytest.raises(InvalidName) as caught:
        Queue("q", redis, prefix=prefix)
    check(caught.value, "queue prefix", prefix)


async def test_a_queues_own_options_are_checked(redis: Connection, store: Store) -> None:
    with unchanged(store), pytest.raises(InvalidValue) as caught:
        Queue("q", redis, defaults=wrong({"attempts": 3}))
    check(caught.value, "defaults")
    for number in (-1, "x", None, 1.5):  # every client's scripts would stop half-way
        with unchanged(store), pytest.raises(InvalidValue) as caught:
            Queue("q", redis, max_events=wrong(number))
        check(caught.value, "max_events", number)


@pytest.fixture
async def clustered(redis_one_node_cluster: Cluster) -> AsyncIterator[Connection]:
    redis_one_node_cluster.primaries()[0].ask("FLUSHALL")
    async with connect(redis_one_node_cluster.url) as made:
        yield made


async def test_no_crossslot_an_untagged_name_is_refused_on_a_cluster(clustered: Connection) -> None:
    with pytest.raises(UntaggedName, match="'{collector}'") as caught:
        Queue("collector", clustered)
    assert isinstance(caught.value, QueueError)
    for name, prefix in (("{collector}", "bull"), ("collector", "{bull}"), ("a{b}c", "bull")):
        await Queue(name, clustered, prefix=prefix).add("job")
    with pytest.raises(TorilError):
        Queue("{}", clustered)  # braces, but no tag


async def test_no_crossslot_a_parent_in_another_slot_is_refused_before_it_is_sent(
    clustered: Connection, redis_one_node_cluster: Cluster
) -> None:
    other = await Queue("{other}", clustered).add("parent")
    queue = Queue("{q}", clustered)
    await queue.announce()
    parent = Parent(other.id, "bull:{other}")
    with closing(open_store(redis_one_node_cluster)) as store:
        with unchanged(store), pytest.raises(InvalidValue, match="same hash tag") as caught:
            await queue.add("child", {}, JobOptions(parent=parent))
        check(caught.value, "parent queue", "bull:{other}")
        with unchanged(store), pytest.raises(InvalidValue):
            await queue.add_bulk([AddJob("job"), AddJob("child", {}, JobOptions(parent=parent))])


# ---------------------------------------------------------------------- questions and orders

BAD_CALLS: list[tuple[str, Callable[[Queue], Any]]] = [
    ("state", lambda queue: queue.counts(wrong("bogus"))),
    ("state", lambda queue: queue.ids(wrong("wait"))),
    ("state", lambda queue: queue.jobs(wrong(None))),
    ("start", lambda queue: queue.ids("waiting", start=wrong("x"))),
    ("end", lambda queue: queue.jobs("waiting", end=wrong(None))),
    ("priority", lambda queue: queue.counts_per_priority(1, wrong("x"))),
    ("metrics", lambda queue: queue.metrics(wrong("active"))),
    ("state", lambda queue: queue.clean(0, state=wrong("bogus"))),
    ("grace", lambda queue: queue.clean(-1)),
    ("grace", lambda queue: queue.clean(wrong(1.5))),
    ("limit", lambda queue: queue.clean(0, limit=-1, state="waiting")),
    ("limit", lambda queue: queue.clean(0, limit=wrong("x"), state="waiting")),
    # Nothing at a time is for ever, in Node too.
    ("count", lambda queue: queue.obliterate(count=0)),
    ("count", lambda queue: queue.obliterate(count=wrong("x"))),
    ("count", lambda queue: queue.retry_jobs(count=0)),
    ("count", lambda queue: queue.retry_jobs(count=-1)),
    ("count", lambda queue: queue.promote_jobs(count=0)),
    ("count", lambda queue: queue.promote_jobs(count=-1)),
    ("state", lambda queue: queue.retry_jobs(wrong("prioritized"), until=2**60)),
    ("length", lambda queue: queue.trim_events(-1)),
    ("length", lambda queue: queue.trim_events(wrong("x"))),
    ("global concurrency", lambda queue: queue.set_global_concurrency(0)),
    ("global concurrency", lambda queue: queue.set_global_concurrency(wrong(1.5))),
    ("global concurrency", lambda queue: queue.set_global_concurrency(wrong("x"))),
    ("global concurrency", lambda queue: queue.set_global_concurrency(True)),
    ("global rate limit", lambda queue: queue.set_global_rate_limit(0, 1000)),
    ("global rate limit", lambda queue: queue.set_global_rate_limit(wrong(1.5), 1000)),
    ("duration", lambda queue: queue.set_global_rate_limit(1, -1)),
    ("duration", lambda queue: queue.set_global_rate_limit(1, wrong("x"))),
    ("duration", lambda queue: queue.rate_limit(0)),
    ("duration", lambda queue: queue.rate_limit(-1)),
    ("duration", lambda queue: queue.rate_limit(timedelta(seconds=-1))),
]
BAD_CALLS_ON_JOBS: list[tuple[str, Callable[[Any], Any]]] = [
    ("log line", lambda job: job.log(5)),
    ("log line", lambda job: job.log(b"line")),
    ("log line", lambda job: job.log(LONE)),
    ("keep", lambda job: job.clear_logs("x")),
    ("keep", lambda job: job.clear_logs(-1)),
    ("priority", lambda job: job.change_priority(-1)),
    ("priority", lambda job: job.change_priority(HIGHEST_PRIORITY + 1)),
    ("priority", lambda job: job.change_priority(1.5)),
    ("delay", lambda job: job.change_delay(-1)),
    ("delay", lambda job: job.change_delay("1")),
    ("delay", lambda job: job.change_delay(TOO_LARGE)),
    ("duration", lambda job: job.extend_lock(-1)),
    ("timestamp", lambda job: job.move_to_delayed("soon")),
    ("timestamp", lambda job: job.move_to_delayed(1.5)),
    ("state", lambda job: job.retry("prioritized")),
    ("state", lambda job: job.retry("wait")),
]


async def one_of_each(queue: Queue) -> Job:
    """A job in each place where one waits; the one that has a priority."""
    await queue.add("job")
    await queue.add("job", {}, JobOptions(delay=1000))
    return await queue.add("job", {}, JobOptions(priority=1))


@pytest.mark.parametrize(("field", "call"), BAD_CALLS)
async def test_an_order_that_breaks_a_rule_is_refused(
    field: str, call: Callable[[Queue], Any], queue: Queue, store: Store
) -> None:
    await one_of_each(queue)
    with unchanged(store), pytest.raises(InvalidValue) as caught:
        async with asyncio.timeout(5):
            await call(queue)
    check(caught.value, field)


@pytest.mark.parametrize(("field", "call"), BAD_CALLS_ON_JOBS)
async def test_an_order_to_a_job_that_breaks_a_rule_is_refused(
    field: str, call: Callable[[Job], Any], queue: Queue, store: Store
) -> None:
    job = await one_of_each(queue)
    with unchanged(store), pytest.raises(InvalidValue) as caught:
        await call(job)
    check(caught.value, field)


# ---------------------------------------------------------------------- what Node does with the same

BOTH_REFUSE: dict[str, tuple[dict[str, Any], Callable[[], object]]] = {
    "an id that is a number": ({"jobId": "5"}, lambda: JobOptions(job_id="5")),
    "a negative number": ({"jobId": "-5"}, lambda: JobOptions(job_id="-5")),
    "no number": ({"jobId": "NaN"}, lambda: JobOptions(job_id="NaN")),
    "the id 0": ({"jobId": "0"}, lambda: JobOptions(job_id="0")),
    "an id like a marker": ({"jobId": "0:a"}, lambda: JobOptions(job_id="0:a")),
    "an id with a colon": ({"jobId": "a:b"}, lambda: JobOptions(job_id="a:b")),
    "too high a priority": ({"priority": 2**21 + 1}, lambda: JobOptions(priority=2**21 + 1)),
    "a broken priority": ({"priority": 1.5}, lambda: JobOptions(priority=wrong(1.5))),
    "a jitter beyond 1": (
        {"backoff": {"type": "fixed", "delay": 1, "jitter": 1.5}},
        lambda: Backoff("fixed", 1, 1.5),
    ),
    "no deduplication id": ({"deduplication": {"id": ""}}, lambda: Deduplication("")),
    "two parent options": (
        {"failParentOnFailure": True, "continueParentOnFailure": True},
        lambda: JobOptions(fail_parent_on_failure=True, continue_parent_on_failure=True),
    ),
}
NODE_TAKES: dict[str, tuple[dict[str, Any], Callable[[], object]]] = {
    "an empty id (as none)": ({"jobId": ""}, lambda: JobOptions(job_id="")),
    "a number beyond 2^53 as an id": (
        {"jobId": "9007199254740993"},
        lambda: JobOptions(job_id="9007199254740993"),
    ),
    "a negative priority (never served before others)": ({"priority": -1}, lambda: JobOptions(priority=-1)),
    "a negative delay (stored as it is)": ({"delay": -1}, lambda: JobOptions(delay=-1)),
    "a broken delay (stored as it is)": ({"delay": 1.5}, lambda: JobOptions(delay=wrong(1.5))),
    "a delay that is a word (not delayed)": ({"delay": "5"}, lambda: JobOptions(delay=wrong("5"))),
    "negative attempts": ({"attempts": -1}, lambda: JobOptions(attempts=-1)),
    "a negative backoff": ({"backoff": -1}, lambda: JobOptions(backoff=-1)),
    "a backoff without a type": ({"backoff": {"type": "", "delay": 1}}, lambda: Backoff("")),
    "a negative ttl (as none)": ({"deduplication": {"id": "d", "ttl": -1}}, lambda: Deduplication("d", -1)),
    "a negative count": ({"removeOnComplete": {"count": -2}}, lambda: KeepJobs(count=-2)),
    "a negative age": ({"removeOnComplete": {"age": -1}}, lambda: KeepJobs(age=-1)),
    "a retention that is a word": (
        {"removeOnComplete": "yes"},
        lambda: JobOptions(remove_on_complete=wrong("yes")),
    ),
    "a negative timestamp": ({"timestamp": -1}, lambda: JobOptions(timestamp=-1)),
    "lifo that is a word (as yes)": ({"lifo": "no"}, lambda: JobOptions(lifo=wrong("no"))),
    "a delay beyond 2^53": ({"delay": 2**70}, lambda: JobOptions(delay=2**70)),
    "the id meta (as a duplicate)": ({"jobId": "meta"}, lambda: JobOptions(job_id="meta")),
    "a negative number of logs": ({"keepLogs": -1}, lambda: JobOptions(keep_logs=-1)),
}


@pytest.fixture
async def node(server: Server, store: Store) -> AsyncIterator[NodeSide]:  # noqa: ARG001 - emptied first
    async with NodeOracle() as oracle:
        side = await NodeSide.open(oracle, server)
        await side.reset()
        yield side
        await side.close()


async def test_node_agrees_on_what_is_refused(node: NodeSide) -> None:
    for what, (options, make) in BOTH_REFUSE.items():
        with pytest.raises(NodeError):
            await node.call("add", queue="q", name="job", data={}, opts=options)
        with pytest.raises(InvalidValue):
            make()
        assert "bull:q:id" not in await node.dump(), what


async def test_more_is_refused_than_node_refuses(node: NodeSide) -> None:
    for place, (what, (options, make)) in enumerate(NODE_TAKES.items()):
        await node.call("add", queue=f"q{place}", name="job", data={}, opts=options)
        assert f"bull:q{place}:events" in await node.dump(), what
        with pytest.raises(InvalidValue):
            make()
