"""The tables at a path: made, checked, read, and written so that each batch is in a table once.

Every commit that adds to a table bears a :class:`Record`: how far the table has read its source, and the
number of the batch. The number is also the version of Delta's application transaction, so of two writers
that both work on batch 7, one writes it and the other finds it written. There is no other note of how far a
table is: nothing that could be lost, or could disagree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import lit

import toril
from toril.lake.commits import SOMETIME, Commit, commits
from toril.lake.errors import ForeignTable, LakeError, NewerTable
from toril.lake.problems import explained
from toril.lake.quoting import quoted, table_at
from toril.lake.storage import LOG, files_at
from toril.lake.tables import FORM, NAMES, Table

MARK = "toril"
"""The key under which a commit's metadata has the record."""

AGAIN = "again"
"""The key under which it says that it is no batch, and repeats the record."""

LOOK_BACK = 10_000
"""Commits that are looked through for a record: those without one are of upkeep."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """How far a table has read its source, as one of its commits says."""

    batch: int = 0
    """1, 2, 3 …: how many batches there were."""
    source: int = 0
    """The last batch of the table before it that is in it; of ``events``, which reads the log, 0."""
    positions: dict[str, tuple[int, str]] = {}
    """By partition of the log (``07``, ``2:07``): all entries up to this ordinal and id are in it."""
    began: dict[str, int] = {}
    """Of ``events``: by partition, how many entries were trimmed from the log when the archive began."""
    upcast: bool | None = None
    """Of ``spans``: whether an upcaster has changed what was recorded, in this batch or one before it; None
    where one of before this was noted is among them."""
    rows: int | None = None
    """Of a generation that is whole: how many aggregates it had when it was looked through."""
    failed: int | None = None
    """And how many of them have an event that the projection could not take."""
    run: str = ""
    """The run that wrote it."""
    code: str = toril.__version__


NEVER = Record()
"""Before the first batch."""


class Told(NamedTuple):
    """What a commit says."""

    record: Record = NEVER
    again: bool = False
    """Whether it only repeats the record."""
    rows: int | None = None
    """How many it has added, where it says so."""


class Lake:
    """See the module's text. ``path``: a folder, or a URL that Spark can write to."""

    def __init__(self, spark: SparkSession, path: str | Path) -> None:
        self.spark = spark
        self.path = str(path).rstrip("/")

    def __repr__(self) -> str:
        return f"Lake({self.path!r})"

    # ------------------------------------------------------------------ tables

    def place(self, table: Table | str) -> str:
        """Where a table is."""
        return f"{self.path}/{_name(table)}"

    def sql_name(self, table: Table | str) -> str:
        """What SQL calls it."""
        return table_at(self.place(table))

    def exists(self, table: Table | str) -> bool:
        """Whether a table is at its place; what is there and is not that table is refused."""
        try:
            self._check(table)
        except AnalysisException:
            return False
        return True

    def ensure(self, table: Table) -> None:
        """Make a table where there is none; refuse what is there if it is not this table."""
        try:
            self._check(table)
        except AnalysisException:
            self._refuse_others_files(table)
            with explained(self.place(table)):
                self._make(table)
                try:
                    self._check(table)
                except AnalysisException:
                    if not self._remove_torn(table):
                        raise
                    self._make(table)
                    self._check(table)

    def check(self, table: Table | str) -> None:
        """Refuse what is at a table's place if it is not that table, in a form that we know."""
        try:
            self._check(table)
        except AnalysisException:
            raise LakeError(
                f"there is no table {_name(table)} in {self.path}: `toril lake run` makes it"
            ) from None

    def check_all(self, tables: Iterable[Table | str] = NAMES) -> None:
        """The same of several tables, before anything is written: those that are not there may be made."""
        for table in tables:
            if not self.exists(table):
                self._refuse_others_files(table)

    def _check(self, table: Table | str) -> None:
        name = _name(table)
        # This one is quick: it does not look at a table's files. But Spark hides what has words like "token".
        rows = self.spark.sql(f"SHOW TBLPROPERTIES {self.sql_name(table)}").collect()
        said = {row["key"]: row["value"] for row in rows}
        if (said.get("toril.table"), said.get("toril.form")) == (name, str(FORM)):
            return
        if self.properties(table).get("toril.table") != name:
            raise ForeignTable(
                f"{self.place(table)} is a table, and not Toril's {name}; name another path for the lake"
            )

    def properties(self, table: Table | str) -> dict[str, str]:
        """The properties of a table. One of a later Toril is refused."""
        return dict(self.detail(table)["properties"])

    def detail(self, table: Table | str) -> Row:
        """What Delta says of a table: its properties, features, sizes. One of a later Toril is refused."""
        (detail,) = self.spark.sql(f"DESCRIBE DETAIL {self.sql_name(table)}").collect()
        form: str = detail["properties"].get("toril.form", "0")
        if not form.isdecimal() or int(form) > FORM:
            raise NewerTable(
                f"{self.place(table)} has form {form}, and this Toril ({toril.__version__}) "
                f"knows forms up to {FORM}: upgrade it"
            )
        return detail

    def identity(self, table: Table | str) -> str:
        """What tells a table from all others, and from one that is made anew in its place: Delta's id."""
        return str(self.detail(table)["id"])

    def _refuse_others_files(self, table: Table | str) -> None:
        """Delta would make a table around them, and a later clean-up would take them away."""
        try:
            files = self.spark.read.format("binaryFile").option("recursiveFileLookup", True)
            found = files.load(self.place(table)).select("path").limit(1).collect()
        except AnalysisException:  # there is nothing at all
            return
        if found:
            raise ForeignTable(
                f"{self.place(table)} has files, and is not Toril's table {_name(table)} "
                f"({found[0]['path']}); name another path for the lake"
            )

    def _remove_torn(self, table: Table) -> bool:
        """Remove what a process has left that was killed while it made a table; whether it was that.

        It is a log without a commit: Delta takes it for a table that is there, and cannot read it.
        """
        files, log = files_at(self.spark, self.path), f"{table.name}/{LOG}"
        if not all(file.path.rpartition("/")[2].startswith(".") for file in files.walk(log)):
            return False
        files.remove(log)
        return True

    def _make(self, table: Table) -> None:
        columns = ", ".join(
            f"`{column.name}` {column.type}"
            + (f" GENERATED ALWAYS AS ({column.generated})" if column.generated else "")
            + (" NOT NULL" if column.required else "")
            + f" COMMENT {quoted(column.comment)}"
            for column in table.columns
        )
        properties = {"toril.table": table.name, "toril.form": str(FORM), **table.properties}
        properties |= {f"delta.constraints.{name}": rule for name, rule in table.constraints.items()}
        said = ", ".join(f"'{key}' = {quoted(value)}" for key, value in properties.items())
        shape = ""
        if table.partitioned_by:
            shape = f"PARTITIONED BY ({', '.join(table.partitioned_by)})"
        elif table.clustered_by:
            shape = f"CLUSTER BY ({', '.join(table.clustered_by)})"
        self.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.sql_name(table)} ({columns}) USING delta {shape} "
            f"COMMENT {quoted(table.comment)} TBLPROPERTIES ({said})"
        )

    # ------------------------------------------------------------------ reading

    def read(self, table: Table | str, version: int | None = None) -> DataFrame:
        """All rows, as they are or as they were at a version."""
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(self.place(table))

    def version(self, table: Table | str) -> int:
        """The last version of a table, from 0."""
        return next(self.commits(table)).version

    def commits(self, table: Table | str) -> Iterator[Commit]:
        """What was done to a table, the last one first."""
        return commits(self.spark, self.path, _name(table))

    def batches(self, table: Table | str, after: int, upto: int) -> DataFrame:
        """The rows of the batches after one, and up to another. Files of others are not read."""
        return self.read(table).where(f"batch > {after} AND batch <= {upto}")

    # ------------------------------------------------------------------ writing

    def last(self, table: Table | str, upto: int | None = None, *, version: int | None = None) -> Record:
        """How far a table has read its source; with ``upto``, as it was after that batch.

        With ``version``, as that version of the table has it: what :meth:`read` gives of it.
        """
        return self.wrote(table, upto, version=version).record

    def wrote(self, table: Table | str, upto: int | None = None, *, version: int | None = None) -> Told:
        """The same, with what else its commit says.

        A table that was restored to before its last batch is refused: Delta remembers the numbers of the
        batches that are gone, and drops others with the same ones; and tables after it have read them.
        """
        seen: list[Told] = []
        gone: list[Told] = []
        restore: Commit | None = None
        there = (one for one in self.commits(table) if version is None or one.version <= version)
        for commit in islice(there, LOOK_BACK):
            told = _told(commit)
            if restore is not None and commit.version > (restore.restored or 0):
                gone += [told] if told is not None else []
            elif commit.restored is not None:
                restore = commit
                if commit.restored == SOMETIME:
                    break
            elif told is not None:
                seen.append(told)
                if not told.again and (upto is None or told.record.batch <= upto):
                    break  # none before it can have a later record
        if restore is not None:
            self._check_restored(table, restore, _latest(seen).record.batch, _latest(gone).record.batch)
        return _latest(told for told in seen if upto is None or told.record.batch <= upto)

    def _check_restored(self, table: Table | str, restore: Commit, has: int, had: int) -> None:
        """Refuse a table that had more batches before."""
        if restore.restored == SOMETIME:
            where = "how it was at some time, and no version is said"
        elif has < had:
            where = f"version {restore.restored}, where it had batch {has}, and had batch {had} before"
        else:
            return
        raise LakeError(
            f"{self.place(table)} was restored to {where}: what it has lost so would not be read again. "
            f"`RESTORE TABLE {self.sql_name(table)} TO VERSION AS OF {restore.version - 1}` takes that back"
        )

    def append(self, rows: DataFrame, table: Table, record: Record) -> None:
        """Add a batch: once, whoever tries it how often. Look at :meth:`last` for what is there then."""
        writer = (
            rows.withColumn("batch", lit(record.batch).cast("bigint"))
            .select(*(column.name for column in table.columns if not column.generated))
            .write.format("delta")
            .mode("append")
            .option("userMetadata", _metadata(record))
            .option("txnAppId", _application(table))
            .option("txnVersion", record.batch)
        )
        with explained(self.place(table)):
            writer.save(self.place(table))

    def append_nothing(self, table: Table, record: Record) -> None:
        """Record a batch that has no rows."""
        self.append(self.read(table).limit(0), table, record)

    @contextmanager
    def recording(self, table: Table, record: Record) -> Iterator[None]:
        """The one statement in it (a MERGE, say) is this batch of a table: it is done once.

        Where it changes nothing, Delta makes no commit of it; the batch is recorded all the same.
        """
        conf = self.spark.conf
        settings = {
            "spark.databricks.delta.commitInfo.userMetadata": _metadata(record),
            "spark.databricks.delta.write.txnAppId": _application(table),
            "spark.databricks.delta.write.txnVersion": str(record.batch),
        }
        for key, value in settings.items():
            conf.set(key, value)
        try:
            with explained(self.place(table)):
                yield
        finally:
            for key in settings:
                conf.unset(key)
        if self.last(table).batch < record.batch:
            self.append_nothing(table, record)

    @contextmanager
    def keeping_record(self, table: Table | str) -> Iterator[None]:
        """What is done in it is no batch, and its commits say again how far the table is.

        Delta forgets old commits, and what they said. A batch that another process adds meanwhile is not in
        what is said again; :meth:`last` knows that.
        """
        key = "spark.databricks.delta.commitInfo.userMetadata"
        self.spark.conf.set(key, _metadata(self.last(table), again=True))
        try:
            yield
        finally:
            self.spark.conf.unset(key)


def _name(table: Table | str) -> str:
    return table if isinstance(table, str) else table.name


def _application(table: Table) -> str:
    return f"toril:{table.name}"


def _metadata(record: Record, *, again: bool = False) -> str:
    said = {MARK: msgspec.to_builtins(record)} | ({AGAIN: True} if again else {})
    return json.dumps(said, separators=(",", ":"))


def _latest(told: Iterable[Told]) -> Told:
    """What counts of several: what upkeep said again may be of before the last batch, see keeping_record."""
    return max(told, key=lambda one: (one.record.batch, not one.again), default=Told())


def _told(commit: Commit) -> Told | None:
    try:
        said = json.loads(commit.metadata)
        return Told(msgspec.convert(said[MARK], Record), bool(said.get(AGAIN)), commit.rows)
    except (ValueError, TypeError, KeyError, msgspec.ValidationError):
        return None
