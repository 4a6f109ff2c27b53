"""``toril queue jobs``: the jobs of a queue, by state."""

from __future__ import annotations

import asyncio
from typing import Any

import click
from rich.text import Text

from toril.cli.listing import tell_left_out
from toril.cli.looks import aside, unwrapped
from toril.cli.queue.looks import STATE_STYLES, so_many
from toril.cli.queue.reading import compact, moment, options, told
from toril.cli.queue.target import STATES, Target, name_argument, on_queue, state_option
from toril.cli.show import Column, as_json, fitted_table, one_line, say
from toril.cli.times import ago, whole
from toril.queue import Job

AT_ONCE = 50
"""How many jobs are read at a time."""
MOST = 10_000
CELL = 300
"""No cell needs more of a text than this, on any screen."""

_MOMENTS = {"active": "started", "delayed": "due", "waiting-children": "since"}
"""What the time of a state is called; a finished job's is the state itself, any other was ``added``."""

_ORDERS = {
    "delayed": ("last due first", "next due first"),
    "prioritized": ("last first", "next first"),
}


@click.command("jobs")
@name_argument
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    callback=state_option,
    help=f"One of {', '.join(STATES)}; may be repeated (default: all that have jobs).",
)
@click.option(
    "--limit",
    metavar="N",
    callback=whole("limit", 1, MOST),
    help="How many jobs of each state (default: 20, without --state 5).",
)
@click.option("--oldest", is_flag=True, help="Those that came first, or are due next; else the newest.")
@on_queue
async def jobs(at: Target, states: tuple[str, ...], limit: int | None, oldest: bool) -> None:
    """List jobs, the newest first."""
    counts = await at.counts()
    most = limit or (20 if states else 5)
    found = []
    for state in states or [state for state in STATES if counts[state]]:
        seen = await _read(at, state, most, oldest)
        found.append({"state": state, "total": max(counts[state], len(seen)), "jobs": seen})
    if at.json:
        as_json({"queue": at.name, "states": found})
        return
    if not found:
        say(Text(f"No jobs in {one_line(at.name)}."))
    for place, group in enumerate(found):
        if _show(at, group, oldest) and place < len(found) - 1:
            say("")


async def _read(at: Target, state: Any, most: int, oldest: bool) -> list[dict[str, Any]]:
    ids = (await at.queue.ids(state, start=0, end=most - 1, oldest_first=oldest))[:most]
    found: list[Job | None] = []
    for start in range(0, len(ids), AT_ONCE):
        found += await asyncio.gather(*map(at.queue.job, ids[start : start + AT_ONCE]))
    scores = await _scores(at, state, ids)
    return [
        _value(job or Job(at.queue.store, job_id, {}), state, score, job is None)
        for job_id, job, score in zip(ids, found, scores, strict=True)
    ]


async def _scores(at: Target, state: str, ids: list[str]) -> list[int | None]:
    """The times that only the sets know: when a job is due, since when it waits for children."""
    if not ids or state not in ("delayed", "waiting-children"):
        return [None] * len(ids)
    delayed = state == "delayed"
    key = at.queue.keys.delayed if delayed else at.queue.keys.waiting_children
    raw = await at.redis.command("ZMSCORE", key, *ids)
    return [None if score is None else int(float(score)) // (4096 if delayed else 1) for score in raw]


def _value(job: Job, state: str, score: int | None, gone: bool) -> dict[str, Any]:
    times = {"active": "processed_on", "failed": "finished_on", "completed": "finished_on"}
    return {
        "id": job.id,
        "name": told(job, "name"),
        "time": score if score is not None else moment(job, times.get(state, "timestamp")) or None,
        "timestamp": moment(job, "timestamp") or None,
        "priority": moment(job, "priority") or 0,
        "attempts_made": moment(job, "attempts_made") or 0,
        "attempts": options(job).get("attempts") or 0,
        "progress": told(job, "progress"),
        "reason": told(job, "failed_reason"),
        "result": told(job, "return_value"),
        "data": told(job, "data"),
        "gone": gone,
    }


def _show(at: Target, group: dict[str, Any], oldest: bool) -> bool:
    """Print the jobs of one state; whether something stands below the table."""
    state, seen = group["state"], group["jobs"]
    style = STATE_STYLES.get(state, "")
    order = _ORDERS.get(state, ("newest first", "oldest first"))[oldest]
    total = so_many(group["total"])
    title = Text.assemble((state, f"bold {style}"), (f"  {total}, {order}" if seen else "  no jobs", "dim"))
    say(unwrapped(title))
    if not seen:
        return False
    now = at.queue.store.clock()
    finished = state in ("failed", "completed")
    columns = [
        Column("id", least=16),
        Column("name", least=16),
        Column(state if finished else _MOMENTS.get(state, "added"), right=True),
        Column("tries", right=True, leave=2),
        Column("priority", right=True, leave=1),
        Column("progress", least=12, leave=1),
        Column("result", least=14, leave=3),
        Column("reason", least=24),
        Column("data", least=12, leave=4),
    ]
    rows = [_row(job, state, now) for job in seen]
    # A column that says nothing about any of these jobs is noise; data is shown even when it is {}.
    used = [place for place in range(len(columns)) if place == 8 or any(len(row[place]) for row in rows)]
    left_out = fitted_table(
        [columns[place] for place in used], [[row[place] for place in used] for row in rows]
    )
    tell_left_out(left_out)
    if len(seen) < group["total"]:
        aside(f"{len(seen):,} of {total}. More: --state {state} --limit {min(group['total'], MOST)}")
    return bool(left_out) or len(seen) < group["total"]


def _row(job: dict[str, Any], state: str, now: int) -> list[str | Text]:
    if job["gone"]:
        return [_cell(job["id"]), Text("no data: the id is left over", style="dim"), *([""] * 7)]
    tries = f"{job['attempts_made']}/{job['attempts']}" if job["attempts"] > 1 else str(job["attempts_made"])
    data = _cell(compact(job["data"]))
    return [
        _cell(job["id"]),
        _cell(job["name"]),
        ago(job["time"], now),
        tries if job["attempts_made"] else "",
        f"{job['priority']:,}" if job["priority"] else "",
        _progress(job["progress"]) if state == "active" else "",
        _cell(compact(job["result"])) if state == "completed" and job["result"] is not None else "",
        Text(_cell(job["reason"]), style="red") if job["reason"] else "",
        Text(data, style="dim") if data == "{}" else data,
    ]


def _progress(progress: Any) -> str:
    """A bare number is a percentage by custom; 0 is what a job has that said nothing."""
    if isinstance(progress, int | float) and not isinstance(progress, bool):
        return f"{progress:g} %" if progress else ""
    return _cell(compact(progress))


def _cell(value: Any) -> str:
    return one_line(str(value)[:CELL])
