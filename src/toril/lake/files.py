"""The files of a lake's tables, and how Spark is set while they are looked after."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import AbstractContextManager, contextmanager
from urllib.parse import unquote

from pyspark.sql import SparkSession

from toril.lake.errors import LakeError
from toril.lake.lake import Lake
from toril.lake.sessions import another
from toril.lake.storage import LOG, Files, files_at

DEEPEST = 5
"""How many folders below the lake a table may be: a generation is ``generations/pipeline/name/number``."""


def files_of(lake: Lake) -> Files:
    """The files of a lake."""
    return files_at(lake.spark, lake.path)


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


def is_ours(lake: Lake, name: str) -> bool:
    """Whether Toril has made a table; one of a later Toril is refused."""
    return "toril.table" in lake.properties(name)


def current_files(lake: Lake, files: Files, name: str) -> dict[str, int]:
    """The files that the last version of a table has, and their sizes."""
    paths = lake.read(name).inputFiles()
    sizes = {file.path: file.size for file in files.walk(name)}
    found: dict[str, int] = {}
    for path in paths:
        known = path_below(path, name, sizes)
        if known not in sizes:
            raise LakeError(f"{lake.place(name)} has no file {known}, and its last version names it")
        found[known] = sizes[known]
    return found


def path_below(path: str, name: str, there: Container[str]) -> str:
    """The path below a table of a file that Spark names; ``there``: the paths that may be meant."""
    below = path.rpartition(f"/{name}/")[2]
    # Spark may say it as a URL; and a name may have a `%` of its own.
    return below if below in there else unquote(below)


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


def vacuuming(spark: SparkSession, **more: str) -> AbstractContextManager[None]:
    """Settings under which VACUUM lists few folders in few tasks, and leaves no commit of its own."""
    return settings(
        spark,
        spark__databricks__delta__vacuum__logging__enabled="false",
        spark__databricks__delta__vacuum__parallelDelete__enabled="true",
        spark__sql__sources__parallelPartitionDiscovery__parallelism=str(
            spark.conf.get("spark.sql.shuffle.partitions")
        ),
        **more,
    )


def own_session(lake: Lake) -> Lake:
    """The same lake by a session of its own: its settings are not those of a job in this process."""
    return Lake(another(lake.spark), lake.path)
