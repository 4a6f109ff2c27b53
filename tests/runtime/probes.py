"""Commands whose handlers tell what they do, and can be held up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec

from toril.events import AnyNewEvent, Command, CommandHandler, NewEvent


class Note(msgspec.Struct, frozen=True):
    """A payload: which id, and which send."""

    key: str
    n: int = 0


@dataclass
class Run:
    """One run of a handler."""

    tenant: str
    key: str
    n: int
    began: float
    ended: float = 0.0


@dataclass
class Probe:
    """What the handlers of a test have done."""

    runs: list[Run] = field(default_factory=list)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    problems: list[BaseException] = field(default_factory=list)
    """What the next runs raise, in order."""
    also: Callable[[Command[Note]], Awaitable[None]] | None = None
    """What else a run does."""

    def hold(self, key: str) -> asyncio.Event:
        """Let runs of a key wait until this is set."""
        return self.gates.setdefault(key, asyncio.Event())

    def seen(self, key: str | None = None) -> list[int]:
        """The sends that were run, in order."""
        return [run.n for run in self.runs if key is None or run.key == key]

    def overlapping(self) -> list[tuple[Run, Run]]:
        """Runs of one id that were under way at the same time."""
        found = []
        last: dict[tuple[str, str], Run] = {}
        for run in sorted(self.runs, key=lambda run: run.began):
            before = last.get((run.tenant, run.key))
            if before is not None and (not before.ended or before.ended > run.began):
                found.append((before, run))
            last[run.tenant, run.key] = run
        return found

    def command(
        self,
        *,
        keyed: bool = True,
        wait: timedelta | int | None = None,
        at_once: int | None = None,
    ) -> type[CommandHandler[Note]]:
        """A command with this probe in it."""
        probe = self

        class RecordNote(CommandHandler[Note]):
            delay = wait
            concurrency = at_once

            @classmethod
            def get_aggregate_id(cls, payload: Note) -> str:
                return payload.key

            @classmethod
            def make_job_id(cls, payload: Note) -> str | None:
                return payload.key if keyed else None

            @classmethod
            def span_attributes(cls, payload: Note) -> dict[str, Any]:
                return {"payload.key": payload.key}

            async def handle(self, command: Command[Note]) -> list[AnyNewEvent]:
                run = Run(command.tenant, command.data.key, command.data.n, time.monotonic())
                probe.runs.append(run)
                try:
                    if (gate := probe.gates.get(command.data.key)) is not None:
                        await gate.wait()
                    if probe.problems:
                        raise probe.problems.pop(0)
                    if probe.also is not None:
                        await probe.also(command)
                    return [NewEvent(type="note.recorded", data={"n": command.data.n})]
                finally:
                    run.ended = time.monotonic()

        return RecordNote
