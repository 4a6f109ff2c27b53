"""``toril stream add``: one job from the command line."""

from __future__ import annotations

import sys
from typing import Any

import click

from toril.cli.queue.add import read_json
from toril.cli.show import as_json, note
from toril.cli.stream.target import Target, name_argument, on_new_queue
from toril.cli.times import duration, whole
from toril.connection.durability import Level


def seconds(ms: int | None) -> float | None:
    """Milliseconds as the library has times."""
    return None if ms is None else ms / 1000


@click.command("add")
@name_argument
@click.argument("data", metavar="DATA")
@click.option("--name", "job_name", metavar="NAME", help="By which its handler is found (default: job).")
@click.option("--key", metavar="KEY", help="Jobs with one key run one after the other, in order.")
@click.option("--tenant", metavar="TENANT", help="Tenants take turns.")
@click.option(
    "--priority", metavar="N", callback=whole("priority", 0, 1000), help="0, the default, comes first."
)
@click.option("--delay", metavar="TIME", callback=duration("delay"), help="Run it no sooner: 90s, 15m, 2h.")
@click.option("--unique", metavar="NAME", help="Add it only if none was added under this name.")
@click.option("--retries", metavar="N", callback=whole("retries", 0, 1_000_000), help="After a failed run.")
@click.option("--timeout", metavar="TIME", callback=duration("timeout"), help="Stop a run after: 90s, 15m.")
@click.option(
    "--result-ttl", metavar="TIME", callback=duration("result-ttl"), help="Keep its result: 90s, 15m, 2h."
)
@click.option("--wait", metavar="TIME", callback=duration("wait"), help="Wait so long for its result.")
@click.option(
    "--durability",
    default="memory",
    show_default=True,
    metavar="LEVEL",
    help="memory, fsync or replicated: what to wait for.",
)
@on_new_queue
async def add(
    at: Target,
    data: str,
    job_name: str | None,
    key: str | None,
    tenant: str | None,
    priority: int | None,
    delay: int | None,
    unique: str | None,
    retries: int | None,
    timeout: int | None,
    result_ttl: int | None,
    wait: int | None,
    durability: Level,
) -> None:
    """Add a job, and print its id; with --wait, its result.

    DATA is JSON; - reads it from the standard input.
    """
    if wait is not None and result_ttl is None:
        result_ttl = wait + 60_000  # it must outlive the waiting
    handle = await at.queue.add(
        read_json(sys.stdin.read() if data == "-" else data),
        name=job_name,
        key=key,
        tenant=tenant,
        priority=priority,
        delay=(delay or 0) / 1000,
        unique=unique,
        retries=retries,
        timeout=seconds(timeout),
        result_ttl=seconds(result_ttl),
        durability=durability,
    )
    answer: dict[str, Any] = {"queue": at.name, "id": handle.id, "added": handle.is_new}
    if not handle.is_new:
        note(f"job {handle.id} is already there under that name: nothing was added")
    if not at.json:
        click.echo(handle.id)
    if wait is not None:
        answer["result"] = await handle.result(timeout=wait / 1000)
        if not at.json:
            as_json(answer["result"])
    if at.json:
        as_json(answer)
