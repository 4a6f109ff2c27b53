"""Changing jobs one by one or all at once: retry, promote, remove, priority, delay."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import click
from rich.text import Text

from toril.cli.careful import Refused, in_steps, leave_if_stopped, make_sure, yes_option
from toril.cli.queue.looks import so_many
from toril.cli.queue.reading import NoSuchJob, find_job, options
from toril.cli.queue.target import Target, name_argument, on_queue
from toril.cli.show import as_json, complain, one_line, say
from toril.cli.times import duration, whole
from toril.errors import InvalidValue
from toril.queue import Job, JobScheduled, QueueError, WrongState
from toril.queue.options import HIGHEST_PRIORITY

all_option = click.option("--all", "everything", is_flag=True, help="All of them.")
batch_option = click.option(
    "--batch",
    default="1000",
    show_default=True,
    metavar="N",
    callback=whole("batch", 1, 10_000),
    help="With --all: how many in each step.",
)
ids_argument = click.argument("job_ids", nargs=-1, metavar="[ID]...")


# ---------------------------------------------------------------------------- retry and promote


@click.command()
@name_argument
@ids_argument
@all_option
@click.option(
    "--state",
    default="failed",
    show_default=True,
    metavar="STATE",
    help="failed, or completed to run those once more.",
)
@batch_option
@yes_option
@on_queue
async def retry(
    at: Target, job_ids: tuple[str, ...], everything: bool, state: str, batch: int, yes: bool
) -> None:
    """Run failed jobs again: those with these IDs, or all.

    With --all they go to the end of the queue, whatever their priority. Ctrl-C stops after a step.
    """
    _ids_or_all("retry", job_ids, everything)
    ended = _ended(state)
    if not everything:

        async def again(job: Job) -> None:  # not job.retry: it stumbles over options that are no JSON
            await job.store.reprocess(job.id, ended, bool(options(job).get("lifo")))

        await _each(at, job_ids, "retried", again, needs=ended)
        return
    total = (await at.counts())[state]
    if total:
        await make_sure("retry --all", f"Run {so_many(total)} of {at.name} again that {_HAVE[state]}?", yes)
    await _requeue(at, ended, "Retrying", "retried", total, batch, at.queue.store.clock())


_HAVE = {"failed": "failed", "completed": "were completed"}


def _ended(state: str) -> Literal["failed", "completed"]:
    if state == "failed":
        return "failed"
    if state == "completed":
        return "completed"
    raise InvalidValue("state", state, "failed or completed: other jobs have not ended")


@click.command()
@name_argument
@ids_argument
@all_option
@batch_option
@on_queue
async def promote(at: Target, job_ids: tuple[str, ...], everything: bool, batch: int) -> None:
    """Let delayed jobs run now: those with these IDs, or all.

    With --all they go to the end of the queue, whatever their priority. Ctrl-C stops after a step.
    """
    _ids_or_all("promote", job_ids, everything)
    if everything:
        total = (await at.counts())["delayed"]
        await _requeue(at, "delayed", "Promoting", "promoted", total, batch, "+inf")
    else:
        await _each(at, job_ids, "promoted", lambda job: job.promote(), needs="delayed")


def _ids_or_all(verb: str, ids: Sequence[str], everything: bool) -> None:
    if bool(ids) == everything:
        raise Refused(f"{verb} takes the ids of jobs, or --all (nothing was changed)")


async def _requeue(
    at: Target,
    state: Literal["failed", "completed", "delayed"],
    doing: str,
    done: str,
    total: int,
    batch: int,
    highest: int | str,
) -> None:
    store = at.queue.store

    async def step() -> tuple[int, bool]:
        # The script tells whether it found a whole batch, not how many: so count before.
        there: int = await at.redis.command("ZCOUNT", at.queue.keys[state], 0, highest)
        more = await store.requeue(state, batch, highest)
        return (batch if more else min(there, batch)), more

    walk = await in_steps(doing, total, step, quiet=at.json)
    left = (await at.counts())[state]
    if at.json:
        as_json({"queue": at.name, done: walk.done, "left": left, "stopped": walk.stopped})
    elif walk.stopped:
        said = f"Stopped: {so_many(walk.done)} {done}, {left:,} {state} {'is' if left == 1 else 'are'} left."
        say(Text(said))
    else:
        say(Text(f"{so_many(walk.done)} {done}." if walk.done else f"No {state} jobs."))
    leave_if_stopped(walk)


# ---------------------------------------------------------------------------- jobs by their ids


@click.command()
@name_argument
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@yes_option
@on_queue
async def remove(at: Target, job_ids: tuple[str, ...], yes: bool) -> None:
    """Remove jobs and their children, for good. Jobs that are being worked on stay."""
    ids = tuple(dict.fromkeys(job_ids))
    await make_sure("remove", f"Remove {so_many(len(ids))} of {at.name}, with children, for good?", yes)
    await _each(at, ids, "removed", _remove)


async def _remove(job: Job) -> None:
    if not await job.store.remove(job.id):
        raise QueueError(f"job {job.id!r} (or a child of it) is being worked on, and stays")


@click.command()
@name_argument
@click.argument("job_id", metavar="ID")
@click.argument("level", metavar="N", callback=whole("priority", 0, HIGHEST_PRIORITY))
@on_queue
async def priority(at: Target, job_id: str, level: int) -> None:
    """Change the priority of a job.

    1 (first) to 2,097,152, or 0 for none, which goes before all others.
    """
    await _each(at, [job_id], "changed", lambda job: job.change_priority(level))


@click.command()
@name_argument
@click.argument("job_id", metavar="ID")
@click.argument("time", metavar="MS", callback=duration("delay", plain=True))
@on_queue
async def delay(at: Target, job_id: str, time: int) -> None:
    """Change when a delayed job runs.

    So long from now: milliseconds, or a time like 90s, 15m, 2h.
    """
    await _each(at, [job_id], "changed", lambda job: job.change_delay(time), needs="delayed")


async def _each(
    at: Target,
    ids: Sequence[str],
    done: str,
    work: Callable[[Job], Awaitable[Any]],
    *,
    needs: str | None = None,
) -> None:
    """Do it to each job. Those that refuse are told, one line each, and do not stop the others."""
    good: list[str] = []
    bad: dict[str, str] = {}
    for job_id in dict.fromkeys(ids):
        try:
            found, state = await find_job(at, job_id)
            try:
                await work(found)
            except WrongState:
                state = await at.queue.state(job_id)
                raise QueueError(f"job {job_id!r} is {state}, not {needs}") from None
            except JobScheduled:
                raise QueueError(
                    f"job {job_id!r} is the next run of a scheduler, and stays with it"
                ) from None
            good.append(job_id)
        except (QueueError, NoSuchJob) as problem:
            bad[job_id] = str(problem)
    if at.json:
        as_json({"queue": at.name, done: good, "refused": bad})
    elif good:
        say(Text(f"{so_many(len(good))} {done}." if len(good) > 1 else f"Job {one_line(good[0])} {done}."))
    for said in bad.values():
        complain(said)
    if bad:
        sys.exit(1)
