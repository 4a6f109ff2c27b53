"""What an audit finds: checks with what they looked at, and numbers for plots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, NamedTuple

SAMPLES = 5
"""Samples kept of each kind of finding."""


@dataclass(slots=True)
class Finding:
    """One kind of thing that is not as it should be."""

    kind: str
    count: int
    reason: str
    samples: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Seen:
    """How many there were of something that comes one by one, and the first few: the others are let go."""

    count: int = 0
    samples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, *some: Mapping[str, Any], count: int | None = None) -> None:
        """So many more, as many as are given if it is not said; of which these may be shown."""
        self.count += len(some) if count is None else count
        self.samples += [plain(one) for one in some[: SAMPLES - len(self.samples)]]


@dataclass(slots=True)
class Check:
    """What was looked at, and what was found."""

    name: str
    promise: str
    """What it proves, where nothing is found."""
    looked: int = 0
    """Rows, aggregates or places, as the promise says."""
    findings: list[Finding] = field(default_factory=list)
    skipped: str = ""
    """Why it was not done; empty: it was."""
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def problems(self) -> int:
        """How many in all."""
        return sum(finding.count for finding in self.findings)

    def add(self, kind: str, count: int, reason: str, samples: Iterable[Mapping[str, Any]] = ()) -> None:
        """Note something, where there is any of it."""
        if count:
            few = [plain(one) for one in islice(samples, SAMPLES)]
            self.findings.append(Finding(kind, count, reason, few))


class Lag(NamedTuple):
    """How far the archive is in a partition."""

    partition: str
    archived: int
    tail: int

    @property
    def behind(self) -> int:
        """Events of the log that are not in the lake."""
        return max(self.tail - self.archived, 0)


@dataclass(slots=True)
class Figures:
    """Numbers for the report's plots."""

    lag: list[Lag] = field(default_factory=list)
    volume: list[tuple[int, int]] = field(default_factory=list)
    """Hours (seconds since 1970), and events that were recorded in them."""
    costs: list[tuple[str, int, int]] = field(default_factory=list)
    """Models, nano-USD, and spans; the dearest first."""
    tables: list[tuple[str, int, int]] = field(default_factory=list)
    """Names, rows and batches."""


@dataclass(slots=True)
class Audit:
    """What an audit found."""

    lake: str
    log: str
    fraction: float
    began_at: int
    """Nanoseconds since 1970."""
    checks: list[Check] = field(default_factory=list)
    figures: Figures = field(default_factory=Figures)
    seconds: float = 0.0

    @property
    def problems(self) -> int:
        """Of all checks."""
        return sum(check.problems for check in self.checks)

    @property
    def ok(self) -> bool:
        """Whether nothing was found, and something was looked at."""
        return not self.problems and any(not check.skipped for check in self.checks)

    def as_value(self) -> dict[str, Any]:
        """As JSON has it."""
        made = asdict(self)
        for one, check in zip(made["checks"], self.checks, strict=True):
            one["problems"] = check.problems
        return {"ok": self.ok, "problems": self.problems, **made}


def plain(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A sample as JSON can say it; long texts are cut."""

    def short(value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float)):
            return value
        text = bytes(value).decode(errors="replace") if isinstance(value, (bytes, bytearray)) else str(value)
        return text if len(text) <= 120 else f"{text[:120]}…"

    return {name: short(value) for name, value in sample.items()}
