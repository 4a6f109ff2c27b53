"""``toril pipelines``: what there is, and what it is made of."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.text import Text

from toril.cli.looks import InOrder, aside, number
from toril.cli.runtime.target import Target, module_argument, on_pipelines
from toril.cli.show import Column, as_json, fitted_table, say
from toril.errors import InvalidValue
from toril.runtime import RegisteredPipeline


@click.group(cls=InOrder)
def pipelines() -> None:
    """Look at pipelines."""


@pipelines.command("ls")
@module_argument
@on_pipelines
async def list_pipelines(at: Target) -> None:
    """List pipelines, and how far behind they are."""
    rows: list[list[str | Text]] = []
    values = []
    for pipeline in at.chosen():
        standings = await pipeline.service.standings()
        behind = max((one.behind for one in standings), default=0)
        failed = sum(one.failed for one in standings)
        commands, works = len(pipeline.definition.commands), len(standings)
        values.append(
            {
                "pipeline": pipeline.name,
                "aggregate_type": pipeline.aggregate_type,
                "commands": commands,
                "processors": works,
                "behind": behind,
                "failed": failed,
            }
        )
        rows.append(
            [
                pipeline.name,
                pipeline.aggregate_type,
                number(commands),
                number(works),
                number(behind),
                number(failed, "red"),
            ]
        )
    if at.json:
        as_json(values)
        return
    names = ("pipeline", "aggregate type")
    numbers = ("commands", "processors", "behind", "failed")
    columns = [Column(name, least=12) for name in names]
    fitted_table([*columns, *(Column(name, right=True) for name in numbers)], rows)


@pipelines.command()
@module_argument
@click.argument("name", metavar="PIPELINE")
@on_pipelines
async def show(at: Target, name: str) -> None:
    """Show what one is made of: commands, processors, who waits for whom."""
    if name not in at.pipelines:
        raise InvalidValue("PIPELINE", name, f"one of: {', '.join(at.pipelines) or 'none'}")
    pipeline = at.sourcing.pipelines[name]
    standings = {one.name: one for one in await pipeline.service.standings()}
    if at.json:
        as_json(_value(pipeline) | {"processors": [asdict(one) for one in standings.values()]})
        return
    say(Text.assemble((name, "bold"), f", of aggregates of type {pipeline.aggregate_type}"))
    for command, (handler, _) in pipeline.definition.commands.items():
        waits = f", waits {handler.delay}" if handler.delay else ""
        say(Text(f"  command {command}, on the queue {{{name}/command/{command}}}{waits}"))
    rows: list[list[str | Text]] = []
    for work in pipeline.definition.works.values():
        its = standings[work.name]
        after = ", ".join(other.partition("/")[2] for other in work.depends_on)
        rows.append([work.name, its.kind, after, number(its.behind), number(its.failed, "red")])
    if rows:
        columns = [Column("processor", least=12), Column("kind"), Column("after", least=8, leave=1)]
        fitted_table([*columns, Column("behind", right=True), Column("failed", right=True)], rows)
    if not pipeline.definition.commands and not rows:
        aside("It has neither commands nor processors.")


def _value(pipeline: RegisteredPipeline) -> dict[str, object]:
    return {
        "pipeline": pipeline.name,
        "aggregate_type": pipeline.aggregate_type,
        "commands": list(pipeline.definition.commands),
    }
