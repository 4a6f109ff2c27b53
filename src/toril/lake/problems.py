"""What Spark and Delta say when something goes wrong, in one line that names the field and the rule."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from toril.connection.errors import AuthenticationFailed, ConnectionFailed, OutcomeUnknown
from toril.lake.errors import LakeError, NoRoom, OtherWriter
from toril.lake.source.told import told

SPARKS = (PySparkException, Py4JError)
"""What Spark raises: through Py4J what no class of its own was made for."""

_RULE = re.compile(r"CHECK constraint (\S+) (\(.*?\)) violated by row with values:\s*?\n((?: - .*\n?)*)")
_REQUIRED = re.compile(r"NOT NULL constraint violated for column: (.+?)\.?\s*$", re.MULTILINE)
_NO_ROOM = ("No space left on device", "Disk quota exceeded", "File too large")
_FULL_AT = re.compile(rf"(/[^\s():]+):? \(?(?:{'|'.join(_NO_ROOM)})")
_ASIDE = (
    "blockmgr-",
    "SpillWriter",
    "calling spill()",
    "DiskBlockObjectWriter",
    "ShuffleWriter",
    "DiskStore",
)
"""What stands in a problem with a file that Spark keeps while it works."""
_TABLES = ("RawLocalFileSystem", "org.apache.hadoop.fs", "io.delta.storage")
"""And in one with a file of a table: Spark writes no others by these."""
_NO_FOLDER = ("Mkdirs failed", "DELTA_CANNOT_CREATE_LOG_PATH")
_NO_PLACE = ("Permission denied", "Read-only file system", "Not a directory", *_NO_FOLDER)
_PASSING = (
    "io.delta.exceptions.Concurrent",
    "DELTA_CONCURRENT_",
    "DELTA_METADATA_CHANGED",
    "DELTA_PROTOCOL_CHANGED",
    "toril.connection.errors.Unavailable: ",
    "toril.connection.errors.Unreachable: ",
    "toril.connection.errors.OutcomeUnknown: ",
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    "PythonWorkerFactory",  # the process that starts Python workers is gone, and is started anew
)
"""What a later attempt may not meet again, by the names in what Spark says."""

_LONGEST = 400


@contextmanager
def explained(place: str) -> Iterator[None]:
    """What is done in it concerns a table at a place; where it fails for a known reason, that is said."""
    try:
        yield
    except SPARKS as problem:
        found = explain(problem, place)
        if found is None:
            raise
        raise found from problem


def explain(problem: Exception, place: str) -> LakeError | None:
    """The error of ours that says what Spark meant; None where nothing better is known."""
    text = str(problem)
    if found := _RULE.search(text):
        values = ", ".join(line.strip(" -").replace(" : ", " = ") for line in found[3].splitlines() if line)
        return LakeError(f"{place} takes no row with {values}: {found[1]} is {found[2]}; nothing was written")
    if found := _REQUIRED.search(text):
        return LakeError(f"{place} takes no row without {found[1]}; nothing was written")
    if "DELTA_CONCURRENT_TRANSACTION" in text:
        return OtherWriter(f"another process has written this batch of {place}")
    if _has(text, _NO_ROOM):
        return NoRoom(f"there is no room left {_full(text, place)}; nothing was changed")
    if _has(text, _NO_FOLDER) and _is_full(place):
        return NoRoom(f"there is no room left for {place}; nothing was changed")
    if _has(text, _NO_PLACE):
        return LakeError(f"{place} cannot be written to by this user; nothing was changed")
    return None


def _has(text: str, some: Iterable[str]) -> bool:
    return any(words in text for words in some)


def _is_full(place: str) -> bool:
    """Whether a disk of this machine takes no more: Hadoop does not say why it could not make a folder."""
    path = Path(place.removeprefix("file:"))
    there = next((one for one in (path, *path.parents) if one.is_absolute() and one.exists()), None)
    if there is None:  # the place is elsewhere
        return False
    disk = os.statvfs(there)
    return disk.f_bavail == 0 or (disk.f_files > 0 and disk.f_favail == 0)


def _full(text: str, place: str) -> str:
    """For what: the disk of the tables may be another one than that where Spark sorts."""
    at = found[1] if (found := _FULL_AT.search(text)) else None
    if at is not None and at.startswith(f"/{place.removeprefix('file:').strip('/')}/"):
        return f"for {place}"
    aside = "for what Spark keeps while it works (spark.local.dir, SPARK_LOCAL_DIRS)"
    if _has(text if at is None else at, _ASIDE):
        return aside if at is None else f"{aside}, at {at}"
    if at is not None:
        return f"at {at}, while {place} was at work"
    return f"for {place}" if _has(text, _TABLES) else f"for {place}, or {aside}"


def passing(problem: BaseException) -> bool:
    """Whether a later attempt may succeed: a failover, another writer, a server that is away."""
    if isinstance(problem, (ConnectionFailed, OutcomeUnknown, OtherWriter)):
        return not isinstance(problem, AuthenticationFailed)
    if spark_is_gone(problem):
        return False
    return isinstance(problem, SPARKS) and _has(str(problem), _PASSING)


def no_room(problem: BaseException) -> bool:
    """Whether a disk is full: it passes when somebody makes room, which takes a while."""
    full = isinstance(problem, SPARKS) and _has(str(problem), _NO_ROOM)
    return full or isinstance(problem, NoRoom)


def unknown(problem: BaseException) -> bool:
    """Whether it is an error of Spark's that we know nothing of: a task that died, a disk that hiccuped."""
    return isinstance(problem, SPARKS) and told(problem) is None and not spark_is_gone(problem)


def spark_is_gone(problem: BaseException) -> bool:
    """Whether there is no Spark any more to ask."""
    return isinstance(problem, (Py4JNetworkError, ConnectionRefusedError)) or (
        "SparkContext was shut down" in str(problem) or "stopped SparkContext" in str(problem)
    )


def one_line(problem: BaseException) -> str:
    """A problem as a person reads it: ours as it is; of Spark's, the line that says what is wrong."""
    if (ours := told(problem)) is not None:
        return str(ours)
    if spark_is_gone(problem):
        return "Spark has ended"
    lines = [line.strip().removeprefix(": ") for line in str(problem).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("at ", "An error occurred while calling"))]
    conditions = [line for line in lines if re.search(r"\[[A-Z0-9_.]{4,}\]", line)]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    said = (conditions[:1] or causes[-1:] or lines[:1] or [type(problem).__name__])[0]
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"
