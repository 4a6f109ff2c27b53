"""Where tables are stored: their files, listed, read and removed where Delta has no word for it.

Of a folder on this machine by the system; elsewhere by Hadoop's file systems, through the session's own Java.
A path is one of Spark's default file system, which need not be this machine's. Where the session is remote
the files are a server's, and nothing is looked for here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from toril.lake.errors import LakeError
from toril.lake.sessions import is_remote

LOG = "_delta_log"
"""The folder that makes a folder a table."""

_VERSION = re.compile(r"\.?(\d{20})\.(checkpoint\.)?")
"""What begins the name of a file in a table's log, and of what the file system keeps beside it."""


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

    def has(self, path: str) -> bool:
        """Whether there is a file."""
        ...

    def read(self, path: str) -> str | None:
        """What is in a file; None where it is not there."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it. What is not there is removed.

        Cut off, it leaves of a table one that Delta can open still, or nothing; see :func:`in_turn`.
        """
        ...


class LocalFiles:
    """Files on this machine."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def folders(self, below: str) -> list[str]:
        return sorted(entry.name for entry in _entries(self._place / below) if entry.is_dir())

    def walk(self, below: str) -> list[File]:
        return sorted(_walk(self._place / below, ""))

    def has(self, path: str) -> bool:
        return (self._place / path).is_file()

    def read(self, path: str) -> str | None:
        try:
            return (self._place / path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def remove(self, path: str) -> None:
        place = self._place / path
        if place.is_dir():
            for file in in_turn(file.path for file in self.walk(path)):
                self._remove_file(f"{path}/{file}")
            for folder in sorted((one for one in place.rglob("*") if one.is_dir()), reverse=True):
                folder.rmdir()
            place.rmdir()
        else:
            self._remove_file(path)

    def _remove_file(self, path: str) -> None:
        (self._place / path).unlink(missing_ok=True)


def _entries(place: Path) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing where there is none, or it was removed meanwhile."""
    try:
        return list(os.scandir(place))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as problem:
        raise LakeError(f"{place} cannot be looked into: {problem.strerror}") from None


def _walk(place: Path, below: str) -> Iterator[File]:
    for entry in _entries(place):
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
        jvm: Any = spark._jvm  # noqa: SLF001
        self._place = place
        self._path = jvm.org.apache.hadoop.fs.Path
        self._text = jvm.org.apache.commons.io.IOUtils.toString
        self._system = self._path(place).getFileSystem(_hadoop(spark))

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

    def has(self, path: str) -> bool:
        return bool(self._system.exists(self._path(f"{self._place}/{path}")))

    def read(self, path: str) -> str | None:
        try:
            stream = self._system.open(self._path(f"{self._place}/{path}"))
        except Py4JJavaError as problem:
            if problem.java_exception.getClass().getSimpleName() == "FileNotFoundException":
                return None
            raise
        try:
            return str(self._text(stream, "UTF-8"))
        finally:
            stream.close()

    def remove(self, path: str) -> None:
        inside = [one.getPath().getName() for one in self._list(path) if one.isDirectory()]
        if LOG in inside:
            for file in in_turn(file.path for file in self.walk(path)):
                self._remove_file(f"{path}/{file}")
        self._remove_file(path)

    def _remove_file(self, path: str) -> None:
        place = self._path(f"{self._place}/{path}")
        if not self._system.delete(place, True) and self._system.exists(place):
            raise LakeError(f"{self._place}/{path} could not be removed")


def in_turn(paths: Iterable[str]) -> list[str]:
    """The files of a table, by their paths below it, in the order in which they are to be removed.

    A log that cannot be read is no table, and files without one are somebody else's: both are refused. So
    the log goes after all else, the newest version first; and last of all what it begins with. (Where that
    is a checkpoint with its commit, it is two files: cut off just between them, the commit is left.)
    """
    there = list(paths)
    found = {path: _VERSION.match(path.rpartition("/")[2]) for path in there if path.startswith(f"{LOG}/")}
    versions = {path: (int(one[1]), bool(one[2])) for path, one in found.items() if one}
    begins = min((version for version, whole in versions.values() if whole or version == 0), default=0)

    def turn(path: str) -> tuple[int, int, int]:
        if path not in versions:  # of the log these are hints
            return (int(path in found), 0, 0)
        version, whole = versions[path]
        # A checkpoint without its commit cannot be read, and a commit without a checkpoint after it can.
        commit = not whole and path.endswith(".json")
        return (2 if version < begins else 3, -version, 2 if commit else int(not _is_aside(path)))

    return sorted(there, key=turn)


def _is_aside(path: str) -> bool:
    """Whether it is what the file system, or Delta, keeps beside another file: a checksum."""
    return path.endswith(".crc")


def _split(place: str) -> tuple[str, str]:
    """The scheme and the path of a path or URL, as Hadoop has them: by letters, and nothing is decoded."""
    scheme, colon, rest = place.partition(":")
    if not colon or "/" in scheme:
        return "", place
    if rest.startswith("//"):
        rest = "/" + rest[2:].partition("/")[2]
    return scheme, rest


def local_folder(place: str) -> Path | None:
    """The folder that a path or a ``file:`` URL names on this machine; None of another URL."""
    scheme, path = _split(place)
    return Path(path).absolute() if scheme in ("", "file") else None


def files_at(spark: SparkSession, place: str) -> Files:
    """The files below a path or URL, where the session has them."""
    if is_remote(spark):
        raise LakeError(
            f"the files at {place} are those of a server of Spark Connect, and cannot be listed or removed "
            "through it: run this with a session on the cluster (--master spark://…, yarn, k8s://…), or with "
            "local[N] where the files can be reached from here (nothing was changed)"
        )
    folder = local_folder(place)
    if folder is None or not (_split(place)[0] or _is_local(spark)):
        return HadoopFiles(spark, place)
    return LocalFiles(folder)


def _is_local(spark: SparkSession) -> bool:
    """Whether the default file system, in which a path without a scheme is, is this machine's."""
    jvm: Any = spark._jvm  # noqa: SLF001
    default = jvm.org.apache.hadoop.fs.FileSystem.getDefaultUri(_hadoop(spark))
    return bool(default.getScheme() == "file")


def _hadoop(spark: SparkSession) -> Any:
    """The settings of Hadoop, as the tables are read and written with them: the session's among them."""
    return spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
