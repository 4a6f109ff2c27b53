"""What the lists of ``ls`` have in common: how many are shown, and what is said where that is not all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from toril.cli.looks import aside
from toril.cli.place import Command
from toril.cli.times import whole

MOST = 10_000
"""What ``--limit`` may ask for."""


def limit_option(what: str, default: int) -> Callable[[Command], Command]:
    """``--limit`` of a list of ``what``, which is in the order of names."""
    return click.option(
        "--limit",
        default=str(default),
        show_default=True,
        metavar="N",
        callback=whole("limit", 1, MOST),
        help=f"How many {what} to show, in the order of their names.",
    )


def tell_left_out(left_out: Sequence[str]) -> None:
    """Say which columns of a table had no room on the screen."""
    if left_out:
        aside(f"No room for: {', '.join(left_out)}.")


def tell_more(what: str, shown: int, total: int) -> None:
    """Say where there are more than are shown."""
    if shown < total:
        aside(f"The first {shown:,} of {total:,} {what}. More: --limit {min(total, MOST)}")
