"""What the contracts have in common: aggregates of two tenants, events, and errors that are expected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from toril.aggregate import Aggregate
from toril.events.event import AnyEvent, AnyNewEvent, NewEvent

Problem = TypeVar("Problem", bound=BaseException)

TENANT, OTHER_TENANT = "tenant-one", "tenant-two"
TRACE = Aggregate(TENANT, "trace", "t:1")
OTHER_TRACE = Aggregate(TENANT, "trace", "t:2")
FOREIGN_TRACE = Aggregate(OTHER_TENANT, "trace", "t:1")
"""The same type and id as :data:`TRACE`, of another tenant."""


class Caught(Generic[Problem]):
    """The error that was raised."""

    error: Problem


@contextmanager
def refused(kind: type[Problem]) -> Iterator[Caught[Problem]]:
    """The block must raise such an error, and its text must name no tenant."""
    caught: Caught[Problem] = Caught()
    try:
        yield caught
    except kind as problem:
        caught.error = problem
    else:
        raise AssertionError(f"{kind.__name__} was to be raised")
    text = str(caught.error)
    assert TENANT not in text, "the error's text names a tenant"
    assert OTHER_TENANT not in text, "the error's text names a tenant"


def new(n: int, kind: str = "contract.happened", **more: Any) -> AnyNewEvent:
    """A new event with a number in it."""
    return NewEvent(type=kind, data={"n": n}, **more)


def stored(version: int, aggregate: Aggregate = TRACE, **more: Any) -> AnyEvent:
    """An event as if stored."""
    return new(version, **more).recorded(aggregate, version=version, recorded_at=version)
