"""Turns: tenants take turns, and the aggregates of one tenant do."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """A line in which each tenant has one place, however many things it waits for."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, tenant: str, thing: T) -> None:
        """Line up behind what the tenant has waiting, and the tenant behind the others."""
        self._waiting.setdefault(tenant, deque()).append(thing)

    def take(self) -> T:
        """The next one; its tenant goes to the end of the line."""
        tenant, things = next(iter(self._waiting.items()))
        thing = things.popleft()
        if things:
            self._waiting.move_to_end(tenant)
        else:
            del self._waiting[tenant]
        return thing

    def first(self) -> str:
        """The tenant whose turn it is."""
        return next(iter(self._waiting))

    def clear(self) -> None:
        """Nobody waits any more."""
        self._waiting.clear()
