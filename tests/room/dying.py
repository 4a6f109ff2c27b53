"""A process that dies between any two of its calls: before one is carried out, or after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from toril import Connection


class Died(Exception):
    """Here it ended."""


class Dying:
    """A connection that carries out so many calls, and then is gone."""

    def __init__(self, redis: Connection, calls: int, *, last_is_executed: bool) -> None:
        self._redis = redis
        self._left = calls
        self._executed = last_is_executed

    @classmethod
    def connection(cls, redis: Connection, calls: int, *, last_is_executed: bool) -> Connection:
        return cast("Connection", cls(redis, calls, last_is_executed=last_is_executed))

    async def _carry_out(self, name: str, args: Sequence[Any], how: dict[str, Any]) -> Any:
        self._left -= 1
        if self._left < 0 or (self._left == 0 and not self._executed):
            raise Died
        answer = await getattr(self._redis, name)(*args, **how)
        if self._left == 0:
            raise Died
        return answer

    async def run(self, *args: Any, **how: Any) -> Any:
        return await self._carry_out("run", args, how)

    async def command(self, *args: Any, **how: Any) -> Any:
        return await self._carry_out("command", args, how)
