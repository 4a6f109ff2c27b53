"""``toril lake retire``: a generation that nobody reads any more goes, live and in the lake."""

from __future__ import annotations

import asyncio

import click
from rich.text import Text

from toril.cli.careful import make_sure, yes_option
from toril.cli.lake.projections import (
    Program,
    clickhouse_option,
    cold_store,
    program,
    program_option,
    projection_argument,
)
from toril.cli.lake.target import json_option, lake_option, log_option, master_option, opened, url_option
from toril.cli.show import as_json, errors, one_line, say
from toril.cli.times import whole
from toril.errors import InvalidValue
from toril.lake.generations import Generation, look
from toril.lake.lake import Lake
from toril.lake.promote import retire as retired
from toril.lake.subjects import Subject


@click.command()
@projection_argument
@click.argument("generation", metavar="NUMBER", callback=whole("NUMBER", 1, 10**9))
@program_option
@clickhouse_option
@yes_option
@log_option
@url_option
@lake_option
@master_option
@json_option
def retire(
    projection: str,
    generation: int,
    program_: str | None,
    clickhouse: str | None,
    yes: bool,
    log_name: str,
    url: str | None,
    path: str | None,
    master: str | None,
    json_: bool,
) -> None:
    """Remove a generation that readers do not see.

    Its place in the log, its live states and what it has parked go, and its states in the lake. That it was
    there, up to where and by which code, is still listed. Stopped half way, run it again.
    """
    where = program(program_, url, log_name)
    subject = where.find(projection)
    with opened(path, master, name="toril lake retire", quiet=json_) as lake:
        kept = look(lake, subject.processor, generation)
        gone = asyncio.run(_retire(where, subject, lake, kept, generation, clickhouse, yes))
    if json_:
        as_json({"projection": subject.processor, "retired": generation, "live_states": gone})
    else:
        say(
            Text(
                f"generation {generation} of {one_line(subject.processor)} is retired; "
                f"{gone:,} live states went with it"
            )
        )


async def _retire(
    where: Program,
    subject: Subject,
    lake: Lake,
    kept: Generation | None,
    number: int,
    clickhouse: str | None,
    yes: bool,
) -> int:
    question = f"Remove generation {number} of {subject.processor}, for good?"
    if where.sourcing is None:
        if kept is None:
            raise InvalidValue("NUMBER", number, f"{subject.processor} has no such generation")
        await make_sure("retire", question, yes)
        return await retired(lake, kept, None, subject.name, number)
    async with cold_store(clickhouse) as cold, where.service(subject, cold) as service:
        live = [one.number for one in await service.generations.standings(subject.name)]
        if kept is None and number not in live:
            raise InvalidValue("NUMBER", number, f"{subject.processor} has no such generation")
        await make_sure("retire", question, yes)
        with errors.status("removing …"):
            return await retired(lake, kept, service, subject.name, number)
