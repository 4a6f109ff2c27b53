"""Names of generations: the first has its projection's name, later ones have their number behind it."""

from __future__ import annotations

import sys

NEXT = sys.maxsize
"""The number of a generation after all that there are: what is made anew heeds what was decided about any."""


def generation_name(name: str, number: int) -> str:
    """``trace_summary``, ``trace_summary@2``; with or without the pipeline before it."""
    return name if number == 1 else f"{name}@{number}"


def split_generation(name: str) -> tuple[str, int]:
    """The projection's name, and which generation it is; 1 for anything else than a generation."""
    base, _, number = name.rpartition("@")
    return (base, int(number)) if base and number.isdecimal() and int(number) > 1 else (name, 1)


def concerns(decided: str, processor: str) -> bool:
    """Whether a decision about one processor counts for another: a generation heeds those before it."""
    (base, before), (own, number) = split_generation(decided), split_generation(processor)
    return base == own and before <= number
