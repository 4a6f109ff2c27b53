"""Erasing a tenant from a lake: from every table, from all that tables were, and from their logs.

A deleted row lives on in Delta: in files that former versions have, in the change feed, and in the log, whose
statistics have the smallest and largest values of each file. So, in this order:

1. from each table its rows are deleted;
2. each table is fenced, in two ways. An empty batch takes the number of the batch that a job may be about to
   write. And a change of the table's properties has every transaction fail that is under way, but those of
   upkeep: OPTIMIZE commits its files all the same, as long as those that it has read are in the table;
3. all tables are looked through. Where one has rows of the tenant, or there is a new table, it begins anew;
4. of each table those files are removed that were there before the fence, are not in the table after it, and
   have rows of the tenant: files of former versions, of the change feed, and of jobs that were cut off.
   (VACUUM goes by clocks: without retention it takes away what a job is just writing, and with some it leaves
   what must go.)
5. one more empty batch says how far the table is, and becomes the beginning of the log: a checkpoint;
6. all of the log before it is removed. Nothing can travel in time to before it.

It can be cut off anywhere, and another run finishes it. Readers of former versions fail from then on, and a
job that was in the middle of a batch begins that batch anew.

**Why no file is missed.** What step 4 removes could only be added to the table by a transaction that began
before the fence. If it is not OPTIMIZE, it fails there. If it is, it has read the tenant's rows from a file
that was in the table; that one is there no more, as step 3 has found none, so OPTIMIZE gives up. Files
without rows of the tenant stay, whosever they are; VACUUM takes them when their time has come.

**What may stay** is said in the report: files that cannot be read, as somebody is writing them or was killed;
and what a run that was under way at the fence may have been about to write. That it was at nothing, or has
ended, is known when it says that it ended, and of a table when it has written a later batch there.

**Why no row comes back.** A job may have read the tenant's rows, and keep them (in Spark's cache) until it
writes them. It writes a batch under a number, by :meth:`Lake.append` or :meth:`Lake.recording`, and these
rules hold for all that writes rows of tenants:

- the number is that of the last batch that it sees in the table, plus one, and it looks before it reads what
  the batch is made of;
- of one number, one batch is written; and none, once the table has a batch with a higher one. Delta sees to
  that in the transaction itself, so it does not matter when that began.

Say that a batch with rows of the tenant comes into a table T after step 3 has looked at T for the last time.
Its number is higher than that of the fence, so the job saw the fence, and read its source after it: after the
last deletion from any table. If that was before step 3 looked at the source, the rows were still there then,
since nobody deletes between the fences and the looks (but ``rewind``, beside which nothing may write); and
they were not found. If it was after that, the source itself has got rows after it was looked at: the same
holds for it, and for its source, up to the log, of which the tenant was erased before all this. So there is
no such batch. Into a table that is made later comes only what is read later. Upkeep, which has no numbers,
rewrites files that are in the table when it commits, and these have no rows of the tenant.

Some have rules of their own. ``requeue`` keeps what it has read over several numbers, and takes of it only
what is in quarantine still, as it sees after it has the number. Of a generation, batches are portions: those
that the erasure adds are counted apart (see :mod:`toril.lake.generations`), and a replay that is under way
ends, to be taken up again. The end of a run is noted where its beginning still is (:mod:`toril.lake.runs`).
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from pyspark.sql import DataFrame

from toril.aggregate import check_tenant
from toril.lake.erasures import ERASURES, note
from toril.lake.errors import LakeError
from toril.lake.fence import again_and_again, take_number
from toril.lake.files import current_files, files_of, own_session, path_below, tables_in
from toril.lake.generations import PLAN, RETIRED, Generation, Plan
from toril.lake.lake import Lake
from toril.lake.problems import SPARKS, spark_is_gone
from toril.lake.quoting import quoted
from toril.lake.runs import ONLY_READ, RUNS, OneRun, Runs
from toril.lake.storage import LOG, Files
from toril.lake.tables import BATCH, EVENTS, NAMES

ERASING = "toril.erasing"
"""The table's property that says that it is being erased from, and how often checkpoints were made before."""

INTERVAL = "delta.checkpointInterval"

ERASED = "(erased)"
"""Stands for the tenant in the plan of a generation that was only about it."""

T = TypeVar("T")

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
    """Whether all rows are gone, because it was only about this tenant."""


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


def erase(lake: Lake, tenant: str, told: Told | None = None, *, run: str = "") -> ErasedFromLake:
    """Remove all that a lake has of a tenant, for good. See the module's text.

    Erase the tenant from the log first: what the log still has is archived again. ``run``: what this is
    called in the table ``runs`` itself.
    """
    mine, files = _opened(lake, tenant)
    report = ErasedFromLake()
    looked = {ERASURES.name}  # which is written to meanwhile, and knows no tenants
    tables: list[_Erasing] = []
    others: dict[str, OneRun] = {}
    done = 0

    def tell(what: str) -> None:
        nonlocal done
        steps = 4 * len(tables)
        if told is not None:
            told(min(done, steps), steps, what)
        done += 1

    again = True
    while again:
        # Before anything is deleted: a run that was told of the tenant is not in the table any more then.
        others |= _writing(mine, run)
        new = [name for name in tables_in(files) if name not in looked]
        looked.update(new)
        # In the order in which rows come into them: what a job takes from one to the next is found there.
        new.sort(key=lambda name: (_ORDER.get(name, len(_ORDER)), name))
        tables += [one for name in new if (one := _look(mine, files, name, tenant, report)) is not None]
        for table in tables:
            tell(f"{table.name}: deleting rows")
            table.delete()
        for table in tables:
            tell(f"{table.name}: stopping what is under way")
            table.fence()
        # Of all of them: a job may have read in one what another one has got too late.
        again = any(table.has_rows() for table in tables) or not looked.issuperset(tables_in(files))
    others |= _writing(mine, run)
    for table in tables:
        tell(f"{table.name}: removing files of former versions")
        table.remove_files()
        tell(f"{table.name}: removing its history")
        table.cut_log()
        report.tables.append(table.done())
    # As late as can be: what was under way at the fences has had time to end.
    for table in tables:
        report.remains += table.remains()
    if others:
        report.remains += _may_remain(Runs(mine).still(others.values()), tables)
    if told is not None:
        told(4 * len(tables), 4 * len(tables), "")
    return report


def would_erase(lake: Lake, tenant: str, told: Told | None = None) -> ErasedFromLake:
    """What :func:`erase` would find: the tables, and how many rows of each. Nothing is changed."""
    mine, files = _opened(lake, tenant)
    report = ErasedFromLake()
    names = [name for name in tables_in(files) if name != ERASURES.name]
    for done, name in enumerate(names):
        if told is not None:
            told(done, len(names), f"{name}: looking for rows")
        properties = mine.properties(name)
        if not _has_tenants(mine, name, properties, report):
            continue
        whole = _is_only_about(_plan(properties), tenant)
        rows = mine.read(name) if whole else _of(mine, name, tenant)
        report.tables.append(ErasedTable(table=name, rows=rows.count(), whole=whole))
    return report


def _opened(lake: Lake, tenant: str) -> tuple[Lake, Files]:
    """The lake in a session of its own, and its files; an error where it is none, or of a later Toril."""
    check_tenant(tenant)
    mine = own_session(lake)
    files = files_of(mine)
    there = tables_in(files)
    if not there:
        raise LakeError(f"there is no lake at {lake.path} (nothing was changed)")
    for name in set(NAMES).intersection(there):
        mine.check(name)
    return mine, files


_ORDER = {name: place for place, name in enumerate(NAMES[:5])}
"""The tables that a run feeds."""


def _writing(lake: Lake, own: str) -> dict[str, OneRun]:
    """The runs that are under way and may write to the lake."""
    if not lake.exists(RUNS):
        return {}
    running = Runs(lake).running()
    return {one.run: one for one in running if one.run != own and one.what not in ONLY_READ}


def _may_remain(runs: Iterable[OneRun], tables: Iterable[_Erasing]) -> list[str]:
    """What nobody knows of runs that were under way at the fences, and may still be."""
    said = []
    for one in runs:
        since = "has not ended"
        if one.what == "run":
            # It writes one batch of a table after the other: after one since the fence, no former one comes.
            silent = [table.name for table in tables if table.name in _ORDER and one.run not in table.writers]
            if not silent:
                continue
            since = f"has written no batch of {', '.join(silent)} since"
        said.append(
            f"{one.what} {one.run} (process {one.pid} on {one.host}) was under way, and {since}: what it was "
            "just writing, if anything, stays in files that belong to no version. Run it again later, or "
            f"leave them to `toril lake maintain`; where it was killed, `toril lake runs --ended {one.run}` "
            "notes that"
        )
    return said


def _look(lake: Lake, files: Files, name: str, tenant: str, report: ErasedFromLake) -> _Erasing | None:
    """What is to be done for a table; a generation of this tenant alone that is whole is removed at once."""
    properties = lake.properties(name)
    if not _has_tenants(lake, name, properties, report):
        return None
    plan = _plan(properties)
    if plan is None or not _is_only_about(plan, tenant):
        return _Erasing(lake, files, name, tenant, properties, plan)
    if _is_under_way(lake, plan, properties):
        # Its folder must stay: a replay that is under way would make a table of its own there.
        return _Erasing(lake, files, name, tenant, properties, plan, whole=True)
    rows = lake.read(name).count()  # Delta knows it without the files, of which some may be gone already
    there = files.walk(name)
    files.remove(name)
    logs = sum(file.path.startswith(f"{LOG}/") for file in there)
    size = sum(file.size for file in there)
    report.tables.append(
        ErasedTable(table=name, whole=True, rows=rows, files=len(there) - logs, bytes=size, log_files=logs)
    )
    return None


def _has_tenants(lake: Lake, name: str, properties: Mapping[str, str], report: ErasedFromLake) -> bool:
    """Whether a table may have rows of a tenant; one of somebody else's is noted."""
    if "toril.table" not in properties:
        report.remains.append(f"{name}: it is not a table of Toril's, and was not touched")
        return False
    return name == RUNS.name or "tenant" in lake.read(name).columns


def _is_only_about(plan: Plan | None, tenant: str) -> bool:
    return plan is not None and plan.filters.tenant == tenant


class _Erasing:
    """One table, and one tenant. Of a generation its plan; ``whole``: it is only about this tenant."""

    def __init__(
        self,
        lake: Lake,
        files: Files,
        name: str,
        tenant: str,
        properties: Mapping[str, str],
        plan: Plan | None,
        *,
        whole: bool = False,
    ) -> None:
        self.lake = lake
        self.files = files
        self.name = name
        self.tenant = tenant
        self.plan = plan
        self.whole = whole
        self.sql_name = lake.sql_name(name)
        self.properties = properties
        """As they were found."""
        self.interval = properties.get(ERASING, properties.get(INTERVAL, ""))
        """How often checkpoints were made before it was erased from."""
        self.has_batches = BATCH.name in lake.read(name).columns
        self.before = files.walk(name)
        self.rows = 0
        self.fenced: list[str] = []
        """Files that were there before the fence."""
        self.others: set[str] = set()
        """Those of them that are not in the table, and have no rows of the tenant."""
        self.number = 0
        """The last batch that was there at the fence."""
        self.writers: set[str] = set()
        """Runs that have written a later one."""
        self.beginning = 0
        """The version that the log begins with."""

    def has_rows(self) -> bool:
        """Whether there are any of the tenant."""
        return not _of(self.lake, self.name, self.tenant).isEmpty()

    def delete(self) -> None:
        """Delete the tenant's rows from the table as it is."""
        condition = _condition(self.name, self.tenant)
        if self.name == EVENTS.name:
            # What a job adds after it was noted which places become empty stays until the next round.
            condition += f" AND {BATCH.name} <= {self.lake.last(self.name).batch}"
        rows = self.lake.read(self.name).where(condition)
        if there := rows.count():
            self.rows += there
            if self.name == EVENTS.name:
                self._note_places(rows)
            self._again_and_again(lambda: self._delete(condition))

    def fence(self) -> None:
        """Take the number of the batch that may come next, and have fail what is under way."""
        if self.has_batches:
            self._again_and_again(self._take_number)
        self.fenced = self._data_files()
        self._again_and_again(self._fence)
        self.number = self.lake.last(self.name).batch

    def _data_files(self) -> list[str]:
        paths = (file.path for file in self.files.walk(self.name))
        return [path for path in paths if path.endswith(".parquet") and not path.startswith(f"{LOG}/")]

    def remove_files(self) -> None:
        """Remove the tenant's files that were there before the fence, and are not in the table after it."""
        current = current_files(self.lake, self.files, self.name)
        former = [path for path in self.fenced if path not in current]
        gone, unread = self._of_tenant(former)
        self.others = set(former).difference(gone, unread)
        for path in gone:
            folder, _, name = path.rpartition("/")
            self.files.remove(f"{self.name}/{path}")
            # Hadoop keeps a checksum beside each file on a local disk.
            self.files.remove("/".join(filter(None, (self.name, folder, f".{name}.crc"))))

    def cut_log(self) -> None:
        """Let the log begin anew."""
        self._look_at_writers()
        self.beginning = self._again_and_again(self._begin_log)
        self._cut_log()
        self._again_and_again(self._end)

    def remains(self) -> list[str]:
        """What is still there, and why."""
        self._look_at_writers()
        self._cut_log()
        # In this order: what is committed meanwhile is in the table.
        there = self._data_files()
        known = self.others.union(current_files(self.lake, self.files, self.name))
        left = sum(map(len, self._of_tenant([path for path in there if path not in known])))
        if not left:
            return []
        what = f"{self.name}: {left:,} files that belong to no version, and have rows of the tenant or cannot"
        why = "be read: a job is, or was, at work. Run it again when it has ended a batch, or leave them to"
        return [f"{what} {why} `toril lake maintain`"]

    def _of_tenant(self, paths: list[str]) -> tuple[list[str], list[str]]:
        """Which of some files have rows of the tenant; and which cannot be read."""
        if not paths:
            return [], []
        column = "arguments" if self.name == RUNS.name else "tenant"
        files = self.lake.spark.read.schema(f"{column} STRING").options(
            __globPaths__=False, ignoreCorruptFiles=False, ignoreMissingFiles=False
        )
        place = self.lake.place(self.name)
        try:
            rows = files.parquet(*(f"{place}/{path}" for path in paths)).where(
                _condition(self.name, self.tenant)
            )
            found = rows.select("_metadata.file_path").distinct().collect()
        except SPARKS as problem:
            if spark_is_gone(problem):
                raise
            if len(paths) == 1:
                return [], [path for path in paths if self.files.has(f"{self.name}/{path}")]
            half = len(paths) // 2
            (has, broken), (has_too, broken_too) = map(self._of_tenant, (paths[:half], paths[half:]))
            return has + has_too, broken + broken_too
        there = set(paths)
        return [path_below(row["file_path"], self.name, there) for row in found], []

    def _look_at_writers(self) -> None:
        last = self.lake.last(self.name).batch
        records = (self.lake.last(self.name, batch) for batch in range(self.number + 1, last + 1))
        # The two tables that are written in one step have a word of their own after the run's name.
        self.writers |= {record.run.partition(" ")[0] for record in records}

    def done(self) -> ErasedTable:
        """What was removed."""
        left = {file.path for file in self.files.walk(self.name)}
        gone = [file for file in self.before if file.path not in left and not _checksum(file.path)]
        logs = sum(file.path.startswith(f"{LOG}/") for file in gone)
        return ErasedTable(
            table=self.name,
            whole=self.whole,
            rows=self.rows,
            files=len(gone) - logs,
            bytes=sum(file.size for file in gone),
            log_files=logs,
        )

    def _note_places(self, rows: DataFrame) -> None:
        """Write down which places become empty, before they are."""
        places = rows.select("log_epoch", "log_partition", "ordinal")
        places.createOrReplaceTempView("toril_erased_places")
        note(
            self.lake,
            self.lake.spark.sql(
                "SELECT log_epoch, log_partition, min(ordinal) AS first, max(ordinal) AS last FROM"
                " (SELECT *, ordinal - row_number() OVER (PARTITION BY log_epoch, log_partition"
                " ORDER BY ordinal) AS run FROM toril_erased_places) GROUP BY log_epoch, log_partition, run"
            ),
        )

    def _delete(self, condition: str) -> None:
        with self.lake.keeping_record(self.name):
            # What the commit says of it names the tenant; it goes with the log.
            statement = f"DELETE FROM {self.sql_name} WHERE {condition}"  # noqa: S608
            self.lake.spark.sql(statement).collect()
            if "deletionVectors" in self.lake.detail(self.name)["tableFeatures"]:
                # Rows that are only marked as deleted are still in their files.
                self.lake.spark.sql(f"REORG TABLE {self.sql_name} APPLY (PURGE)").collect()

    def _fence(self) -> None:
        # Properties that change nothing would be no fence: it must be a word that was never said.
        said = {ERASING: self.interval, INTERVAL: "1", "toril.fence": secrets.token_urlsafe(9)}
        if self.whole and self.plan is not None:
            nobody = msgspec.structs.replace(self.plan.filters, tenant=ERASED)
            plan = msgspec.structs.replace(self.plan, filters=nobody)
            said |= {PLAN: msgspec.json.encode(plan).decode(), RETIRED: str(time.time_ns())}
        listed = ", ".join(f"'{name}' = {quoted(value)}" for name, value in said.items())
        with self.lake.keeping_record(self.name):
            self.lake.spark.sql(f"ALTER TABLE {self.sql_name} SET TBLPROPERTIES ({listed})")

    def _begin_log(self) -> int:
        """A commit that says how far the table is, and has a checkpoint; its version."""
        if self.has_batches:
            return self._take_number()
        self._fence()
        return self.lake.version(self.name)

    def _take_number(self) -> int:
        return take_number(self.lake, self.name, "erasure", apart=self.plan is not None)

    def _cut_log(self) -> None:
        log = f"{self.name}/{LOG}"
        there = [file.path for file in self.files.walk(log)]
        if not any(path.startswith(f"{self.beginning:020d}.checkpoint.") for path in there):
            raise LakeError(
                f"{self.lake.place(self.name)} has no checkpoint of version {self.beginning}, so the log "
                "cannot be cut: the rows are gone, its history is not yet; run it again"
            )
        # Once more after it was done: where a version is gone that a transaction from before is about to
        # write, it writes it, and is told that it has committed.
        while before := [path for path in there if self._is_before(path)]:
            # The oldest first: whenever it is cut off, what is left has no hole. Of each, Hadoop's checksum
            # before it: one that stays for a moment would be taken for that of what is written in its place.
            for path in sorted(before, key=lambda path: (path.lstrip(".")[:20], not path.startswith("."))):
                self.files.remove(f"{log}/{path}")
            there = [file.path for file in self.files.walk(log)]

    def _is_before(self, path: str) -> bool:
        """Whether a file of the log is of before its beginning."""
        found = _VERSION.match(path)
        return found is not None and int(found[1]) < self.beginning

    def _end(self) -> None:
        with self.lake.keeping_record(self.name):
            if self.interval:
                self.lake.spark.sql(
                    f"ALTER TABLE {self.sql_name} SET TBLPROPERTIES ('{INTERVAL}' = {quoted(self.interval)})"
                )
            gone = [ERASING, "toril.fence"] if self.interval else [ERASING, "toril.fence", INTERVAL]
            said = ", ".join(f"'{name}'" for name in gone)
            self.lake.spark.sql(f"ALTER TABLE {self.sql_name} UNSET TBLPROPERTIES IF EXISTS ({said})")

    def _again_and_again(self, work: Callable[[], T]) -> T:
        return again_and_again(self.lake, self.name, work)


def _of(lake: Lake, name: str, tenant: str) -> DataFrame:
    return lake.read(name).where(_condition(name, tenant))


def _condition(name: str, tenant: str) -> str:
    """A tenant's rows; of runs, those that were told of the tenant."""
    if name == RUNS.name:
        return f"get_json_object(arguments, '$.tenant') = {quoted(tenant)}"
    return f"tenant = {quoted(tenant)}"


def _plan(properties: Mapping[str, str]) -> Plan | None:
    """What a generation is; None of any other table."""
    try:
        return msgspec.json.decode(properties.get(PLAN, ""), type=Plan)
    except msgspec.MsgspecError:
        return None


def _is_under_way(lake: Lake, plan: Plan, properties: Mapping[str, str]) -> bool:
    """Whether a replay may be writing a generation."""
    if RETIRED in properties:
        return False
    return not Generation.after(plan, lake.last(plan.name)).whole


def _checksum(path: str) -> bool:
    """What Hadoop keeps beside a file on a local disk."""
    return path.rpartition("/")[2].startswith(".")
