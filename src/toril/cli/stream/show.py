"""``toril stream show`` and ``toril stream metrics``: how one queue is doing."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from toril.cli.looks import number, size, unwrapped
from toril.cli.show import as_json, one_line, say
from toril.cli.stream.looks import STYLES, drains, milliseconds, so_many
from toril.cli.stream.target import Target, name_argument, on_queue
from toril.cli.times import ago, span
from toril.stream import PartitionMetrics, Schedule, StreamMetrics, StreamOptions, WorkerView
from toril.stream.exposition import exposition

LISTED = 10
"""How many workers, schedules and partitions are listed."""


@click.command()
@name_argument
@on_queue
async def show(at: Target) -> None:
    """Show one queue.

    Its jobs by state, limits, workers, schedules and speed.
    """
    metrics, options = await at.queue.metrics(), await at.queue.options()
    workers, schedules = await at.queue.workers(), await at.queue.schedules()
    if at.json:
        as_json(
            {
                **msgspec.to_builtins(metrics),
                "options": msgspec.to_builtins(options),
                "workers": msgspec.to_builtins(workers),
                "schedules": msgspec.to_builtins(schedules),
            }
        )
        return
    _head(at, metrics, options)
    _counts(metrics.total)
    facts = {
        "speed": _speed(metrics.total),
        "limits": _limits(metrics.total, options),
        "failures": _failures(metrics.total, options),
        "workers": _workers(workers),
        "schedules": _schedules(schedules, await at.now()),
    }
    if len(metrics.partitions) > 1:
        facts["partitions"] = _partitions(metrics)
    _facts(facts)


def _head(at: Target, metrics: StreamMetrics, options: StreamOptions) -> None:
    head = Text(one_line(at.name), style="bold")
    if metrics.total.paused:
        head.append("  paused", style="yellow")
    order = f"weights {':'.join(map(str, options.weights))}" if options.weights else "strict"
    about = [
        f"group {one_line(options.group)}",
        f"{so_many(options.levels, 'level')} of priority, {order}",
        so_many(options.partitions, "partition"),
    ]
    if options.partitions == 1:
        about.append(f"slot {at.queue.home.slot}")
    say(head, Text(" · ".join(about), style="dim"))


def _counts(its: PartitionMetrics) -> None:
    counts = Table.grid(padding=(0, 3))
    counts.add_column(no_wrap=True)
    counts.add_column(justify="right", no_wrap=True)
    counts.add_column(style="dim")
    by_level = ", ".join(f"{lag:,}" for lag in its.lag_by_level)
    oldest, idle, died = (
        span(round(age * 1000)) for age in (its.oldest_waiting, its.oldest_idle, its.oldest_dead)
    )
    beside = {
        "ready": f"oldest {oldest}; by priority {by_level}",
        "running": f"oldest lease renewed {idle} ago",
        "waiting": f"for their turn, a time or another attempt; {so_many(its.keys, 'key')}",
        "dead": f"oldest {died} ago",
        "inlet": "from foreign producers, not yet taken in",
    }
    for state, count in (
        ("ready", its.lag),
        ("running", its.pending),
        ("waiting", its.waiting),
        ("delayed", its.delayed),
        ("dead", its.dead),
        ("inlet", its.inlet),
    ):
        counts.add_row(
            state, number(count, STYLES.get(state, "")), unwrapped(beside.get(state, "") if count else "")
        )
    say("", Padding.indent(counts, 2))
    if its.lost_total:
        said = f"{so_many(its.lost_total)} deleted from the stream by somebody before they were done"
        say("", Padding.indent(Text(said, style="bold red"), 2))


def _facts(facts: dict[str, Text]) -> None:
    table = Table.grid(padding=(0, 3))
    table.add_column(no_wrap=True)
    table.add_column()
    for what, found in facts.items():
        table.add_row(what, unwrapped(found))
    say("", Padding.indent(table, 2))


def _speed(its: PartitionMetrics) -> Text:
    said = f"{its.added_per_second:,.1f} added and {its.done_per_second:,.1f} done a second"
    if its.backlog:
        said += f"; empty in {drains(its)}" if its.time_to_drain is not None else "; nothing moves"
    return Text(f"{said}\n{its.added_total:,} added and {its.done_total:,} done in all")


def _limits(its: PartitionMetrics, options: StreamOptions) -> Text:
    bytes_ = f" of {size(options.backlog_bytes)}" if options.backlog_bytes else ""
    return Text(
        f"{its.backlog:,} of {so_many(its.backlog_limit)}, {size(its.backlog_bytes)}{bytes_}; "
        f"{size(its.memory)} in Redis"
    )


def _failures(its: PartitionMetrics, options: StreamOptions) -> Text:
    so_often = "retry" if options.retries == 1 else "retries"
    return Text(
        f"{options.retries} {so_often}, {options.max_deliveries} deliveries; "
        f"behind a dead job of their key, others {_BEHIND[options.dead_head]}\n"
        f"{its.retried_total:,} retried, {its.dead_total:,} died, {its.redriven_total:,} redriven in all"
    )


_BEHIND = {"block": "wait", "skip": "go on", "drop": "die"}


def _none(said: str = "none") -> Text:
    return Text(said, style="dim")


def _workers(workers: list[WorkerView]) -> Text:
    lines = [
        f"{one_line(worker.consumer)}: {so_many(worker.pending)}{'' if worker.alive else ', not heard of'}"
        for worker in workers
    ]
    return _listed(lines)


def _schedules(schedules: list[Schedule], now: int) -> Text:
    lines = [
        f"{one_line(each.id)}: {one_line(each.cron)} {each.timezone}, next {ago(milliseconds(each.due), now)}"
        for each in schedules
    ]
    return _listed(lines)


def _partitions(metrics: StreamMetrics) -> Text:
    lines = [
        f"{place:02d}: {part.lag:,} ready, {part.pending:,} running, {part.backlog:,} in all"
        for place, part in enumerate(metrics.partitions)
    ]
    return _listed(lines)


def _listed(lines: list[str]) -> Text:
    more = [f"and {len(lines) - LISTED:,} more"] if len(lines) > LISTED else []
    return Text("\n".join([*lines[:LISTED], *more])) if lines else _none()


# ---------------------------------------------------------------------------- metrics


@click.command()
@name_argument
@click.option("--prometheus", is_flag=True, help="Print them as Prometheus reads them.")
@on_queue
async def metrics(at: Target, prometheus: bool) -> None:
    """Print all metrics of one queue, for a person, a program or Prometheus."""
    found = await at.queue.metrics()
    if prometheus:
        click.echo(exposition([found]), nl=False)
        return
    value: dict[str, Any] = msgspec.to_builtins(found)
    if at.json:
        as_json(value)
        return
    table = Table.grid(padding=(0, 3))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, its in value["total"].items():
        table.add_row(name, _shown(its))
    say(table)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(f"{each:,}" for each in value)
    if value is None:
        return "never"
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"
