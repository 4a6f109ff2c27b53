"""Deciding about jobs: cancel them, give dead letters another chance, throw them away."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import click
from rich.text import Text

from toril.cli.careful import Refused, in_steps, leave_if_stopped, make_sure, yes_option
from toril.cli.show import as_json, complain, say
from toril.cli.stream.jobs import REASONS, reason_option
from toril.cli.stream.looks import so_many
from toril.cli.stream.target import Target, name_argument, on_queue
from toril.errors import InvalidValue
from toril.stream import BacklogFull, DeadLetter, JobMissing

PAGE = 100
"""How many letters a step looks at."""

ids_argument = click.argument("job_ids", nargs=-1, metavar="[ID]...")
all_option = click.option("--all", "everything", is_flag=True, help="All that are dead now.")
only_option = click.option(
    "--reason", metavar="REASON", callback=reason_option, help=f"With --all, only: {', '.join(REASONS)}."
)


@click.command()
@name_argument
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@on_queue
async def cancel(at: Target, job_ids: tuple[str, ...]) -> None:
    """Cancel jobs: those that wait are removed, those that run are stopped by their workers."""
    done: dict[str, str] = {}
    refused: dict[str, str] = {}
    for job_id in dict.fromkeys(job_ids):
        try:
            done[job_id] = await at.queue.cancel(job_id)
        except (JobMissing, InvalidValue) as problem:
            refused[job_id] = str(problem)
    if at.json:
        as_json({"queue": at.name, "cancelled": done, "refused": refused})
    else:
        for job_id, how in done.items():
            say(Text(f"Job {job_id} {'is removed' if how == 'removed' else 'runs: its worker is told'}."))
    _complain(refused)


@click.command()
@name_argument
@ids_argument
@all_option
@only_option
@yes_option
@on_queue
async def redrive(
    at: Target, job_ids: tuple[str, ...], everything: bool, reason: str | None, yes: bool
) -> None:
    """Give dead letters another chance: those with these IDs, or all.

    Each is the job it was, with its id, and its attempts start anew. Ctrl-C stops after a step.
    """
    await _decide(at, "redrive", "redriven", job_ids, everything, reason, yes, at.queue.redrive)


@click.command()
@name_argument
@ids_argument
@all_option
@only_option
@yes_option
@on_queue
async def discard(
    at: Target, job_ids: tuple[str, ...], everything: bool, reason: str | None, yes: bool
) -> None:
    """Throw dead letters away, for good: those with these IDs, or all.

    What waited behind them for its turn goes on. Ctrl-C stops after a step.
    """
    await _decide(at, "discard", "discarded", job_ids, everything, reason, yes, at.queue.discard)


Decision = Callable[[Sequence[str]], Awaitable[list[str]]]


async def _decide(
    at: Target,
    verb: str,
    done: str,
    job_ids: Sequence[str],
    everything: bool,
    reason: str | None,
    yes: bool,
    decide: Decision,
) -> None:
    if bool(job_ids) == everything:
        raise Refused(f"{verb} takes the ids of jobs, or --all (nothing was changed)")
    if everything:
        await _all(at, verb, done, reason, yes, decide)
        return
    ids = tuple(dict.fromkeys(job_ids))
    if verb == "discard":
        await make_sure(verb, f"Throw {so_many(len(ids), 'letter')} of {at.name} away, for good?", yes)
    found = await decide(ids)
    refused = {
        job_id: f"there is no dead letter {job_id} in {at.name!r}" for job_id in ids if job_id not in found
    }
    if at.json:
        as_json({"queue": at.name, done: found, "refused": refused})
    elif found:
        say(Text(f"{so_many(len(found), 'letter')} {done}."))
    _complain(refused)


async def _all(at: Target, verb: str, done: str, reason: str | None, yes: bool, decide: Decision) -> None:
    total = (await at.queue.metrics()).total.dead
    if total:
        which = f"those of {so_many(total, 'letter')}" if reason else f"all {so_many(total, 'letter')}"
        which += f" of {at.name} that died of {reason!r}" if reason else f" of {at.name}"
        what = f"Throw {which} away, for good?" if verb == "discard" else f"Run {which} again?"
        await make_sure(f"{verb} --all", what, yes)
    pages = _pages(at, await at.now())
    full: BacklogFull | None = None

    async def step() -> tuple[int, bool]:
        nonlocal full
        page = await anext(pages, None)
        if page is None:
            return 0, False
        ids = [letter.id for letter in page if reason is None or letter.reason == reason]
        try:
            return len(await decide(ids)) if ids else 0, True
        except BacklogFull as problem:
            full = problem
            return 0, False

    walk = await in_steps(f"{verb.capitalize()[:-1]}ing", total, step, quiet=at.json)
    left = (await at.queue.metrics()).total.dead
    if at.json:
        as_json({"queue": at.name, done: walk.done, "left": left, "stopped": walk.stopped})
    else:
        stopped = "Stopped: " if walk.stopped or full else ""
        say(Text(f"{stopped}{so_many(walk.done, 'letter')} {done}, {left:,} left."))
    if full:
        complain(str(full))
        sys.exit(1)
    leave_if_stopped(walk)


async def _pages(at: Target, now: int) -> AsyncIterator[list[DeadLetter]]:
    """The letters that are dead now, not those that die again meanwhile."""
    page: list[DeadLetter] = []
    async for letter in at.queue.each_dead(page=PAGE):
        if letter.died_at.timestamp() * 1000 <= now:
            page.append(letter)
        if len(page) == PAGE:
            yield page
            page = []
    if page:
        yield page


def _complain(refused: dict[str, str]) -> None:
    for said in refused.values():
        complain(said)
    if refused:
        sys.exit(1)
