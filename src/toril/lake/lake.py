"""The tables at a path: made, checked, read, and written so that each batch is in a table once.

Every commit that adds to a table bears a :class:`Record`: how far the table has read its source, and the
number of the batch. The number is also the version of Delta's application transaction, so of two writers
that both work on batch 7, one writes it and the other finds it written. There is no other note of how far a
table is: nothing that could be lost, or could disagree.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import lit

import toril
from toril.lake.errors import ForeignTable, LakeError, NewerTable
from toril.lake.problems import explained
from toril.lake.tables import FORM, Table

MARK = "toril"
"""The key under which a commit's metadata has the record."""

AGAIN = "again"
"""The key under which it says that it is no batch, and repeats the record."""

LOOK_BACK = (5, 100, 10_000)
"""Commits that are looked through for a record, in turn: those without one are of upkeep."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """How far a table has read its source, as one of its commits says."""

    batch: int = 0
    """1, 2, 3 …: how many batches there were."""
    source: int = 0
    """The last batch of the table before it that is in it; of ``events``, which reads the log, 0."""
    positions: dict[str, tuple[int, str]] = {}
    """By partition of the log (``07``, ``2:07``): all entries up to this ordinal and id are in it."""
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
        return f"{self.path}/{table if isinstance(table, str) else table.name}"

    def sql_name(self, table: Table | str) -> str:
        """What SQL calls it."""
        return f"delta.`{self.place(table)}`"

    def exists(self, table: Table | str) -> bool:
        """Whether there is a table at its place."""
        try:
            self._detail(table)
        except AnalysisException:
            return False
        return True

    def ensure(self, table: Table) -> None:
        """Make a table where there is none; refuse what is there if it is not this table."""
        try:
            detail = self._detail(table)
        except AnalysisException:
            self._refuse_others_files(table)
            with explained(self.place(table)):
                self._make(table)
                try:
                    detail = self._detail(table)
                except AnalysisException:
                    if not self._remove_torn(table):
                        raise
                    self._make(table)
                    detail = self._detail(table)
        self.check(table, detail)

    def check(self, table: Table, detail: Row | None = None) -> None:
        """Refuse what is at a table's place if it is not that table, in a form that we know."""
        if detail is None:
            try:
                detail = self._detail(table)
            except AnalysisException:
                raise LakeError(
                    f"there is no table {table.name} in {self.path}: `toril lake run` makes it"
                ) from None
        found: Mapping[str, str] = detail["properties"]
        if found.get("toril.table") != table.name:
            raise ForeignTable(
                f"{self.place(table)} is a table, and not Toril's {table.name}; "
                "name another path for the lake"
            )
        if int(found.get("toril.form", "0")) > FORM:
            raise NewerTable(
                f"{self.place(table)} has form {found['toril.form']}, and this Toril ({toril.__version__}) "
                f"knows forms up to {FORM}: upgrade it"
            )

    def _refuse_others_files(self, table: Table) -> None:
        """Delta would make a table around them, and a later clean-up would take them away."""
        try:
            files = self.spark.read.format("binaryFile").option("recursiveFileLookup", True)
            found = files.load(self.place(table)).select("path").limit(1).collect()
        except AnalysisException:  # there is nothing at all
            return
        if found:
            raise ForeignTable(
                f"{self.place(table)} has files, and is not Toril's table {table.name} "
                f"({found[0]['path']}); name another path for the lake"
            )

    def _remove_torn(self, table: Table) -> bool:
        """Remove what a process has left that was killed while it made a table; whether it was that.

        It is a log without a commit: Delta takes it for a table that is there, and cannot read it.
        """
        from toril.lake.files import LOG, files_of  # which knows of lakes

        files, log = files_of(self), f"{table.name}/{LOG}"
        if not all(file.path.rpartition("/")[2].startswith(".") for file in files.walk(log)):
            return False
        files.remove(log)
        return True

    def _detail(self, table: Table | str) -> Row:
        (detail,) = self.spark.sql(f"DESCRIBE DETAIL {self.sql_name(table)}").collect()
        return detail

    def _make(self, table: Table) -> None:
        columns = ", ".join(
            f"`{column.name}` {column.type}"
            + (f" GENERATED ALWAYS AS ({column.generated})" if column.generated else "")
            + (" NOT NULL" if column.required else "")
            + f" COMMENT '{_quoted(column.comment)}'"
            for column in table.columns
        )
        properties = {"toril.table": table.name, "toril.form": str(FORM), **table.properties}
        properties |= {f"delta.constraints.{name}": rule for name, rule in table.constraints.items()}
        said = ", ".join(f"'{key}' = '{_quoted(value)}'" for key, value in properties.items())
        shape = ""
        if table.partitioned_by:
            shape = f"PARTITIONED BY ({', '.join(table.partitioned_by)})"
        elif table.clustered_by:
            shape = f"CLUSTER BY ({', '.join(table.clustered_by)})"
        self.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.sql_name(table)} ({columns}) USING delta {shape} "
            f"COMMENT '{_quoted(table.comment)}' TBLPROPERTIES ({said})"
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
        (row,) = self.spark.sql(f"DESCRIBE HISTORY {self.sql_name(table)} LIMIT 1").collect()
        found: int = row["version"]
        return found

    def batches(self, table: Table | str, after: int, upto: int) -> DataFrame:
        """The rows of the batches after one, and up to another. Files of others are not read."""
        return self.read(table).where(f"batch > {after} AND batch <= {upto}")

    # ------------------------------------------------------------------ writing

    def last(self, table: Table | str, upto: int | None = None) -> Record:
        """How far a table has read its source; with ``upto``, as it was after that batch."""
        return self.wrote(table, upto).record

    def wrote(self, table: Table | str, upto: int | None = None) -> Told:
        """The same, with what else its commit says."""
        for most in LOOK_BACK:
            history = self.spark.sql(f"DESCRIBE HISTORY {self.sql_name(table)} LIMIT {most}")
            # The newest commit is the first row.
            rows = history.selectExpr("userMetadata", "operationMetrics['numOutputRows'] AS rows").collect()
            found = [told for row in rows if (told := _told(*row)) is not None]
            wrote = next((place for place, told in enumerate(found) if _is(told, upto)), None)
            if wrote is not None or len(rows) < most:
                # What upkeep said again may be of before the last batch: see keeping_record.
                seen = found if wrote is None else found[: wrote + 1]
                chosen = [told for told in seen if upto is None or told.record.batch <= upto]
                return max(chosen, key=lambda told: (told.record.batch, not told.again), default=Told())
        return Told()

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
            self.append(self.read(table).limit(0), table, record)

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


def _application(table: Table) -> str:
    return f"toril:{table.name}"


def _is(told: Told, upto: int | None) -> bool:
    """Whether this commit wrote a batch, up to a number: none before it can have a later record."""
    return not told.again and (upto is None or told.record.batch <= upto)


def _metadata(record: Record, *, again: bool = False) -> str:
    said = {MARK: msgspec.to_builtins(record)} | ({AGAIN: True} if again else {})
    return json.dumps(said, separators=(",", ":"))


def _told(metadata: str | None, rows: str | None) -> Told | None:
    try:
        said = json.loads(metadata or "null")
        count = None if rows is None else int(rows)
        return Told(msgspec.convert(said[MARK], Record), bool(said.get(AGAIN)), count)
    except (ValueError, TypeError, KeyError, msgspec.ValidationError):
        return None


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
