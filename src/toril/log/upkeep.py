"""Nothing grows for ever: trimming what everyone has read, and letting quiet aggregates leave Redis."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from toril.errors import InvalidValue
from toril.log.cold import ColdStore, Frozen
from toril.log.entry import Partition
from toril.log.records import version_of
from toril.log.resize import drop_epoch
from toril.log.store import PartitionStore

if TYPE_CHECKING:
    from toril.log.log import Log

logger = logging.getLogger("toril.log")


@dataclass(slots=True)
class Trimmed:
    """What trimming did."""

    removed: int = 0
    """Entries removed."""
    last: dict[Partition, int] = field(default_factory=dict)
    """By partition, the last ordinal that is trimmed."""
    holding: dict[Partition, list[str]] = field(default_factory=dict)
    """By partition, the readers that hold up the rest."""


async def trim(log: Log, at_once: int = 10_000) -> Trimmed:
    """Trim what may go, in bounded steps."""
    report = Trimmed()
    retention = (await log.layout(anew=True)).retention
    if retention is None or not retention.trims:
        return report
    needed, age_ms = retention.archive or "", retention.age_ms or 0

    async def one(store: PartitionStore) -> None:
        removed = at_once
        while removed * 2 >= at_once:  # a step takes whole nodes of the stream, and so less than it may
            removed, last, holding = await store.trim(needed, age_ms, at_once)
            report.removed += removed
            report.last[store.partition] = last
            report.holding[store.partition] = holding

    await log.each(one)
    return report


async def cool(log: Log, at_once: int = 200) -> int:
    """Let quiet aggregates leave Redis, or forget where there is no cold store; says how many did."""
    cold = log.cold

    async def one(store: PartitionStore) -> int:
        gone = 0
        while True:
            went = await (store.settle(at_once) if cold is None else _freeze(store, cold, at_once))
            gone += went
            if not went:
                return gone

    return sum(await log.each(one, (await log.layout(anew=True)).current.all()))


async def send_back(store: PartitionStore, cold: ColdStore, chosen: Sequence[str]) -> int:
    """Let aggregates leave Redis that came back for a moment; says how many did."""
    return await _freeze(store, cold, len(chosen), chosen) if chosen else 0


async def _freeze(store: PartitionStore, cold: ColdStore, most: int, chosen: Sequence[str] = ()) -> int:
    """The cold store has them before they leave, and they leave only as they were stored."""
    journey = secrets.token_urlsafe(9)
    quiet = await store.quiet(most, journey, chosen)
    found = [Frozen.of(key, store.partition.epoch, fields) for key, fields in quiet]
    if not found:
        return 0
    began = [frozen for frozen in found if version_of(frozen.flat()) > 0]
    if began:
        await cold.put(began)
    return await store.freeze(journey, {frozen.aggregate.key: frozen.changes for frozen in found})


class Upkeep:
    """Trims and cools a log, and removes epochs that are over, again and again, while it is entered.

    Any number of processes may.
    """

    def __init__(self, log: Log, every: float) -> None:
        if every <= 0:
            raise InvalidValue("every", every, "seconds, more than 0")
        self._log = log
        self._every = every
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._work())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled() and (failed := self._task.exception()) is not None:
            raise failed

    async def _work(self) -> None:
        while True:
            for what in (trim, cool, drop_epoch):
                try:
                    await what(self._log)
                except Exception as problem:  # noqa: BLE001 - the server's or the cold store's; it may pass
                    logger.warning(
                        "upkeep of %r, %s: tried again in %g s: %r",
                        *(self._log, what.__name__, self._every, problem),
                    )
            await asyncio.sleep(self._every)
