"""How much memory a process and all it has started have together, at the most."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

EVERY = 0.25
"""Seconds between two looks."""


class Peak:
    """Looks at a tree of processes while it is open. Memory that processes share counts once.

    ::

        with Peak(os.getpid()) as peak:
            ...
        peak.bytes
    """

    def __init__(self, root: int | None = None) -> None:
        self.bytes = 0
        self._root = root or os.getpid()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.is_set():
            self.bytes = max(self.bytes, sum(map(_share, tree(self._root))))
            self._over.wait(EVERY)


def tree(root: int) -> list[int]:
    """A process and all below it."""
    found, below = [root], [root]
    while below:
        pid = below.pop()
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):
                    children = [int(child) for child in (task / "children").read_text().split()]
                    found += children
                    below += children
    return found


def _share(pid: int) -> int:
    """What a process has to itself, and its part of what it shares."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
