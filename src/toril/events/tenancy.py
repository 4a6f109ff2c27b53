"""The walls between tenants: what every door of the library checks, and says in the same words."""

from __future__ import annotations

from collections.abc import Sequence

from toril.aggregate import Aggregate
from toril.events.errors import SecurityError, ValidationError
from toril.events.event import AnyEvent


def check_tenant_of(event: AnyEvent, tenant: str, index: int | None = None) -> None:
    """Refuse an event of another tenant; its place, not its tenant, is in the error."""
    if event.tenant != tenant:
        raise SecurityError("the event" if index is None else f"event {index}", index)


def check_aggregate_of(event: AnyEvent, aggregate: Aggregate, index: int | None = None) -> None:
    """Refuse an event of another tenant, or of another aggregate."""
    check_tenant_of(event, aggregate.tenant, index)
    if event.aggregate_type != aggregate.type or event.aggregate_id != aggregate.id:
        raise ValidationError(
            "event" if index is None else f"event {index}",
            f"{event.aggregate_type}:{event.aggregate_id}",
            f"it must be an event of {aggregate.type}:{aggregate.id}",
        )


def check_one_tenant(events: Sequence[AnyEvent], tenant: str) -> None:
    """Refuse all of the events when one is of another tenant."""
    for index, event in enumerate(events):
        check_tenant_of(event, tenant, index)
