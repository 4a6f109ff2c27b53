"""Which engine runs a projection, and why; and the states of all aggregates by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from pyspark.sql import DataFrame

from toril.errors import InvalidValue
from toril.events.declared import DeclaredProjection
from toril.events.projection import AnyProjection
from toril.events.upcasters import Upcasters
from toril.lake.engine.errors import NotNative
from toril.lake.engine.fold import KEYS, folded
from toril.lake.engine.native import Native, compiled, encoded
from toril.lake.engine.typing import SPANS_TYPED, Typing
from toril.lake.quoting import quoted
from toril.lake.sending import sent_round

Engine = Literal["native", "fold"]


class Choice(NamedTuple):
    """An engine, and why it is that."""

    engine: Engine
    reason: str


def engine_for(
    projection: AnyProjection, typing: Typing | None = SPANS_TYPED, force: str | None = None
) -> Choice:
    """Native, where Spark's own expressions give exactly what the class gives; else its own code."""
    if force not in (None, "native", "fold"):
        raise InvalidValue("engine", force, "native or fold")
    if force == "fold":
        return Choice("fold", "it was asked for")
    try:
        _native(projection, typing)
    except NotNative as problem:
        if force == "native":
            raise NotNative(f"{projection.name} cannot run natively: {problem}") from None
        return Choice("fold", str(problem))
    return Choice("native", "all of its fields are declared, over columns of the table")


def explain(projection: AnyProjection, typing: Typing | None = SPANS_TYPED, force: str | None = None) -> str:
    """How a projection is run, for people."""
    engine, reason = engine_for(projection, typing, force)
    lines = [f"{projection.name} version {projection.version}: {engine} ({reason})"]
    if engine == "fold":
        types = "all events" if projection.event_types is None else ", ".join(sorted(projection.event_types))
        return "\n".join([*lines, f"  the class itself, over {types} of each aggregate in order of version"])
    native = _native(projection, typing)
    width = max((len(field.name) for field in native.fields), default=0)
    lines += [f"  {field.name:<{width}}  {_short(', '.join(field.gather))}" for field in native.fields]
    for name in native.derived:
        try:
            lines.append(f"  {name:<{width}}  = {_short(native.show()[name])}")
        except NotNative as problem:
            lines.append(f"  {name:<{width}}  not shown: {problem}")
    if native.wrong:
        lines.append(f"  the class itself, for aggregates with an event where {_short(native.wrong)}")
    return "\n".join(lines)


def states(
    projection: AnyProjection,
    events: DataFrame,
    rows: DataFrame | None = None,
    *,
    typing: Typing = SPANS_TYPED,
    force: str | None = None,
    aside: DataFrame | None = None,
    upcasters: Upcasters | None = None,
    whole: bool = False,
    keep: Callable[[DataFrame], DataFrame] = DataFrame.persist,
) -> DataFrame:
    """The states of all aggregates, encoded as live, as :data:`~toril.lake.engine.fold.FOLDED`.

    ``events`` are all events, and ``rows`` the same as a table has them in typed columns, if one has.
    Aggregates with an event that is not among the rows (it is of another type, or cannot be read), or that
    may be an error, are folded. ``aside`` are the keys of others that have some: those in quarantine.
    ``whole``: of each aggregate they are all, from the first on, and where they are not, that is an error.
    ``keep``: what has Spark keep the keys of those that are folded. They are counted, and then looked at.
    """
    if rows is None or engine_for(projection, typing, force).engine == "fold":
        engine_for(projection, None, force)  # native cannot be had without rows
        return folded(projection, events, upcasters, whole=whole)
    native = _native(projection, typing)
    of_type = events.where(f"aggregate_type = {quoted(typing.aggregate_type)}")
    skipped = " OR skipped" if "skipped" in events.columns else ""
    is_other = f"event_type IS NULL OR event_type <> {quoted(typing.event_type)}{skipped}"
    slow = of_type.where(is_other).select("tenant", "aggregate_id")
    if native.wrong:
        slow = slow.union(native.wrong_rows(rows).select(*typing.keys))
    if aside is not None:
        slow = slow.union(aside.select("tenant", "aggregate_id"))
    slow = keep(slow.distinct())
    slow = sent_round(slow, slow.count())
    by_row = slow.withColumnRenamed("aggregate_id", typing.aggregate_id)
    quick = native.gather(rows.join(by_row, list(typing.keys), "left_anti"))
    slowly = of_type.join(slow, ["tenant", "aggregate_id"], "left_semi")
    return _complete(encoded(native, quick, whole=whole)).unionByName(
        folded(projection, slowly, upcasters, whole=whole)
    )


def _complete(states: DataFrame) -> DataFrame:
    return states.selectExpr(
        *KEYS, "version", "state", "CAST(NULL AS BIGINT) AS failed_version", "CAST(NULL AS STRING) AS failed"
    )


def _native(projection: AnyProjection, typing: Typing | None) -> Native:
    if not isinstance(projection, type) or not issubclass(projection, DeclaredProjection):
        raise NotNative("it is written in Python")
    if typing is None:
        raise NotNative("no table has its events in typed columns")
    return compiled(projection, typing)


def _short(text: str, most: int = 160) -> str:
    return text if len(text) <= most else f"{text[: most - 2]} …"
