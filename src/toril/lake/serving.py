"""Looking at tables of a lake, and bringing them to where they are looked at all day.

ClickHouse reads the Delta files as they are: :func:`ask` does so in a process of its own, in half a second
where Spark takes twenty; :func:`views` is the SQL for a server that can reach the files; :func:`load` copies
tables into ClickHouse's own.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from toril.errors import InvalidValue
from toril.lake.errors import LakeError
from toril.lake.lake import Lake
from toril.lake.packing import in_chunks
from toril.lake.problems import SPARKS, one_line
from toril.lake.storage import local_folder
from toril.stores.clickhouse import Database

READS = ("SELECT", "WITH", "DESCRIBE", "DESC", "SHOW", "EXPLAIN")
"""What a statement that only looks begins with."""

COLLECTION = "toril_lake"
"""The named collection of a ClickHouse server that has ``account_name`` and ``account_key`` of Azure."""

_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL)
_WRITES = re.compile(
    r"\b(INSERT|UPDATE|DELETE|MERGE|TRUNCATE|DROP|ALTER|CREATE|REPLACE\s+TABLE|OPTIMIZE|VACUUM|COPY|ATTACH|"
    r"DETACH|RENAME|GRANT|SYSTEM|KILL|INTO\s+OUTFILE)\b",
    re.IGNORECASE,
)
_OUTFILE = re.compile(r"\bINTO\s+OUTFILE\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a statement gave."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[list[Any]]
    more: bool = False
    """Whether there are more rows than were asked for."""


def check_statement(statement: str) -> str:
    """The statement itself, or an error: it may look, and change nothing."""
    text = statement.strip().rstrip(";").strip()
    # What stands in quotes and comments is no word of the language.
    plain = _QUOTED.sub(" ", text)
    first = re.match(r"\s*\(*\s*(\w+)", plain)
    begins = "" if first is None else first[1].upper()
    if begins not in READS:
        raise InvalidValue("statement", statement, f"it must only look: {', '.join(READS)} …")
    if ";" in plain:
        raise InvalidValue("statement", statement, "one statement, without ';' in it")
    found = (_OUTFILE if begins in ("SELECT", "SHOW") else _WRITES).search(plain)
    if found is not None:
        raise InvalidValue("statement", statement, f"it must only look, and has {found[0].upper()} in it")
    return text


def has_clickhouse() -> bool:
    """Whether the engine is installed."""
    return find_spec("chdb") is not None


# ---------------------------------------------------------------------------- ClickHouse on the files


def source_sql(place: str) -> str:
    """The table function by which ClickHouse reads a table's files."""
    folder = local_folder(place)
    if folder is not None:
        return f"deltaLakeLocal({_quoted(str(folder))})"
    scheme, _, rest = place.partition("://")
    if scheme in ("s3", "s3a", "s3n"):
        bucket, _, key = rest.partition("/")
        return f"deltaLakeS3({_quoted(f'https://{bucket}.s3.amazonaws.com/{key}')})"
    if scheme in ("abfs", "abfss", "wasb", "wasbs"):
        whose, _, key = rest.partition("/")
        container, at, host = whose.partition("@")
        if not at:
            raise InvalidValue("lake", place, f"{scheme}://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH")
        account = f"https://{host.replace('.dfs.', '.blob.', 1)}"
        # It has no credentials of its own as for S3: they are in a named collection of the server.
        said = {"storage_account_url": account, "container": container, "blob_path": key}
        return f"deltaLakeAzure({COLLECTION}, {', '.join(f'{k} = {_quoted(v)}' for k, v in said.items())})"
    raise InvalidValue("lake", place, "ClickHouse reads folders, s3:// and abfss://; for others use Spark")


def views(path: str, tables: Sequence[str], database: str = "lake") -> list[str]:
    """The SQL that makes tables of a lake readable in a ClickHouse that can reach the files."""
    made = [f"CREATE DATABASE IF NOT EXISTS {_name(database)}"]
    for table in tables:
        view = f"CREATE OR REPLACE VIEW {_name(database)}.{_name(table)} AS SELECT * FROM"
        made.append(" ".join((view, source_sql(f"{path.rstrip('/')}/{table}"))))
    return made


def ask(path: str, tables: Sequence[str], statement: str, *, most: int = 1000) -> Answer:
    """Ask ClickHouse about the tables of a lake, of which these are there. The statement may only look."""
    text = check_statement(statement)
    # Each view costs a look at its table's log.
    lists = not text.upper().startswith(("SELECT", "WITH", "("))
    named = [table for table in tables if lists or re.search(rf"(?<!\w){re.escape(table)}(?!\w)", text)]
    before = [*views(path, named), "USE lake"]
    before.append(f"SET max_result_rows = {most + 1}, result_overflow_mode = 'break', readonly = 2")
    said = _ask({"before": before, "statement": text})
    if said is None:
        return Answer((), (), [])
    names, types = zip(*((column["name"], column["type"]) for column in said["meta"]), strict=True)
    return Answer(names, types, said["data"][:most], len(said["data"]) > most)


def _ask(question: dict[str, Any]) -> Any:
    command = [sys.executable, "-m", "toril.lake.asking"]
    done = subprocess.run(
        command, input=json.dumps(question), capture_output=True, text=True, cwd="/", check=False
    )
    try:
        said = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise LakeError(f"ClickHouse gave no answer: {last[:300]}") from None
    if "problem" in said:
        text = re.sub(r"^Code: \d+\. DB::Exception: ", "", said["problem"]).splitlines()[0]
        raise LakeError(f"ClickHouse: {text[:500]}")
    return said["answer"]


def ask_spark(lake: Lake, tables: Sequence[str], statement: str, *, most: int = 1000) -> Answer:
    """Ask Spark, with the tables as temporary views. The statement may only look."""
    text = check_statement(statement)
    for table in tables:
        lake.read(table).createOrReplaceTempView(f"`{table}`")
    try:
        found = lake.spark.sql(text).limit(most + 1)
        rows = [list(row) for row in found.collect()]
    except SPARKS as problem:
        raise LakeError(f"Spark: {one_line(problem)}") from None
    types = tuple(field.dataType.simpleString() for field in found.schema)
    return Answer(tuple(found.columns), types, rows[:most], len(rows) > most)


# ---------------------------------------------------------------------------- ClickHouse's own tables

KEYS = {
    "trace_summaries": ("tenant", "trace_id"),
    "rollups": ("tenant", "model", "grain", "start"),
    "spans": ("tenant", "trace_id", "version"),
}
"""The tables that can be loaded, and what makes two rows the same row."""

LEFT_OUT = ("state",)
"""Columns that only the lake itself has a use for."""

CHUNK = 64 << 20
"""Bytes of rows that are inserted at once, about."""

LOADS = "lake_loads"
"""The table of ClickHouse that says of each loaded one what it was loaded from, and how far."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was brought into a table of ClickHouse."""

    table: str
    """Its name there."""
    rows: int
    """Those that were new or had changed."""
    batch: int
    """The last batch of the lake's table that is in it."""
    removed: int
    """Rows that the lake does not have any more: their tenants were erased."""


class _Mark(NamedTuple):
    """How far a table is loaded."""

    load: int = 0
    """How often that was noted: the last one counts."""
    source: str = ""
    """The lake's table, by the id that Delta has given it."""
    batch: int = 0


async def load(
    lake: Lake, database: Database, table: str, *, told: Callable[[int, int], None] | None = None
) -> Loaded:
    """Bring what is new in a table of the lake into ``lake_<table>`` of a ClickHouse database.

    It can be killed and repeated: a row is there once, as it was last, when read with ``FINAL``. What was
    loaded from another table than the lake has now (it was made anew, or it is another lake) is removed, and
    all is loaded. So it is where the lake is behind what was loaded: it was put back.
    """
    if table not in KEYS:
        raise InvalidValue("table", table, f"one of {', '.join(KEYS)}")
    lake.check(table)
    name, keys = f"lake_{table}", KEYS[table]
    source = lake.identity(table)
    upto = lake.last(table).batch
    # After that: it has all of these batches. One more that it may have comes once more the next time.
    rows = lake.read(table, lake.version(table)).drop(*LEFT_OUT)
    await _make(database, name, rows.schema, keys)
    mark = await _mark(database, name)
    if mark.source != source or upto < mark.batch:
        await database.run(f"empty {name}", _emptying(f"{database.name}.{name}"))
        mark = await _note(database, name, _Mark(mark.load, source, 0))
    # What a batch has changed once more since is of a later batch, and comes with that.
    new = rows.where(f"batch > {mark.batch}")
    done = await _bring(database, name, new, await asyncio.to_thread(new.count), told)
    removed = await _right(database, name, rows)
    if upto > mark.batch:
        await _note(database, name, mark._replace(batch=upto))
    return Loaded(name, done, upto, removed)


async def _mark(database: Database, name: str) -> _Mark:
    said = await database.query(
        f"SELECT max(Load), argMax(Source, Load), argMax(Batch, Load) FROM {{database}}.{LOADS} "  # noqa: S608
        f"WHERE Name = '{name}'"
    )
    last, source, batch = said[0]
    return _Mark(int(last), str(source), int(batch))


async def _note(database: Database, name: str, mark: _Mark) -> _Mark:
    noted = mark._replace(load=mark.load + 1)
    values = f"'{name}', {noted.load}, {_quoted(noted.source)}, {noted.batch}"
    await database.run(
        "note what is loaded",
        lambda client: client.command(f"INSERT INTO {database.name}.{LOADS} SELECT {values}"),
    )
    return noted


async def _bring(
    database: Database,
    name: str,
    rows: DataFrame,
    count: int,
    told: Callable[[int, int], None] | None = None,
) -> int:
    """Insert rows, of which there are about so many, some at a time; how many there were."""
    done = 0
    chunks = in_chunks(rows, CHUNK)
    while (arrow := await asyncio.to_thread(next, chunks, None)) is not None:
        await database.run(f"insert into {name}", _inserting(name, database.name, arrow))
        done += arrow.num_rows
        if told is not None:
            told(done, count)
    return done


def _inserting(name: str, database: str, arrow: Any) -> Callable[[Any], None]:
    def insert(client: Any) -> None:
        client.insert_arrow(name, arrow, database=database, settings={"async_insert": 0})

    return insert


async def _make(database: Database, name: str, schema: StructType, keys: Sequence[str]) -> None:
    columns = {
        field.name: clickhouse_type(field.dataType, field.nullable and field.name not in keys)
        for field in schema
    }
    said = ", ".join(f"{_name(column)} {kind}" for column, kind in columns.items())

    def work(client: Any) -> None:
        client.command(
            f"CREATE TABLE IF NOT EXISTS {database.name}.{name} ({said}) ENGINE = ReplacingMergeTree(batch) "
            f"ORDER BY ({', '.join(map(_name, keys))}) COMMENT 'Read it with FINAL. Loaded from the lake.'"
        )
        for column, kind in columns.items():
            client.command(
                f"ALTER TABLE {database.name}.{name} ADD COLUMN IF NOT EXISTS {_name(column)} {kind}"
            )
        client.command(
            f"CREATE TABLE IF NOT EXISTS {database.name}.{LOADS} "
            "(Name String, Load Int64, Source String, Batch Int64) "
            "ENGINE = ReplacingMergeTree(Load) ORDER BY Name"
        )

    await database.run(f"make {name}", work)


async def _right(database: Database, name: str, rows: DataFrame) -> int:
    """Erase here what was erased from the lake; how many rows that were.

    All rows that the lake has are here. So a tenant that has more here has some that the lake does not have
    any more: it was erased, and perhaps it came back. All it has here goes, and all it has there comes.
    """
    asked = f"SELECT tenant, count() FROM {{database}}.{name} FINAL GROUP BY tenant"  # noqa: S608
    here = {str(tenant): int(count) for tenant, count in await database.query(asked)}
    counted = await asyncio.to_thread(rows.groupBy("tenant").count().collect)
    there = {row["tenant"]: row["count"] for row in counted}
    # Fewer, where this was cut off.
    wrong = [one for one in sorted({*here, *there}) if here.get(one, 0) != there.get(one, 0)]
    for tenant in wrong:
        await database.run(f"erase from {name}", _erasing(f"{database.name}.{name}", tenant))
    if again := [tenant for tenant in wrong if tenant in there]:
        await _bring(database, name, rows.where(rows["tenant"].isin(again)), sum(there[one] for one in again))
    return sum(max(0, here.get(one, 0) - there.get(one, 0)) for one in wrong)


def _emptying(name: str) -> Callable[[Any], None]:
    def empty(client: Any) -> None:
        client.command(f"TRUNCATE TABLE {name}")

    return empty


def _erasing(name: str, tenant: str) -> Callable[[Any], None]:
    def erase(client: Any) -> None:
        client.command(
            f"ALTER TABLE {name} DELETE WHERE tenant = {{tenant:String}}",
            {"tenant": tenant},
            settings={"mutations_sync": 2},
        )

    return erase


_TYPES: Mapping[type[DataType], str] = {
    StringType: "String",
    BinaryType: "String",
    LongType: "Int64",
    IntegerType: "Int32",
    BooleanType: "Bool",
    DoubleType: "Float64",
    DateType: "Date32",
    TimestampType: "DateTime64(6, 'UTC')",
}


def clickhouse_type(kind: DataType, nullable: bool = False) -> str:
    """The type that a column of Spark has in ClickHouse, which knows no lists or maps that are null."""
    if isinstance(kind, ArrayType):
        return f"Array({clickhouse_type(kind.elementType, kind.containsNull)})"
    if isinstance(kind, MapType):
        value = clickhouse_type(kind.valueType, kind.valueContainsNull)
        return f"Map({clickhouse_type(kind.keyType)}, {value})"
    if isinstance(kind, StructType):
        inside = (f"{_name(one.name)} {clickhouse_type(one.dataType, one.nullable)}" for one in kind)
        return f"Tuple({', '.join(inside)})"
    if isinstance(kind, DecimalType):
        found = f"Decimal({kind.precision}, {kind.scale})"
    else:
        found = _TYPES.get(type(kind), "")
    if not found:
        raise LakeError(f"a column of type {kind.simpleString()} cannot be loaded into ClickHouse")
    return f"Nullable({found})" if nullable else found


def _name(text: str) -> str:
    return f"`{text.replace('`', '``')}`"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
