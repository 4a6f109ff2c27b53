"""``toril lake generations``: what was replayed, and which generation readers see."""

from __future__ import annotations

import asyncio
from typing import Any

import click
from rich.text import Text

from toril.cli.lake.projections import Program, program, program_option
from toril.cli.lake.target import lake_options, log_option, opened, url_option
from toril.cli.looks import aside, number
from toril.cli.show import Column, as_json, fitted_table, one_line, say
from toril.cli.times import local
from toril.lake.generations import Generation
from toril.lake.generations import generations as in_lake
from toril.runtime.generations import GenerationStanding

Key = tuple[str, int]

RUNS_LIVE = ("current", "ready", "catching up")


@click.command()
@click.argument("projection", metavar="[PROJECTION]", required=False)
@program_option
@log_option
@url_option
@lake_options
def generations(
    projection: str | None,
    program_: str | None,
    log_name: str,
    url: str | None,
    path: str | None,
    master: str | None,
    json_: bool,
) -> None:
    """List the generations of projections: those in the lake, and those in the live store.

    In the lake one is whole, unfinished or retired. Live it is loading, catching up, ready, current (it is
    what readers see), retiring or retired.
    """
    where = program(program_, url, log_name)
    subject = None if projection is None else where.find(projection)
    live = asyncio.run(_live(where, None if subject is None else subject.processor))
    with opened(path, master, name="toril lake generations", quiet=json_) as lake:
        made = in_lake(lake, None if subject is None else subject.processor)
    kept = {(one.plan.projection, one.number): one for one in made}
    keys = sorted({*kept, *live})
    if json_:
        as_json([_value(key, kept.get(key), live.get(key)) for key in keys])
        return
    columns = [
        Column("projection", least=14),
        Column("number", right=True),
        Column("lake"),
        Column("live"),
        Column("behind", right=True),
        Column("made", leave=2),
        Column("engine", leave=3),
        Column("of", least=10, leave=4),
        Column("code", least=10, leave=1),
    ]
    rows: list[list[str | Text]] = [_row(key, kept.get(key), live.get(key)) for key in keys]
    if any(_failed(kept.get(key), live.get(key)) for key in keys):
        columns.insert(5, Column("failed", right=True))
        for key, row in zip(keys, rows, strict=True):
            row.insert(5, number(_failed(kept.get(key), live.get(key)), "red"))
    if not rows:
        say(Text("There is no generation yet: 'toril lake replay' makes one."))
        return
    left_out = fitted_table(columns, rows)
    if left_out:
        aside(f"No room for: {', '.join(left_out)}.")


async def _live(where: Program, projection: str | None) -> dict[Key, GenerationStanding]:
    """What the live store knows, by projection and number."""
    found: dict[Key, GenerationStanding] = {}
    if where.sourcing is None:
        return found
    async with where.opened(where.sourcing) as sourcing:
        for pipeline in sourcing.pipelines.values():
            for one in await pipeline.service.generations.standings():
                name = f"{pipeline.name}/{one.projection}"
                if projection in (None, name):
                    found[name, one.number] = one
    return found


def _failed(kept: Generation | None, live: GenerationStanding | None) -> int:
    """How many of its aggregates stand still: live, where it runs there, else as it was made."""
    if live is not None and live.state in RUNS_LIVE:
        return live.failed
    return 0 if kept is None or kept.state == "retired" else kept.failed or 0


def _row(key: Key, kept: Generation | None, live: GenerationStanding | None) -> list[str | Text]:
    styles = {"current": "bold green", "unfinished": "yellow", "retired": "dim", "retiring": "dim"}
    state = "" if kept is None else kept.state
    seen = "" if live is None else live.state
    return [
        one_line(key[0]),
        number(key[1]),
        Text(state, styles.get(state, "")),
        Text(seen, styles.get(seen, "")),
        number(live.behind) if live is not None and live.state in RUNS_LIVE else "",
        "" if kept is None else local(kept.plan.begun_at // 1_000_000),
        "" if kept is None else kept.plan.engine,
        "" if kept is None else one_line(str(kept.plan.filters)),
        "" if kept is None else one_line(str(kept.plan.code)),
    ]


def _value(key: Key, kept: Generation | None, live: GenerationStanding | None) -> dict[str, Any]:
    said: dict[str, Any] = {"projection": key[0], "number": key[1], "lake": None, "live": None}
    if kept is not None:
        said["lake"] = kept.as_value()
    if live is not None:
        said["live"] = {
            "state": live.state,
            "version": live.version,
            "behind": live.behind,
            "failed": live.failed,
            "reserved_at": live.reserved_at,
            "loaded_at": live.loaded_at,
        }
    return said
