"""Schedules: jobs that are added again and again."""

from __future__ import annotations

import sys

import click
import msgspec
from rich.text import Text

from toril.cli.careful import make_sure, yes_option
from toril.cli.queue.add import read_json
from toril.cli.queue.reading import compact
from toril.cli.show import Column, as_json, complain, fitted_table, one_line, say
from toril.cli.stream.looks import milliseconds
from toril.cli.stream.target import Target, name_argument, on_new_queue, on_queue
from toril.cli.times import ago, local, whole


@click.command()
@name_argument
@on_queue
async def schedules(at: Target) -> None:
    """List the schedules of a queue, by when they are due."""
    found = await at.queue.schedules()
    if at.json:
        as_json({"queue": at.name, "schedules": msgspec.to_builtins(found)})
        return
    if not found:
        say(Text(f"No schedules in {one_line(at.name)}."))
        return
    now = await at.now()
    columns = [
        Column("schedule", least=16),
        Column("cron"),
        Column("time zone", leave=2),
        Column("due", right=True),
        Column("job", least=12, leave=1),
        Column("data", least=12, leave=3),
    ]
    rows: list[list[str | Text]] = [
        [
            one_line(each.id),
            one_line(each.cron),
            each.timezone,
            ago(milliseconds(each.due), now),
            one_line(each.name),
            one_line(compact(each.data)[:300]),
        ]
        for each in found
    ]
    fitted_table(columns, rows)


@click.command()
@name_argument
@click.argument("schedule_id", metavar="ID")
@click.argument("cron", metavar="CRON")
@click.argument("data", metavar="DATA")
@click.option("--timezone", default="UTC", show_default=True, help="In which the pattern is read.")
@click.option("--name", "job_name", metavar="NAME", help="By which their handler is found (default: job).")
@click.option("--key", metavar="KEY", help="The order key of its jobs.")
@click.option("--tenant", metavar="TENANT", help="The tenant of its jobs.")
@click.option("--priority", metavar="N", callback=whole("priority", 0, 1000), help="0 comes first.")
@on_new_queue
async def schedule(
    at: Target,
    schedule_id: str,
    cron: str,
    data: str,
    timezone: str,
    job_name: str | None,
    key: str | None,
    tenant: str | None,
    priority: int | None,
) -> None:
    """Add a job at every time that CRON names, or change the schedule ID.

    CRON has five fields (minute, hour, day, month, weekday), or six with seconds first. DATA is JSON; - reads
    it from the standard input.
    """
    made = await at.queue.schedule(
        schedule_id,
        cron,
        read_json(sys.stdin.read() if data == "-" else data),
        timezone=timezone,
        name=job_name,
        key=key,
        tenant=tenant,
        priority=priority,
    )
    if at.json:
        as_json({"queue": at.name, **msgspec.to_builtins(made)})
        return
    due = milliseconds(made.due)
    assert due is not None
    say(Text(f"Schedule {one_line(made.id)} is next due {ago(due, await at.now())}: {local(due)}"))


@click.command()
@name_argument
@click.argument("schedule_id", metavar="ID")
@yes_option
@on_queue
async def unschedule(at: Target, schedule_id: str, yes: bool) -> None:
    """End a schedule. Jobs that it has added stay."""
    await make_sure("unschedule", f"End the schedule {schedule_id} of {at.name}?", yes)
    ended = await at.queue.unschedule(schedule_id)
    if at.json:
        as_json({"queue": at.name, "id": schedule_id, "ended": ended})
    elif ended:
        say(Text(f"Schedule {one_line(schedule_id)} has ended."))
    if not ended:
        complain(f"there is no schedule {schedule_id!r} in {at.name!r}")
        sys.exit(1)
