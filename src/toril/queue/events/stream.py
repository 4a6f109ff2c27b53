"""Places in a queue's stream of events: how far a reader is, and what it has missed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from toril.connection import CommandRefused
from toril.queue.events.event import MISSED, Event
from toril.queue.store import QueueStore

log = logging.getLogger("toril.queue")

Place = tuple[int, int]
"""The id of an entry: its millisecond, and its number there."""

START: Place = (0, 0)


def parse_place(text: str) -> Place:
    """The place that an id names."""
    time, _, sequence = text.partition("-")
    return int(time), int(sequence or 0)


def place_text(place: Place) -> str:
    """The id of a place."""
    return f"{place[0]}-{place[1]}"


class Stream(NamedTuple):
    """A stream as it was at one moment."""

    first: Place | None
    last: Place
    """The id that was given last, also when that entry is trimmed away."""
    length: int
    added: int
    """How many entries were ever added."""

    @property
    def trimmed(self) -> int:
        """How many entries came before the first one that is there."""
        return self.added - self.length

    @classmethod
    async def look(cls, store: QueueStore) -> Stream:
        """A queue's events, now."""
        try:
            flat = await store.redis.command("XINFO", "STREAM", store.keys.events, repeatable=True)
        except CommandRefused as problem:
            if "no such key" not in str(problem):
                raise
            return cls(None, START, 0, 0)
        said = dict(zip(flat[::2], flat[1::2], strict=True))
        entry = said[b"first-entry"]
        first = parse_place(entry[0].decode()) if entry else None
        last = parse_place(said[b"last-generated-id"].decode())
        return cls(first, last, said[b"length"], said[b"entries-added"])


@dataclass(slots=True)
class Cursor:
    """How far a reader is."""

    place: Place
    count: int | None = None
    """How many entries were added up to there; None where nobody knows."""
    seen: Stream | None = None
    """The stream as it was last seen."""

    def take(self, entries: Sequence[Any], stream: Stream, queue: str) -> list[Event]:
        """Go past entries that were read just before ``stream`` was seen; their events.

        What was lost before (or already after) them is logged, and is an event.
        """
        before = self.place
        events = [Event.read(entry) for entry in entries]
        old, self.seen = self.seen or stream, stream
        # A stream that was trimmed stays so, and the first entry of any other remains the first.
        made_anew = not stream.trimmed and (old.trimmed > 0 or old.first not in (None, stream.first))
        if made_anew and (stream.first is None or stream.first <= before):
            # Its ids have begun again below ours: all of it is new, and what was read of it comes again.
            events = events if stream.first is None else []
            self.place, self.count, lost = START, 0, None
        else:
            lost = self._pass([parse_place(event.id) for event in events], stream)
        if lost == 0:
            return events
        what = "events may have gone unseen: its stream was trimmed, deleted or set back"
        if lost is not None:
            what = f"{lost} events were trimmed from its stream before they were read"
        log.warning("queue %s: after event %s, %s", queue, place_text(before), what)
        fields = {} if lost is None else {"count": str(lost)}
        return [Event(place_text(before), MISSED, None, fields), *events]

    def _pass(self, read: Sequence[Place], stream: Stream) -> int | None:
        """How many entries were lost; None: perhaps some."""
        before, known = self.place, None if self.count is None else self.count + len(read)
        self.place = read[-1] if read else before
        if stream.last < self.place:  # a failover has taken its end away
            self.place, self.count = stream.last, stream.added
            return None
        if stream.first is not None and stream.first <= before:
            # Trimming begins at the front, so nothing is lost behind an entry that is there.
            self.count = stream.added if self.place == stream.last else known
            return 0
        gone = sum(1 for each in read if stream.first is None or each < stream.first)
        self.count = stream.trimmed + len(read) - gone
        if stream.first is None:
            self.place = stream.last
        if known is None or self.count < known:  # the latter is another stream, made since
            return None if stream.trimmed or known else 0
        return self.count - known
