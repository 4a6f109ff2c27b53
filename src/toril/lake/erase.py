"""Erasing a tenant from a lake: from every table, from all that tables were, and from their logs.

A deleted row lives on in Delta: in files that former versions have, in the change feed, and in the log, whose
statistics have the smallest and largest values of each file. So for each table, in this order:

1. its rows are deleted;
2. a fence: a change of the table's properties, at which every transaction that is under way fails. So a file
   that was there before it, and is not in the table after it, never will be;
3. these files are removed, those of the change feed among them. (VACUUM goes by clocks: without retention it
   takes away what a job is just writing, and with some it leaves what must go.)
4. an empty batch says how far the table is, and becomes the beginning of the log: a checkpoint;
5. all of the log before it is removed. Nothing can travel in time to before it.

It can be cut off anywhere, and another run finishes it. Readers of former versions fail from then on, and a
job that was in the middle of a batch begins that batch anew.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyspark.sql import DataFrame

from toril.aggregate import check_tenant
from toril.lake.erasures import note
from toril.lake.errors import LakeError, OtherWriter
from toril.lake.files import LOG, Files, current_files, detail_of, files_of, own_session, tables_in
from toril.lake.generations import PLAN, Plan
from toril.lake.lake import NEVER, Lake
from toril.lake.problems import SPARKS, explained, passing
from toril.lake.runs import RUNS
from toril.lake.tables import EVENTS, Column, Table

ERASING = "toril.erasing"
"""The table's property that says that it is being erased from, and how often checkpoints were made before."""

INTERVAL = "delta.checkpointInterval"

ATTEMPTS = 10

_VERSION = re.compile(r"\.?(\d{20})\.")
"""What begins the name of a file in a table's log, and of what the file system keeps beside it."""

Told = Callable[[int, int, str], None]
"""Is told how far it is: so many tables, of so many, and what is done now."""


@dataclass(slots=True, kw_only=True)
class ErasedTable:
    """What was removed from a table."""

    table: str
    rows: int = 0
    files: int = 0
    """Files with rows, of the table as it was and of its change feed."""
    bytes: int = 0
    log_files: int = 0
    """Files of the table's log."""
    whole: bool = False
    """Whether all of the table is gone, because it was only about this tenant."""


@dataclass(slots=True, kw_only=True)
class ErasedFromLake:
    """What was removed, and what was not looked at."""

    tables: list[ErasedTable] = field(default_factory=list)
    remains: list[str] = field(default_factory=list)
    """What is still there, and why."""

    @property
    def rows(self) -> int:
        """Of all tables."""
        return sum(table.rows for table in self.tables)


def erase(lake: Lake, tenant: str, told: Told | None = None) -> ErasedFromLake:
    """Remove all that a lake has of a tenant, for good. See the module's text.

    Erase the tenant from the log first: what the log still has is archived again.
    """
    check_tenant(tenant)
    mine = own_session(lake)
    files = files_of(mine)
    report = ErasedFromLake()
    names = tables_in(files)
    # In the order in which rows come into them: what a job takes from one to the next is found there.
    names.sort(key=lambda name: (_ORDER.get(name, len(_ORDER)), name))
    tables = [one for name in names if (one := _look(mine, files, name, tenant, report)) is not None]
    steps = 4 * len(tables)
    done = 0

    def tell(what: str) -> None:
        nonlocal done
        if told is not None:
            told(min(done, steps), steps, what)
        done += 1

    left = tables
    while left:
        for table in left:
            tell(f"{table.name}: deleting rows")
            table.delete()
        for table in left:
            tell(f"{table.name}: stopping what is under way")
            table.fence()
        left = [table for table in tables if table.has_rows()]
    for table in tables:
        tell(f"{table.name}: removing files of former versions")
        report.remains += table.remove_files()
        tell(f"{table.name}: removing its history")
        table.cut_log()
        report.tables.append(table.done())
    if told is not None:
        told(steps, steps, "")
    return report


_ORDER = {name: place for place, name in enumerate(("events", "quarantine", "spans", "trace_summaries"))}


def _look(lake: Lake, files: Files, name: str, tenant: str, report: ErasedFromLake) -> _Erasing | None:
    """What is to be done for a table; a generation of this tenant alone is removed at once."""
    properties = _properties(lake, name)
    if "toril.table" not in properties:
        report.remains.append(f"{name}: it is not a table of Toril's, and was not touched")
        return None
    if name != RUNS.name and "tenant" not in lake.read(name).columns:
        return None
    if not _is_about(properties, tenant):
        return _Erasing(lake, files, name, tenant)
    rows = _of(lake, name, tenant).count()
    there = files.walk(name)
    files.remove(name)
    logs = sum(file.path.startswith(f"{LOG}/") for file in there)
    size = sum(file.size for file in there)
    report.tables.append(
        ErasedTable(table=name, whole=True, rows=rows, files=len(there) - logs, bytes=size, log_files=logs)
    )
    return None


class _Erasing:
    """One table, and one tenant."""

    def __init__(self, lake: Lake, files: Files, name: str, tenant: str) -> None:
        self.lake = lake
        self.files = files
        self.name = name
        self.tenant = tenant
        self.sql_name = lake.sql_name(name)
        self.before = files.walk(name)
        self.rows = 0
        self.fenced: list[str] = []
        """Files that were there before the fence."""

    def has_rows(self) -> bool:
        """Whether there are any of the tenant."""
        return not _of(self.lake, self.name, self.tenant).isEmpty()

    def delete(self) -> None:
        """Delete the tenant's rows from the table as it is."""
        if there := _of(self.lake, self.name, self.tenant).count():
            self.rows += there
            if self.name == EVENTS.name:
                self._note_places()
            self._again_and_again(self._delete)

    def fence(self) -> None:
        """Have every transaction fail that is under way."""
        self.fenced = self._data_files()
        self._again_and_again(self._fence)

    def _data_files(self) -> list[str]:
        paths = (file.path for file in self.files.walk(self.name))
        return [path for path in paths if path.endswith(".parquet") and not path.startswith(f"{LOG}/")]

    def remove_files(self) -> list[str]:
        """Remove what was there before the fence, and is not in the table after it; what stays, and why."""
        current = current_files(self.lake, self.files, self.name)
        for path in self.fenced:
            if path not in current:
                folder, _, name = path.rpartition("/")
                self.files.remove(f"{self.name}/{path}")
                # Hadoop keeps a checksum beside each file on a local disk.
                self.files.remove("/".join(filter(None, (self.name, folder, f".{name}.crc"))))
        others = [path for path in self._data_files() if path not in current]
        if not others:
            return []
        what = f"{self.name}: {len(others):,} files that belong to no version: a job is, or was, at work. "
        return [f"{what}Run it again when it has ended a batch, or leave them to `toril lake maintain`"]

    def cut_log(self) -> None:
        """Let the log begin anew."""
        beginning = self._again_and_again(self._begin_log)
        self._cut_log(beginning)
        self._again_and_again(self._end)

    def done(self) -> ErasedTable:
        """What was removed."""
        left = {file.path for file in self.files.walk(self.name)}
        gone = [file for file in self.before if file.path not in left and not _checksum(file.path)]
        logs = sum(file.path.startswith(f"{LOG}/") for file in gone)
        return ErasedTable(
            table=self.name,
            rows=self.rows,
            files=len(gone) - logs,
            bytes=sum(file.size for file in gone),
            log_files=logs,
        )

    def _note_places(self) -> None:
        """Write down which places become empty, before they are."""
        _of(self.lake, self.name, self.tenant).select(
            "log_epoch", "log_partition", "ordinal"
        ).createOrReplaceTempView("toril_erased_places")
        note(
            self.lake,
            self.lake.spark.sql(
                "SELECT log_epoch, log_partition, min(ordinal) AS first, max(ordinal) AS last FROM"
                " (SELECT *, ordinal - row_number() OVER (PARTITION BY log_epoch, log_partition"
                " ORDER BY ordinal) AS run FROM toril_erased_places) GROUP BY log_epoch, log_partition, run"
            ),
        )

    def _delete(self) -> None:
        with self.lake.keeping_record(self.name):
            # What the commit says of it names the tenant; it goes with the log.
            statement = f"DELETE FROM {self.sql_name} WHERE {_condition(self.name, self.tenant)}"  # noqa: S608
            self.lake.spark.sql(statement).collect()
            if "deletionVectors" in detail_of(self.lake, self.name)["tableFeatures"]:
                # Rows that are only marked as deleted are still in their files.
                self.lake.spark.sql(f"REORG TABLE {self.sql_name} APPLY (PURGE)").collect()

    def _fence(self) -> None:
        properties = _properties(self.lake, self.name)
        former = properties.get(ERASING, properties.get(INTERVAL, ""))
        with self.lake.keeping_record(self.name):
            # Properties that change nothing would be no fence: it must be a word that was never said.
            self.lake.spark.sql(
                f"ALTER TABLE {self.sql_name} SET TBLPROPERTIES "
                f"('{ERASING}' = '{former}', '{INTERVAL}' = '1', "
                f"'toril.fence' = '{secrets.token_urlsafe(9)}')"
            )

    def _begin_log(self) -> int:
        """A commit that says how far the table is, and has a checkpoint; its version."""
        had = self.lake.last(self.name)
        if had == NEVER:
            self._fence()
            return self.lake.version(self.name)
        run = f"erasure-{secrets.token_urlsafe(9)}"
        record = msgspec.structs.replace(had, batch=had.batch + 1, run=run)
        empty = self.lake.read(self.name).limit(0)
        table = Table(
            name=_properties(self.lake, self.name)["toril.table"],
            comment="",
            columns=tuple(Column(each.name, "", "") for each in empty.schema),
        )
        self.lake.append(empty, table, record)
        history = self.lake.spark.sql(f"DESCRIBE HISTORY {self.sql_name} LIMIT 100")
        for row in history.select("version", "userMetadata").collect():
            if run in (row["userMetadata"] or ""):
                version: int = row["version"]
                return version
        raise OtherWriter(f"another process has written this batch of {self.lake.place(self.name)}")

    def _cut_log(self, beginning: int) -> None:
        log = f"{self.name}/{LOG}"
        there = [file.path for file in self.files.walk(log)]
        if not any(path.startswith(f"{beginning:020d}.checkpoint.") for path in there):
            raise LakeError(
                f"{self.lake.place(self.name)} has no checkpoint of version {beginning}, so the log cannot "
                "be cut: the rows are gone, its history is not yet; run it again"
            )
        # The oldest first: whenever it is cut off, what is left has no hole.
        for path in sorted(there, key=lambda path: path.lstrip(".")):
            found = _VERSION.match(path)
            if found and int(found[1]) < beginning:
                self.files.remove(f"{log}/{path}")

    def _end(self) -> None:
        properties = _properties(self.lake, self.name)
        former = properties.get(ERASING, "")
        with self.lake.keeping_record(self.name):
            if former:
                self.lake.spark.sql(
                    f"ALTER TABLE {self.sql_name} SET TBLPROPERTIES ('{INTERVAL}' = '{former}')"
                )
            gone = [ERASING, "toril.fence"] if former else [ERASING, "toril.fence", INTERVAL]
            said = ", ".join(f"'{name}'" for name in gone)
            self.lake.spark.sql(f"ALTER TABLE {self.sql_name} UNSET TBLPROPERTIES IF EXISTS ({said})")

    def _again_and_again(self, work: Callable[[], Any]) -> Any:
        """What a job was quicker at is tried again."""
        for left in reversed(range(ATTEMPTS)):
            try:
                with explained(self.lake.place(self.name)):
                    return work()
            except (*SPARKS, OtherWriter) as problem:
                if not left or not passing(problem):
                    raise
        raise AssertionError("unreachable")


def _of(lake: Lake, name: str, tenant: str) -> DataFrame:
    return lake.read(name).where(_condition(name, tenant))


def _condition(name: str, tenant: str) -> str:
    """A tenant's rows; of runs, those that were told of the tenant."""
    if name == RUNS.name:
        return f"instr(arguments, {_text(json.dumps(tenant))}) > 0"
    return f"tenant = {_text(tenant)}"


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _properties(lake: Lake, name: str) -> dict[str, str]:
    return dict(detail_of(lake, name)["properties"])


def _is_about(properties: dict[str, str], tenant: str) -> bool:
    """Whether a table is a generation that was made of this tenant alone."""
    try:
        return msgspec.json.decode(properties.get(PLAN, ""), type=Plan).filters.tenant == tenant
    except msgspec.MsgspecError:
        return False


def _checksum(path: str) -> bool:
    """What Hadoop keeps beside a file on a local disk."""
    return path.rpartition("/")[2].startswith(".")
