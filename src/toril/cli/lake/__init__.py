"""``toril lake …``: the event log on Spark, in tables, and all of history once more."""

from __future__ import annotations

import click

from toril.cli.lazy import Lazy, LazyGroup

__all__ = ["lake"]

COMMANDS = {
    "setup": "Fetch the jars that Spark needs, once.",
    "run": "Archive the log, and bring all tables up to it.",
    "runs": "What was run: when, by which version, how many rows, how long.",
    "tables": "The tables, their sizes, and how far each is.",
    "sql": "Ask the tables something, and see the answer here.",
    "requeue": "Take up again what could not be read, after a fix.",
    "rewind": "Go on with a partition after a failover has lost what the lake has.",
    "maintain": "Compact, cluster and vacuum the tables.",
    "erase": "Remove a tenant from the tables and from their history.",
    "replay": "Build a projection over all of history, as its next generation.",
    "diff": "Compare two generations of a projection, field by field.",
    "promote": "Bring a generation to the live store, and switch to it.",
    "retire": "Remove a generation that is not read any more.",
    "generations": "The generations of projections, and which one is read.",
    "state": "An aggregate as it was at a time, or at a version.",
    "audit": "Prove that log, lake and live store agree.",
    "load": "Load gold tables into ClickHouse.",
}
"""Each command, in the order in which they are needed: a function of that name in a module of that name."""


@click.group(
    cls=LazyGroup,
    called="toril lake",
    lazy={name: Lazy(f"toril.cli.lake.{name}", what) for name, what in COMMANDS.items()},
    extra="spark",  # most of them need it
)
def lake() -> None:
    """Archive the event log in tables, and compute over all of history with Spark.

    Runs here by default; --master (or TORIL_SPARK_MASTER) names a cluster.
    """
