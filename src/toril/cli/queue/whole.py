"""Acting on a whole queue: pause, resume, drain, clean, obliterate."""

from __future__ import annotations

import click
from rich.text import Text

from toril.cli.careful import Refused, Walk, in_steps, leave_if_stopped, make_sure, yes_option
from toril.cli.pausing import Switched
from toril.cli.queue.looks import so_many
from toril.cli.queue.target import Target, name_argument, on_queue, state_option
from toril.cli.show import as_json, note, one_line, say
from toril.cli.times import duration, span, whole
from toril.queue import QueueError

BATCH = 1000
"""How many jobs a step removes: some milliseconds of the server's time."""
WINDOW = 10_000
"""How many jobs of a state that has no order by age are looked at."""
BY_TIME = ("completed", "failed", "waiting-children")
"""States whose sets are in the order of the time that counts."""
_ARE = {"completed": "were completed", "failed": "failed", "waiting-children": "began to wait for children"}


@click.command()
@name_argument
@on_queue
async def pause(at: Target) -> None:
    """Stop all workers from taking jobs, Node's and Python's. What they have, they finish."""
    changed = not await at.queue.is_paused()
    if changed:
        await at.queue.pause()
    Switched(at.name, paused=True, changed=changed).tell(at.json)


@click.command()
@name_argument
@on_queue
async def resume(at: Target) -> None:
    """Let workers take jobs again."""
    changed = await at.queue.is_paused()
    if changed:
        await at.queue.resume()
    Switched(at.name, paused=False, changed=changed).tell(at.json)


# ---------------------------------------------------------------------------- drain


@click.command()
@name_argument
@click.option("--delayed", is_flag=True, help="Remove delayed jobs too.")
@yes_option
@on_queue
async def drain(at: Target, delayed: bool, yes: bool) -> None:
    """Remove all jobs that wait, for good. Schedulers keep their next job, workers what they have."""
    states = ["waiting", "prioritized"] + (["delayed"] if delayed else [])
    before = await at.counts()
    total = sum(before[state] for state in states)
    if total:
        which = "that wait or are delayed" if delayed else "that wait"
        await make_sure("drain", f"Remove {so_many(total)} of {at.name} {which}, for good?", yes)
        await at.queue.drain(delayed=delayed)
    after = await at.counts()
    left = sum(after[state] for state in states)
    removed = max(0, total - left)
    if at.json:
        as_json({"queue": at.name, "removed": removed, "left": left})
    else:
        say(Text(f"{so_many(removed)} removed." if total else "Nothing waits."))
        if left:
            note(f"{so_many(left)} left: the next runs of schedulers, or added meanwhile")


# ---------------------------------------------------------------------------- clean


@click.command()
@name_argument
@click.option("--state", required=True, metavar="STATE", callback=state_option, help="Which jobs to remove.")
@click.option(
    "--older-than",
    "age",
    required=True,
    metavar="TIME",
    callback=duration("--older-than"),
    help="Only jobs that are older: 90s, 15m, 2h, 7d (0s: all).",
)
@click.option("--limit", metavar="N", callback=whole("limit", 1, 10**12), help="How many at most.")
@yes_option
@on_queue
async def clean(at: Target, state: str, age: int, limit: int | None, yes: bool) -> None:
    """Remove old jobs of one state, for good, the oldest first.

    Finished jobs are as old as their end, others as their last start, or their making. Jobs that are
    being worked on stay, and the next runs of schedulers.
    """
    newest = at.queue.store.clock() - age
    cleaner, walk = _Cleaner(at, state, newest, limit), Walk()
    if state in BY_TIME:
        there: int = await at.redis.command("ZCOUNT", at.queue.keys[state], 0, newest)
        which = (
            f"{so_many(min(there, limit or there))} of {at.name} that {_ARE[state]} more than {span(age)} ago"
        )
    else:
        there = (await at.counts())[state]
        most = f"at most {limit:,} of " if limit is not None else ""
        which = f"{most}the {there:,} {state} jobs of {at.name}, those older than {span(age)}"
    if there:
        await make_sure("clean", f"Remove {which}, for good?", yes)
        walk = await in_steps("Cleaning", min(there, limit or there), cleaner.step, quiet=at.json)
    if at.json:
        looked = not cleaner.gave_up
        as_json({"queue": at.name, "removed": walk.done, "stopped": walk.stopped, "looked_at_all": looked})
    else:
        say(Text(f"{'Stopped: ' if walk.stopped else ''}{so_many(walk.done)} removed."))
        if cleaner.gave_up:
            note(f"the first {WINDOW:,} {state} jobs are younger, or must stay; more were not looked at")
    leave_if_stopped(walk)


class _Cleaner:
    """Removes a state's old jobs in steps."""

    def __init__(self, at: Target, state: str, newest: int, limit: int | None) -> None:
        self._store = at.queue.store
        # A paused queue keeps what waits under another name.
        self._suffixes = ["wait", "paused"] if state == "waiting" else [state]
        self._newest = newest
        self._left = limit
        self._spared = 0
        self.gave_up = False

    async def step(self) -> tuple[int, bool]:
        """One call."""
        suffix = self._suffixes[0]
        batch = BATCH if self._left is None else min(BATCH, self._left)
        # The script looks at no more jobs than it may remove, from the front. Those it spares stay there, so
        # the next look must reach behind them. (Sets by time of end hold no young ones in front of old ones.)
        asked = self._spared + batch
        gone = len(await self._store.clean(suffix, self._newest, asked))
        if self._left is not None:
            self._left -= gone
        (there,) = await self._store.counts(suffix)
        self._spared = asked - gone
        if self._left is not None and self._left <= 0:
            return gone, False
        if there > self._spared and suffix not in BY_TIME:
            if self._spared < WINDOW:
                return gone, True
            self.gave_up = True
        elif there > self._spared and gone == asked:
            return gone, True
        self._suffixes.pop(0)
        self._spared = 0
        return gone, bool(self._suffixes)


# ---------------------------------------------------------------------------- obliterate


@click.command()
@name_argument
@click.option("--force", is_flag=True, help="Remove jobs that are being worked on, too.")
@yes_option
@on_queue
async def obliterate(at: Target, force: bool, yes: bool) -> None:
    """Remove a queue with all its jobs, for good.

    And its schedulers, events and metrics.
    """
    counts = await at.counts()
    total = sum(counts.values())
    if counts["active"] and not force:
        raise Refused(
            f"queue {at.name!r} has {so_many(counts['active'])} that workers have: "
            "wait for them, or add --force (nothing was changed)"
        )
    await make_sure("obliterate", f"Remove queue {at.name} with all its {so_many(total)}, for good?", yes)
    was_paused = await at.queue.is_paused()
    await at.queue.store.pause()

    async def step() -> tuple[int, bool]:
        before = sum((await at.counts()).values())
        more = await at.queue.store.obliterate(BATCH, force)
        return max(0, before - sum((await at.counts()).values())), more

    try:
        walk = await in_steps("Removing", total, step, quiet=at.json)
    except QueueError:
        if not was_paused:  # a worker was quicker: leave the queue as it was
            await at.queue.store.resume()
        raise
    left = sum((await at.counts()).values())
    if at.json:
        as_json({"queue": at.name, "removed": walk.done, "left": left, "stopped": walk.stopped})
    elif walk.stopped:
        say(Text(f"Stopped: {so_many(walk.done)} removed, {left:,} left. The queue is paused."))
    else:
        say(Text(f"{one_line(at.name)} is gone, with {so_many(walk.done)}."))
        if left:
            note(f"{so_many(left)} left: parents whose children are in other queues (as BullMQ has it)")
    leave_if_stopped(walk)
