"""Upkeep: small files become large ones, and files that no version needs any more go.

Nothing of it changes a row, and none of it holds up a job: what Delta cannot bring together with what was
written meanwhile is tried again, and where that does not help it is left for the next time.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import unquote

from toril.errors import InvalidValue
from toril.lake.errors import LakeError
from toril.lake.files import (
    current_files,
    files_of,
    is_ours,
    own_session,
    settings,
    tables_in,
    vacuuming,
)
from toril.lake.lake import Lake
from toril.lake.problems import SPARKS, explained, passing
from toril.lake.quoting import quoted
from toril.lake.storage import File, Files

RETAIN = timedelta(days=7)
"""For how long files stay that only former versions need. Delta's own rule is the same."""

TARGET = 128 * 2**20
"""Bytes that files are brought to."""

TARGETS = {"trace_summaries": 32 * 2**20}
"""And those of tables with a size of their own: a late span of an old trace has its file written anew."""

FEW = 4
"""Small files that may stay in a partition: rewriting fewer costs more than it brings."""

AT_ONCE = 256
"""Partitions of a table that one call brings together. Those with the most small files come first."""

ATTEMPTS = 3

ORDER = {"spans": ("tenant", "trace_id")}
"""How rows of days that are over are laid, so that files can be left out: a trace is looked for by these."""

Told = Callable[[int, int, str], None]
"""Is told how far it is: so many tables, of so many, and what is done now."""


@dataclass(slots=True, kw_only=True)
class Upkept:
    """What was done for a table; of a dry run, what would be done."""

    table: str
    files_before: int = 0
    files_after: int = 0
    """Those that the last version of the table has."""
    bytes_before: int = 0
    bytes_after: int = 0
    compacted: int = 0
    """Partitions whose small files were brought together."""
    left: int = 0
    """Partitions with small files that are left for the next time."""
    removed: int = 0
    """Files of former versions that were removed."""
    removed_bytes: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def maintain(
    lake: Lake,
    tables: Sequence[str] | None = None,
    *,
    retain: timedelta = RETAIN,
    target: int | None = None,
    most: int = AT_ONCE,
    dry_run: bool = False,
    told: Told | None = None,
) -> Iterator[Upkept]:
    """Look after tables, one after the other: what was done for each is given when it is done.

    ``retain``: files of former versions stay for so long; it must be longer than the longest reader reads.
    ``target``: the bytes that files are brought to, of all tables, and not what each has of its own.
    What is given is checked at once, and so is whether all tables are of a form that we know.
    """
    if retain < RETAIN:
        raise InvalidValue(
            "retain",
            str(retain),
            f"at least {RETAIN.days} days: a reader that is still at a former version would lose its files "
            "(`toril lake erase` is for what must go at once)",
        )
    for field_, given in (("target", target), ("most", most)):
        if given is not None and given < 1:
            raise InvalidValue(field_, given, "a whole number from 1")
    mine = own_session(lake)
    files = files_of(mine)
    there = [name for name in tables_in(files) if is_ours(mine, name)]
    if not there:
        raise LakeError(f"there is no lake at {lake.path}: `toril lake run` makes one (nothing was changed)")
    for name in tables or ():
        if name not in there:
            raise InvalidValue("table", name, f"{lake.path} has: {', '.join(there)}")
    names = tables or there
    tell = told or _nobody
    return (
        _Table(mine, files, name, partial(tell, place, len(names))).upkeep(
            retain, target or TARGETS.get(name, TARGET), most, dry_run
        )
        for place, name in enumerate(names)
    )


def _nobody(*_: object) -> None:
    """Is told, and does nothing about it."""


class _Table:
    def __init__(self, lake: Lake, files: Files, name: str, told: Callable[[str], None]) -> None:
        self.lake = lake
        self.files = files
        self.name = name
        self.told = told

    def upkeep(self, retain: timedelta, target: int, most: int, dry_run: bool) -> Upkept:
        began = time.monotonic()
        done = Upkept(table=self.name)
        current, there = self._current(), self.files.walk(self.name)
        done.files_before, done.bytes_before = len(current), sum(current.values())
        small = small_files(current, target // 2)
        chosen = sorted(small, key=lambda partition: (-small[partition], partition))[:most]
        done.left = len(small) - len(chosen)
        today = datetime.now(UTC).date().isoformat()
        for order, some in _by_order(self.name, chosen, today).items():
            if dry_run or self._try(done, partial(self._compact, some, order, target)):
                done.compacted += len(some)
            else:
                done.left += len(some)
        self._try(done, lambda: self._vacuum(retain, dry_run, done, there))
        current = self._current()
        done.files_after, done.bytes_after = len(current), sum(current.values())
        done.seconds = time.monotonic() - began
        return done

    def _current(self) -> dict[str, int]:
        return current_files(self.lake, self.files, self.name)

    def _compact(self, partitions: Sequence[str], order: Sequence[str], target: int) -> None:
        self.told(f"{self.name}: bringing together the files of {len(partitions):,} partitions")
        predicate = " OR ".join(f"({condition})" for one in partitions if (condition := condition_of(one)))
        statement = f"OPTIMIZE {self.lake.sql_name(self.name)}"
        statement += f" WHERE {predicate}" if predicate else ""
        statement += f" ZORDER BY ({', '.join(order)})" if order else ""
        with (
            settings(
                self.lake.spark,
                spark__databricks__delta__optimize__minFileSize=str(target // 2),
                spark__databricks__delta__optimize__maxFileSize=str(target),
            ),
            self.lake.keeping_record(self.name),
        ):
            self.lake.spark.sql(statement).collect()

    def _vacuum(self, retain: timedelta, dry_run: bool, done: Upkept, there: Sequence[File]) -> None:
        self.told(f"{self.name}: looking for files that no version needs")
        hours = retain / timedelta(hours=1)
        statement = f"VACUUM {self.lake.sql_name(self.name)} RETAIN {hours:g} HOURS"
        with vacuuming(self.lake.spark):
            rows = self.lake.spark.sql(f"{statement} DRY RUN" if dry_run else statement).collect()
        if dry_run:
            done.removed = len(rows)
            return
        left = {file.path for file in self.files.walk(self.name)}
        gone = [file for file in there if file.path not in left and file.path.endswith(".parquet")]
        done.removed, done.removed_bytes = len(gone), sum(file.size for file in gone)

    def _try(self, done: Upkept, work: Callable[[], None]) -> bool:
        """What a job has crossed is tried again; it is only upkeep, and can wait. Whether it was done."""
        for left in reversed(range(ATTEMPTS)):
            try:
                with explained(self.lake.place(self.name)):
                    work()
            except (*SPARKS, LakeError) as problem:
                if not passing(problem):
                    raise
                if not left:
                    done.problems.append("a job was at it each time: left for the next time")
            else:
                return True
        return False


def small_files(current: dict[str, int], small: int) -> dict[str, int]:
    """The partitions that have many files smaller than that, and how many."""
    counted: dict[str, int] = defaultdict(int)
    for path, size in current.items():
        if size < small:
            counted[path.rpartition("/")[0]] += 1
    return {partition: count for partition, count in counted.items() if count > FEW}


def condition_of(partition: str) -> str:
    """The rows of a partition, from the names of its folders, as SQL says it; empty: the table has none."""
    parts = []
    for folder in filter(None, partition.split("/")):
        column, _, value = folder.partition("=")
        missing = value == "__HIVE_DEFAULT_PARTITION__"
        parts.append(f"`{column}` IS NULL" if missing else f"`{column}` = {quoted(unquote(value))}")
    return " AND ".join(parts)


def _by_order(name: str, partitions: Sequence[str], today: str) -> dict[tuple[str, ...], list[str]]:
    """Days that are over are laid in order, once; the files of others are brought together as they are."""
    order = ORDER.get(name, ())
    made: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for partition in partitions:
        day = next((part[13:] for part in partition.split("/") if part.startswith("recorded_day=")), today)
        made[order if day < today else ()].append(partition)
    return made
