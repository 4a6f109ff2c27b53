"""``toril queue job`` and ``toril queue logs``: everything about one job."""

from __future__ import annotations

from typing import Any

import click
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from toril.cli.looks import pretty, section, unwrapped
from toril.cli.queue.looks import STATE_STYLES
from toril.cli.queue.reading import compact, find_job, moment, options, text, told, traces
from toril.cli.queue.target import Target, name_argument, on_queue
from toril.cli.show import as_json, console, note, one_line, safe, say
from toril.cli.times import ago, local, span, whole
from toril.queue import Job

LINES = 30
"""How many lines of a text are shown, unless all are asked for."""
LOGS = 500
CHILDREN = 5


@click.command("job")
@name_argument
@click.argument("job_id", metavar="ID")
@click.option("--full", is_flag=True, help=f"Show texts of more than {LINES} lines in full.")
@on_queue
async def job(at: Target, job_id: str, full: bool) -> None:
    """Show everything about one job."""
    found, state = await find_job(at, job_id)
    value = await _look(at, found, state)
    if at.json:
        as_json(value)
    else:
        _show(value, at.queue.store.clock(), None if full else LINES)


async def _look(at: Target, found: Job, state: str) -> dict[str, Any]:
    keys, redis = at.queue.keys, at.redis
    score = await redis.command("ZSCORE", keys.delayed, found.id) if state == "delayed" else None
    lock = await redis.command("PTTL", keys.lock(found.id))
    return {
        "queue": at.name,
        "id": found.id,
        "name": told(found, "name"),
        "state": state,
        "timestamp": moment(found, "timestamp") or None,
        "due": int(float(score)) // 4096 if score else None,
        "processed_on": moment(found, "processed_on"),
        "finished_on": moment(found, "finished_on"),
        "delay": moment(found, "delay") or 0,
        "priority": moment(found, "priority") or 0,
        "attempts_made": moment(found, "attempts_made") or 0,
        "attempts_started": moment(found, "attempts_started") or 0,
        "stalled": moment(found, "stalled_count") or 0,
        "locked_for": max(0, lock),
        "worker": told(found, "processed_by"),
        "scheduler": told(found, "scheduler_id"),
        "deduplication_id": told(found, "deduplication_id"),
        "options": told(found, "opts"),
        "data": told(found, "data"),
        "progress": told(found, "progress"),
        "result": told(found, "return_value"),
        "reason": told(found, "failed_reason"),
        "deferred_failure": told(found, "deferred_failure"),
        "stack_traces": traces(found),
        "logs": [text(line) for line in await redis.command("LRANGE", keys.logs(found.id), -LOGS, -1)],
        "logs_total": await redis.command("LLEN", keys.logs(found.id)),
        "parent": options(found).get("parent") or told(found, "parent"),
        "children": await _children(at, found),
    }


async def _children(at: Target, found: Job) -> dict[str, list[str]]:
    keys, redis = at.queue.keys, at.redis
    return {
        "pending": _sorted(await redis.command("SMEMBERS", keys.dependencies(found.id))),
        "completed": _sorted(await redis.command("HKEYS", keys.processed(found.id))),
        "failed": _sorted(await redis.command("ZRANGE", keys.unsuccessful(found.id), 0, -1)),
        "ignored": _sorted(await redis.command("HKEYS", keys.failed_children(found.id))),
    }


def _sorted(found: list[bytes]) -> list[str]:
    return sorted(map(text, found))


# ---------------------------------------------------------------------------- for people


def _show(value: dict[str, Any], now: int, most: int | None) -> None:
    state = value["state"]
    style = f"bold {STATE_STYLES.get(state, '')}".strip()
    title = Text.assemble((one_line(value["name"]) or "(no name)", "bold"), "  ", (state, style))
    say(title, Text(f"job {one_line(value['id'])} of {one_line(value['queue'])}", "dim"), "")
    facts = Table.grid(padding=(0, 3))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for what, said in (*_times(value, now), *_facts(value)):
        if said:
            facts.add_row(what, said)
    say(Padding.indent(facts, 2))
    section("Data", pretty(value["data"]), most)
    if value["result"] is not None:
        section("Result", pretty(value["result"]), most)
    for place, trace in enumerate(value["stack_traces"], 1):
        total = len(value["stack_traces"])
        section(f"Stack trace {place} of {total}" if total > 1 else "Stack trace", Text(safe(trace)), most)
    if value["logs"]:
        _logs(value, most)


def _times(value: dict[str, Any], now: int) -> list[tuple[str, Text]]:
    ended = value["state"] if value["state"] in ("failed", "completed") else "finished"
    moments = (("added", "timestamp"), ("due", "due"), ("started", "processed_on"), (ended, "finished_on"))
    lines = []
    for what, name in moments:
        if (time := value[name]) is not None:
            said = Text.assemble(local(time), (f"  {time}  {ago(time, now)}", "dim"))
            lines.append((what, unwrapped(said)))
    return lines


def _facts(value: dict[str, Any]) -> list[tuple[str, str | Text]]:
    stored = value["options"] if isinstance(value["options"], dict) else {}
    tries = f"{value['attempts_made']:,} of {stored.get('attempts') or 1:,}"
    if value["attempts_started"] != value["attempts_made"]:
        tries += f", {value['attempts_started']:,} started"
    if value["stalled"]:
        tries += f", {value['stalled']:,} lost with their workers"
    took = ""
    if value["processed_on"] is not None and value["finished_on"] is not None:
        took = span(max(0, value["finished_on"] - value["processed_on"]))
    parent = value["parent"]
    link = (
        f"{parent.get('queue') or parent.get('queueKey')}:{parent.get('id')}"
        if isinstance(parent, dict)
        else ""
    )
    reason = value["reason"] or value["deferred_failure"]
    return [
        ("took", took),
        ("attempts", tries),
        ("reason", Text(one_line(reason), style="red") if reason else ""),
        ("progress", one_line(compact(value["progress"])) if value["progress"] else ""),
        ("worker", one_line(value["worker"] or "")),
        ("locked", f"for {span(value['locked_for'])} more" if value["locked_for"] else ""),
        ("priority", f"{value['priority']:,}" if value["priority"] else ""),
        ("scheduler", one_line(value["scheduler"] or "")),
        ("deduplication", one_line(value["deduplication_id"] or "")),
        ("parent", one_line(link)),
        ("children", _family(value["children"])),
        ("options", one_line(compact(value["options"]))),
    ]


def _family(children: dict[str, list[str]]) -> str:
    lines = []
    for kind, found in children.items():
        lines += [f"{kind:<9}  {one_line(child)}" for child in found[:CHILDREN]]
        if len(found) > CHILDREN:
            lines.append(f"{kind:<9}  and {len(found) - CHILDREN:,} more")
    return "\n".join(lines)


def _logs(value: dict[str, Any], most: int | None) -> None:
    total, lines = value["logs_total"], value["logs"]
    shown = lines if most is None else lines[-most:]
    title = "Log" if len(shown) == total else f"Log, the last {len(shown):,} of {total:,} lines"
    section(title, Text("\n".join(map(safe, shown))), None)


# ---------------------------------------------------------------------------- logs


@click.command()
@name_argument
@click.argument("job_id", metavar="ID")
@click.option(
    "--limit",
    default=str(LOGS),
    show_default=True,
    metavar="N",
    callback=whole("limit", 1, 100_000),
    help="How many lines, from the end.",
)
@on_queue
async def logs(at: Target, job_id: str, limit: int) -> None:
    """Print the log of a job, the last lines last."""
    found, _ = await find_job(at, job_id)
    key = at.queue.keys.logs(found.id)
    total = await at.redis.command("LLEN", key)
    lines = [text(line) for line in await at.redis.command("LRANGE", key, -limit, -1)]
    if at.json:
        as_json({"queue": at.name, "id": found.id, "lines": lines, "total": total})
        return
    for line in lines:
        console.print(Text(safe(line)), soft_wrap=True)
    if not lines:
        note(f"job {found.id!r} has no log")
    elif len(lines) < total:
        note(f"the last {len(lines):,} of {total:,} lines; more: --limit {min(total, 100_000)}")
