"""``toril lake promote``: a generation goes live, and readers see it; or the one before, once more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.progress import Progress
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
    standing_still,
    with_program,
)
from toril.cli.lake.target import lake_options, log_option, opened, ui, url_option
from toril.cli.lake.working import Lines, bars
from toril.cli.show import as_json, errors, note, one_line, say
from toril.cli.times import parse_duration, whole
from toril.errors import InvalidValue, TorilError
from toril.lake.generations import Generation, find, latest
from toril.lake.lake import Lake
from toril.lake.promote import Progress as Told
from toril.lake.promote import Promoted, other_code, refuse_other_log, refuse_part, take_back
from toril.lake.promote import promote as promoted
from toril.lake.runs import Runs
from toril.lake.subjects import Code, Subject
from toril.runtime.generations import WITHIN, GenerationStanding, Loaded

NOBODY = 5.0
"""Seconds after which it is said that no worker runs the generation."""


@click.command()
@projection_argument
@click.argument("generation", metavar="[NUMBER]", required=False, callback=whole("NUMBER", 1, 10**9))
@program_option
@click.option("--back", is_flag=True, help="Let readers see the generation that they saw before.")
@click.option(
    "--within",
    default=str(WITHIN),
    show_default=True,
    metavar="N",
    callback=whole("--within", 0, 10**12),
    help="Events that it may be behind when readers are switched to it.",
)
@click.option("--patience", metavar="TIME", help="Give up when it has not caught up by then, like 10m.")
@cold_options
@yes_option
@log_option
@url_option
@lake_options
def promote(
    projection: str,
    generation: int | None,
    program_: str | None,
    back: bool,
    within: int,
    patience: str | None,
    cold: Cold,
    yes: bool,
    log_name: str,
    url: str | None,
    path: str | None,
    master: str | None,
    json_: bool,
) -> None:
    """Bring a generation (without a number, the latest) to the live store, and let readers see it.

    Its states are loaded, its workers catch up from exactly its cut, beside those of the generation before,
    and when they have, readers are switched in one write. Live traffic goes on all the time. It can be
    stopped and run again at any point. With --back, readers see the one that they saw before; that is one
    write too.
    """
    where = program(program_, url, log_name)
    subject = where.find(projection)
    where.live(subject)
    if back:
        if generation is not None:
            rule = "--back goes to the generation that readers saw before, whichever that is"
            raise InvalidValue("NUMBER", generation, rule)
        question = f"Let all readers of {subject.processor} see the generation that they saw before?"
        asyncio.run(make_sure("promote --back", question, yes))
        _back(where, subject, path, master, as_lines=json_ or not errors.is_terminal)
        return
    seconds = None if patience is None else parse_duration("--patience", patience) / 1000
    as_lines = json_ or not errors.is_terminal
    with opened(path, master, name="toril lake promote", quiet=as_lines) as lake:
        chosen = _chosen(lake, subject, generation)
        refuse_part(chosen)
        refuse_other_log(chosen, where.log)
        assert subject.definition is not None  # it is live
        here = other_code(chosen, subject.definition)
        asyncio.run(make_sure("promote", _question(chosen, here), yes))
        arguments = {"projection": subject.processor, "generation": chosen.number, "within": within}
        with (
            interruptible("the same command goes on where it was; readers see what they saw"),
            Runs(lake).recorded("promote", arguments) as one,
        ):
            with _shown(lake, as_lines, asked=not yes) as told:
                done = asyncio.run(_promote(where, subject, lake, chosen, within, seconds, cold, told))
            one.rows = {chosen.plan.name: done.loaded.placed}
    if as_lines:
        said = {"generation": done.number, "before": done.before, "failed": done.failed}
        as_json({"what": "promoted", **said}, indent=None)
        return
    say(
        Text.assemble(
            "readers of ",
            (one_line(subject.processor), "bold"),
            f" see generation {done.number}; before, they saw {done.before or 'none'}",
        )
    )
    if still := standing_still(done.failed):
        say(Text(still, "yellow"))
    its = with_program(subject.processor, program_)
    note(
        f"'toril lake promote {its} --back' takes it back; the one before goes on running until "
        "'toril lake retire'"
    )


def _chosen(lake: Lake, subject: Subject, number: int | None) -> Generation:
    if number is not None:
        return find(lake, subject.processor, number)
    found = latest(lake, subject.processor)
    if found is None:
        raise InvalidValue(
            "PROJECTION",
            subject.processor,
            "it has no generation that is whole: `toril lake replay` makes one",
        )
    return found


def _question(chosen: Generation, here: Code | None = None) -> str:
    plan, still = chosen.plan, standing_still(chosen.failed)
    question = f"Let all readers of {plan.projection} see generation {plan.number} ({plan.code})?"
    other = "" if here is None else _changed(plan.code, here)
    return ". ".join(filter(None, (still, other, question)))


def _changed(made_by: Code, goes_on_by: Code) -> str:
    return (
        "Its code has changed since (files of its modules or upcasters, or versions of packages): "
        f"it was made by code {made_by.digest[:8]}, and goes on by {goes_on_by.digest[:8]}"
    )


async def _promote(
    where: Program,
    subject: Subject,
    lake: Lake,
    chosen: Generation,
    within: int,
    patience: float | None,
    cold: Cold,
    told: Told,
) -> Promoted:
    async with cold.opened() as store, where.service(subject, store) as service:
        return await promoted(
            lake, chosen, service, url=where.url, within=within, patience=patience, progress=told
        )


def _back(where: Program, subject: Subject, path: str | None, master: str | None, *, as_lines: bool) -> None:
    now, before = asyncio.run(_take_back(where, subject))
    if as_lines:
        as_json({"what": "taken back", "generation": now, "before": before}, indent=None)
    else:
        say(Text(f"readers of {one_line(subject.processor)} see generation {now}; before, they saw {before}"))
    # Readers come first: Spark takes its time to start, and it is only noted there.
    given = {"projection": subject.processor, "back": True, "generation": now, "before": before}
    try:
        with (
            opened(path, master, name="toril lake promote", quiet=True) as lake,
            Runs(lake).recorded("promote", given, if_there=True),
        ):
            pass
    except TorilError as problem:
        note(f"it is not among the runs of the lake: {problem}")


async def _take_back(where: Program, subject: Subject) -> tuple[int, int]:
    async with where.opened(where.live(subject)) as sourcing:
        return await take_back(sourcing.pipelines[subject.pipeline].service, subject.name)


class _Shown(Told):
    """How far it is: bars on a terminal, lines of JSON elsewhere."""

    def __init__(self, bar: Progress | None, *, asked: bool = False) -> None:
        self._bar = bar
        self._asked = asked
        self._task = None if bar is None else bar.add_task("looking at the lake", total=None, said="")
        self._began, self._lines = time.monotonic(), Lines()
        self._most = 0
        self._complained = False

    def _show(self, what: str, done: int, of: int, said: str) -> None:
        if self._bar is None:
            self._lines.say(what, done / max(of, 1), done, done=done, of=of)
        elif self._task is not None:
            rate = done / max(time.monotonic() - self._began, 0.1)
            said = f"{said}, {rate:,.0f} a second"
            self._bar.update(self._task, description=what, completed=done, total=max(of, 1), said=said)

    def other_code(self, made_by: Code, goes_on_by: Code) -> None:
        if self._asked:
            return  # then it was said before
        if self._bar is None:
            said = {"made_by": str(made_by), "goes_on_by": str(goes_on_by)}
            as_json({"what": "other code", **said}, indent=None)
        else:
            note(_changed(made_by, goes_on_by))

    def loading(self, loaded: Loaded, of: int) -> None:
        done = loaded.placed + loaded.there + loaded.gone
        self._show("loading", done, of, f"{done:,} of {of:,} states")

    def loaded(self, loaded: Loaded) -> None:
        self._began, self._lines = time.monotonic(), Lines()
        if self._bar is not None and self._task is not None:
            self._bar.remove_task(self._task)  # the clock of what is full stands still
            self._task = self._bar.add_task("catching up", total=None, said="")
        if loaded.gone:
            note(f"{loaded.gone:,} states were left out: their tenants were erased since")

    def behind(self, standing: GenerationStanding, runs: bool) -> None:
        self._most = max(self._most, standing.behind)
        waited = time.monotonic() - self._began
        self._show(
            "catching up", self._most - standing.behind, self._most, f"{standing.behind:,} events behind"
        )
        if not runs and waited > NOBODY and not self._complained:
            self._complained = True
            note(
                f"no worker runs {standing.name} yet: those whose program has version {standing.version} of "
                "the projection find it by themselves"
            )


@contextmanager
def _shown(lake: Lake, as_lines: bool, *, asked: bool) -> Iterator[_Shown]:
    if as_lines:
        as_json({"what": "began", "doing": "promoting", "spark_ui": ui(lake.spark)}, indent=None)
        yield _Shown(None, asked=asked)
        return
    with bars() as bar:
        yield _Shown(bar, asked=asked)
