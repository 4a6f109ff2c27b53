"""What the waiting pages of rooms show: kept in Redis, so that all servers show the same."""

from __future__ import annotations

import re
from typing import Self

import msgspec

from toril.connection import Connection
from toril.errors import InvalidValue
from toril.keyspace import ServerKeys

_NOT = r"\x00-\x20\x7f-\xa0<>\"'"  # named one by one: what white space is, not all languages agree on
TARGET = rf"^(https?://[^{_NOT}]+|/[^{_NOT}/\\][^{_NOT}\\]*|/)?$"
"""An address of the web, or a path: nothing that a browser would run, and no other host by a trick."""

LONGEST_TITLE, LONGEST_TARGET = 200, 2000


class PageView(msgspec.Struct, frozen=True):
    """What the waiting page of a room shows."""

    title: str = ""
    target: str = ""
    """Where it goes on to; empty: nowhere."""

    @classmethod
    def of(cls, before: Self, **changes: str) -> Self:
        """The same with changes, which are checked."""
        made = msgspec.structs.replace(before, **changes)
        if len(made.title) > LONGEST_TITLE:
            raise InvalidValue("title", made.title, f"at most {LONGEST_TITLE} characters")
        if len(made.target) > LONGEST_TARGET or not re.fullmatch(TARGET, made.target):
            raise InvalidValue("target", made.target, "an http(s) address, or a path of this server")
        return made


class Pages:
    """See the module's text."""

    def __init__(self, redis: Connection) -> None:
        self._redis = redis
        self._keys = ServerKeys()

    async def get(self, event: str) -> PageView:
        """What the page of an event shows."""
        raw = await self._redis.command("HGET", self._keys.room_pages, event)
        return PageView() if raw is None else msgspec.json.decode(raw, type=PageView)

    async def set(self, event: str, view: PageView) -> None:
        """Change what it shows."""
        raw = msgspec.json.encode(view)
        await self._redis.command("HSET", self._keys.room_pages, event, raw, repeatable=True)
