"""``toril processors``: how they stand, and what to do about what failed."""

from __future__ import annotations

import getpass
from dataclasses import asdict
from typing import Any

import click
from rich.text import Text

from toril.cli.careful import make_sure, make_sure_by_name, yes_option
from toril.cli.listing import tell_left_out
from toril.cli.looks import InOrder, aside, number
from toril.cli.runtime.target import (
    Target,
    module_argument,
    on_pipelines,
    processor_argument,
    tenant_argument,
)
from toril.cli.show import Column, as_json, fitted_table, one_line, say
from toril.cli.times import local, span
from toril.runtime import FailedEvent, ProcessorStanding

reason_option = click.option("--reason", default="", help="Why; it is recorded in the log.")


@click.group(cls=InOrder)
def processors() -> None:
    """Look after handlers and projections."""


@processors.command("ls")
@module_argument
@on_pipelines
async def list_processors(at: Target) -> None:
    """List processors: how far behind, what waits, what failed, and who runs them."""
    assert at.sourcing.backend is not None
    now = await at.sourcing.backend.now()
    found = [(pipeline.name, its) for pipeline in at.chosen() for its in await pipeline.service.standings()]
    if at.json:
        as_json([{"pipeline": pipeline, **asdict(its)} for pipeline, its in found])
        return
    columns = [
        Column("processor", least=16),
        Column("kind", leave=3),
        Column("behind", right=True),
        Column("oldest", right=True, leave=1),
        Column("retrying", right=True),
        Column("failed", right=True),
        Column("waiting", right=True, leave=2),
        Column("run by", least=10),
    ]
    tell_left_out(fitted_table(columns, [_row(pipeline, its, now) for pipeline, its in found]))


def _row(pipeline: str, its: ProcessorStanding, now: int) -> list[str | Text]:
    owners = f"{len(its.owners)} worker{'s' if len(its.owners) != 1 else ''}"
    who = Text("paused", "yellow") if its.paused else Text(owners if its.owners else "nobody", "dim")
    return [
        f"{pipeline}/{its.name}",
        its.kind,
        number(its.behind),
        "" if its.oldest is None else span(max(0, now - its.oldest)),
        number(its.retrying, "yellow"),
        number(its.failed, "red"),
        number(its.waiting),
        who,
    ]


@processors.command()
@module_argument
@processor_argument
@on_pipelines
async def pause(at: Target, processor: str) -> None:
    """Let a processor begin nothing more, in all workers."""
    pipeline, name = at.find(processor)
    await pipeline.service.pause(name)
    _answer(
        at, {"processor": processor, "paused": True}, f"{processor} is paused; its events wait in the log."
    )


@processors.command()
@module_argument
@processor_argument
@on_pipelines
async def resume(at: Target, processor: str) -> None:
    """Let a paused processor go on."""
    pipeline, name = at.find(processor)
    await pipeline.service.resume(name)
    _answer(at, {"processor": processor, "paused": False}, f"{processor} goes on.")


@processors.command()
@module_argument
@tenant_argument
@click.option("--processor", help="Only of this one, as pipeline/processor.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@on_pipelines
async def failed(at: Target, tenant: str, processor: str | None, limit: int) -> None:
    """List a tenant's events that failed, the oldest failure first."""
    found: list[tuple[str, FailedEvent]] = []
    for pipeline in at.chosen():
        if processor is None:
            events = await pipeline.service.get_failed_events(tenant, limit=limit + 1)
        elif at.find(processor)[0] is pipeline:
            name = at.find(processor)[1]
            events = await pipeline.service.get_failed_events(tenant, processor=name, limit=limit + 1)
        else:
            continue
        found += [(f"{pipeline.name}/{event.processor}", event) for event in events]
    found.sort(key=lambda one: one[1].first_at)
    shown = found[:limit]
    if at.json:
        as_json([_value(name, event) for name, event in shown])
        return
    if not shown:
        say(Text("Nothing has failed."))
        return
    columns = [
        Column("processor", least=14),
        Column("aggregate", least=10),
        Column("event", right=True),
        Column("type", least=10, leave=2),
        Column("tries", right=True, leave=3),
        Column("since", leave=1),
        Column("error", least=20),
    ]
    rows: list[list[str | Text]] = [
        [
            name,
            one_line(event.aggregate.id),
            number(event.version),
            one_line(event.event_type),
            number(event.attempts),
            local(event.first_at),
            one_line(event.error),
        ]
        for name, event in shown
    ]
    fitted_table(columns, rows)
    if len(found) > limit:
        aside(f"The first {limit:,}; there are more: --limit.")


@processors.command()
@module_argument
@processor_argument
@tenant_argument
@click.argument("aggregate_id", required=False)
@click.option("--all", "every", is_flag=True, help="All failed events of the tenant.")
@reason_option
@on_pipelines
async def retry(
    at: Target, processor: str, tenant: str, aggregate_id: str | None, every: bool, reason: str
) -> None:
    """Have a failed event processed again, or all of a tenant. The decision is recorded in the log."""
    pipeline, name = at.find(processor)
    if every == (aggregate_id is not None):
        raise click.UsageError("name one AGGREGATE_ID, or say --all")
    by = getpass.getuser()
    if every:
        count = await pipeline.service.retry_all(name, tenant, by=by, reason=reason)
    else:
        assert aggregate_id is not None
        await pipeline.service.retry_failed(name, tenant, aggregate_id, by=by, reason=reason)
        count = 1
    _answer(at, {"processor": processor, "retried": count}, f"{count:,} will be processed again.")


@processors.command()
@module_argument
@processor_argument
@tenant_argument
@click.argument("aggregate_id")
@reason_option
@yes_option
@on_pipelines
async def skip(at: Target, processor: str, tenant: str, aggregate_id: str, reason: str, yes: bool) -> None:
    """Have a failed event left out, and those after it processed. The decision is recorded in the log."""
    pipeline, name = at.find(processor)
    question = f"Leave the failed event of {aggregate_id} out of {processor}, for good?"
    await make_sure("skip", question, yes, warning="A replay will leave it out as well.")
    await pipeline.service.skip_failed(name, tenant, aggregate_id, by=getpass.getuser(), reason=reason)
    _answer(at, {"processor": processor, "skipped": 1}, "It is left out; those after it are processed.")


@processors.command()
@module_argument
@processor_argument
@yes_option
@on_pipelines
async def retire(at: Target, processor: str, yes: bool) -> None:
    """Forget where a processor is, for good, so that it holds up no trimming."""
    pipeline, name = at.find(processor)
    its = await pipeline.service.standing(name)
    warning = f"{its.behind:,} events that {processor} has not processed may be trimmed."
    if its.owners:
        warning += f" {len(its.owners)} of its workers still run: stop them first."
    await make_sure_by_name("retire", warning, processor, yes)
    gone = await pipeline.service.retire(name)
    _answer(
        at, {"processor": processor, "retired": gone}, "It is forgotten." if gone else "It was not known."
    )


def _value(name: str, event: FailedEvent) -> dict[str, Any]:
    return {
        "processor": name,
        "aggregate_id": event.aggregate.id,
        "version": event.version,
        "event_id": event.event_id,
        "event_type": event.event_type,
        "attempts": event.attempts,
        "first_at": event.first_at,
        "last_at": event.last_at,
        "error": event.error,
    }


def _answer(at: Target, value: dict[str, Any], text: str) -> None:
    if at.json:
        as_json(value)
    else:
        say(Text(one_line(text)))
