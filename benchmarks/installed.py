"""Whether the peers of a benchmark are there, each in the version that its requirements name."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
from rich.console import Console

_PINNED = re.compile(r"([a-z0-9-]+)(?:\[[a-z,]+\])?==(\S+)")


def find_problems(requirements: Path) -> list[str]:
    """What of the requirements is missing here, or is there in another version."""
    problems = []
    for line in requirements.read_text(encoding="utf-8").splitlines():
        if not (wanted := _PINNED.match(line)):
            continue
        try:
            found = version(wanted[1])
        except PackageNotFoundError:
            problems.append(f"{wanted[1]} is not installed, {wanted[2]} is wanted")
            continue
        if found != wanted[2]:
            problems.append(f"{wanted[1]} is {found} here, {wanted[2]} is wanted")
    return problems


def require(requirements: Path, console: Console) -> None:
    """Go no further where a peer is missing; say which, and how to install it."""
    if problems := find_problems(requirements):
        for problem in problems:
            console.print(f"[red]{problem}[/red]")
        where = requirements.relative_to(requirements.parents[1])
        raise click.ClickException(f"install the peers first: python -m pip install -r {where}")
