"""Signs of life, sent together: what comes while a call is under way goes in the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from toril.room.store import ShardStore
from toril.room.ticket import Ticket, Token

TOGETHER = 200
"""Tickets of one call."""

Heard = tuple[int, Ticket | None]
"""The snapshot's version, and the ticket."""


class Toucher:
    """Hears of people who wait in one shard. Nobody waits for a batch to fill."""

    def __init__(self, store: ShardStore) -> None:
        self._store = store
        self._waiting: list[tuple[Token, asyncio.Future[Heard]]] = []
        self._task: asyncio.Task[None] | None = None

    async def touch(self, token: Token) -> Heard:
        """How a ticket stands; its owner keeps the place."""
        answer: asyncio.Future[Heard] = asyncio.get_running_loop().create_future()
        self._waiting.append((token, answer))
        if self._task is None:
            self._task = asyncio.create_task(self._send())
        return await answer

    async def _send(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:TOGETHER], self._waiting[TOGETHER:]
                await self._send_batch(batch)
        finally:
            self._task = None

    async def _send_batch(self, batch: Sequence[tuple[Token, asyncio.Future[Heard]]]) -> None:
        try:
            version, tickets = await self._store.touch([token for token, _ in batch])
        except Exception as problem:  # noqa: BLE001 - whoever waits for an answer gets it
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(problem)
            return
        for (_, answer), ticket in zip(batch, tickets, strict=True):
            if not answer.done():
                answer.set_result((version, ticket))
