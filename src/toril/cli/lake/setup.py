"""``toril lake setup``: what Spark needs beyond its packages, fetched once."""

from __future__ import annotations

import click

from toril.cli.show import as_json, console, note
from toril.lake import jars, java


@click.command()
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def setup(json_: bool) -> None:
    """Fetch the jars that Spark needs for Delta tables; what is there already is checked, and kept.

    They go to TORIL_JARS, or to jars in the data directory. After that, Spark starts without a network. The
    resolver is Spark's own, with the settings that it has (mirrors, proxies).
    """
    found = java.require()
    wanted = len(jars.missing())
    if wanted and not json_:
        note(f"fetching {wanted} of {len(jars.pinned())} jars into {jars.folder()} …")
    made = jars.fetch()
    if json_:
        as_json(
            {
                "java": {"version": found.version, "binary": found.binary},
                "folder": str(jars.folder()),
                "jars": len(jars.pinned()),
                "fetched": [path.name for path in made],
            }
        )
    else:
        console.print(f"Java {found.version}, {found.binary}", soft_wrap=True)
        done = f", {len(made)} of them fetched now" if made else ""
        console.print(f"{len(jars.pinned())} jars in {jars.folder()}{done}", soft_wrap=True)
