"""The audit: whether every table says what the one before it says, and the first of them what the log says.

Each check recomputes something in one piece that a job has made in batches, and counts what differs. Nothing
is changed. With a ``fraction``, aggregates are chosen by a hash of their keys: the same ones in every table,
and every time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr
from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

from toril.errors import InvalidValue, TorilError
from toril.lake.erasures import ERASURES
from toril.lake.lake import Lake, Record
from toril.lake.problems import SPARKS, one_line
from toril.lake.rollups import KEYS as ROLLUP_KEYS
from toril.lake.rollups import rollups_of
from toril.lake.source import Door, Marks, read_log
from toril.lake.source.told import told as told_by_spark
from toril.lake.spans import spans_of
from toril.lake.summaries import TRACE_SUMMARIES, summaries_of
from toril.lake.tables import EVENTS, LOG_COLUMNS, QUARANTINE, ROLLUPS, SPANS
from toril.log.entry import Partition
from toril.pipelines.spans.recording import SPAN_RECORDED
from toril.pipelines.spans.summary import SPAN_AGGREGATE

PLACE = ("log_epoch", "log_partition", "ordinal")
AGGREGATE = ("tenant", "aggregate_type", "aggregate_id")
PARTS = 10_000
"""Into how many parts a hash divides aggregates."""

SAMPLES = 5
MOST_HOLES = 100_000
"""Holes that are looked at one by one."""

SUMMARIES = TRACE_SUMMARIES.name

Told = Callable[[int, int, str], None]
"""Is told how far it is: so many checks, of so many, and which one is at work."""


@dataclass(slots=True)
class Finding:
    """One kind of thing that is not as it should be."""

    kind: str
    count: int
    reason: str
    samples: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Check:
    """What was looked at, and what was found."""

    name: str
    promise: str
    """What it proves, where nothing is found."""
    looked: int = 0
    """Rows, aggregates or places, as the promise says."""
    findings: list[Finding] = field(default_factory=list)
    skipped: str = ""
    """Why it was not done; empty: it was."""
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def problems(self) -> int:
        """How many in all."""
        return sum(finding.count for finding in self.findings)

    def add(self, kind: str, count: int, reason: str, samples: Iterable[Mapping[str, Any]] = ()) -> None:
        """Note something, where there is any of it."""
        if count:
            self.findings.append(Finding(kind, count, reason, [_plain(one) for one in samples][:SAMPLES]))


class Lag(NamedTuple):
    """How far the archive is in a partition."""

    partition: str
    archived: int
    tail: int

    @property
    def behind(self) -> int:
        """Events of the log that are not in the lake."""
        return max(self.tail - self.archived, 0)


@dataclass(slots=True)
class Figures:
    """Numbers for the report's plots."""

    lag: list[Lag] = field(default_factory=list)
    volume: list[tuple[int, int]] = field(default_factory=list)
    """Hours (seconds since 1970), and events that were recorded in them."""
    costs: list[tuple[str, int, int]] = field(default_factory=list)
    """Models, nano-USD, and spans; the dearest first."""
    tables: list[tuple[str, int, int]] = field(default_factory=list)
    """Names, rows and batches."""


@dataclass(slots=True)
class Audit:
    """What an audit found."""

    lake: str
    log: str
    fraction: float
    began_at: int
    """Nanoseconds since 1970."""
    checks: list[Check] = field(default_factory=list)
    figures: Figures = field(default_factory=Figures)
    seconds: float = 0.0

    @property
    def problems(self) -> int:
        """Of all checks."""
        return sum(check.problems for check in self.checks)

    @property
    def ok(self) -> bool:
        """Whether nothing was found, and something was looked at."""
        return not self.problems and any(not check.skipped for check in self.checks)

    def as_value(self) -> dict[str, Any]:
        """As JSON has it."""
        made = asdict(self)
        for one, check in zip(made["checks"], self.checks, strict=True):
            one["problems"] = check.problems
        return {"ok": self.ok, "problems": self.problems, **made}


LiveStates = Callable[[Sequence[Mapping[str, Any]]], list[tuple[int, dict[str, Any]] | None]]
"""The live summaries of some traces (``tenant``, ``trace_id``): each with its version, or None."""


def audit(
    lake: Lake,
    *,
    url: str | None = None,
    log: str | None = "log",
    fraction: float = 1.0,
    only: Sequence[str] = (),
    live: LiveStates | None = None,
    told: Told | None = None,
) -> Audit:
    """Look through a lake. ``log=None``: without asking the log; ``only``: these checks, by name."""
    if not 0 < fraction <= 1:
        raise InvalidValue("fraction", fraction, "more than 0, and at most 1")
    for name in only:
        if name not in CHECKS:
            raise InvalidValue("check", name, f"one of {', '.join(CHECKS)}")
    lake.check(EVENTS)
    began = time.monotonic()
    made = Audit(lake.path, log or "", fraction, time.time_ns())
    work = _Work(lake, url, log, fraction, live)
    names = [name for name in CHECKS if not only or name in only]
    for place, name in enumerate(names):
        if told is not None:
            told(place, len(names), name)
        made.checks.append(work.do(name))
    if told is not None:
        told(len(names), len(names), "")
    made.figures = work.figures()
    made.seconds = time.monotonic() - began
    return made


CHECKS = {
    "versions": "every aggregate has versions 1, 2, 3 … once each",
    "ordinals": "every partition has ordinals 1, 2, 3 … once each, up to where the table says it is",
    "log": "every event that is still in the log is in the lake, byte by byte",
    "spans": "every event that recorded a span is in spans or in quarantine, once, as it was recorded",
    "summaries": "every trace's summary is what its spans come to",
    "live": "every live summary is what the lake says at the same version",
    "rollups": "every rollup is what its spans come to, and their sums are those of the summaries",
}
"""The checks, and what each proves."""


class _Work:
    def __init__(
        self, lake: Lake, url: str | None, log: str | None, fraction: float, live: LiveStates | None
    ) -> None:
        self.lake = lake
        self.url = url
        self.log = log
        self.live = live
        self.fraction = fraction
        self.record = lake.last(EVENTS)
        self.tails: Marks = {}

    def do(self, name: str) -> Check:
        check = Check(name, CHECKS[name])
        began = time.monotonic()
        try:
            getattr(self, f"_{name}")(check)
        except _Skip as why:
            check.skipped = str(why)
        except SPARKS as problem:
            ours = told_by_spark(problem)
            check.add("not readable", 1, str(ours) if ours is not None else one_line(problem))
        except TorilError as problem:
            check.add("not readable", 1, str(problem))
        check.seconds = time.monotonic() - began
        return check

    def chosen(self, rows: DataFrame, *keys: str) -> DataFrame:
        """Those whose aggregate is in the sample."""
        if self.fraction == 1:
            return rows
        part = max(1, round(self.fraction * PARTS))
        return rows.where(f"pmod(xxhash64({', '.join(keys or AGGREGATE)}), {PARTS}) < {part}")

    def of_traces(self, rows: DataFrame) -> DataFrame:
        return self.chosen(rows, "tenant", f"'{SPAN_AGGREGATE}'", "trace_id")

    def table(self, name: str) -> Record:
        if not self.lake.exists(name):
            raise _Skip(f"there is no table {name} yet")
        return self.lake.last(name)

    # ------------------------------------------------------------------ events

    def _versions(self, check: Check) -> None:
        rows = self.chosen(self.lake.read(EVENTS))
        seen = (
            rows.groupBy(*AGGREGATE)
            .agg(
                expr("count(1) AS events"),
                expr("count(DISTINCT version) AS versions"),
                expr("min(version) AS first"),
                expr("max(version) AS last"),
            )
            .cache()
        )
        try:
            check.looked = seen.count()
            twice = seen.where("events > versions")
            check.add("version twice", twice.count(), TWICE_VERSION, _some(twice))
            gap = seen.where("versions < last")
            check.add("version missing", gap.count(), MISSING_VERSION, _some(gap))
        finally:
            seen.unpersist()

    def _ordinals(self, check: Check) -> None:
        rows = self.lake.read(EVENTS).select(*PLACE)
        groups = rows.groupBy(*PLACE).count()
        twice = groups.where("count > 1")
        check.add("place twice", twice.count(), TWICE_PLACE, _some(twice))
        groups.select(*PLACE).createOrReplaceTempView("toril_audit_places")
        spark = self.lake.spark
        ends = spark.sql(
            "SELECT log_epoch, log_partition, max(ordinal) AS last, count(1) AS events"
            " FROM toril_audit_places GROUP BY log_epoch, log_partition"
        ).collect()
        last = {Partition(row["log_epoch"], row["log_partition"]): row["last"] for row in ends}
        positions = {Partition.parse(name): place[0] for name, place in self.record.positions.items()}
        check.looked = sum(row["events"] for row in ends)
        past = [
            {"partition": str(one), "last": last[one], "record": positions.get(one, 0)}
            for one in sorted(last)
            if last[one] > positions.get(one, 0)
        ]
        check.add("past the record", len(past), PAST, past)
        holes = [
            (Partition(row["log_epoch"], row["log_partition"]), row["before"] + 1, row["ordinal"] - 1)
            for row in spark.sql(
                "SELECT * FROM (SELECT *, lag(ordinal, 1, 0) OVER (PARTITION BY log_epoch, log_partition"
                " ORDER BY ordinal) AS before FROM toril_audit_places) WHERE ordinal > before + 1"
            )
            .limit(MOST_HOLES)
            .collect()
        ]
        holes += [
            (one, last.get(one, 0) + 1, upto) for one, upto in positions.items() if upto > last.get(one, 0)
        ]
        self._explain_holes(check, holes)

    def _explain_holes(self, check: Check, holes: list[tuple[Partition, int, int]]) -> None:
        """What was erased, in the lake or in the log, is no loss."""
        missing: dict[Partition, set[int]] = {}
        for partition, first, upto in holes:
            missing.setdefault(partition, set()).update(range(first, min(upto, first + MOST_HOLES) + 1))
        total = sum(map(len, missing.values()))
        if total and self.lake.exists(ERASURES):
            for row in self.lake.read(ERASURES).collect():
                left = missing.get(Partition(row["log_epoch"], row["log_partition"]))
                if left:
                    left.difference_update(range(row["first"], row["last"] + 1))
        if any(missing.values()) and self.log is not None:
            for partition, gone in self._erased_in_log(missing).items():
                missing[partition] -= gone
        if erased := total - sum(map(len, missing.values())):
            check.notes.append(f"{erased:,} places are empty: their tenants were erased")
        lost = [
            {"partition": str(partition), "ordinal": ordinal}
            for partition in sorted(missing)
            for ordinal in sorted(missing[partition])
        ]
        check.add("place missing", len(lost), MISSING_PLACE, lost)

    def _erased_in_log(self, missing: Mapping[Partition, set[int]]) -> dict[Partition, set[int]]:
        """Of these places, those that the log still has, and has erased."""
        found: dict[Partition, set[int]] = {}

        async def look(door: Door) -> None:
            for partition, wanted in missing.items():
                store, after = door.log.store(partition), "0-0"
                last = max(wanted, default=0)
                while page := await store.page(after, 1000):
                    found.setdefault(partition, set()).update(
                        entry.ordinal for entry in page if entry.erased and entry.ordinal in wanted
                    )
                    after = page[-1].id
                    if page[-1].ordinal >= last:
                        break

        with suppress(TorilError), Door(self.url, self.log or "") as door:
            door.do(look(door))
        return found

    def _log(self, check: Check) -> None:
        if self.log is None:
            raise _Skip("the log was not to be asked")
        with Door(self.url, self.log) as door:
            self.tails, firsts = door.tails(), door.firsts()
        upto = {name: place for name, place in self.record.positions.items() if name in self.tails}
        behind = [name for name in upto if upto[name][0] > self.tails[name][0]]
        check.add("log is behind", len(behind), DIVERGED, ({"partition": name} for name in behind))
        after = {name: firsts[name] for name in upto if firsts[name][0] < upto[name][0]}
        upto = {name: upto[name] for name in after if name not in behind}
        after = {name: after[name] for name in upto}
        names = [column.name for column in LOG_COLUMNS]
        if not upto:
            check.notes.append("the log has nothing that is archived: all of it was trimmed")
            return
        hot = self.chosen(read_log(self.lake.spark, self.url, self.log, after, upto))
        bounds = " OR ".join(
            f"(log_epoch = {one.epoch} AND log_partition = {one.number} AND ordinal > {after[str(one)][0]}"
            f" AND ordinal <= {upto[str(one)][0]})"
            for one in map(Partition.parse, upto)
        )
        cold = self.chosen(self.lake.read(EVENTS).where(bounds))
        check.looked = _compare(
            check,
            cold.select(*names),
            hot.select(*names),
            PLACE,
            ("in the lake and not in the log", ONLY_LAKE),
            ("in the log and not in the lake", ONLY_LOG),
            "differs from the log: {}",
            CHANGED,
        )

    # ------------------------------------------------------------------ spans

    def _spans(self, check: Check) -> None:
        record = self.table(SPANS.name)
        self.table(QUARANTINE.name)
        events = self.chosen(self.lake.batches(EVENTS, 0, record.source)).where(
            f"event_type IS NULL OR event_type = '{SPAN_RECORDED}'"
        )
        spans = self.of_traces(self.lake.read(SPANS))
        refused = self.chosen(self.lake.read(QUARANTINE))
        waits = refused.where("requeued_at IS NULL")
        parts = [
            rows.select(
                *PLACE, *(expr(f"{int(place == each)} AS {name}") for each, name in enumerate(_SIDES))
            )
            for place, rows in enumerate((events, spans, waits))
        ]
        counted = (
            parts[0]
            .unionByName(parts[1])
            .unionByName(parts[2])
            .groupBy(*PLACE)
            .agg(*(expr(f"sum({name}) AS {name}") for name in _SIDES))
            .cache()
        )
        try:
            check.looked = counted.where("event > 0").count()
            for kind, condition, reason in _SPAN_KINDS:
                found = counted.where(condition)
                check.add(kind, found.count(), reason, _some(found))
        finally:
            counted.unpersist()
        again = refused.where("requeued_at IS NOT NULL").select(*PLACE)
        names = [column.name for column in SPANS.columns if not column.generated and column.name != "batch"]
        asked = spans.join(again, list(PLACE), "left_anti")
        made = spans_of(events.join(again, list(PLACE), "left_anti"))
        _compare(
            check,
            asked.select(*names).dropDuplicates(list(PLACE)),
            made.dropDuplicates(list(PLACE)),
            PLACE,
            None,
            None,
            "a span's {} is not its event's",
            SPAN_DIFFERS,
        )

    # ------------------------------------------------------------------ gold

    def _summaries(self, check: Check) -> None:
        record = self.table(SUMMARIES)
        spans = self.of_traces(self.lake.batches(SPANS, 0, record.source))
        want = summaries_of(spans)
        have = self.of_traces(self.lake.read(SUMMARIES))
        # `state` is what the next batch is merged with, and `day` where the row lies: neither is shown.
        names = [name for name in have.columns if name not in ("state", "day", "batch")]
        check.looked = _compare(
            check,
            have.select(*names),
            want.select(*names),
            ("tenant", "trace_id"),
            ("summary without spans", NO_SPANS),
            ("trace without a summary", NO_SUMMARY),
            "{} is not what the spans say",
            SUMMARY_DIFFERS,
        )

    def _live(self, check: Check) -> None:
        if self.live is None:
            raise _Skip("the live store was not to be asked")
        self.table(SUMMARIES)
        rows = self.of_traces(self.lake.read(SUMMARIES)).toLocalIterator(prefetchPartitions=True)
        other = 0
        different: dict[str, list[dict[str, Any]]] = {}
        absent: list[dict[str, Any]] = []
        for some in _in_groups(rows, 500):
            for row, state in zip(some, self.live(some), strict=True):
                who = {"tenant": row["tenant"], "trace_id": row["trace_id"], "version": row["version"]}
                if state is None:
                    absent.append(who)
                    continue
                version, fields = state
                if version != row["version"]:
                    other += 1
                    continue
                check.looked += 1
                for name, value in fields.items():
                    if name in row and not _same(row[name], value):
                        different.setdefault(name, []).append({**who, "lake": row[name], "live": value})
        check.add("not live", len(absent), NOT_LIVE, absent)
        for name, found in sorted(different.items()):
            check.add(f"live {name} differs", len(found), LIVE_DIFFERS, found)
        if other:
            check.notes.append(f"{other:,} traces are at another version live, and were not compared")

    def _rollups(self, check: Check) -> None:
        record = self.table(ROLLUPS.name)
        want = rollups_of(self.lake.batches(SPANS, 0, record.source))
        have = self.lake.read(ROLLUPS).select(*want.columns)
        check.looked = _compare(
            check,
            have,
            want,
            ROLLUP_KEYS,
            ("rollup without spans", NO_SPANS),
            ("spans without a rollup", NO_ROLLUP),
            "{} is not what the spans come to",
            ROLLUP_DIFFERS,
        )
        if not self.lake.exists(SUMMARIES):
            check.notes.append("there are no summaries yet to compare sums with")
            return
        if self.lake.last(SUMMARIES).source != record.source:
            check.notes.append("summaries and rollups are not at the same batch: sums were not compared")
            return
        sums = ("spans", "errors", "input_tokens", "output_tokens", "cost")
        added = [expr(f"CAST(coalesce(sum({name}), 0) AS DECIMAL(38,0)) AS {name}") for name in sums]
        _compare(
            check,
            have.where("grain = 'day'").groupBy("tenant").agg(*added),
            self.lake.read(SUMMARIES).groupBy("tenant").agg(*added),
            ("tenant",),
            ("tenant without summaries", SUMS),
            ("tenant without rollups", SUMS),
            "the sum of {} is not that of the summaries",
            SUMS,
        )

    # ------------------------------------------------------------------ figures

    def figures(self) -> Figures:
        made = Figures()
        if not self.tails and self.log is not None:
            with suppress(TorilError), Door(self.url, self.log) as door:
                self.tails = door.tails()
        for name, (tail, _) in self.tails.items():
            made.lag.append(Lag(name, self.record.positions.get(name, (0, ""))[0], tail))
        hours = self.lake.read(EVENTS).groupBy(expr("recorded_at DIV 3600000000000 AS hour")).count()
        made.volume = sorted((row["hour"] * 3600, row["count"]) for row in hours.collect())
        if self.lake.exists(ROLLUPS):
            rows = self.lake.read(ROLLUPS).where("grain = 'day' AND model <> ''").groupBy("model")
            costs = rows.agg(expr("sum(cost) AS cost"), expr("sum(spans) AS spans")).collect()
            made.costs = sorted(
                ((row["model"], int(row["cost"]), int(row["spans"])) for row in costs),
                key=lambda one: (-one[1], one[0]),
            )
        for name in (EVENTS.name, SPANS.name, QUARANTINE.name, SUMMARIES, ROLLUPS.name):
            if self.lake.exists(name):
                made.tables.append((name, self.lake.read(name).count(), self.lake.last(name).batch))
        return made


class _Skip(Exception):
    """A check cannot be done, for this reason."""


# ---------------------------------------------------------------------------- comparing


def _compare(
    check: Check,
    have: DataFrame,
    want: DataFrame,
    keys: Sequence[str],
    only_have: tuple[str, str] | None,
    only_want: tuple[str, str] | None,
    kind: str,
    reason: str,
) -> int:
    """Note in which rows and columns two tables differ; how many rows were compared. None: not noted."""
    names = [name for name in want.columns if name not in keys]
    both = _texts(have, keys, "have").join(_texts(want, keys, "want"), list(keys), "full_outer").cache()
    try:
        differs = {name: f"NOT (have.`{name}` <=> want.`{name}`)" for name in names}
        present = "have IS NOT NULL AND want IS NOT NULL"
        (row,) = both.agg(
            expr("count(1) AS rows"),
            expr("count_if(want IS NULL) AS only_have"),
            expr("count_if(have IS NULL) AS only_want"),
            *(expr(f"count_if({present} AND {how}) AS `field {name}`") for name, how in differs.items()),
        ).collect()
        for said, side, condition in (
            (only_have, "only_have", "want IS NULL"),
            (only_want, "only_want", "have IS NULL"),
        ):
            if said is not None:
                check.add(
                    said[0],
                    row[side],
                    said[1],
                    _some(both.where(condition).select(*keys)) if row[side] else (),
                )
        for name, how in differs.items():
            if count := row[f"field {name}"]:
                some = both.where(f"{present} AND {how}").select(
                    *keys, expr(f"have.`{name}` AS is"), expr(f"want.`{name}` AS should_be")
                )
                check.add(kind.format(name), count, reason, _some(some))
        compared: int = row["rows"]
        return compared
    finally:
        both.unpersist()


def _texts(rows: DataFrame, keys: Sequence[str], name: str) -> DataFrame:
    """Keys, and all other columns as text that is the same for the same value."""
    made = []
    for each in rows.schema:
        if each.name in keys:
            continue
        quoted = f"`{each.name}`"
        if isinstance(each.dataType, MapType):
            text = f"to_json(array_sort(map_entries({quoted})))"
        elif isinstance(each.dataType, (ArrayType, StructType)):
            text = f"to_json({quoted})"
        elif isinstance(each.dataType, BinaryType):
            # Bytes that are no text are compared all the same.
            text = f"coalesce(try_validate_utf8(CAST({quoted} AS STRING)), hex({quoted}))"
        else:
            text = f"CAST({quoted} AS STRING)"
        made.append(f"'{each.name}', {text}")
    return rows.select(*keys, expr(f"named_struct({', '.join(made)}) AS {name}"))


def _some(rows: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in rows.limit(SAMPLES).collect()]


def _in_groups(rows: Iterable[Any], most: int) -> Iterable[list[dict[str, Any]]]:
    group: list[dict[str, Any]] = []
    for row in rows:
        group.append(row.asDict(recursive=True))
        if len(group) == most:
            yield group
            group = []
    if group:
        yield group


def _same(one: Any, other: Any) -> bool:
    """Whether a value of a table is a value of a live state."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple, set, frozenset)):
        return sorted(map(str, one)) == sorted(map(str, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other or one == other
    return str(one) == str(other)


def _plain(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A sample as JSON can say it; long texts are cut."""

    def short(value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float)):
            return value
        text = bytes(value).decode(errors="replace") if isinstance(value, (bytes, bytearray)) else str(value)
        return text if len(text) <= 120 else f"{text[:120]}…"

    return {name: short(value) for name, value in sample.items()}


_SIDES = ("event", "span", "refused")
_SPAN_KINDS = (
    (
        "event in neither",
        "event > 0 AND span = 0 AND refused = 0",
        "an event that recorded a span is in neither table: the step that makes spans has lost it",
    ),
    (
        "event in both",
        "span > 0 AND refused > 0",
        "an event is a span and waits in quarantine as well: a requeue was cut off; run it again",
    ),
    ("span twice", "span > 1", "a span is there more than once: a batch was written twice"),
    ("refused twice", "refused > 1", "an event is in quarantine more than once: a batch was written twice"),
    (
        "span without an event",
        "event = 0",
        "a row has no event: it was made up, or the event was removed from the lake without it",
    ),
)

TWICE_VERSION = (
    "two events of an aggregate have one version: a batch was archived twice, or the tenant was erased from "
    "the log, not from the lake, and came again"
)
MISSING_VERSION = (
    "a version between the first and the last is not there: it was lost, or the archive began after the log "
    "was trimmed"
)
TWICE_PLACE = "a place in the log is in the lake twice: a batch was archived twice"
MISSING_PLACE = (
    "the table says that it has read past this place, and the event is not there, and it was not erased: it "
    "was lost"
)
PAST = "the table has events past where its last commit says it is: something else has written to it"
DIVERGED = "the lake has more than the log: a failover has lost the end of it"
ONLY_LAKE = (
    "the log has this place, and no event in it: its tenant was erased from the log, and not from the lake "
    "(`toril lake erase`)"
)
ONLY_LOG = (
    "the archive has passed this event, and does not have it: it was lost, or erased from the lake only"
)
CHANGED = "what the lake has is not what was recorded: a file was changed"
SPAN_DIFFERS = "read again from its event, the column has another value: another version of the code made it"
NO_SPANS = "it is there, and none of its spans is: spans were removed without it"
NO_SUMMARY = "spans are there, and no summary of them: the step that makes summaries has lost them"
NO_ROLLUP = "spans are there, and they were not counted"
SUMMARY_DIFFERS = (
    "made anew from all spans in one piece, the field has another value: a batch was merged twice or not at "
    "all, or other code made it"
)
ROLLUP_DIFFERS = "made anew from all spans in one piece, it is another number: a batch was added twice or not"
SUMS = "rollups and summaries are made of the same spans, so their sums must be the same"
NOT_LIVE = "the lake has a summary of a trace that the live store does not know: it was erased, or went cold"
LIVE_DIFFERS = "live and batch have read the same events, and say something else: `live-is-batch` is broken"
