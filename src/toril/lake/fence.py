"""Taking the number of the batch that may come next: whoever is about to write it is told, and ends."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import islice
from typing import TypeVar

import msgspec

from toril.lake.errors import OtherWriter
from toril.lake.lake import Lake
from toril.lake.problems import SPARKS, explained, passing
from toril.lake.tables import Column, Table

ATTEMPTS = 10

T = TypeVar("T")


def take_number(lake: Lake, name: str, why: str, *, apart: bool) -> int:
    """An empty batch, which says that the table is as far as it was; the version of its commit.

    ``apart``: it is counted in ``source`` of the record, as batches of a generation are that are no portions.
    """
    had = lake.last(name)
    run = f"{why}-{secrets.token_urlsafe(9)}"
    record = msgspec.structs.replace(had, batch=had.batch + 1, source=had.source + apart, run=run)
    empty = lake.read(name).limit(0)
    columns = tuple(Column(each.name, "", "") for each in empty.schema)
    lake.append(empty, Table(name=name, comment="", columns=columns), record)
    for commit in islice(lake.commits(name), 100):
        if run in commit.metadata:
            return commit.version
    raise OtherWriter(f"another process has written this batch of {lake.place(name)}")


def again_and_again(lake: Lake, name: str, work: Callable[[], T]) -> T:
    """What a job was quicker at is tried again."""
    for left in reversed(range(ATTEMPTS)):
        try:
            with explained(lake.place(name)):
                return work()
        except (*SPARKS, OtherWriter) as problem:
            if not left or not passing(problem):
                raise
    raise AssertionError("unreachable")
