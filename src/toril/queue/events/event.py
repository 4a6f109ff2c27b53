"""One event of a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from toril import codec

MISSED = "missed"
"""The one event of Toril's own: entries were trimmed away unseen; ``fields["count"]`` says how many."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a queue."""

    id: str
    """Its place in the stream. ``QueueEvents(after=…)`` goes on from there."""
    name: str
    """``added``, ``waiting``, ``active``, ``progress``, ``completed``, ``failed``, … (a.7)"""
    job_id: str | None
    fields: Mapping[str, str]
    """Everything else it says, as it was written."""

    @classmethod
    def read(cls, entry: Sequence[Any]) -> Event:
        """From an entry of the stream."""
        flat = [text.decode(errors="replace") for text in entry[1]]
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        return cls(entry[0].decode(), fields.pop("event", ""), fields.pop("jobId", None), fields)

    @property
    def data(self) -> Any:
        """What a job said about its progress; the text ``data`` of any other event."""
        return self._value("data", decoded_in="progress")

    @property
    def progress(self) -> Any:
        """What a job said about its progress."""
        return self.data if self.name == "progress" else None

    @property
    def return_value(self) -> Any:
        """What a completed job returned; as text where it is not JSON."""
        return self._value("returnvalue", decoded_in="completed")

    @property
    def failed_reason(self) -> str | None:
        """Why a job failed."""
        return self.fields.get("failedReason")

    @property
    def prev(self) -> str | None:
        """The state the job came from."""
        return self.fields.get("prev")

    @property
    def delay(self) -> int | None:
        """When a delayed job is due (ms since 1970, for all that its name says)."""
        text = self.fields.get("delay")
        return int(float(text)) if text is not None else None

    def _value(self, field: str, decoded_in: str) -> Any:
        text = self.fields.get(field)
        return value_of(text) if self.name == decoded_in else text


def value_of(text: str | bytes | None) -> Any:
    """A value as JSON has it; text that is not JSON as it is."""
    if text is None:
        return None
    try:
        return codec.decode(text.encode() if isinstance(text, str) else text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return text if isinstance(text, str) else text.decode(errors="replace")
