"""``toril queue add``: one job from the command line."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import click

from toril.cli.queue.target import Target, name_argument, on_new_queue
from toril.cli.show import as_json, note
from toril.cli.times import duration, whole
from toril.connection.durability import Level
from toril.errors import InvalidValue
from toril.queue import Deduplication, JobOptions
from toril.queue.options import HIGHEST_PRIORITY

_NOT_JSON = re.compile(r'"(?:[^"\\]|\\.)*"|(-?(?:Infinity|NaN))')


@click.command("add")
@name_argument
@click.argument("job_name", metavar="JOBNAME")
@click.argument("data", required=False, metavar="[DATA]")
@click.option(
    "--delay", metavar="MS", callback=duration("delay", plain=True), help="Run it no sooner: ms, or 90s, 15m."
)
@click.option(
    "--priority",
    metavar="N",
    callback=whole("priority", 0, HIGHEST_PRIORITY),
    help="1 (first) to 2,097,152; 0, the default, goes before all of them.",
)
@click.option(
    "--attempts", metavar="N", callback=whole("attempts", 0, 1_000_000), help="How often to try it in all."
)
@click.option(
    "--backoff",
    metavar="MS",
    callback=duration("backoff", plain=True),
    help="How long to wait before another attempt.",
)
@click.option(
    "--id", "job_id", metavar="ID", help="An id of your own: if such a job is there, none is added."
)
@click.option("--lifo", is_flag=True, help="Run it next, before all that wait.")
@click.option("--deduplication", metavar="ID", help="Add it only if no unfinished job has this id.")
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
    job_name: str,
    data: str | None,
    delay: int | None,
    priority: int | None,
    attempts: int | None,
    backoff: int | None,
    job_id: str | None,
    lifo: bool,
    deduplication: str | None,
    durability: Level,
) -> None:
    """Add a job, and print its id.

    DATA is JSON (default: {}); - reads it from the standard input.
    """
    options = JobOptions(
        delay=delay,
        priority=priority,
        attempts=attempts,
        backoff=backoff,
        job_id=job_id,
        lifo=lifo or None,
        deduplication=None if deduplication is None else Deduplication(deduplication),
    )
    raw = sys.stdin.read() if data == "-" else data
    value = {} if raw is None else read_json(raw)
    # Both give way to a job that is there: who asked should know. (Two questions, so only nearly certain.)
    owner = await at.queue.deduplication_owner(deduplication) if deduplication else None
    if job_id is not None and await at.queue.job(job_id) is not None:
        owner = job_id
    job = await at.queue.add(job_name, value, options, durability=durability)
    added = job.id != owner
    if at.json:
        as_json({"queue": at.name, "id": job.id, "added": added})
        return
    if not added:
        note(f"job {job.id!r} is already there ({await at.queue.state(job.id)}): nothing was added")
    click.echo(job.id)


def read_json(raw: str) -> Any:
    """A value; or an error that says where it is wrong."""
    try:
        return json.loads(raw, parse_constant=_refuse, parse_float=_finite)
    except json.JSONDecodeError as problem:
        where = f"line {problem.lineno}, " if problem.lineno > 1 else ""
        raise InvalidValue("DATA", raw, f"not JSON at {where}column {problem.colno}: {problem.msg}") from None
    except _OutOfRange as problem:
        place = next((found.start(1) for found in _NOT_JSON.finditer(raw) if found[1]), None)
        if place is None:
            place = raw.find(problem.args[0])
        where = f"line {raw.count(chr(10), 0, place) + 1}, " if "\n" in raw[:place] else ""
        column = place - raw.rfind("\n", 0, place)
        raise InvalidValue("DATA", raw, f"not JSON at {where}column {column}: {problem}") from None
    except RecursionError:
        raise InvalidValue("DATA", raw, "it is nested too deeply") from None


class _OutOfRange(Exception):
    """Python would read it; JSON cannot carry it, and null would be stored."""

    def __str__(self) -> str:
        return " ".join(self.args)


def _refuse(constant: str) -> float:
    raise _OutOfRange(constant, "is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise _OutOfRange(text, "is too large")
    return number
