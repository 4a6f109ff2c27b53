"""The files of a lake: listed, and removed where Delta has no word for it.

Of a folder on this machine by the system; of a URL by Hadoop's file systems, through the session's own JVM.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from pyspark.sql import Row, SparkSession

from toril.lake.errors import LakeError
from toril.lake.lake import Lake
from toril.lake.session import another

LOG = "_delta_log"
"""The folder that makes a folder a table."""

DEEPEST = 5
"""How many folders below the lake a table may be: a generation is ``generations/pipeline/name/number``."""


class File(NamedTuple):
    """A file, by its path below what was listed."""

    path: str
    size: int


class Files(Protocol):
    """What can be done with files, wherever they are. Paths are those below the place it was made for."""

    def folders(self, below: str) -> list[str]:
        """The names of the folders in a folder; none where it is not there."""
        ...

    def walk(self, below: str) -> list[File]:
        """All files in a folder and in the folders in it, by their paths below it."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it. What is not there is removed."""
        ...


class LocalFiles:
    """Files on this machine."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def folders(self, below: str) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self._place / below) if entry.is_dir())
        except OSError:
            return []

    def walk(self, below: str) -> list[File]:
        return sorted(_walk(self._place / below, ""))

    def remove(self, path: str) -> None:
        place = self._place / path
        if place.is_dir():
            for file in self.walk(path):
                (place / file.path).unlink(missing_ok=True)
            for folder in sorted((one for one in place.rglob("*") if one.is_dir()), reverse=True):
                folder.rmdir()
            place.rmdir()
        else:
            place.unlink(missing_ok=True)


def _walk(place: Path, below: str) -> Iterator[File]:
    try:
        found = list(os.scandir(place))
    except FileNotFoundError:  # a folder that was removed meanwhile
        return
    for entry in found:
        if entry.is_dir():
            yield from _walk(place / entry.name, f"{below}{entry.name}/")
        else:
            try:
                yield File(f"{below}{entry.name}", entry.stat().st_size)
            except FileNotFoundError:
                continue


class HadoopFiles:
    """Files where only Spark can reach them."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        jvm: Any = getattr(spark, "_jvm", None)
        if jvm is None:
            raise LakeError(
                f"the files at {place} can be listed and removed by a Spark session of this process only, "
                "and this one is remote (sc://…)"
            )
        self._place = place
        self._path = jvm.org.apache.hadoop.fs.Path
        conf = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        self._system = self._path(place).getFileSystem(conf)

    def _list(self, below: str) -> list[Any]:
        place = self._path(f"{self._place}/{below}" if below else self._place)
        return list(self._system.listStatus(place)) if self._system.exists(place) else []

    def folders(self, below: str) -> list[str]:
        return sorted(one.getPath().getName() for one in self._list(below) if one.isDirectory())

    def walk(self, below: str) -> list[File]:
        return sorted(self._below(below, ""))

    def _below(self, folder: str, prefix: str) -> Iterator[File]:
        for one in self._list(folder):
            name = one.getPath().getName()
            if one.isDirectory():
                yield from self._below(f"{folder}/{name}", f"{prefix}{name}/")
            else:
                yield File(f"{prefix}{name}", one.getLen())

    def remove(self, path: str) -> None:
        self._system.delete(self._path(f"{self._place}/{path}"), True)


def local_folder(place: str) -> Path | None:
    """The folder that a path or a ``file:`` URL names; None where it is elsewhere."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(place).absolute() if not parts.scheme else None


def files_of(lake: Lake) -> Files:
    """The files of a lake."""
    folder = local_folder(lake.path)
    return HadoopFiles(lake.spark, lake.path) if folder is None else LocalFiles(folder)


def tables_in(lake: Lake | Files) -> list[str]:
    """The names of all tables in a lake, also of those that are deeper, or not Toril's."""
    found: list[str] = []
    looked = files_of(lake) if isinstance(lake, Lake) else lake

    def look(below: str, depth: int) -> None:
        inside = looked.folders(below)
        if LOG in inside:
            found.append(below)
        elif depth < DEEPEST:
            for name in inside:
                if not name.startswith((".", "_")):
                    look(f"{below}/{name}" if below else name, depth + 1)

    look("", 0)
    return sorted(found)


def detail_of(lake: Lake, name: str) -> Row:
    """What Delta says of a table: its properties, features, sizes."""
    (row,) = lake.spark.sql(f"DESCRIBE DETAIL {lake.sql_name(name)}").collect()
    return row


def is_ours(lake: Lake, name: str) -> bool:
    """Whether Toril has made a table."""
    return "toril.table" in detail_of(lake, name)["properties"]


def current_files(lake: Lake, files: Files, name: str) -> dict[str, int]:
    """The files that the last version of a table has, and their sizes."""
    paths = lake.read(name).inputFiles()
    sizes = {file.path: file.size for file in files.walk(name)}
    found: dict[str, int] = {}
    for path in paths:
        below = path.rpartition(f"/{name}/")[2]
        # Spark may say it as a URL; and a name may have a `%` of its own.
        known = below if below in sizes else unquote(below)
        if known not in sizes:
            raise LakeError(f"{lake.place(name)} has no file {below}, and its last version names it")
        found[known] = sizes[known]
    return found


@contextmanager
def settings(spark: SparkSession, **said: str) -> Iterator[None]:
    """Settings of the session while something is done; ``__`` in a name stands for a dot."""
    named = {name.replace("__", "."): value for name, value in said.items()}
    before = {name: spark.conf.get(name, None) for name in named}
    for name, value in named.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, former in before.items():
            if former is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, former)


def own_session(lake: Lake) -> Lake:
    """The same lake by a session of its own: its settings are not those of a job in this process."""
    return Lake(another(lake.spark), lake.path)
