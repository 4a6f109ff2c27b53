"""A worker leaves when it is told to, whatever happens at that moment."""

from __future__ import annotations

import asyncio
import random

from tests.conftest import SCALE
from tests.runtime.parts import Place, Recorder, handler, order
from toril.runtime.memory import MemoryBackend


async def test_a_worker_leaves_however_busy_it_is_woken(rng: random.Random) -> None:
    """A bell that rings while it is cancelled must not make it forget that it is."""
    memory = MemoryBackend()
    place = Place(memory, memory)
    for number in range(int(300 * SCALE)):
        async with place.worker(handler(Recorder())) as worker:
            desk = worker.engines[0]._desk
            await asyncio.sleep(rng.choice([0, 0.001]))
            await place.put(order(number), 1)
            closing = asyncio.create_task(worker.close())
            while not closing.done():
                desk.wake_fetch.set()
                desk.wake_work.set()
                await asyncio.sleep(0)
            await asyncio.wait_for(closing, 20)
