"""What was measured, by contestant: rates and memory, in the order of the rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median


@dataclass(slots=True)
class Readings:
    """Rates (events per second) and the most memory (bytes) of each side, a reading per round."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    memory: dict[str, list[int]] = field(default_factory=dict)

    def add(self, side: str, rate: float, memory: int = 0) -> None:
        """One more reading."""
        self.rates.setdefault(side, []).append(rate)
        self.memory.setdefault(side, []).append(memory)

    def rate(self, side: str) -> float:
        """The median."""
        return median(self.rates[side])

    def peak(self, side: str) -> int:
        """The most memory that it had in any round."""
        return max(self.memory[side])

    def ratios(self, side: str, peer: str) -> list[float]:
        """How many times as fast as another it was, round by round."""
        return [one / other for one, other in zip(self.rates[side], self.rates[peer], strict=True)]

    def ratio(self, side: str, peer: str) -> float:
        """The median of the rounds' own ratios."""
        return median(self.ratios(side, peer))
