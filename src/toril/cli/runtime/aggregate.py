"""``toril aggregate show``: the timeline of an aggregate, and what each event made of its states."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from rich.text import Text

from toril.cli.looks import InOrder, aside, pretty, section
from toril.cli.runtime.target import Target, module_argument, on_pipelines, tenant_argument
from toril.cli.show import as_json, one_line, say
from toril.cli.times import local
from toril.errors import InvalidValue, TorilError
from toril.events.projection import ProjectionState
from toril.runtime.work import ProjectionWork


class NoSuchAggregate(TorilError):
    """There is no such aggregate."""


@click.group(cls=InOrder)
def aggregate() -> None:
    """Look at one aggregate."""


@aggregate.command()
@module_argument
@tenant_argument
@click.argument("aggregate_id")
@click.option("--pipeline", "name", help="Which pipeline, where there is more than one.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Events.")
@on_pipelines
async def show(at: Target, tenant: str, aggregate_id: str, name: str | None, limit: int) -> None:
    """Show the events of an aggregate, and the state of each projection after each."""
    if name is None and len(at.pipelines) != 1:
        raise InvalidValue("--pipeline", name, f"say which: {', '.join(at.pipelines)}")
    chosen = at.pipelines[0] if name is None else name
    if chosen not in at.pipelines:
        raise InvalidValue("--pipeline", chosen, f"one of: {', '.join(at.pipelines)}")
    pipeline = at.sourcing.pipelines[chosen]
    stream = await pipeline.service.get_events(tenant, aggregate_id, 1, limit)
    if not stream.events:
        raise NoSuchAggregate(f"pipeline {chosen!r} has no {pipeline.aggregate_type} {aggregate_id!r}")
    works = [work for work in pipeline.definition.works.values() if isinstance(work, ProjectionWork)]
    skipped = {work.name: await pipeline.service.skipped(work.name, tenant, aggregate_id) for work in works}
    states = {work.name: ProjectionState(work.projection.initial(), 0) for work in works}
    values = []
    for event in stream:
        before = dict(states)
        for work in works:
            at_now = states[work.name]
            if event.version in skipped[work.name]:
                states[work.name] = ProjectionState(at_now.state, event.version)
            else:
                states[work.name] = work.apply(at_now, event)
        changes = {
            work.name: _changes(_plain(work, before[work.name].state), _plain(work, states[work.name].state))
            for work in works
        }
        values.append(
            {
                "version": event.version,
                "type": event.type,
                "id": event.id,
                "occurred_at": event.occurred_at,
                "recorded_at": event.recorded_at,
                "data": msgspec.to_builtins(event.data),
                "changes": changes,
                "skipped_by": [name for name in skipped if event.version in skipped[name]],
            }
        )
    if at.json:
        final = {work.name: _plain(work, states[work.name].state) for work in works}
        as_json({"aggregate": aggregate_id, "events": values, "states": final})
        return
    say(Text.assemble((one_line(aggregate_id), "bold"), f", {pipeline.aggregate_type}, in {chosen}"))
    for value in values:
        _show_event(value)
    for work in works:
        its = states[work.name]
        section(f"{work.name} after version {its.version}", pretty(_plain(work, its.state)), None)
    if stream.version < await _version(at, chosen, tenant, aggregate_id):
        aside(f"The first {limit:,} events; there are more: --limit.")


async def _version(at: Target, pipeline: str, tenant: str, aggregate_id: str) -> int:
    assert at.sourcing.log is not None
    chosen = at.sourcing.pipelines[pipeline].service.aggregate(tenant, aggregate_id)
    return await at.sourcing.log.version(chosen)


def _show_event(value: dict[str, Any]) -> None:
    when = local(value["occurred_at"] // 1_000_000)
    head = Text.assemble((f"{value['version']:>5}  ", "dim"), (one_line(value["type"]), "bold"), f"  {when}")
    say(head)
    for name, changes in value["changes"].items():
        if name in value["skipped_by"]:
            say(Text(f"       {name}: skipped", "yellow"))
        for field, (old, new) in changes.items():
            line = Text(f"       {name}.{field}: ", "dim")
            say(line.append(f"{one_line(str(old))} → ", "dim").append(one_line(str(new)), "green"))


def _plain(work: ProjectionWork, state: Any) -> Any:
    """A state as it is stored."""
    return msgspec.json.decode(work.projection.encode(state))["state"]


def _changes(old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    """The fields that an event has changed."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return {} if old == new else {"state": (old, new)}
    names = sorted(old.keys() | new.keys(), key=str)
    return {str(name): (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}
