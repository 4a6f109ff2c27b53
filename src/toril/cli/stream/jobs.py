"""Looking at jobs: what workers have, dead letters, and everything about one job."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from toril.cli.listing import tell_left_out
from toril.cli.looks import aside, pretty, section, unwrapped
from toril.cli.queue.reading import compact
from toril.cli.show import Column, as_json, fitted_table, one_line, say
from toril.cli.stream.looks import STYLES, milliseconds, so_many
from toril.cli.stream.target import Target, name_argument, on_queue
from toril.cli.times import ago, local, span, whole
from toril.errors import InvalidValue
from toril.stream import DeadLetter, JobView
from toril.stream.views import time_of

MOST = 10_000
CELL = 300
"""No cell needs more of a text than this, on any screen."""
LINES = 30
"""How many lines of a text are shown, unless all are asked for."""

REASONS = ("permanent", "policy", "budget", "unfit", "exhausted", "crashed", "dropped", "unparsable")


def reason_option(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:  # noqa: ARG001
    """Read a reason that a job may have died of."""
    if value is not None and value not in REASONS:
        raise InvalidValue("reason", value, f"one of {', '.join(REASONS)}")
    return value


limit_option = click.option(
    "--limit",
    default="20",
    show_default=True,
    metavar="N",
    callback=whole("limit", 1, MOST),
    help="How many to show.",
)


# ---------------------------------------------------------------------------- what workers have


@click.command()
@name_argument
@limit_option
@on_queue
async def pending(at: Target, limit: int) -> None:
    """List the jobs that workers have, the oldest first."""
    found = await at.queue.pending(limit)
    total = (await at.queue.metrics()).total.pending
    if at.json:
        as_json({"queue": at.name, "total": total, "jobs": msgspec.to_builtins(found)})
        return
    if not found:
        say(Text(f"No worker has a job of {one_line(at.name)}."))
        return
    now = await at.now()
    columns = [
        Column("id", least=18),
        Column("worker", least=16),
        Column("added", right=True),
        Column("lease renewed", right=True),
        Column("deliveries", right=True, leave=1),
        Column("priority", right=True, leave=2),
    ]
    rows: list[list[str | Text]] = [
        [
            job.id,
            one_line(job.consumer),
            ago(milliseconds(time_of(job.id)), now),
            f"{span(round(job.idle * 1000))} ago",
            f"{job.deliveries:,}",
            str(job.priority),
        ]
        for job in found
    ]
    _table(columns, rows, len(found), max(total, len(found)), so_many(total))


# ---------------------------------------------------------------------------- dead letters


@click.command()
@name_argument
@limit_option
@click.option("--reason", metavar="REASON", callback=reason_option, help=f"Only those: {', '.join(REASONS)}.")
@on_queue
async def dead(at: Target, limit: int, reason: str | None) -> None:
    """List dead letters, the oldest first, and why they are there."""
    found: list[DeadLetter] = []
    async for letter in at.queue.each_dead():
        if reason is None or letter.reason == reason:
            found.append(letter)
        if len(found) == limit:
            break
    total = (await at.queue.metrics()).total.dead
    if at.json:
        as_json({"queue": at.name, "total": total, "letters": msgspec.to_builtins(found)})
        return
    if not found:
        say(Text(f"No dead letters in {one_line(at.name)}{f' for {reason}' if reason else ''}."))
        return
    now = await at.now()
    columns = [
        Column("id", least=18),
        Column("died", right=True),
        Column("reason"),
        Column("name", least=12, leave=2),
        Column("key", least=12, leave=3),
        Column("tenant", least=12, leave=5),
        Column("tries", right=True, leave=1),
        Column("last error", least=24),
        Column("data", least=12, leave=4),
    ]
    rows: list[list[str | Text]] = [
        [
            letter.id,
            ago(milliseconds(letter.died_at), now),
            Text(one_line(letter.reason), style=STYLES["dead"]),
            _cell(letter.name),
            _cell(letter.key),
            _cell(letter.tenant),
            str(letter.attempts),
            _cell(letter.last_error),
            _cell(compact(letter.data)),
        ]
        for letter in found
    ]
    used = [place for place in range(len(columns)) if any(len(row[place]) for row in rows)]
    _table(
        [columns[place] for place in used],
        [[row[place] for place in used] for row in rows],
        len(found),
        total if reason is None else len(found),
        so_many(total, "letter"),
    )


def _table(
    columns: list[Column], rows: list[list[str | Text]], shown: int, total: int, so_many_there: str
) -> None:
    tell_left_out(fitted_table(columns, rows))
    if shown < total:
        aside(f"{shown:,} of {so_many_there}. More: --limit {min(total, MOST)}")


def _cell(value: str) -> str:
    return one_line(value[:CELL])


# ---------------------------------------------------------------------------- one job


@click.command("job")
@name_argument
@click.argument("job_id", metavar="ID")
@click.option("--full", is_flag=True, help=f"Show texts of more than {LINES} lines in full.")
@on_queue
async def job(at: Target, job_id: str, full: bool) -> None:
    """Show everything about one job, wherever it is."""
    handle = at.queue.job(job_id)
    found = await handle.look()
    progress, logs = await handle.progress(), await handle.logs()
    if at.json:
        as_json({"queue": at.name, **msgspec.to_builtins(found), "progress": progress, "logs": logs})
    else:
        _show(found, progress, logs, await at.now(), None if full else LINES)


def _show(found: JobView, progress: Any, logs: list[str], now: int, most: int | None) -> None:
    style = STYLES.get(found.state, "")
    say(Text.assemble((found.id, "bold"), "  ", (found.state, f"bold {style}")))
    added, due = milliseconds(time_of(found.id)), milliseconds(found.due)
    assert added is not None
    facts = {
        "name": found.name,
        "added": f"{local(added)}, {ago(added, now)}",
        "due": "" if due is None else f"{local(due)}, {ago(due, now)}",
        "key": found.key,
        "tenant": found.tenant,
        "priority": str(found.priority) if found.priority else "",
        "failed runs": str(found.attempts) if found.attempts else "",
        "deliveries": str(found.deliveries) if found.deliveries > 1 else "",
        "worker": found.consumer,
        "lease": "" if found.idle is None else f"renewed {span(round(found.idle * 1000))} ago",
        "progress": "" if progress is None else compact(progress),
        "died of": found.reason,
    }
    table = Table.grid(padding=(0, 3))
    table.add_column(no_wrap=True)
    table.add_column()
    for what, said in facts.items():
        if said:
            table.add_row(what, unwrapped(one_line(said)))
    say("", Padding.indent(table, 2))
    if found.data is not None:
        section("data", pretty(found.data), most)
    if found.value is not None:
        section("result", pretty(found.value), most)
    if found.first_error and found.first_error != found.last_error:
        section("first error", Text(_safe_lines(found.first_error)), most)
    if found.last_error:
        section("last error", Text(_safe_lines(found.last_error)), most)
    if logs:
        section("log", Text(_safe_lines("\n".join(logs))), most)


def _safe_lines(text: str) -> str:
    return "\n".join(one_line(line) for line in text.splitlines())
