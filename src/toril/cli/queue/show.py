"""``toril queue show``: how one queue is doing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from toril.cli.looks import number, unwrapped
from toril.cli.queue.looks import STATE_STYLES, version_text
from toril.cli.queue.target import STATES, Target, name_argument, on_queue
from toril.cli.show import as_json, one_line, say, width
from toril.cli.times import ago, span
from toril.connection import CommandRefused
from toril.queue import Metrics

BARS = "▁▂▃▄▅▆▇█"
LISTED = 10
"""How many workers and schedulers are listed."""
MINUTES = 60


@click.command()
@name_argument
@on_queue
async def show(at: Target) -> None:
    """Show one queue.

    Its jobs by state, limits, workers, schedulers and metrics.
    """
    value = await _look(at)
    if at.json:
        as_json(value)
    else:
        _show(value)


async def _look(at: Target) -> dict[str, Any]:
    queue, redis = at.queue, at.redis
    paused, version = await redis.command("HMGET", queue.keys.meta, "paused", "version")
    limit = await queue.global_rate_limit()
    try:
        workers: list[dict[str, str]] | None = await queue.workers()
    except CommandRefused:  # some hosted servers do not tell who is connected
        workers = None
    due = await redis.command("ZRANGE", queue.keys.delayed, 0, 0, "WITHSCORES")
    schedulers = [asdict(found) for found in await queue.schedulers(0, LISTED - 1)]
    return {
        "name": queue.name,
        "prefix": queue.keys.prefix,
        "slot": queue.keys.slot,
        "paused": paused is not None,
        "version": version.decode(errors="replace") if version else None,
        "counts": await at.counts(),
        "oldest_waiting": await _oldest_waiting(at),
        "next_delayed": int(float(due[1])) // 4096 if due else None,  # a.4: ms in the upper bits
        "global_concurrency": await queue.global_concurrency(),
        "global_rate_limit": {"max": limit[0], "duration": limit[1]} if limit else None,
        "rate_limited_for": max(0, await queue.rate_limit_ttl()),
        "workers": workers,
        "schedulers": schedulers,
        "schedulers_total": await redis.command("ZCARD", queue.keys.repeat),
        "metrics": {
            "completed": _metrics(await queue.metrics("completed", 0, MINUTES - 1)),
            "failed": _metrics(await queue.metrics("failed", 0, MINUTES - 1)),
        },
        "now": queue.store.clock(),
    }


async def _oldest_waiting(at: Target) -> dict[str, Any] | None:
    """The job at the end that workers take from. It waited longest, but for jobs that jumped the queue."""
    for job_id in await at.queue.ids("waiting", start=0, end=0, oldest_first=True):
        raw = await at.redis.command("HGET", at.queue.keys.job(job_id), "timestamp")
        time = int(raw) if raw and raw.isdigit() else None
        age = None if time is None else max(0, at.queue.store.clock() - time)
        return {"id": job_id, "timestamp": time, "age": age}
    return None


def _metrics(found: Metrics) -> dict[str, Any] | None:
    return {"count": found.count, "per_minute": found.data} if found.count or found.data else None


def _show(value: dict[str, Any]) -> None:
    head = Text(one_line(value["name"]), style="bold")
    if value["paused"]:
        head.append("  paused", style="yellow")
    about = [version_text(value["version"]), f"prefix {one_line(value['prefix'])}"]
    if value["slot"] is not None:
        about.append(f"slot {value['slot']}")
    say(head, Text(" · ".join(filter(None, about)), style="dim"))

    counts = Table.grid(padding=(0, 3))
    counts.add_column(no_wrap=True)
    counts.add_column(justify="right", no_wrap=True)
    counts.add_column(style="dim")
    for state in STATES:
        count = number(value["counts"][state], STATE_STYLES.get(state, ""))
        counts.add_row(state, count, unwrapped(_beside(state, value)))

    facts = Table.grid(padding=(0, 3))
    facts.add_column(no_wrap=True, min_width=max(map(len, STATES)))  # one line of sight with the counts
    facts.add_column()
    for what, found in (
        ("limits", _limits(value)),
        ("workers", _workers(value["workers"])),
        ("schedulers", _schedulers(value)),
        ("metrics", _all_metrics(value["metrics"])),
    ):
        facts.add_row(what, unwrapped(found))
    say("", Padding.indent(counts, 2), "", Padding.indent(facts, 2))


def _beside(state: str, value: dict[str, Any]) -> str:
    oldest, due = value["oldest_waiting"], value["next_delayed"]
    if state == "waiting" and oldest and oldest["age"] is not None:
        return f"oldest {span(oldest['age'])} (job {one_line(oldest['id'])})"
    if state == "delayed" and due is not None:
        return f"next due {ago(due, value['now'])}"
    return ""


def _none(said: str = "none") -> Text:
    return Text(said, style="dim")


def _limits(value: dict[str, Any]) -> Text:
    said = []
    if value["global_concurrency"] is not None:
        said.append(f"{value['global_concurrency']:,} active at a time")
    if limit := value["global_rate_limit"]:
        said.append(f"{limit['max']:,} started in {span(limit['duration'])}")
    if value["rate_limited_for"]:
        said.append(f"none starts for {span(value['rate_limited_for'])}")
    return Text("\n".join(said)) if said else _none()


def _workers(workers: list[dict[str, str]] | None) -> Text:
    if workers is None:
        return _none("the server does not tell")
    lines = [f"{worker.get('name') or 'unnamed'} at {worker.get('addr', '?')}" for worker in workers[:LISTED]]
    return _listed(lines, len(workers))


def _schedulers(value: dict[str, Any]) -> Text:
    lines = []
    for scheduler in value["schedulers"]:
        every, due = scheduler["every"], scheduler["next_run"]
        rule = f"every {span(every)}" if every else f"at {scheduler['pattern'] or '?'}"
        when = f", next {ago(due, value['now'])}" if due is not None else ""
        lines.append(f"{scheduler['id']}: {rule}{when}")
    return _listed(lines, value["schedulers_total"])


def _listed(lines: list[str], total: int) -> Text:
    more = [f"and {total - len(lines):,} more"] if total > len(lines) else []
    return Text("\n".join([*map(one_line, lines), *more])) if lines else _none()


def _all_metrics(metrics: dict[str, dict[str, Any] | None]) -> Text:
    """Finished jobs by minute, the present on the right."""
    lines = []
    for which, found in metrics.items():
        if found is None:
            continue
        points = found["per_minute"][: max(10, min(30, width() - 70))][::-1]
        top = max(points, default=0)
        bars = "".join(BARS[round(point / top * (len(BARS) - 1))] if top else BARS[0] for point in points)
        said = f"{which:<9}  {found['count']:,} in all"
        lines.append(f"{said}  {bars}  at most {top:,} a minute" if points else said)
    return Text("\n".join(lines)) if lines else _none("workers keep none")
