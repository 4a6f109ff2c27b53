"""``toril lake replay``: a projection over all of history, as its next generation."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.progress import Progress
from rich.text import Text

from toril.cli.lake.projections import (
    interruptible,
    moment,
    program,
    program_option,
    projection_argument,
    standing_still,
    with_program,
)
from toril.cli.lake.target import lake_options, log_option, opened, ui, url_option
from toril.cli.lake.working import Lines, bars
from toril.cli.show import as_json, errors, note, one_line, say
from toril.cli.times import span, whole
from toril.errors import InvalidValue
from toril.lake.engine import explain as explained
from toril.lake.generations import Generation, Plan, find
from toril.lake.lake import Lake
from toril.lake.progress import Tasks
from toril.lake.replay import Progress as Told
from toril.lake.replay import replay as replayed
from toril.lake.replay import typing_for
from toril.lake.runs import Runs
from toril.lake.tables import EVENTS

CUT_RULE = (
    'positions like {"00": [17, "1700000000000-0"]}, @FILE with them, or the number of a generation '
    "whose cut it is"
)


@click.command()
@projection_argument
@program_option
@click.option("--tenant", help="Of this tenant alone. A part of history cannot be promoted.")
@click.option("--since", metavar="TIME", callback=moment("--since"), help="Events recorded from then on.")
@click.option("--until", metavar="TIME", callback=moment("--until"), help="Events recorded before that.")
@click.option("--cut", metavar="CUT", help="Up to where: positions as JSON, @FILE, or a generation's number.")
@click.option("--engine", metavar="ENGINE", help="native or fold, where it is not to be chosen.")
@click.option("--version-of-code", "label", default="", metavar="LABEL", help="What you call this code.")
@click.option(
    "--portions", metavar="N", callback=whole("--portions", 1, 4096), help="Commits to write it in."
)
@click.option("--only-look", is_flag=True, help="Keep no place in the log: it cannot be promoted.")
@click.option("--explain", is_flag=True, help="Say how it would be computed, and end.")
@log_option
@url_option
@lake_options
def replay(
    projection: str,
    program_: str | None,
    tenant: str | None,
    since: int | None,
    until: int | None,
    cut: str | None,
    engine: str | None,
    label: str,
    portions: int | None,
    only_look: bool,
    explain: bool,
    log_name: str,
    url: str | None,
    path: str | None,
    master: str | None,
    json_: bool,
) -> None:
    """Build a projection over all of history, as its next generation.

    By the same class that runs live: from the tables, and from the log what they do not have yet, up to an
    exact cut. Nothing changes for readers until it is promoted. At Ctrl-C it stops; the same command takes
    it up again, under the same number and with the same cut. Other code is another generation.
    """
    where = program(program_, url, log_name)
    subject = where.find(projection)
    as_lines = json_ or not errors.is_terminal
    with opened(path, master, name="toril lake replay", quiet=as_lines) as lake:
        if explain:
            said = explained(subject.projection, typing_for(lake, subject), engine)
            if json_:
                as_json({"projection": subject.processor, "explained": said})
            else:
                say(Text(said))
            return
        lake.check(EVENTS)
        chosen = None if cut is None else _cut(lake, subject.processor, cut)
        arguments = {
            "projection": subject.processor,
            "tenant": tenant,
            "since": since,
            "until": until,
            "cut": cut,
            "engine": engine,
            "version_of_code": label,
        }
        began = time.monotonic()
        with (
            interruptible("the same command takes it up again"),
            Runs(lake).recorded("replay", arguments) as one,
            _shown(as_lines, ui(lake.spark)) as told,
        ):
            made = replayed(
                lake,
                subject,
                url=where.url,
                log=where.log,
                tenant=tenant,
                since=since,
                until=until,
                cut=chosen,
                engine=engine,
                label=label,
                portions=portions,
                keep=not only_look,
                progress=told,
                run=one.run,
            )
            one.rows = {made.plan.name: made.rows or 0}
        _answer(made, told, time.monotonic() - began, program_, json_=as_lines)


def _cut(lake: Lake, projection: str, said: str) -> dict[str, tuple[int, str]]:
    """The cut that is meant."""
    if said.isdecimal():
        return find(lake, projection, int(said)).plan.cut
    try:
        text = Path(said[1:]).read_text() if said.startswith("@") else said
        return {str(name): (int(at[0]), str(at[1])) for name, at in json.loads(text).items()}
    except (OSError, ValueError, TypeError, AttributeError, LookupError):
        raise InvalidValue("--cut", said, CUT_RULE) from None


class _Shown(Told):
    """How far it is: a bar on a terminal, lines of JSON elsewhere."""

    def __init__(self, bar: Progress | None, ui: str | None) -> None:
        self._bar = bar
        self._ui = ui
        self._task = None if bar is None else bar.add_task("looking at the lake", total=None, said="")
        self._began, self._lines = time.monotonic(), Lines()
        self._first = 0.0
        self.events = 0
        self._portions = 1
        self.keeps_log = False

    def _anew(self, what: str) -> None:
        """A bar of its own: Rich takes no total back, and stops the clock of what is full."""
        if self._bar is not None and self._task is not None:
            self._bar.remove_task(self._task)
            self._task = self._bar.add_task(what, total=None, said="")

    def _line(self, what: str, **said: object) -> None:
        if self._bar is None:
            as_json({"what": what, **said}, indent=None)

    def began(self, plan: Plan, events: int, done: int) -> None:
        self.events, self._portions, self._first = events, plan.portions, done / plan.portions
        self._began, self._lines = time.monotonic(), Lines()
        self._line(
            "began",
            generation=plan.number,
            projection=plan.projection,
            engine=plan.engine,
            events=events,
            portions=plan.portions,
            portions_done=done,
            spark_ui=self._ui,
        )
        if self._bar is not None:
            again = f", going on after {done} of {plan.portions} portions" if done else ""
            note(f"generation {plan.number}, {plan.engine}, {events:,} events{again}")
            self._anew("replaying")

    def tasks(self, portion: int, tasks: Tasks) -> None:
        part = (portion + tasks.done / max(tasks.of, 1)) / self._portions
        since = max(part - self._first, 0.0)  # of a replay that was taken up, what this command has done
        if self._bar is None:
            far = {"portion": portion + 1, "of": self._portions, "tasks": tasks.done, "of_tasks": tasks.of}
            self._lines.say("replaying", since / (1 - self._first), self.events * since, **far)
        elif self._task is not None:
            rate = self.events * since / max(time.monotonic() - self._began, 0.1)
            said = f"about {rate:,.0f} events a second"
            self._bar.update(self._task, description="replaying", completed=part, total=1.0, said=said)

    def wrote(self, portion: int) -> None:
        self._line("wrote", portion=portion + 1, of=self._portions)

    def checking(self) -> None:
        self._line("checking")
        self._anew("looking through it")

    def kept(self) -> None:
        self.keeps_log = True

    def not_kept(self, why: str) -> None:
        self._line("not kept", why=why)
        if self._bar is not None:
            note(f"it can be looked at, and not be promoted: {why}")


@contextmanager
def _shown(as_lines: bool, ui: str | None) -> Iterator[_Shown]:
    if as_lines:
        yield _Shown(None, ui)
        return
    with bars() as bar:
        yield _Shown(bar, ui)


def _answer(made: Generation, told: _Shown, seconds: float, said: str | None, *, json_: bool) -> None:
    plan = made.plan
    if json_:
        answer = {**made.as_value(), "keeps_log": told.keeps_log, "seconds": round(seconds, 3)}
        as_json({"what": "done", **answer}, indent=None)
        return
    say(
        Text.assemble(
            (f"generation {plan.number}", "bold"),
            f" of {one_line(plan.projection)}: {made.rows or 0:,} aggregates, {told.events:,} events, ",
            f"{plan.engine}, in {span(round(seconds * 1000))}",
        )
    )
    say(Text(f"by {one_line(str(plan.code))}; {one_line(str(plan.filters))}", "dim"))
    if still := standing_still(made.failed):
        say(Text(still, "yellow"))
    if told.keeps_log:
        its = with_program(f"{plan.projection} {plan.number}", said)
        note(f"'toril lake diff {its}' compares it with what readers see")
        note(f"the log keeps what came since until 'toril lake promote {its}', or 'toril lake retire'")
