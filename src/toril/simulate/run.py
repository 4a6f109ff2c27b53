"""What is to be simulated, and against what."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from toril.errors import InvalidValue
from toril.simulate.planning import LARGEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of the simulator. Seed, base and limits decide what is sent; the rest, how."""

    url: str
    """The server's: ``/v1/traces`` is added."""
    keys: Mapping[str, str]
    """Its API keys, by tenant; the first tenant gets the most. Empty: none is sent."""
    seed: int = 1
    base: int = field(default_factory=time.time_ns)
    """When it all begins (ns since 1970)."""
    traces: int | None = None
    spans: int | None = None
    seconds: float | None = None
    """No new traces after that long."""
    rate: float | None = None
    """Spans per second; None: as fast as it goes."""
    late: float = 3.0
    """At most by so many seconds some spans are sent after the rest of their trace."""
    largest: int = LARGEST
    """About how many spans the largest traces have."""
    connections: int = 4
    """Requests at a time."""
    per_request: int = 512
    interval: float = 1.0
    """Seconds after which a service sends what it has, though it is less than that."""
    patience: float = 120.0
    """For so many seconds a request is tried that the collector does not take."""
    manifest: Path | None = None
    """A file that is appended to: each acknowledged span once, as a line of JSON."""
    share: tuple[int, int] = (0, 1)
    """Which of how many senders this is."""

    def __post_init__(self) -> None:
        if not self.keys:
            raise InvalidValue("keys", self.keys, "at least one tenant and its key")
        if not self.url.startswith(("http://", "https://")):
            raise InvalidValue("url", self.url, "it begins with http:// or https://")
        for name in ("traces", "spans", "connections", "per_request", "largest"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidValue(name, value, "at least 1")
        for name in ("seconds", "rate"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidValue(name, value, "more than 0")
