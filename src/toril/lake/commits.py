"""The commits of a table, as the files of Delta's log have them, the newest one first.

``DESCRIBE HISTORY`` says the same, for two jobs of Spark and a fifth of a second of planning; a step looks at
its tables five times for each batch. So the files themselves are read, as the protocol of Delta has them: a
commit is ``<version>.json``, the numbers have no gap from the last checkpoint on, and ``_last_checkpoint`` is
a hint where that is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import msgspec
from pyspark.sql import SparkSession

from toril.lake.quoting import table_at
from toril.lake.sessions import is_remote
from toril.lake.storage import LOG, Files, files_at

LOOK_BACK = (5, 100, 10_000)
"""Commits that are asked for at once, in turn, where the files cannot be reached."""

SOMETIME = -1

LONGEST_BEGIN = 32
"""Letters of a line in which it says what it is."""

_COMMIT = re.compile(r"(\d{20})\.json")


class Commit(NamedTuple):
    """One commit, and what it says of itself."""

    version: int
    metadata: str = ""
    """What its writer had it say."""
    rows: int | None = None
    """How many it has added, where it says so."""
    restored: int | None = None
    """Of a RESTORE, the version that the table is as again; :data:`SOMETIME` where a time was given."""


class _Action(msgspec.Struct, rename="camel"):
    commit_info: object = None
    """The protocol leaves it to each writer what is in it."""


class _Checkpoint(msgspec.Struct):
    version: int


_decode_action = msgspec.json.Decoder(_Action).decode
_decode_checkpoint = msgspec.json.Decoder(_Checkpoint).decode


def commits(spark: SparkSession, path: str, table: str) -> Iterator[Commit]:
    """The commits of a table in a lake at a path, the newest one first."""
    there = False
    if not is_remote(spark):
        for commit in _in_files(files_at(spark, path), f"{table}/{LOG}"):
            there = True
            yield commit
    if not there:
        yield from _in_history(spark, f"{path}/{table}")


def _in_files(files: Files, log: str) -> Iterator[Commit]:
    version = _newest(files, log)
    while version >= 0 and (said := files.read(_file(log, version))) is not None:
        yield _commit(version, said)
        version -= 1


def _newest(files: Files, log: str) -> int:
    """The version of the last commit; -1 where there is none."""
    version = 0
    with suppress(msgspec.MsgspecError):
        version = _decode_checkpoint(files.read(f"{log}/_last_checkpoint") or "").version
    if not files.has(_file(log, version)):  # it was a wrong hint, or the commit is forgotten
        found = (_COMMIT.fullmatch(file.path) for file in files.walk(log))
        version = max((int(one[1]) for one in found if one), default=-1)
    while version >= 0 and files.has(_file(log, version + 1)):
        version += 1
    return version


def _file(log: str, version: int) -> str:
    return f"{log}/{version:020d}.json"


def _commit(version: int, said: str) -> Commit:
    for line in said.split("\n"):  # and not where else Unicode has a line end: JSON leaves those as they are
        if '"commitInfo"' in line[:LONGEST_BEGIN]:
            info = _within(_decode_action(line).commit_info)
            metadata = info.get("userMetadata")
            restored = None
            if info.get("operation") == "RESTORE":
                restored = _restored(_within(info.get("operationParameters")).get("version"))
            return Commit(
                version,
                metadata if isinstance(metadata, str) else "",
                _whole(_within(info.get("operationMetrics")).get("numOutputRows")),
                restored,
            )
    return Commit(version)


def _within(said: object) -> dict[str, object]:
    return said if isinstance(said, dict) else {}


def _whole(said: object) -> int | None:
    """A whole number: Delta says it as text, and others as a number."""
    try:
        return int(str(said))
    except ValueError:
        return None


def _restored(said: object) -> int:
    version = _whole(said)
    return SOMETIME if version is None else version


def _in_history(spark: SparkSession, place: str) -> Iterator[Commit]:
    done = 0
    for most in LOOK_BACK:
        history = spark.sql(f"DESCRIBE HISTORY {table_at(place)} LIMIT {most}")
        asked = ("version", "userMetadata", "try_cast(operationMetrics['numOutputRows'] AS BIGINT)")
        also = ("operation = 'RESTORE'", "operationParameters['version']")
        rows = history.selectExpr(*asked, *also).collect()
        for version, said, count, restores, former in rows[done:]:
            yield Commit(version, said or "", count, _restored(former) if restores else None)
        if len(rows) < most:
            return
        done = len(rows)
