"""What is in flight: the bytes of requests that are being received, decoded or recorded, by tenant.

No tenant can keep others out. Each may hold as much as is left free then: one alone up to half of all, two a
third each, and so on; there is always something left for one that comes (the "dynamic threshold" by which
switches share their buffers). So there is no share to configure, and none that lies idle.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from toril.server.refusals import Refused

EACH = 4096
"""What a request counts for at least: small ones need memory too."""


class TooMuchInFlight(Refused):
    """It does not fit beside what is in flight. ``own``: the tenant's own requests are in the way."""

    def __init__(self, own: bool) -> None:
        what = "too many requests of yours are" if own else "as much as the server can hold is"
        super().__init__(429 if own else 503, f"{what} being recorded: send this one again", retry_after=1)


class Flight:
    """Counts what is in flight."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.bytes = 0
        self.requests = 0
        self._held: dict[str, int] = {}

    @contextmanager
    def hold(self, tenant: str) -> Iterator[Hold]:
        """Room for one request of a tenant, given back when it is left."""
        made = Hold(self, tenant)
        made.grow_to(EACH)
        self.requests += 1
        try:
            yield made
        finally:
            self.requests -= 1
            self._add(tenant, -made.bytes)

    def take(self, hold: Hold, size: int) -> None:
        """Take so much more for a request, or raise :class:`TooMuchInFlight`."""
        held = self._held.get(hold.tenant, 0)
        if held + size > self.most - self.bytes - size:
            raise TooMuchInFlight(own=held > hold.bytes)
        self._add(hold.tenant, size)

    def _add(self, tenant: str, size: int) -> None:
        self.bytes += size
        left = self._held.get(tenant, 0) + size
        if left:
            self._held[tenant] = left
        else:
            self._held.pop(tenant, None)


class Hold:
    """What one request holds."""

    def __init__(self, flight: Flight, tenant: str) -> None:
        self.tenant = tenant
        self.bytes = 0
        self._flight = flight

    def grow_to(self, size: int) -> None:
        """Hold this much, where it is more than now."""
        if size > self.bytes:
            self._flight.take(self, size - self.bytes)
            self.bytes = size
