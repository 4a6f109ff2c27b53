"""What became of the spans that were sent."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

PROBLEMS = 5
"""So many different ones are kept."""


@dataclass(slots=True)
class Acknowledged:
    """Spans of a tenant, without order and each once."""

    spans: int = 0
    checksum: int = 0
    """See :func:`checksum`."""

    def add(self, spans: int, checksum: int) -> None:
        """And these."""
        self.spans += spans
        self.checksum = (self.checksum + checksum) % 2**64


def checksum(spans: Iterable[tuple[str, str]]) -> int:
    """Of ids of traces and spans (hex), whatever their order: the same for the same ones."""
    return sum(_hashed(f"{trace}/{span}") for trace, span in spans) % 2**64


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


@dataclass(slots=True)
class Report:
    """What became of the spans. ``sent`` is all that ended as one of the five below it."""

    traces: int = 0
    spans: int = 0
    """Different ones that were planned so far."""
    sent: int = 0
    """Spans in requests, those that were sent again included."""
    acknowledged: int = 0
    """Spans in requests for which the SDK's exporter said success, and the collector 200."""
    rejected: int = 0
    """Spans in requests that the collector refused, or that it says it did not take."""
    unclear: int = 0
    """Spans in requests of which the collector took a part, and did not say which."""
    lost: int = 0
    """Spans in requests that were given up, after many tries. The collector may have them all the same."""
    unsent: int = 0
    """Spans that were planned, and not sent because the run was stopped."""
    requests: int = 0
    """What the exporters were given."""
    retries: int = 0
    """How often HTTP was tried beyond once for each."""
    answers: Counter[str] = field(default_factory=Counter)
    """Tries by status; ``no answer`` where there was none."""
    tenants: dict[str, Acknowledged] = field(default_factory=dict)
    """Spans that were acknowledged, each once, however often it was sent."""
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    stopped: bool = False
    key_refused: bool = False

    @property
    def errors(self) -> int:
        """Spans that are not known to have arrived."""
        return self.rejected + self.unclear + self.lost

    @property
    def rate(self) -> float:
        """Acknowledged spans per second."""
        return self.acknowledged / self.seconds if self.seconds else 0.0

    def problem(self, text: str) -> None:
        """Remember what went wrong, unless it is known."""
        if text not in self.problems and len(self.problems) < PROBLEMS:
            self.problems.append(text)

    def merge(self, other: Report) -> None:
        """And what another sender reports."""
        for name in ("traces", "spans", "sent", "acknowledged", "rejected", "unclear", "lost", "unsent"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.requests += other.requests
        self.retries += other.retries
        self.answers.update(other.answers)
        for tenant, found in other.tenants.items():
            self.tenants.setdefault(tenant, Acknowledged()).add(found.spans, found.checksum)
        for text in other.problems:
            self.problem(text)
        self.seconds = max(self.seconds, other.seconds)
        self.stopped = self.stopped or other.stopped
        self.key_refused = self.key_refused or other.key_refused

    def as_dict(self) -> dict[str, Any]:
        """For JSON; checksums are hex, which no program rounds."""
        tenants = {
            name: {"spans": one.spans, "checksum": f"{one.checksum:016x}"}
            for name, one in self.tenants.items()
        }
        return asdict(self) | {"answers": dict(self.answers), "tenants": tenants, "rate": self.rate}
