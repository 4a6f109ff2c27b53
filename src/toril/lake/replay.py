"""Replay: a projection over all of history up to an exact cut, by the same class that runs live.

It writes the next generation (see :mod:`toril.lake.generations`). Stopped, it is taken up again by the same
call: the same number, the same cut, from the portion where it was. With other code, other filters or another
cut it is another generation, under a number of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast, col

from toril.aggregate import check_tenant
from toril.errors import InvalidValue
from toril.lake import generations as made_before
from toril.lake.engine import SPANS_TYPED, Typing, engine_for, states
from toril.lake.errors import LakeError, NotWhole, OtherWriter, SourceDiverged
from toril.lake.generations import Filters, Generation, Plan, table_of
from toril.lake.history import KEYS, WHOLE, History, Portion, history
from toril.lake.lake import Lake, Record
from toril.lake.problems import SPARKS
from toril.lake.progress import Tasks, watching
from toril.lake.sending import sent_round
from toril.lake.sessions import spread
from toril.lake.shown import shown_columns, with_shown
from toril.lake.source.told import told as told_by_spark
from toril.lake.subjects import Subject, code_of
from toril.lake.tables import SPANS, Table
from toril.log import Partition, Position
from toril.pipelines.spans.summary import SPAN_AGGREGATE
from toril.runtime.backend import GenerationError
from toril.runtime.generations import Generations
from toril.runtime.redis import RedisBackend

EVENTS_IN_PORTION = 50_000_000
"""Events of history in one portion, about: what is lost at most, should a replay be stopped."""


class Progress:
    """Told how far a replay is. All of it may be left out."""

    def began(self, plan: Plan, events: int, done: int) -> None:
        """It begins, or goes on after so many portions."""

    def tasks(self, portion: int, tasks: Tasks) -> None:
        """How far Spark is with a portion."""

    def wrote(self, portion: int) -> None:
        """A portion is written."""

    def checking(self) -> None:
        """All is written, and is looked through."""

    def kept(self) -> None:
        """Its place in the log is kept: nothing after the cut is trimmed before it is promoted or retired."""

    def not_kept(self, why: str) -> None:
        """Its place in the log is not kept, and so it can be looked at and not be promoted."""


def replay(
    lake: Lake,
    subject: Subject,
    *,
    url: str | None,
    log: str = "log",
    tenant: str | None = None,
    since: int | None = None,
    until: int | None = None,
    cut: Mapping[str, tuple[int, str]] | None = None,
    engine: str | None = None,
    label: str = "",
    portions: int | None = None,
    keep: bool = True,
    progress: Progress | None = None,
    run: str = "",
) -> Generation:
    """Build a projection anew, from the beginning of history up to a cut, as its next generation.

    ``cut``: by partition, an ordinal and an id; without one, the end of the log as it is now. ``tenant``,
    ``since`` and ``until`` (ns, by when events were recorded) take a part of history, which can be looked at
    and not be promoted. ``engine``: ``native`` or ``fold``, where it is not to be chosen. ``label``: what
    you call this code. ``keep``: whether the place in the log is kept, so that it can be promoted.
    """
    told = progress or Progress()
    filters = _filters(tenant, since, until)
    chosen = engine_for(subject.projection, typing_for(lake, subject), engine).engine
    wanted = Plan(
        projection=subject.processor,
        number=0,
        cut={},
        engine=chosen,
        code=code_of(subject.projection, label, subject.upcasters),
        filters=filters,
        log=log,
    )
    there = made_before.generations(lake, subject.processor)
    begun = _unfinished(there, wanted, cut)
    with _history(lake, url, log, cut, begun, spans=chosen == "native") as all_of_it:
        if begun is None:
            begun = _begin(lake, subject, wanted, all_of_it, there, portions)
        plan = begun.plan
        told.began(plan, all_of_it.count, begun.done)
        if keep and not filters and subject.definition is not None:
            try:
                reserve(all_of_it, subject, plan)
                told.kept()
            except GenerationError as problem:
                told.not_kept(str(problem))
        table = table_of(plan, shown_columns(subject.projection))
        for number in range(begun.done, plan.portions):
            portion = Portion(number, plan.portions)
            with (
                spread(lake.spark, all_of_it.count // plan.portions),
                watching(lake.spark, f"{plan.name}, portion {number + 1}", partial(told.tasks, number)),
            ):
                made = states_of(all_of_it, subject, filters, portion, plan.engine)
                made = with_shown(made, subject.projection)
                _write(lake, made, table, begun.record(number + 1, run))
            told.wrote(number)
        told.checking()
        rows, failed = check_whole(lake, plan, all_of_it, subject)
        whole = replace(begun, done=plan.portions + 1, rows=rows, failed=failed)
        nothing = lake.spark.createDataFrame([], lake.read(table).schema)
        _write(lake, nothing, table, whole.record(whole.done, run))
    return whole


def _write(lake: Lake, rows: DataFrame, table: Table, record: Record) -> None:
    """One batch of a generation, or an error where its number was taken."""
    try:
        lake.append(rows, table, record)
    except SPARKS as problem:
        ours = told_by_spark(problem)
        if not isinstance(ours, NotWhole):
            raise
        if lake.last(table).batch < record.batch:  # else a tenant was just being erased, from history too
            raise NotWhole(f"{table.name} is not whole: {ours}") from problem
    if lake.last(table) != record:
        raise OtherWriter(
            f"{table.name} was written to meanwhile: another process replays it as well, a tenant was erased "
            "from it, or it was retired; the same command takes it up again, or begins the next one"
        )


def _filters(tenant: str | None, since: int | None, until: int | None) -> Filters:
    if tenant is not None:
        check_tenant(tenant)
    for name, value in (("since", since), ("until", until)):
        if value is not None and (type(value) is not int or value < 0):
            raise InvalidValue(name, value, "whole nanoseconds since 1970")
    if since is not None and until is not None and since >= until:
        raise InvalidValue("until", until, f"it must be after since, {since}")
    return Filters(tenant=tenant, since=since, until=until)


def typing_for(lake: Lake, subject: Subject) -> Typing | None:
    """The table that has the events of a projection in typed columns, as the projection would see them."""
    if subject.aggregate_type != SPAN_AGGREGATE or subject.upcasters is not None or not lake.exists(SPANS):
        return None
    # It sees events as they were recorded, and the table may have them in the form that another's made.
    upcast = lake.last(SPANS).upcast
    return None if (subject.others_upcast if upcast is None else upcast) else SPANS_TYPED


def states_of(
    all_of_it: History,
    subject: Subject,
    filters: Filters,
    portion: Portion = WHOLE,
    engine: str = "fold",
    decided_until: int | None = None,
) -> DataFrame:
    """The states of all aggregates: rows as a generation has them, without the batch.

    ``decided_until``: with what people had decided before this time (ns); None: with all that they have. An
    aggregate of which history does not have every event from the first on, once, is an error when it is come
    to, unless the filters leave out the first ones.
    """
    whole = filters.since is None
    events = all_of_it.events(subject.aggregate_type, filters, portion)
    skipped = all_of_it.skipped(subject.anew, filters.tenant, decided_until)
    if skipped:
        events = _marked(events, skipped)
    if engine == "fold":
        return states(subject.projection, events, force="fold", upcasters=subject.upcasters, whole=whole)
    rows, aside = all_of_it.spans(filters, portion)
    if skipped:
        keys = [tuple(key.split(":", 2)) for key in skipped]
        aside = aside.union(all_of_it.lake.spark.createDataFrame(keys, f"{' string, '.join(KEYS)} string"))
    keep = all_of_it.keep
    return states(subject.projection, events, rows, force="native", aside=aside, whole=whole, keep=keep)


def _marked(events: DataFrame, skipped: Mapping[str, set[int]]) -> DataFrame:
    """Events, with what people have decided about them."""
    rows = [(*key.split(":", 2), version) for key, versions in skipped.items() for version in versions]
    schema = f"{' string, '.join(KEYS)} string, version bigint, skipped boolean"
    decided = events.sparkSession.createDataFrame([(*row, True) for row in rows], schema)
    joined = events.join(broadcast(decided), [*KEYS, "version"], "left")
    return joined.withColumn("skipped", col("skipped").isNotNull())


# ---------------------------------------------------------------------------- which generation


def _unfinished(
    there: Sequence[Generation], wanted: Plan, cut: Mapping[str, tuple[int, str]] | None
) -> Generation | None:
    """A generation that was begun with the same code, and is to be finished."""
    for one in reversed(there):
        same_cut = cut is None or _begun(cut) == _begun(one.plan.cut)
        if one.state == "unfinished" and one.plan.same_work(wanted) and same_cut:
            return one
    return None


def _begun(cut: Mapping[str, tuple[int, str]]) -> dict[str, tuple[int, str]]:
    """A cut without the partitions that it takes nothing of: a plan has all of them, a given one need not."""
    return {name: (ordinal, ident) for name, (ordinal, ident) in cut.items() if ordinal}


@contextmanager
def _history(
    lake: Lake,
    url: str | None,
    log: str,
    cut: Mapping[str, tuple[int, str]] | None,
    begun: Generation | None,
    *,
    spans: bool,
) -> Iterator[History]:
    """History up to the cut, or up to that of the generation that is taken up."""
    with ExitStack() as stack:
        try:
            made = stack.enter_context(
                history(lake, url, log, cut if begun is None else begun.plan.cut, spans=spans)
            )
        except (InvalidValue, SourceDiverged) as problem:
            if begun is None or cut is not None:
                raise
            raise LakeError(
                f"generation {begun.number} of {begun.plan.projection} was begun on a history that is no "
                f"more ({problem}): `toril lake retire` it, and replay again"
            ) from None
        yield made


def _begin(
    lake: Lake,
    subject: Subject,
    wanted: Plan,
    all_of_it: History,
    before: Sequence[Generation],
    portions: int | None,
) -> Generation:
    """Take the next number, and make its table."""
    count = -(-all_of_it.count // EVENTS_IN_PORTION) if portions is None else portions
    plan = Plan(
        projection=wanted.projection,
        number=_next_number(subject, all_of_it, before),
        cut=all_of_it.cut,
        engine=wanted.engine,
        code=wanted.code,
        filters=wanted.filters,
        portions=_divisor(all_of_it.partitions, max(1, count)),
        log=wanted.log,
        begun_at=time.time_ns(),
    )
    lake.ensure(table_of(plan, shown_columns(subject.projection)))
    there = made_before.find(lake, plan.projection, plan.number)
    if there.plan != plan:
        raise OtherWriter(f"another process has just begun generation {plan.number} of {plan.projection}")
    return there


def _next_number(subject: Subject, all_of_it: History, before: Sequence[Generation]) -> int:
    """The number after all that lake or live store know; 1 where a new projection has none at all."""
    taken = [one.number for one in before]
    if subject.definition is not None:
        works = subject.definition.works
        for one in all_of_it.door.do(live_generations(all_of_it, subject).standings(subject.name)):
            # One that a program has, and that waits to be loaded, has its number from here.
            waits = one.name in works and works[one.name].start == "loaded"
            if one.reserved_at or not waits:
                taken.append(one.number)
    return max(taken, default=0) + 1


def _divisor(of: int, most: int) -> int:
    return max(number for number in range(1, min(of, most) + 1) if of % number == 0)


def live_generations(all_of_it: History, subject: Subject) -> Generations:
    """The generations of a projection's pipeline, in the live store that the log is of."""
    assert subject.definition is not None
    return Generations(subject.definition, RedisBackend(all_of_it.door.log))


def reserve(all_of_it: History, subject: Subject, plan: Plan) -> None:
    """Keep the generation's place in the log: from now on nothing after the cut is trimmed."""
    there = all_of_it.door.tails()
    cut = {Partition.parse(name): Position(*at) for name, at in plan.cut.items() if name in there}
    version = subject.projection.version
    generations = live_generations(all_of_it, subject)
    all_of_it.door.do(generations.reserve(subject.name, plan.number, cut=cut, version=version))


# ---------------------------------------------------------------------------- is it whole?


def check_whole(lake: Lake, plan: Plan, all_of_it: History, subject: Subject) -> tuple[int, int]:
    """Refuse a generation that is not of every event; says how many aggregates it has, and how many failed.

    Versions are 1, 2, 3 … (which was seen to when it was written), so the last ones count the events. Where
    the first events are left out they do not.
    """
    rows = lake.read(plan.name)
    failed = rows.where("failed_version IS NOT NULL").select(*KEYS)
    (row,) = rows.selectExpr(
        "coalesce(sum(IF(failed_version IS NULL, version, 0)), 0) AS versions",
        "count_if(failed_version IS NOT NULL) AS failed",
        "count(1) AS rows",
    ).collect()
    counted: tuple[int, int] = (row["rows"], row["failed"])
    if plan.filters.since is not None:
        return counted
    events = all_of_it.events(subject.aggregate_type, plan.filters)
    if row["failed"]:
        events = events.join(sent_round(failed, row["failed"]), list(KEYS), "left_anti")
    there = events.count()
    if there != row["versions"]:
        raise NotWhole(
            f"{plan.name} is not whole: history has {there:,} events, and its states are of "
            f"{row['versions']:,}; the lake does not go back to the first event, or has lost some: "
            "`toril lake audit` says which. When that is mended, `toril lake retire` it, and replay again"
        )
    return counted
