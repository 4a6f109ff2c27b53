"""History up to a cut: every event that the lake has, and what came after it straight from the log.

While it is open, nothing that it may still read is trimmed from the log. The lake is read as it was when it
was opened: what the archive adds meanwhile is not read twice.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce
from math import gcd

from pyspark.sql import DataFrame

from toril.aggregate import Aggregate
from toril.connection.open import environment_url
from toril.errors import InvalidValue
from toril.lake.archive import lost
from toril.lake.errors import LakeError, OtherWriter, SourceDiverged
from toril.lake.generations import ALL_OF_IT, Filters
from toril.lake.lake import NEVER, Lake, Record
from toril.lake.quoting import quoted
from toril.lake.source import Door, Marks, between, read_log
from toril.lake.source.floors import Floors, new_name
from toril.lake.source.positions import UNKNOWN
from toril.lake.spans import read_spans, spans_in
from toril.lake.tables import EVENTS, LOG_COLUMNS, QUARANTINE, SPANS
from toril.log import Partition, Position
from toril.log.entry import START
from toril.log.errors import GapFound
from toril.pipelines.spans.recording import SPAN_RECORDED
from toril.pipelines.spans.summary import SPAN_AGGREGATE
from toril.runtime.decisions import DECISIONS, decision_in, skipped
from toril.runtime.work import ANY_TYPE

TRIES = 5
"""How often the floors are put, should the archive go on and the log be trimmed just then."""

NAMES = tuple(column.name for column in LOG_COLUMNS)
KEYS = ("tenant", "aggregate_type", "aggregate_id")


@dataclass(frozen=True, slots=True)
class Portion:
    """One of several parts of history, by aggregates: an aggregate is in one of them, with all its events."""

    number: int = 0
    of: int = 1

    @property
    def condition(self) -> str:
        """Which rows of the log are in it. Partitions of the log are what files are kept by."""
        return "true" if self.of == 1 else f"log_partition % {self.of} = {self.number}"


WHOLE = Portion()


@dataclass(slots=True, kw_only=True)
class History:
    """See the module's text. Made by :func:`history`."""

    lake: Lake
    url: str | None
    log: str
    cut: Marks
    archived: Record
    """How far the lake is."""
    spanned: Record
    """How far its table of spans is, never further than the events; nowhere, where that was not asked for."""
    door: Door
    partitions: int
    """A number that divides the number of partitions in each epoch: so many portions there can be."""
    _held: list[DataFrame] = field(default_factory=list)
    _read: DataFrame | None = None

    @property
    def hot(self) -> Marks:
        """Up to where the log itself is read, in the partitions where the cut is past the lake."""
        have = self.archived.positions
        return {name: at for name, at in self.cut.items() if at[0] > have.get(name, START)[0]}

    @property
    def count(self) -> int:
        """How many events there are up to the cut, erased ones among them."""
        return between({}, self.cut)

    def events(
        self,
        aggregate_type: str = ANY_TYPE,
        filters: Filters = ALL_OF_IT,
        portion: Portion = WHOLE,
    ) -> DataFrame:
        """Events as the log has them."""
        return self._parts(0, aggregate_type, filters, portion)

    def _parts(self, after: int, aggregate_type: str, filters: Filters, portion: Portion) -> DataFrame:
        """Events of the batches after one, and those that the log has after the last batch."""
        wanted = _condition(aggregate_type, filters, portion)
        kept = self._upto_cut(self.lake.batches(EVENTS, after, self.archived.batch))
        parts = [kept.where(wanted).select(*NAMES)]
        if self.hot:
            parts.append(self._from_log().where(wanted).select(*NAMES))
        return reduce(DataFrame.unionByName, parts)

    def spans(self, filters: Filters = ALL_OF_IT, portion: Portion = WHOLE) -> tuple[DataFrame, DataFrame]:
        """The same as spans in typed columns; and the keys of aggregates that have events which are none.

        What the table has is taken from it, and the rest is read anew. What ever was in quarantine counts as
        no span: it may be taken up again just now.
        """
        if self.spanned.upcast:
            raise OtherWriter("spans were read by upcasters meanwhile: try it again, it is folded then")
        wanted = _condition(ANY_TYPE, filters, portion)
        names = [column.name for column in SPANS.columns if not column.generated and column.name != "batch"]
        kept = self._upto_cut(self.lake.batches(SPANS, 0, self.spanned.batch)).where(wanted).select(*names)
        rest = self._parts(self.spanned.source, SPAN_AGGREGATE, filters, portion)
        # Looked at twice: for spans, and for what is none.
        read = self.keep(read_spans(rest))
        others = self.events(SPAN_AGGREGATE, filters, portion).where(f"event_type <> '{SPAN_RECORDED}'")
        refused = self.lake.read(QUARANTINE).where(wanted)
        aside = [frame.select(*KEYS) for frame in (others, refused, read.where("reason IS NOT NULL"))]
        return kept.unionByName(spans_in(read).select(*names)), reduce(DataFrame.union, aside).distinct()

    def keep(self, rows: DataFrame) -> DataFrame:
        """Rows that are looked at more than once: Spark keeps them while this history is open."""
        kept = rows.persist()
        self._held.append(kept)
        return kept

    def let_go(self) -> None:
        """Keep nothing any more."""
        while self._held:
            self._held.pop().unpersist()

    def skipped(
        self, processor: str, tenant: str | None = None, until: int | None = None
    ) -> dict[str, set[int]]:
        """By aggregate (its key), the versions that people had a processor skip, up to the cut."""
        # In the order in which they were made, for each aggregate.
        rows = self.events(DECISIONS, Filters(tenant=tenant, until=until)).orderBy("version")
        found: dict[str, set[int]] = {}
        decisions = [
            decision_in(f"{row['tenant']}:{DECISIONS}:{row['aggregate_id']}", bytes(row["body"]))
            for row in rows.select("tenant", "aggregate_id", "body").toLocalIterator()
        ]
        for one in skipped([made for made in decisions if made is not None], processor):
            found.setdefault(one.aggregate, set()).add(one.version)
        return found

    # ------------------------------------------------------------------ parts of it

    def _upto_cut(self, rows: DataFrame) -> DataFrame:
        """Rows of the lake that are not after the cut, where the lake is further than that."""
        have = self.archived.positions
        if all(at[0] <= self.cut.get(name, START)[0] for name, at in have.items()):
            return rows
        places = [(*Partition.parse(name), ordinal) for name, (ordinal, _) in self.cut.items()]
        ends = self.lake.spark.createDataFrame(places, "log_epoch int, log_partition int, _last bigint")
        near = rows.join(ends.hint("broadcast"), ["log_epoch", "log_partition"])
        return near.where("ordinal <= _last").drop("_last")

    def _from_log(self) -> DataFrame:
        """What the log has after the lake: read once, and kept, as it is looked at several times."""
        if self._read is None:
            have = self.archived.positions
            after = {name: have.get(name, (START.ordinal, START.id)) for name in self.hot}
            self._read = self.keep(read_log(self.lake.spark, self.url, self.log, after, self.hot))
        return self._read


@contextmanager
def history(
    lake: Lake,
    url: str | None,
    log: str,
    cut: Mapping[str, tuple[int, str]] | None = None,
    *,
    of: Aggregate | None = None,
    spans: bool = False,
) -> Iterator[History]:
    """History up to a cut: the log's end, as it is now, where none is given.

    ``of``: only what one aggregate can have. ``spans``: whether :meth:`History.spans` will be asked for.
    """
    for table in (EVENTS, SPANS, QUARANTINE) if spans else (EVENTS,):
        lake.check(table)
    url = url or environment_url()  # workers on other machines do not have it
    # Spans before events: so there is no span of an event that is read from elsewhere.
    spanned = lake.last(SPANS) if spans else NEVER
    with Door(url, log) as door:
        floors = Floors(door.log, new_name())
        made = _opened(lake, door, floors, spanned, url, log, cut, of)
        keeping = door.begin(floors.keep())
        try:
            yield made
        finally:
            made.let_go()
            keeping.cancel()
            door.do(floors.remove())


def _opened(
    lake: Lake,
    door: Door,
    floors: Floors,
    spanned: Record,
    url: str | None,
    log: str,
    cut: Mapping[str, tuple[int, str]] | None,
    of: Aggregate | None,
) -> History:
    layout = door.do(door.log.layout(anew=True))
    partitions = gcd(*(epoch.partitions for epoch in layout.ever))
    wanted = None if of is None else {str(epoch.of(of)) for epoch in layout.ever}
    tries = 0
    while True:
        archived, tails = lake.last(EVENTS), door.tails()
        _refuse_lost(door, archived, wanted)
        # Of epochs that are over and removed, all is in the lake.
        known = {**archived.positions, **tails}
        chosen = known if cut is None else checked_cut(cut, known, log)
        if cut is not None and not tries:
            refuse_other_ids(lake, chosen, archived)
        if wanted is not None:
            chosen = {name: at for name, at in chosen.items() if name in wanted}
        made = History(
            lake=lake,
            url=url,
            log=log,
            cut=chosen,
            archived=archived,
            spanned=spanned,
            door=door,
            partitions=partitions,
        )
        try:
            door.do(floors.put(_starts(made.hot, archived)))
            break
        except GapFound as problem:
            # The archive may just have gone on, and the log with it.
            tries += 1
            if tries == TRIES or lake.last(EVENTS).batch == archived.batch:
                raise LakeError(
                    f"the log no longer has what comes after the lake's events: {problem}; "
                    "what is missing was trimmed before it was archived"
                ) from None
            door.do(floors.remove())
    # What comes after the cut is to stay as well, until a generation has a place of its own there.
    others = {name: at for name, at in chosen.items() if name not in made.hot and name in tails}
    with suppress(GapFound, SourceDiverged):
        door.do(floors.put({Partition.parse(name): Position(*at) for name, at in others.items()}))
    return made


def _refuse_lost(door: Door, archived: Record, wanted: Container[str] | None) -> None:
    """Refuse a lake with events that the log has lost: in the same places the log may have others."""
    read = {name: at for name, at in archived.positions.items() if wanted is None or name in wanted}
    for problem in door.do(lost(door.log, read)).values():
        if isinstance(problem, SourceDiverged):
            raise problem


def _starts(hot: Marks, archived: Record) -> dict[Partition, Position | str]:
    return {Partition.parse(name): Position(*archived.positions.get(name, START)) for name in hot}


def checked_cut(cut: Mapping[str, tuple[int, str]], known: Mapping[str, tuple[int, str]], log: str) -> Marks:
    """A cut as it was given, with all partitions; an error where it is past what there is."""
    made: Marks = {}
    for name, (ordinal, ident) in cut.items():
        if name not in known:
            raise InvalidValue(f"cut {name}", ordinal, f"log {log!r} has no such partition")
        last = known[name]
        if type(ordinal) is not int or ordinal < 0:
            raise InvalidValue(f"cut {name}", ordinal, "an ordinal from 0")
        if ordinal > last[0]:
            rule = f"it is in the future: the last event of partition {name} is {last[0]}@{last[1]}"
            raise InvalidValue(f"cut {name}", f"{ordinal}@{ident}", rule)
        made[name] = (ordinal, ident)
    return {name: made.get(name, (0, START.id)) for name in known}


def refuse_other_ids(lake: Lake, cut: Marks, archived: Record) -> None:
    """Refuse a cut that names other events than the lake has in its places.

    Where the cut is past the lake, the log is asked as it is read. Of what was erased nobody knows the id.
    """
    asked = {
        Partition.parse(name): at
        for name, at in cut.items()
        if 0 < at[0] <= archived.positions.get(name, START)[0]
        and at[1] not in UNKNOWN
        and at != archived.positions[name]  # which is known without a look
    }
    if not asked:
        return
    places = (
        f"(log_epoch = {one.epoch} AND log_partition = {one.number} AND ordinal = {ordinal})"
        for one, (ordinal, _) in asked.items()
    )
    rows = lake.read(EVENTS).where(" OR ".join(places))
    for epoch, number, ident in rows.select("log_epoch", "log_partition", "entry_id").collect():
        partition = Partition(epoch, number)
        ordinal, said = asked[partition]
        if ident != said:
            rule = f"event {ordinal} of this partition has the id {ident}: the cut is of another history"
            raise InvalidValue(f"cut {partition}", f"{ordinal}@{said}", rule)


def _condition(aggregate_type: str, filters: Filters, portion: Portion) -> str:
    parts = [portion.condition]
    if aggregate_type != ANY_TYPE:
        parts.append(f"aggregate_type = {quoted(aggregate_type)}")
    if filters.tenant is not None:
        parts.append(f"tenant = {quoted(filters.tenant)}")
    if filters.since is not None:
        parts.append(f"recorded_at >= {filters.since}")
    if filters.until is not None:
        parts.append(f"recorded_at < {filters.until}")
    return " AND ".join(parts)
