"""Handlers that run in processes: they must stand at the top of a module."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from toril.queue import UnrecoverableError


@dataclass
class Order:
    """What an order must be."""

    id: int
    price: float


def multiply(job: Any) -> int:
    job.update_progress(50)
    job.log("half-way")
    return int(job.data["a"] * job.data["b"])


def endless(job: Any) -> None:  # noqa: ARG001
    while True:
        pass


def dies(job: Any) -> None:  # noqa: ARG001
    os._exit(3)


def fails(job: Any) -> None:
    if job.data == "for good":
        raise UnrecoverableError("hopeless")
    raise ValueError("wrong")


def price_of(job: Any, order: Order) -> float:  # noqa: ARG001
    return order.price


def unpicklable(job: Any) -> Any:  # noqa: ARG001
    return lambda: None
