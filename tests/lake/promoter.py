"""A promotion that is there to be killed: ``python -m tests.lake.promoter SETTINGS`` (JSON).

It says on its standard output when it has come to a step, and goes no further. When its standard input ends,
because the test is gone, it is gone too.
"""

from __future__ import annotations

import asyncio
import sys
import threading

import msgspec

import toril.lake.promote
import toril.runtime.generations
from tests.lake.shop import Shop
from tests.lake.victim import leave_with_the_test, say
from toril.lake.generations import find
from toril.lake.lake import Lake
from toril.lake.promote import Progress, promote
from toril.lake.sessions import session
from toril.runtime.generations import GenerationStanding, Loaded

STEPS = ("loading", "loaded", "behind", "ready")

SMALL = (
    (toril.runtime.generations, "AT_ONCE", 7),
    (toril.lake.promote, "EVENTS_AT_ONCE", 2),
    (toril.lake.promote, "PARTITION_BYTES", 1000),
)
"""Portions, so that there is something to be cut off."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a promotion is told."""

    url: str
    lake: str
    step: str
    within: int


class At(Progress):
    """Does something when a promotion has come to a step; :meth:`reached` says what."""

    def __init__(self, step: str) -> None:
        self._step = step

    def reached(self) -> None:
        """Wait for the end."""
        say(self._step)
        threading.Event().wait()

    def _came(self, step: str) -> None:
        if step == self._step:
            self.reached()

    def loading(self, loaded: Loaded, of: int) -> None:
        assert loaded.placed + loaded.there + loaded.gone <= of
        self._came("loading")

    def loaded(self, loaded: Loaded) -> None:
        assert loaded.gone == 0
        self._came("loaded")

    def behind(self, standing: GenerationStanding, runs: bool) -> None:
        assert standing.behind > 0 or not runs
        self._came("behind")

    def ready(self, standing: GenerationStanding) -> None:
        assert standing.state in ("ready", "current")
        self._came("ready")


async def serve(settings: Settings) -> None:
    conf = {"spark.ui.enabled": "false", "spark.driver.memory": "1g"}
    lake = Lake(session("local[2]", name="toril-promoter", conf=conf), settings.lake)
    shop = Shop(settings.url, both=True)
    made = await asyncio.to_thread(find, lake, "shop/basket", 2)
    async with shop.sourcing:
        service = shop.pipeline.service
        await promote(
            lake, made, service, url=settings.url, within=settings.within, progress=At(settings.step)
        )


if __name__ == "__main__":
    for portion in SMALL:
        setattr(*portion)
    threading.Thread(target=leave_with_the_test, daemon=True).start()
    asyncio.run(serve(msgspec.json.decode(sys.argv[1], type=Settings)))
