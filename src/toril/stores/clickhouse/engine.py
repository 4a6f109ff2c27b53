"""The engine inside of this process: one directory per process, and one process per directory.

The engine refuses what breaks these rules, but does not say why. A lock on a file in the directory does, with
the process that has it. The system lets go of the lock when that process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

from toril.events.errors import StoreError

LOCK = "toril.lock"


@dataclass(slots=True)
class _Held:
    directory: Path
    lock: int
    users: int


_guard = threading.Lock()
_held: _Held | None = None


def acquire(directory: Path) -> None:
    """Have the directory, together with who has it already in this process, until :func:`release`."""
    global _held
    with _guard:
        if _held is None:
            _held = _Held(directory, _lock(directory), 0)
        elif _held.directory != directory:
            raise StoreError(
                f"this process has its ClickHouse engine at {_held.directory}, and can have no second one at "
                f"{directory}: close the first, or use a ClickHouse server by its URL",
                retryable=False,
            )
        _held.users += 1


def release() -> None:
    """No longer have it. The last one lets go of the directory."""
    global _held
    with _guard:
        assert _held is not None
        _held.users -= 1
        if not _held.users:
            os.close(_held.lock)
            _held = None


def give_back_signals() -> None:
    """Let Ctrl-Z stop the process again: the engine takes that signal, and does nothing about it."""
    if threading.current_thread() is threading.main_thread():
        before = signal.getsignal(signal.SIGTSTP)
        if before is not None:
            signal.signal(signal.SIGTSTP, before)


def _lock(directory: Path) -> int:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise StoreError(
            f"the embedded ClickHouse directory {directory} belongs to one process, and process {owner} "
            "has it: ask the server that runs there, or use a ClickHouse URL for several processes",
            retryable=False,
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def _forget() -> None:
    """A forked child has no engine, and must not keep the lock when its parent is gone."""
    global _guard, _held
    _guard = threading.Lock()
    if _held is not None:
        os.close(_held.lock)
        _held = None


os.register_at_fork(after_in_child=_forget)
