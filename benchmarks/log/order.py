"""The aggregate, as the library ``eventsourcing`` wants it declared. Imported where it is installed."""

from importlib import import_module
from typing import Any

domain: Any = import_module("eventsourcing.domain")


class Order(domain.Aggregate):  # type: ignore[misc]
    """Each call of a method is an event."""

    @domain.event("Placed")  # type: ignore[untyped-decorator]
    def __init__(self, sku: str, quantity: int) -> None:
        self.items = [(sku, quantity)]

    @domain.event("ItemAdded")  # type: ignore[untyped-decorator]
    def add(self, sku: str, quantity: int) -> None:
        self.items.append((sku, quantity))
