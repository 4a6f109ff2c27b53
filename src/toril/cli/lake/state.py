"""``toril lake state``: an aggregate as it was, at a version or at a time."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from rich.text import Text

from toril.aggregate import Aggregate
from toril.cli.lake.projections import interruptible, moment, program, program_option
from toril.cli.lake.target import lake_options, log_option, opened, url_option
from toril.cli.lake.working import working
from toril.cli.looks import pretty, section
from toril.cli.show import as_json, errors, one_line, say
from toril.cli.times import local, whole
from toril.errors import InvalidValue
from toril.events.declared import DeclaredProjection
from toril.lake.subjects import Subject
from toril.lake.travel import StateThen, state_at
from toril.runtime.work import ANY_TYPE


@click.command()
@click.argument("tenant")
@click.argument("aggregate_type", metavar="TYPE")
@click.argument("aggregate_id", metavar="ID")
@click.option(
    "--version", "version", metavar="N", callback=whole("--version", 0, 2**53), help="After so many events."
)
@click.option("--at", metavar="TIME", callback=moment("--at"), help="As it was then, like 2026-11-16T08:00Z.")
@click.option("--projection", help="Of this projection; without it, of all that there are of the type.")
@program_option
@log_option
@url_option
@lake_options
def state(
    tenant: str,
    aggregate_type: str,
    aggregate_id: str,
    version: int | None,
    at: int | None,
    projection: str | None,
    program_: str | None,
    log_name: str,
    url: str | None,
    path: str | None,
    master: str | None,
    json_: bool,
) -> None:
    """Show the state of an aggregate as it was at a version or at a time; without either, as it is now.

    It is made of the events in the lake, and of those in the log that are not archived yet.
    """
    aggregate = Aggregate(tenant, aggregate_type, aggregate_id)
    if version is not None and at is not None:
        raise InvalidValue("--at", at, "give --version or --at, and not both")
    where = program(program_, url, log_name)
    if projection is not None:
        subjects = [where.find(projection)]
    else:
        known = where.subjects.values()
        subjects = [one for one in known if one.aggregate_type in (ANY_TYPE, aggregate_type)]
        if not subjects:
            types = ", ".join(sorted({one.aggregate_type for one in known})) or "none"
            raise InvalidValue("TYPE", aggregate_type, f"a type that a projection is of: {types}")
    as_lines = json_ or not errors.is_terminal
    found: list[tuple[Subject, StateThen]] = []
    with (
        opened(path, master, name="toril lake state", quiet=as_lines) as lake,
        interruptible("nothing was changed"),
        working(lake.spark, "reading", quiet=as_lines) as shown,
    ):
        for place, one in enumerate(subjects):
            shown.step(place, len(subjects), one.processor)
            its = state_at(lake, one, aggregate, url=where.url, log=where.log, version=version, at=at)
            found.append((one, its))
    if as_lines:
        as_json({one.processor: _value(one, its) for one, its in found}, indent=None)
        return
    say(Text.assemble((one_line(aggregate_id), "bold"), f", {one_line(aggregate_type)}"))
    for one, its in found:
        when = "" if its.recorded_at is None else f", recorded {local(its.recorded_at // 1_000_000)}"
        head = f"{one.processor} after version {its.version}{when}"
        section(head, Text("no events yet", "dim") if its.state is None else pretty(_plain(one, its)), None)
        if its.failed_version is not None:
            say(Text(f"  stopped before version {its.failed_version}: {one_line(its.failed or '')}", "red"))


def _value(subject: Subject, its: StateThen) -> dict[str, Any]:
    return {
        "version": its.version,
        "recorded_at": its.recorded_at,
        "state": None if its.state is None else _plain(subject, its),
        "failed_version": its.failed_version,
        "failed": its.failed,
    }


def _plain(subject: Subject, its: StateThen) -> Any:
    """A state as a person reads it: what it shows, where it is declared, else as it is stored."""
    if isinstance(its.state, DeclaredProjection):
        return its.state.as_dict()
    return msgspec.json.decode(subject.projection.encode(its.state))["state"]
