"""``toril lake retire``: a generation that nobody reads any more goes, live and in the lake."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager

import click
from rich.text import Text

from toril.cli.careful import make_sure, yes_option
from toril.cli.lake.projections import (
    Cold,
    Program,
    cold_options,
    interruptible,
    program,
    program_option,
    projection_argument,
)
from toril.cli.lake.target import lake_options, log_option, opened, url_option
from toril.cli.lake.working import working
from toril.cli.show import as_json, errors, one_line, say
from toril.cli.times import whole
from toril.errors import InvalidValue
from toril.lake.generations import FOLDER, Generation, look
from toril.lake.lake import Lake
from toril.lake.promote import refuse_other_log
from toril.lake.promote import retire as retired
from toril.lake.runs import OneRun, Runs
from toril.lake.subjects import Subject
from toril.lake.tables import EVENTS


@click.command()
@projection_argument
@click.argument("generation", metavar="NUMBER", callback=whole("NUMBER", 1, 10**9))
@program_option
@cold_options
@yes_option
@log_option
@url_option
@lake_options
def retire(
    projection: str,
    generation: int,
    program_: str | None,
    cold: Cold,
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
    as_lines = json_ or not errors.is_terminal
    with (
        opened(path, master, name="toril lake retire", quiet=as_lines) as lake,
        interruptible("the same command finishes it"),
    ):
        lake.check(EVENTS)  # of a generation that is live as well, the states in the lake would stay
        kept = look(lake, subject.processor, generation)
        if kept is not None and where.sourcing is not None:
            refuse_other_log(kept, where.log)
        gone = asyncio.run(_retire(where, subject, lake, kept, generation, cold, yes, quiet=as_lines))
    if as_lines:
        as_json({"projection": subject.processor, "retired": generation, "live_states": gone}, indent=None)
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
    cold: Cold,
    yes: bool,
    *,
    quiet: bool,
) -> int:
    question = f"Remove generation {number} of {subject.processor}, for good?"
    if where.sourcing is None:
        if kept is None:
            raise InvalidValue("NUMBER", number, f"{subject.processor} has no such generation")
        await make_sure("retire", question, yes)
        with _recorded(lake, subject, number), working(lake.spark, "removing", quiet=quiet):
            return await retired(lake, kept, None, subject.name, number)
    async with cold.opened() as store, where.service(subject, store) as service:
        live = [one.number for one in await service.generations.standings(subject.name)]
        if kept is None and number not in live:
            raise InvalidValue("NUMBER", number, f"{subject.processor} has no such generation")
        await make_sure("retire", question, yes)
        with (
            _recorded(lake, subject, number) as run,
            working(lake.spark, "removing", quiet=quiet) as shown,
        ):
            of = 0 if kept is None else kept.rows or 0
            gone = await retired(
                lake, kept, service, subject.name, number, progress=lambda done: shown.rows(done, of)
            )
            run.rows = {f"{FOLDER}/{subject.processor}/{number}": gone}
            return gone


def _recorded(lake: Lake, subject: Subject, number: int) -> AbstractContextManager[OneRun]:
    return Runs(lake).recorded("retire", {"projection": subject.processor, "generation": number})
