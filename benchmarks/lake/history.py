"""History as it grows: what a batch costs, what a replay costs, and who else could do it.

Events are written straight into ``events`` (:mod:`benchmarks.lake.made`), not through Redis: ten million
would take it an hour. From there on it is the product's own steps. The first epoch of their log is over,
with all of its events in the lake.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession

from toril import connect
from toril.lake.engine import SPANS_TYPED, Native, folded
from toril.lake.generations import remove
from toril.lake.lake import Lake, Record
from toril.lake.replay import replay
from toril.lake.rollups import RollupsStep
from toril.lake.sessions import spread
from toril.lake.spans import SpansStep
from toril.lake.steps import Step
from toril.lake.subjects import TRACE_SUMMARY, Subject
from toril.lake.summaries import SummariesStep
from toril.lake.tables import EVENTS, SPANS
from toril.log import Log
from toril.pipelines.spans.summary import SPAN_AGGREGATE

from . import by_hand, made
from .others import ENGINES
from .readings import Readings
from .subjects import Brief, Pauses, TraceSummary
from .watch import Peak

CHUNK = 3_125 * made.UNIT
"""Events that history grows by in one batch: half a million."""
BATCH = 125 * made.UNIT
"""Events of the batch that is measured, at most: twenty thousand, as come in ten seconds of a busy day."""
BATCHES = 5
"""How often it is measured at each length of history."""
WARM = 2
"""Batches before the first one that counts."""
WARM_REPLAYS = 6
"""Replays before the first one that counts, at the most."""
STEADY = 0.95
"""Java is warm when a replay takes no less than this part of the time that the one before it took."""

NATIVE, FOLD, BY_HAND = "native engine", "fold engine", "PySpark by hand"
BY_HAND_ALWAYS = "PySpark by hand, right for any data"

Contest = dict[str, Callable[[], DataFrame]]
"""By contestant, what is to be computed."""

REPLAYED = {
    NATIVE: TRACE_SUMMARY,
    FOLD: Subject(pipeline="bench", name="pauses", projection=Pauses(), aggregate_type=SPAN_AGGREGATE),
}
"""By engine, what it replays."""


async def begin_log(url: str) -> None:
    """A log whose first epoch is over and gone."""
    async with connect(url) as redis, Log(redis, partitions=made.PARTITIONS) as log:
        await log.layout()
        await log.resize(2 * made.PARTITIONS)
        if await log.drop_epoch() is None:
            raise RuntimeError("the first epoch is not over")


@dataclass(slots=True)
class Costs:
    """Seconds of one batch, by length of history and table; and of one replay, by length and engine."""

    batches: dict[int, dict[str, list[float]]] = field(default_factory=dict)
    replays: dict[int, dict[str, list[float]]] = field(default_factory=dict)
    memory: dict[int, dict[str, int]] = field(default_factory=dict)
    size: int = BATCH
    """Events of a batch."""
    built: dict[str, float] = field(default_factory=dict)
    """By table, the events that it took in a second while history was built, in batches of ``CHUNK``."""

    def batch(self, length: int, table: str) -> float:
        """The median; of all tables together, that of the sums."""
        found = self.batches[length]
        if table != ALL:
            return median(found[table])
        return median(map(sum, zip(*found.values(), strict=True)))

    def replay(self, length: int, engine: str) -> float:
        """The median, in seconds per event."""
        return median(self.replays[length][engine]) / length


ALL = "all tables"


class History:
    """A lake that grows."""

    def __init__(
        self, spark: SparkSession, folder: Path, url: str, batch: int, say: Callable[[str], None]
    ) -> None:
        self.lake = Lake(spark, folder / "lake")
        self.costs = Costs(size=batch)
        self._url = url
        self._say = say
        self._steps: Sequence[Step] = (SpansStep(), SummariesStep(), RollupsStep())
        self._cores = spark.sparkContext.defaultParallelism
        self._seconds: dict[str, float] = {}
        self._events = 0
        self.lake.ensure(EVENTS)
        for step in self._steps:
            step.prepare(self.lake)

    @property
    def length(self) -> int:
        """Events that there are."""
        return self._events

    @property
    def traces(self) -> int:
        """The aggregates that they are of."""
        return self._events // made.SPANS

    # ------------------------------------------------------------------ growing

    def grow(self, upto: int) -> None:
        """Have so many events in all tables."""
        began, before = time.monotonic(), self._events
        while self._events < upto:
            some = min(CHUNK, upto - self._events)
            for table, took in self._batch(some, ready=False).items():
                self._seconds[table] = self._seconds.get(table, 0.0) + took
        self.costs.built = {table: self._events / took for table, took in self._seconds.items()}
        self.costs.built[ALL] = self._events / sum(self._seconds.values())
        rate = (self._events - before) / (time.monotonic() - began)
        self._say(f"{self._events:,} events in all tables, {rate:,.0f} a second")

    def measure_batches(self) -> None:
        """What one batch more costs, as history is now."""
        first = not self.costs.batches
        length = self._events
        for turn in range(-WARM if first else 0, BATCHES):
            for table, took in self._batch(self.costs.size, ready=True).items():
                if turn >= 0:
                    self.costs.batches.setdefault(length, {}).setdefault(table, []).append(took)
        self._say(
            f"a batch of {self.costs.size:,} events after {length:,}: {self.costs.batch(length, ALL):.1f} s"
        )

    def _batch(self, events: int, *, ready: bool) -> dict[str, float]:
        """One batch through all tables: by table, the seconds. ``ready``: its rows are made beforehand."""
        lake, first, last = self.lake, self._events, self._events + events
        rows = made.events(lake.spark, first, last, self._cores)
        if ready:
            rows = rows.persist()
            rows.count()
        seconds = {}
        began = time.perf_counter()
        have = lake.last(EVENTS)
        upto = {f"{number:02}": (last // made.PARTITIONS, f"{last}-0") for number in range(made.PARTITIONS)}
        lake.append(rows, EVENTS, Record(batch=have.batch + 1, positions=upto))
        seconds[EVENTS.name] = time.perf_counter() - began
        for step in self._steps:
            began = time.perf_counter()
            while step.once(lake):
                pass
            seconds[step.table.name] = time.perf_counter() - began
        rows.unpersist()
        self._events = last
        return seconds

    # ------------------------------------------------------------------ replay

    def measure_replays(self, rounds: int) -> None:
        """All of history once more, by both engines: whole replays, each into a generation of its own."""
        length, first = self._events, not self.costs.replays
        for engine, subject in REPLAYED.items():
            before = inf
            for _ in range(WARM_REPLAYS if first else 0):
                took, _ = self._replay(engine, subject)
                if took >= STEADY * before:
                    break
                before = took
        for turn in range(rounds):
            for engine in sorted(REPLAYED, reverse=bool(turn % 2)):
                took, peak = self._replay(engine, REPLAYED[engine])
                self.costs.replays.setdefault(length, {}).setdefault(engine, []).append(took)
                seen = self.costs.memory.setdefault(length, {})
                seen[engine] = max(seen.get(engine, 0), peak)
        rates = ", ".join(f"{engine} {1 / self.costs.replay(length, engine):,.0f}" for engine in REPLAYED)
        self._say(f"replay of {length:,} events, events/s: {rates}")

    def _replay(self, engine: str, subject: Subject) -> tuple[float, int]:
        """The seconds of one, and the most memory."""
        with Peak() as peak:
            began = time.perf_counter()
            made_now = replay(self.lake, subject, url=self._url, engine=engine.partition(" ")[0])
            took = time.perf_counter() - began
        if made_now.rows != self.traces:
            raise RuntimeError(f"{engine}: {made_now.rows:,} states of {self.traces:,} traces")
        remove(self.lake, made_now, time.time_ns())
        return took, peak.bytes

    def contests(self) -> dict[str, Contest]:
        """By result, who computes it."""
        events, spans = self.lake.read(EVENTS), self.lake.read(SPANS)
        return {
            "TraceSummary, all fields": {
                NATIVE: lambda: shown(TraceSummary, spans),
                BY_HAND: lambda: by_hand.summary(spans),
            },
            "numbers, a set and a first": {
                NATIVE: lambda: shown(Brief, spans),
                BY_HAND: lambda: by_hand.brief(spans),
                BY_HAND_ALWAYS: lambda: by_hand.brief_always(spans),
                FOLD: lambda: folded(Brief, events),
            },
            "a fold in Python, in order": {
                FOLD: lambda: folded(Pauses(), events),
                BY_HAND: lambda: by_hand.pauses(events),
            },
        }

    def contest(self, name: str, contest: Contest, rounds: int) -> Readings:
        """Every contestant in each round, in turn; results are computed in full, and not kept."""
        found, sides = Readings(), list(contest)
        for turn in range(-1, rounds):
            for side in sides if turn % 2 else reversed(sides):
                with Peak() as peak, spread(self.lake.spark, self._events):
                    began = time.perf_counter()
                    contest[side]().write.format("noop").mode("overwrite").save()
                    took = time.perf_counter() - began
                if turn >= 0:
                    found.add(side, self._events / took, peak.bytes)
        self._say(f"{name}: {', '.join(f'{side} {found.rate(side):,.0f}' for side in sides)} events/s")
        return found

    def measure_others(self, rounds: int, found: Readings) -> None:
        """The small result by engines in one process, each in one of its own."""
        path = self.lake.place(SPANS)
        for _ in range(rounds):
            for engine in ENGINES:
                command = [sys.executable, "-m", "benchmarks.lake.others", engine, path]
                process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                with process, Peak(process.pid) as peak:
                    said = process.communicate()[0]
                if process.returncode:
                    raise RuntimeError(f"{engine} failed")
                took, _, spans = said.split()
                if int(spans) != self._events:
                    raise RuntimeError(f"{engine} saw {spans} spans of {self._events:,}")
                found.add(engine, self._events / float(took), peak.bytes)
        self._say(", ".join(f"{engine} {found.rate(engine):,.0f}" for engine in ENGINES) + " events/s")

    # ------------------------------------------------------------------ the same result

    def check(self) -> None:
        """Refuse to compare what is not the same."""
        spans, events = self.lake.read(SPANS), self.lake.read(EVENTS)
        hands = ((Brief, by_hand.brief), (Brief, by_hand.brief_always), (TraceSummary, by_hand.summary))
        for projection, hand in hands:
            ours, theirs = shown(projection, spans), hand(spans)
            plain = [_plain(name) for name in ours.columns]
            if different := ours.selectExpr(*plain).exceptAll(theirs.selectExpr(*plain)).take(1):
                raise RuntimeError(f"{projection.name} by hand is not the same: {different[0]}")
        keys = ["tenant", "aggregate_id", "version"]
        state = "CAST(state AS STRING)"
        ours = folded(Pauses(), events).selectExpr(*keys, f"get_json_object({state}, '$.state') AS state")
        theirs = by_hand.pauses(events).selectExpr(*keys, f"{state} AS state")
        names = ("ended", "longest", "pauses", "after")
        values = [f"get_json_object(state, '$.{name}') AS `{name}`" for name in names]
        if different := ours.selectExpr(*keys, *values).exceptAll(theirs.selectExpr(*keys, *values)).take(1):
            raise RuntimeError(f"pauses by hand is not the same: {different[0]}")


def shown(projection: type[Brief | TraceSummary], spans: DataFrame) -> DataFrame:
    """What a projection shows of each trace, by Spark's own expressions."""
    native = Native(projection, SPANS_TYPED)
    columns = [f"{how} AS `{name}`" for name, how in native.show().items()]
    return native.gather(spans).selectExpr(*native.typing.keys, "version", *columns)


def _plain(name: str) -> str:
    """A column as text: rows with maps cannot be compared, and sums may have another type."""
    return f"to_json(named_struct('{name}', `{name}`)) AS `{name}`"


def disk(path: Path) -> int:
    """Bytes of all files below."""
    return sum(Path(folder, name).stat().st_size for folder, _, names in os.walk(path) for name in names)
