"""No send is lost: races of senders and workers, and workers that are killed."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec
import pytest

from tests.conftest import SCALE
from tests.queue.audit import until
from tests.queue.crew import ROOT
from tests.runtime.command_victim import Settings, dispatcher
from tests.runtime.commanding import until_quiet
from tests.runtime.probes import Note, Probe, Run
from toril import Connection, connect
from toril.events import Aggregate, Command
from toril.queue import Backoff
from toril.runtime.commands import CommandDispatcher, CommandOptions
from toril.stores import MemoryEventStore
from toril.testing import cluster


@dataclass
class Send:
    """One send, and when it was under way."""

    key: str
    n: int
    began: float
    ended: float = 0.0


def check_none_lost(sends: list[Send], probe: Probe) -> None:
    """After each send came a run of it, or of one that was not over when it began; the last is a last one."""
    by_n = {send.n: send for send in sends}
    runs: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(probe.runs, key=lambda run: run.began):
        runs[run.key].append(run)
    for send in sends:
        carried = (run for run in reversed(runs[send.key]) if run.began >= send.began)
        assert any(by_n[run.n].ended >= send.began for run in carried), f"send {send.n} was lost"
    for key, ran in runs.items():
        final = by_n[ran[-1].n]
        newer = [send.n for send in sends if send.key == key and send.began > final.ended]
        assert not newer, f"{key} was last run with send {final.n}, but {newer} came later"


@pytest.mark.parametrize("wait", [0, 10], ids=["at once", "delayed"])
async def test_no_job_lost_in_races_of_sending_taking_and_finishing(
    place: Connection | None, rng: random.Random, wait: int
) -> None:
    """Many senders, few ids, runs that end at any time and fail now and then."""
    probe = Probe()
    sends: list[Send] = []

    async def do(command: Command[Note]) -> None:  # noqa: ARG001
        await asyncio.sleep(rng.choice((0, 0, 0.001, 0.004)))
        if rng.random() < 0.1:
            raise ValueError("meant to fail")

    probe.also = do
    options = CommandOptions(
        attempts=50, backoff=Backoff("fixed", 2), max_wait=3 * wait, remove_on_complete=rng.random() < 0.5
    )
    least = 100 * SCALE
    async with AsyncExitStack() as stack:
        made = [
            CommandDispatcher(
                probe.command(wait=wait, at_once=4),
                pipeline="races",
                aggregate_type="note",
                store=MemoryEventStore(),
                redis=None if place is None else await stack.enter_async_context(await place.another("s")),
                options=options,
            )
            for _ in range(1 if place is None else 4)
        ]
        for each in made[:2]:
            await stack.enter_async_context(each.worker())

        async def keep_sending() -> None:
            while len(probe.runs) < least:
                send = Send(f"k{rng.randrange(3)}", len(sends) + 1, time.monotonic())
                sends.append(send)
                await rng.choice(made).send(Note(send.key, send.n), tenant="acme")
                send.ended = time.monotonic()
                await asyncio.sleep(rng.choice((0, 0, 0.002, 0.01)))

        await asyncio.gather(*(keep_sending() for _ in range(12)))
        await until_quiet(made[0])
    check_none_lost(sends, probe)
    assert probe.overlapping() == [], "runs of one id follow one another"
    assert len(sends) > len(probe.runs), "some runs were for several sends"


# ---------------------------------------------------------------------- workers that die


class Victims:
    """So many processes that execute commands, at all times."""

    def __init__(self, url: str, rng: random.Random) -> None:
        self._url = url
        self._rng = rng
        self._all: list[Process] = []
        self.kills = 0

    async def hire(self) -> None:
        settings = Settings(url=self._url, seed=self._rng.randrange(2**32))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.runtime.command_victim", msgspec.json.encode(settings).decode()),
            cwd=ROOT,
            stdin=PIPE,
            stdout=PIPE,
        )
        self._all.append(process)
        assert process.stdout is not None
        said = await asyncio.wait_for(process.stdout.readline(), 30)
        assert said.strip() == b"ready", said

    async def kill_one(self) -> None:
        """As ``kill -9`` does, and hire another one."""
        process = self._all.pop(self._rng.randrange(len(self._all)))
        process.kill()
        await process.wait()
        self.kills += 1
        await self.hire()

    async def close(self) -> None:
        for process in self._all:
            process.kill()
            await process.wait()


@pytest.mark.timeout(120 + 90 * SCALE)
async def test_no_job_lost_of_sent_commands(rng: random.Random, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands are sent, workers are killed and a master fails over; each id ends with its last payload.

    Events of one id are those of its sends, in their order, each once.
    """
    keys = [f"k{number}" for number in range(24)]
    last = dict.fromkeys(keys, 0)
    kills = round(6 * SCALE)
    with cluster() as nodes:
        async with connect(nodes.url) as redis:
            notes = dispatcher(redis)
            victims = Victims(nodes.url, rng)
            try:
                await asyncio.gather(victims.hire(), victims.hire(), victims.hire())

                async def keep_sending(own: list[str]) -> None:
                    """One sender for each id, so that it is known which payload is the last."""
                    while victims.kills < kills:
                        key = rng.choice(own)
                        last[key] += 1
                        await notes.send(Note(key, last[key]), tenant="acme")
                        await asyncio.sleep(rng.choice((0, 0.005, 0.02)))

                async def keep_killing() -> None:
                    while victims.kills < kills:
                        await asyncio.sleep(rng.uniform(0, 1))
                        await victims.kill_one()

                async def half_way() -> bool:
                    return victims.kills >= kills / 2

                async def fail_over() -> None:
                    await until(half_way, "half of the deaths", 60 + 60 * SCALE)
                    assert notes.queue is not None
                    await asyncio.to_thread(nodes.fail_over, nodes.primary_of(notes.queue.keys.meta))

                await asyncio.gather(
                    *(keep_sending(keys[first::6]) for first in range(6)), keep_killing(), fail_over()
                )

                async def over() -> bool:
                    assert notes.queue is not None
                    counts = await notes.queue.counts("waiting", "active", "delayed", "waiting-children")
                    return not any(counts.values())

                await until(over, "all commands to be executed", 60)
                events = 0
                for key in keys:
                    stream = await notes._store.read(Aggregate("acme", "note", key))
                    kept = [event.data["n"] for event in stream.events]
                    events += len(kept)
                    assert kept == sorted(set(kept)), f"{key} has events twice, or out of order: {kept}"
                    assert (kept[-1] if kept else 0) == last[key], f"the last send of {key} was lost"
                assert notes.queue is not None
                assert await notes.queue.counts("failed") == {"failed": 0}
            finally:
                await victims.close()
    with capsys.disabled():
        print(
            f"\n  {sum(last.values())} sends of {len(keys)} ids, {events} executed, "
            f"{victims.kills} workers killed"
        )
