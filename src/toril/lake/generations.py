"""Generations: the states of a projection, made from all of history up to an exact cut, as a table each.

A generation is ``generations/<pipeline>/<projection>/<number>``, and its plan stands in the table itself: of
what it is, up to where, by which code. It is written in portions, each of them one commit; it is whole when
the last one is there. So a replay that was stopped is taken up where it was, under the same number and with
the same cut, and whoever looks sees a whole generation or none.

Batches of the table are its portions, and those by which tenants were erased from it or it was retired: of
these, ``source`` of the table's record says how many there are (see :mod:`toril.lake.erase`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.functions import regexp_extract

from toril.errors import InvalidValue
from toril.lake.errors import LakeError
from toril.lake.fence import again_and_again, take_number
from toril.lake.files import vacuuming
from toril.lake.lake import Lake, Record
from toril.lake.subjects import Code
from toril.lake.tables import BATCH, WHOSE, Column, Table

FOLDER = "generations"
PLAN = "toril.generation"
"""The table's property that has the plan."""
RETIRED = "toril.retired"
"""The table's property that says when it was retired."""

OUTCOME = (
    Column("state", "binary", "The state as the projection encodes it; null where there is none."),
    Column("failed_version", "bigint", "The event that the projection could not take; null: it took all."),
    Column("failed", "string", "Why it could not; the state is that before this event."),
)
"""What a generation has of each aggregate, beside whose it is."""


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """What of history was taken. A generation of a part can be looked at, and not be promoted."""

    tenant: str | None = None
    since: int | None = None
    """Events recorded from this time on (ns)."""
    until: int | None = None
    """Events recorded before this time (ns)."""

    def __bool__(self) -> bool:
        return self != ALL_OF_IT

    def __str__(self) -> str:
        said = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return ", ".join(f"{name} {value}" for name, value in said if value is not None) or "all of history"


ALL_OF_IT = Filters()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a generation is: decided when it is begun, and never changed."""

    projection: str
    """The full name, ``pipeline/projection``."""
    number: int
    cut: dict[str, tuple[int, str]]
    """By partition of the log: events up to this ordinal and id are in it, and none after."""
    engine: str
    """``native`` or ``fold``."""
    code: Code
    filters: Filters = ALL_OF_IT
    portions: int = 1
    log: str = "log"
    begun_at: int = 0
    """When (ns)."""

    @property
    def name(self) -> str:
        """The table's name in the lake."""
        return f"{FOLDER}/{self.projection}/{self.number}"

    def same_work(self, other: Plan) -> bool:
        """Whether another plan would make the same of the same: all but number, cut, portions and time."""
        return _work(self) == _work(other)


def _work(plan: Plan) -> tuple[object, ...]:
    return (plan.projection, plan.engine, plan.code, plan.filters, plan.log)


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation, and how far it is."""

    plan: Plan
    done: int
    """Its commits that are written: one for each portion, and one more when all was looked through."""
    retired_at: int | None = None
    rows: int | None = None
    """How many aggregates it had when it was made; None where it is not whole."""
    failed: int | None = None
    """How many of them stand still, at an event that the projection could not take."""
    erasures: int = 0
    """Batches that are no portions."""

    @classmethod
    def after(cls, plan: Plan, last: Record, retired_at: int | None = None) -> Generation:
        """As the last batch of its table says."""
        done = last.batch - last.source
        return cls(plan, done, retired_at, last.rows, last.failed, erasures=last.source)

    def record(self, portion: int, run: str) -> Record:
        """That of the batch which has a portion, from 1 on; of the one after them, with what was counted."""
        return Record(
            batch=portion + self.erasures,
            source=self.erasures,
            positions=self.plan.cut,
            rows=self.rows,
            failed=self.failed,
            run=run,
        )

    @property
    def number(self) -> int:
        """2, 3 …; 1 is what was there before any replay, or the first one of a new projection."""
        return self.plan.number

    @property
    def whole(self) -> bool:
        """Whether all of it is written, and was looked through: that is one commit more."""
        return self.done > self.plan.portions

    @property
    def state(self) -> str:
        """In a word."""
        if self.retired_at is not None:
            return "retired"
        return "whole" if self.whole else "unfinished"

    def as_value(self) -> dict[str, Any]:
        """As JSON has it."""
        said: dict[str, Any] = msgspec.to_builtins(self.plan)
        said["code"].pop("fields")
        return {
            **said,
            "state": self.state,
            "portions_done": min(self.done, self.plan.portions),
            "rows": self.rows,
            "failed": self.failed,
        }


def table_of(plan: Plan, shown: tuple[Column, ...] = ()) -> Table:
    """The table of a generation. ``shown``: columns of what the projection shows, where it is declared."""
    return Table(
        name=plan.name,
        comment=f"The states of {plan.projection}, generation {plan.number}.",
        columns=(*WHOSE[:3], VERSION, *OUTCOME, *shown, BATCH),
        properties={PLAN: msgspec.json.encode(plan).decode()},
    )


VERSION = Column("version", "bigint", "The events up to this version are in the state.", True)


# ---------------------------------------------------------------------------- finding them


def find(lake: Lake, projection: str, number: int) -> Generation:
    """One of them; an error that names those there are."""
    found = look(lake, projection, number)
    if found is None:
        there = ", ".join(str(one.number) for one in generations(lake, projection)) or "none"
        raise InvalidValue("generation", number, f"{projection} has: {there}")
    return found


def look(lake: Lake, projection: str, number: int) -> Generation | None:
    """One of them; None where there is none of this number. One of a later Toril is refused."""
    name = f"{FOLDER}/{projection}/{number}"
    try:
        last = lake.last(name)  # before the properties: see remove
        said = lake.properties(name)
    except AnalysisException:
        return None
    try:
        plan = msgspec.json.decode(said[PLAN], type=Plan)
    except (KeyError, msgspec.MsgspecError):
        raise LakeError(f"{lake.place(name)} is a table, and no generation of Toril's") from None
    retired = said.get(RETIRED)
    return Generation.after(plan, last, None if retired is None else int(retired))


def generations(lake: Lake, projection: str | None = None) -> list[Generation]:
    """All of a projection, or of all of them, in order; those that are not whole among them."""
    found = [look(lake, name, number) for name, number in _names(lake, projection)]
    return [one for one in found if one is not None]


def _names(lake: Lake, projection: str | None) -> list[tuple[str, int]]:
    """The projections and numbers for which there are tables."""
    # Spark lists the files of whatever storage it is; hidden folders only where they are named.
    where = f"{lake.place(FOLDER)}/{projection or '*/*'}/*/_delta_log"
    try:
        logs = (
            lake.spark.read.format("binaryFile").option("pathGlobFilter", "*.json").load(where).select("path")
        )
        parts = logs.select(
            regexp_extract("path", rf"/{FOLDER}/([^/]+/[^/]+)/([0-9]+)/_delta_log/[^/]*$", 1).alias("name"),
            regexp_extract("path", r"/([0-9]+)/_delta_log/[^/]*$", 1).alias("number"),
        )
        rows = parts.where("name <> '' AND number <> ''").distinct().collect()
    except AnalysisException:
        return []
    return sorted((row["name"], int(row["number"])) for row in rows)


def latest(lake: Lake, projection: str) -> Generation | None:
    """The one with the highest number that is whole and not retired."""
    there = [one for one in generations(lake, projection) if one.state == "whole"]
    return there[-1] if there else None


def read(lake: Lake, generation: Generation) -> DataFrame:
    """Its rows: one for each aggregate. An error where it is not whole."""
    plan = generation.plan
    if generation.state == "unfinished":
        raise LakeError(
            f"generation {plan.number} of {plan.projection} is unfinished ({generation.done} of "
            f"{plan.portions + 1} commits are there): `toril lake replay` finishes it"
        )
    if generation.state == "retired":
        raise LakeError(f"generation {plan.number} of {plan.projection} is retired: its states are gone")
    return lake.read(plan.name)


def remove(lake: Lake, generation: Generation, now: int) -> None:
    """Remove the states of a generation; that it was there, and what it was, stays. It can be repeated.

    A replay that is just writing it ends. First it is said that it is retired, then the number of the next
    batch is taken; who takes it up looks the other way round. So it sees that, or its number is gone.
    """
    plan = generation.plan
    name = lake.sql_name(plan.name)
    when = now if generation.retired_at is None else generation.retired_at

    def run(statement: str) -> None:
        with lake.keeping_record(plan.name):
            lake.spark.sql(statement).collect()

    for work in (
        partial(run, f"ALTER TABLE {name} SET TBLPROPERTIES ('{RETIRED}' = '{when}')"),
        partial(take_number, lake, plan.name, "retired", apart=True),
        partial(run, f"DELETE FROM {name}"),  # noqa: S608 - a path of ours
    ):
        again_and_again(lake, plan.name, work)
    # Nobody reads what is retired, and nobody can add what he has written of it: its files need not wait.
    with vacuuming(lake.spark, spark__databricks__delta__retentionDurationCheck__enabled="false"):
        lake.spark.sql(f"VACUUM {name} RETAIN 0 HOURS").collect()
