"""``toril lake diff``: two generations of a projection, or one and what readers see, field by field."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import click
from rich.padding import Padding
from rich.text import Text

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
from toril.cli.looks import aside, number
from toril.cli.show import Column, as_json, errors, fitted_table, note, one_line, say
from toril.errors import InvalidValue
from toril.lake.diff import Diff
from toril.lake.diff import diff as compared
from toril.lake.generations import Generation, find, generations
from toril.lake.lake import Lake
from toril.lake.live import diff_live
from toril.lake.runs import Runs
from toril.lake.subjects import Subject

LIVE = "live"
RULE = "the number of a generation, or live"


@click.command()
@projection_argument
@click.argument("one", metavar="[ONE]", required=False)
@click.argument("other", metavar="[OTHER]", required=False)
@program_option
@click.option("--samples", type=click.IntRange(0, 100), default=5, show_default=True, help="Of each kind.")
@click.option(
    "--fraction", type=float, default=1.0, show_default=True, help="Against live: of so many aggregates."
)
@cold_options
@log_option
@url_option
@lake_options
def diff(
    projection: str,
    one: str | None,
    other: str | None,
    program_: str | None,
    samples: int,
    fraction: float,
    cold: Cold,
    log_name: str,
    url: str | None,
    path: str | None,
    master: str | None,
    json_: bool,
) -> None:
    """Compare two generations of a projection, field by field.

    ONE and OTHER are numbers of generations, or live: what readers see, at the version where that is.
    Where one is not given, it is live; without a number, the latest generation and live. Each kind of
    difference has a count, samples and a reason. Where live has not read so far, or an event waits there,
    that is counted, and is none. The exit code is 1 where there are differences, or none could be compared.
    """
    where = program(program_, url, log_name)
    subject = where.find(projection)
    _check("ONE", one)
    _check("OTHER", other)
    if one == other == LIVE:
        raise InvalidValue("OTHER", other, "live and live are the same")
    as_lines = json_ or not errors.is_terminal
    with (
        opened(path, master, name="toril lake diff", quiet=as_lines) as lake,
        interruptible("nothing was changed"),
    ):
        left, right = _chosen(lake, subject, one, other)
        sides = [LIVE if side is None else side.number for side in (left, right)]
        given = {"projection": subject.processor, "one": sides[0], "other": sides[1]}
        with (
            Runs(lake).recorded("diff", given) as run,
            working(lake.spark, "comparing", quiet=as_lines) as shown,
        ):
            if left is not None and right is not None:
                found = compared(lake, left, right, samples=samples)
            else:
                generation = left or right
                assert generation is not None
                found = asyncio.run(
                    _live(where, subject, lake, generation, fraction, samples, cold, shown.rows)
                )
            run.rows = {"compared": found.compared, "equal": found.equal}
    if as_lines:
        as_json({"projection": subject.processor, **found.as_value()}, indent=None)
    else:
        show(found)
    sys.exit(1 if found or found.proves_nothing else 0)


def _check(field: str, said: str | None) -> None:
    if said is not None and said != LIVE and not (said.isdecimal() and int(said) > 0):
        raise InvalidValue(field, said, RULE)


def _chosen(
    lake: Lake, subject: Subject, one: str | None, other: str | None
) -> tuple[Generation | None, Generation | None]:
    """The generations that are meant; None for live."""
    if {one, other} <= {None, LIVE}:
        there = [made for made in generations(lake, subject.processor) if made.state == "whole"]
        if not there:
            raise InvalidValue(
                "PROJECTION", subject.processor, "it has no generation yet: `toril lake replay` makes one"
            )
        return there[-1], None
    found = [
        None if said in (None, LIVE) else find(lake, subject.processor, int(said)) for said in (one, other)
    ]
    return found[0], found[1]


async def _live(
    where: Program,
    subject: Subject,
    lake: Lake,
    generation: Generation,
    fraction: float,
    samples: int,
    cold: Cold,
    told: Callable[[int, int], None],
) -> Diff:
    async with cold.opened() as store, where.service(subject, store) as service:
        backend = where.live(subject).backend
        assert backend is not None
        return await diff_live(
            lake, generation, subject, service, backend, fraction=fraction, samples=samples, told=told
        )


def show(found: Diff) -> None:
    """The differences as a table, the reasons below it; and what was not compared."""
    _show_differences(found)
    for count, why in (
        (found.not_read, "live has not read so far"),
        (found.waiting, "an event waits live: to be tried again, for a person, or for a paused tenant"),
    ):
        if count:
            say(Text(f"not compared: {count:,} aggregates: {why}", "yellow"))


def _show_differences(found: Diff) -> None:
    names = f"{found.one.name} and {found.other.name}"
    if found.proves_nothing:
        say(Text.assemble(("nothing could be compared", "bold yellow"), f" of {names}"))
        return
    if not found:
        say(Text.assemble(("no difference", "bold green"), f" between {names}: {found.equal:,} states"))
        return
    differs = found.compared - found.equal
    say(
        Text.assemble(
            (f"{differs:,} of {found.compared:,} aggregates differ", "bold red"), f" between {names}"
        )
    )
    columns = [
        Column("difference", least=10),
        Column("field", least=8),
        Column("aggregates", right=True),
        Column("for example", least=12, leave=1),
        Column(found.one.name, least=10),
        Column(found.other.name, least=10),
    ]
    rows: list[list[str | Text]] = []
    for its in found.differences:
        sample = its.samples[0] if its.samples else None
        rows.append(
            [
                its.kind,
                one_line(its.field),
                number(its.count, "red"),
                "" if sample is None else one_line(sample.aggregate_id),
                "" if sample is None else one_line(sample.one),
                "" if sample is None else one_line(sample.other),
            ]
        )
    left_out = fitted_table(columns, rows)
    for its in found.differences:
        what = f"{its.kind}, {its.field}" if its.field else its.kind
        say(Padding(Text.assemble((f"{one_line(what)}: ", "bold"), one_line(its.reason)), (0, 0, 0, 1)))
    if left_out:
        aside(f"No room for: {', '.join(left_out)}.")
    note("more samples: --samples, all of them with --json")
