"""Which lake a command works on, with which Spark, and which log: the same options everywhere."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from toril.cli.show import note, one_line
from toril.connection.embedded import default_home
from toril.errors import InvalidValue
from toril.lake.archive import GROUP
from toril.lake.errors import LakeError, SparkMissing
from toril.lake.generations import FOLDER
from toril.lake.lake import Lake
from toril.lake.problems import SPARKS
from toril.lake.problems import one_line as what_is_wrong
from toril.lake.sessions import is_remote, session
from toril.log.layout import check_reader

LAKE_VARIABLE = "TORIL_LAKE"

VERBOSE = "TORIL_SPARK_VERBOSE"
"""Where this is set, all that Spark says is shown."""

Command = Callable[..., Any]

lake_option = click.option(
    "--lake",
    "path",
    metavar="PATH",
    envvar=LAKE_VARIABLE,
    help=f"Where the tables are: a folder, or a URL of Spark ({LAKE_VARIABLE}, else TORIL_HOME/lake).",
)
master_option = click.option(
    "--master",
    metavar="MASTER",
    help="local[N], spark://…, yarn, k8s://… or sc://… (TORIL_SPARK_MASTER, else all cores here).",
)
KEPT = "toril.lake.conf"
"""Where a command keeps what ``--conf`` said, so that not each one must hand it on."""


def _keep(context: click.Context, _: click.Parameter, said: tuple[str, ...]) -> None:
    made: dict[str, str] = {}
    for one in said:
        key, equals, value = one.partition("=")
        if not equals or not key.startswith("spark."):
            raise InvalidValue("--conf", one, "KEY=VALUE, with a key of Spark's (spark.…)")
        made[key] = value
    context.meta[KEPT] = made


conf_option = click.option(
    "--conf",
    metavar="KEY=VALUE",
    multiple=True,
    expose_value=False,
    callback=_keep,
    help="A setting of Spark, before those of spark-submit and spark-defaults.conf. May be repeated.",
)
json_option = click.option("--json", "json_", is_flag=True, help="Print JSON.")
url_option = click.option("--url", help="The server (default: TORIL_REDIS_URL, else the embedded one).")
log_option = click.option(
    "--log", "log_name", metavar="LOG", default="log", show_default=True, help="The log."
)


def _group(ctx: click.Context, param: click.Parameter, value: str) -> str:  # noqa: ARG001 - click's
    return check_reader(value)


group_option = click.option(
    "--group",
    default=GROUP,
    show_default=True,
    callback=_group,
    help="The archive's name in the log: 'toril log trim' may keep what it has not read.",
)


def lake_options(command: Command) -> Command:
    """--lake, --master, --conf and --json."""
    for option in (json_option, conf_option, master_option, lake_option):
        command = option(command)
    return command


def place(path: str | None) -> str:
    """Where the tables are: as it was said, or in the data directory."""
    if path is not None and not path.strip():
        raise InvalidValue("--lake", path, "a folder, or a URL that Spark knows")
    return path or str(default_home() / "lake")


def listed(table: str) -> str:
    """A table as lists name it: of a generation what is at the end counts, and must not be cut off."""
    return one_line(table.removeprefix(f"{FOLDER}/"))


@contextmanager
def opened(
    path: str | None, master: str | None, *, name: str = "toril", quiet: bool = False
) -> Iterator[Lake]:
    """The lake, with a Spark of this command's own; what is done meanwhile is said, as it takes a while."""
    where = place(path)
    if not quiet and SparkSession.getActiveSession() is None:
        note("starting Spark …")
    try:
        with started(master, name=name, conf=click.get_current_context().meta.get(KEPT)) as spark:
            if not quiet and (shown := ui(spark)) is not None:
                note(f"Spark's own view of it: {shown}")
            yield Lake(spark, where)
    except SPARKS as problem:
        if VERBOSE in os.environ:
            raise
        raise LakeError(f"{what_is_wrong(problem)} ({VERBOSE}=1 shows all that Spark says)") from problem


@contextmanager
def started(
    master: str | None = None, *, name: str = "toril", conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A Spark that says nothing by itself. One that is there already is used, and goes on afterwards."""
    others = SparkSession.getActiveSession()
    with _java_apart():
        spark = session(master, name=name, conf=conf)
    try:
        hush(spark)
        yield spark
    finally:
        if others is None:
            spark.stop()


def ui(spark: SparkSession) -> str | None:
    """The address of Spark's own pages, where there are any."""
    if is_remote(spark):
        return None
    found: str | None = spark.sparkContext.uiWebUrl
    return found


@contextmanager
def _java_apart() -> Iterator[None]:
    """Java, started in it, has outputs of its own: what it says there is not for whoever looks on.

    Delta says "Deleted 0 files" on the standard output, where a command's JSON belongs.
    """
    if VERBOSE in os.environ:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    ours = {output: os.dup(output) for output in (1, 2)}
    with tempfile.TemporaryFile() as javas:
        for output in ours:
            os.dup2(javas.fileno(), output)
        try:
            yield
        except PySparkRuntimeError as problem:
            javas.seek(0)
            said = javas.read().decode(errors="replace").strip().splitlines()
            raise SparkMissing(f"Spark did not start: {said[-1] if said else problem}") from None
        finally:
            for output, kept in ours.items():
                os.dup2(kept, output)
                os.close(kept)


def hush(spark: SparkSession) -> None:
    """Spark says at length what a command then says in a line."""
    if not is_remote(spark) and VERBOSE not in os.environ:
        spark.sparkContext.setLogLevel("OFF")
