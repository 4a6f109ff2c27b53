"""A worker process that is there to be killed: ``python -m tests.queue.victim SETTINGS`` (JSON).

It works on jobs named ``work`` (a while of chance, then the result or the failure that the job's data asks
for), ``gate`` (until something is pushed to the list ``victim:gate:<worker>``) and ``compute`` (in a process
of its own, without end). Each run of the first two is noted in the hash ``victim:runs`` under the job's id
and its lock token, so that a note written twice counts once.

It says on its standard output what happens: ``ready``, ``run ID``, ``computes PID``, ``lost ID``,
``error TEXT``, ``closed``.
SIGTERM closes it. When its standard input ends, because the test is gone, it is gone too.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import msgspec

from toril.queue import Job, Worker


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a victim is told."""

    url: str
    queue: str
    name: str
    concurrency: int = 1
    lock_ms: int = 1000
    sweep_ms: int = 500
    max_stalled: int = 1_000_000
    """How often a job may lose its worker; many more times than it will."""
    grace: float = 30.0
    longest_ms: int = 0
    """The longest that work takes."""
    stubborn: bool = False
    """Whether the handler of ``gate`` goes on when it is stopped, and returns a result all the same."""
    seed: int = 0


def say(what: str, about: object = "") -> None:
    print(what, " ".join(str(about).split()), flush=True)


def leave_with_the_test() -> None:
    """End this process when the other end of its standard input is closed."""
    os.read(0, 1)  # not sys.stdin: a thread that holds it would break the interpreter's own end
    os._exit(1)


def compute(job: Any) -> None:  # noqa: ARG001
    say("computes", os.getpid())
    while True:
        time.sleep(1)


def answer_late(job: Any) -> Any:
    """For workers of a test's own: tell something, and go on for a while."""
    job.update_progress(1)
    time.sleep(0.2)
    return job.data


async def serve(settings: Settings) -> None:
    chance = random.Random(settings.seed)
    worker = Worker(
        settings.queue,
        settings.url,
        worker_name=settings.name,
        concurrency=settings.concurrency,
        lock_duration=settings.lock_ms,
        stalled_interval=settings.sweep_ms,
        max_stalled_count=settings.max_stalled,
        grace=settings.grace,
    )
    gate = worker.keys[f"victim:gate:{settings.name}"]

    async def note(job: Job) -> None:
        run = f"{job.id} {job.token}"
        await worker.store.redis.command(
            "HSET", worker.keys["victim:runs"], run, settings.name, repeatable=True
        )

    @worker.handler("work")
    async def work(job: Job) -> dict[str, Any]:
        await note(job)
        await asyncio.sleep(chance.random() * settings.longest_ms / 1000)
        if job.attempts_made < job.data["fails"]:
            raise ValueError("meant to fail")
        return {"by": settings.name, "n": job.data["n"]}

    @worker.handler("gate")
    async def wait_at_gate(job: Job) -> str:
        await note(job)
        say("run", job.id)
        opened = asyncio.ensure_future(worker.store.redis.command("BLPOP", gate, 60, blocks_for=60))
        if settings.stubborn:
            while not opened.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(opened)
        await opened
        return settings.name

    worker.handler("compute", in_process=True)(compute)
    worker.on("lock_lost")(lambda job: say("lost", job.id))
    worker.on("error")(lambda problem: say("error", problem))
    loop = asyncio.get_running_loop()
    closing = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, closing.set)
    await worker.start()
    say("ready")
    await closing.wait()
    await worker.close()
    say("closed")


if __name__ == "__main__":
    threading.Thread(target=leave_with_the_test, daemon=True).start()
    asyncio.run(serve(msgspec.json.decode(sys.argv[1], type=Settings)))
