"""A worker process that is there to be killed: ``python -m tests.stream.victim SETTINGS`` (JSON).

Its handler takes a while of chance, then fails as often as the job's data asks for, or kills its process
where that is asked for. Each run writes its begin and its end into a file that all victims share, in the
order in which things happen: ``begin N``, ``end N``.

It says on its standard output what happens: ``ready``, ``error TEXT``, ``closed``. SIGTERM closes it. When
its standard input ends, because the test is gone, it is gone too.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading

import msgspec

from tests.queue.victim import leave_with_the_test, say
from toril.stream import StreamJob, StreamWorker


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a victim is told."""

    url: str
    queue: str
    name: str
    record: str
    """The file."""
    concurrency: int = 5
    longest_ms: int = 20
    seed: int = 0


async def serve(settings: Settings) -> None:
    chance = random.Random(settings.seed)
    record = os.open(settings.record, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    worker = StreamWorker(settings.queue, settings.url, concurrency=settings.concurrency, grace=30)

    @worker.handler()
    async def work(job: StreamJob) -> None:
        number = job.data["n"]
        os.write(record, f"begin {number}\n".encode())
        await asyncio.sleep(chance.random() * settings.longest_ms / 1000)
        if job.data.get("poison"):
            os.kill(os.getpid(), signal.SIGKILL)
        if job.attempts_made < job.data.get("fails", 0):
            raise ValueError("meant to fail")
        os.write(record, f"end {number}\n".encode())

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
