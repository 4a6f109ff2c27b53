"""Commands of one id that are sent again, while one waits, runs, or is over: the last payload counts."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest

from tests.runtime.commanding import at_work, failures, stored, until, until_none_runs, until_quiet
from tests.runtime.probes import Note, Probe
from toril import Connection
from toril.queue import Backoff
from toril.runtime.commands import CommandOptions


async def test_while_one_waits_the_last_payload_counts(place: Connection | None, probe: Probe) -> None:
    gate = probe.hold("busy")
    async with at_work(place, probe.command(at_once=1)) as notes:
        await notes.send(Note("busy"), tenant="acme")
        await until(lambda: probe.runs, "the worker to be busy")
        for n in (1, 2, 3):
            await notes.send(Note("a", n), tenant="acme")
        gate.set()
        await until_quiet(notes)
        assert probe.seen("a") == [3]
        assert await stored(notes, "a") == [3]


async def test_debounce_the_delay_starts_again_with_each_send(place: Connection | None, probe: Probe) -> None:
    async with at_work(place, probe.command(wait=3000)) as notes:
        last = 0.0
        for n in (1, 2, 3):
            last = time.monotonic()
            await notes.send(Note("a", n), tenant="acme")
            await asyncio.sleep(0.1)
        await until_quiet(notes)
        assert probe.seen("a") == [3]
        assert probe.runs[0].began - last > 2.98


async def test_debounce_ends_when_the_first_send_is_long_ago(place: Connection | None, probe: Probe) -> None:
    options = CommandOptions(max_wait=1000)
    async with at_work(place, probe.command(wait=990), options) as notes:
        began = time.monotonic()
        n = 0
        while not probe.runs:
            assert time.monotonic() - began < 20
            n += 1
            await notes.send(Note("a", n), tenant="acme")
            await asyncio.sleep(0.03)
        assert probe.runs[0].began - began > 0.95
        await until_quiet(notes)
        assert probe.seen("a")[-1] == n


async def test_while_one_runs_one_more_follows_with_the_last_payload(
    place: Connection | None, probe: Probe
) -> None:
    gate = probe.hold("a")
    async with at_work(place, probe.command(at_once=5)) as notes:
        for n in range(1, 4):
            await notes.send(Note("a", n), tenant="acme")
            await until(lambda: probe.runs, "the first to run")
        await notes.send(Note("b"), tenant="acme")
        await until(lambda: probe.seen("b"), "what came later to run")
        await notes.send(Note("a", 4), tenant="acme")
        assert probe.seen("a") == [1], "the next one waits until it has finished"
        gate.set()
        await until_quiet(notes)
        assert probe.seen("a") == [1, 4]

        def is_last(n: int) -> bool:
            return probe.seen("a")[-1] == n

        for n in range(5, 30):  # and so on: the places of an id are used in turn
            gate.clear()
            await notes.send(Note("a", n), tenant="acme")
            await until(partial(is_last, n), "it to run")
            await notes.send(Note("a", 100 + n), tenant="acme")
            gate.set()
            await until(partial(is_last, 100 + n), "what follows to run")
        await until_quiet(notes)
        assert probe.seen("a")[-1] == 129
        assert probe.overlapping() == []
        assert await stored(notes, "a") == probe.seen("a")


async def test_a_follower_is_delayed_too(place: Connection | None, probe: Probe) -> None:
    gate = probe.hold("a")
    async with at_work(place, probe.command(wait=2000)) as notes:
        await notes.send(Note("a", 1), tenant="acme")
        await until(lambda: probe.runs, "it to run")
        await notes.send(Note("a", 2), tenant="acme")
        gate.set()
        await until_none_runs(notes)
        await notes.send(Note("a", 3), tenant="acme")
        await until_quiet(notes)
        assert probe.seen() == [1, 3]
        assert probe.runs[1].began - probe.runs[0].ended > 1.95


@pytest.mark.parametrize("keep", [True, False], ids=["removed", "kept"])
async def test_what_is_completed_runs_again(place: Connection | None, probe: Probe, keep: bool) -> None:
    options = CommandOptions(remove_on_complete=keep)
    async with at_work(place, probe.command(), options) as notes:
        for n in (1, 2, 3):
            sent = await notes.send(Note("a", n), tenant="acme")
            assert sent.job_id == "acme/a"
            await until_quiet(notes)
        assert await stored(notes, "a") == [1, 2, 3]


async def test_what_has_failed_runs_again_with_all_its_attempts(
    place: Connection | None, probe: Probe
) -> None:
    async with at_work(place, probe.command()) as notes:
        probe.problems = [ValueError("no")] * 3
        await notes.send(Note("a", 1), tenant="acme")
        await until_quiet(notes)
        assert await failures(notes) == ["no"]
        probe.problems = [ValueError("not yet")] * 2
        await notes.send(Note("a", 2), tenant="acme")
        await until_quiet(notes)
        assert probe.seen() == [1, 1, 1, 2, 2, 2]
        assert await stored(notes, "a") == [2]


@pytest.mark.parametrize("keep", [True, False], ids=["removed", "kept"])
async def test_a_follower_runs_however_the_first_ends(
    place: Connection | None, probe: Probe, keep: bool
) -> None:
    options = CommandOptions(attempts=1, remove_on_fail=keep, remove_on_complete=keep)
    gate = probe.hold("a")
    async with at_work(place, probe.command(), options) as notes:
        probe.problems = [ValueError("no")]
        await notes.send(Note("a", 1), tenant="acme")
        await until(lambda: probe.runs, "it to run")
        await notes.send(Note("a", 2), tenant="acme")
        gate.set()
        await until_quiet(notes)
        assert await stored(notes, "a") == [2]


async def test_between_attempts_the_last_payload_counts(place: Connection | None, probe: Probe) -> None:
    gate = probe.hold("a")
    options = CommandOptions(attempts=2, backoff=Backoff("fixed", 2000))
    async with at_work(place, probe.command(), options) as notes:
        probe.problems = [ValueError("no"), ValueError("no")]
        await notes.send(Note("a", 1), tenant="acme")
        await until(lambda: probe.runs, "it to run")
        await notes.send(Note("a", 2), tenant="acme")  # to follow
        gate.set()
        await until_none_runs(notes)
        await notes.send(Note("a", 3), tenant="acme")  # takes the place of both
        await until_quiet(notes)
        assert probe.seen() == [1, 3, 3], "the next attempt is the last payload's, with all its attempts"
        assert probe.runs[1].began - probe.runs[0].ended > 1.95, "its time stays"
        assert await stored(notes, "a") == [3]
        assert await failures(notes) == []


async def test_a_follower_whose_first_is_gone_is_let_go(redis: Connection, probe: Probe) -> None:
    """Somebody has deleted keys by hand."""
    gate = probe.hold("a")
    async with at_work(redis, probe.command()) as notes:
        await notes.send(Note("a", 1), tenant="acme")
        await until(lambda: probe.runs, "it to run")
        await notes.send(Note("a", 2), tenant="acme")
        queue = notes.queue
        assert queue is not None
        await redis.command("DEL", queue.keys.job("acme/a"))
        await redis.command("LREM", queue.keys.active, 0, "acme/a")
        gate.set()
        await until(lambda: probe.runs[0].ended, "it to end")
        await notes.send(Note("b"), tenant="acme")
        await until(lambda: probe.seen("b"), "what came later to run")
        assert await queue.state("acme/a~2") == "waiting-children"
        await notes.send(Note("a", 3), tenant="acme")
        await until_quiet(notes)
        assert probe.seen("a") == [1, 3]
