"""The archive: every event of the log into the table ``events``, once; what is there may leave the log.

The archive is a named reader of the log. Its floor, up to which the log may be trimmed, is moved from what
the table ``events`` has recorded, and from nothing else: before each batch, after it, and at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from pyspark.sql import DataFrame

from toril.connection.open import environment_url
from toril.errors import InvalidValue
from toril.lake.erasures import ERASURES, erased_in, note_stretches
from toril.lake.errors import LakeError, SourceDiverged
from toril.lake.lake import Lake, Record, Told
from toril.lake.source import Door, Marks, between, read_log
from toril.lake.source.told import told
from toril.lake.steps import Step
from toril.lake.tables import EVENTS, Table
from toril.log import Log, LogDiverged, Position
from toril.log.entry import START
from toril.log.errors import GapFound, WrongPosition
from toril.log.layout import check_reader
from toril.log.store import PartitionStore

GROUP = "lake/archive"
"""The name under which the log knows the archive: ``Retention.archived_by(GROUP)``."""

MOST = 250_000
"""Events that one batch has at most."""

TRIES = 3
"""How often a batch is begun that leaves the log while it is read."""


class Floors:
    """The archive's floors in a log: where they stand, and moving them up."""

    def __init__(self, log: Log, group: str) -> None:
        self._log = log
        self._group = group

    async def standing(self) -> Marks:
        """Where they stand. A partition that is new to the archive gets one, at its first entry."""
        partitions = (await self._log.layout(anew=True)).partitions()
        states = await self._log.each(lambda store: store.register(self._group), partitions)
        return {
            str(one): (state.position.ordinal, state.position.id)
            for one, state in zip(partitions, states, strict=True)
        }

    async def move(self, positions: Mapping[str, tuple[int, str]]) -> None:
        """Move them up to what the table has; each is checked to be an entry of the log."""

        async def move(store: PartitionStore) -> None:
            wanted = Position(*positions[str(store.partition)])
            # Whoever reads the table may move them, so there is nobody to fence off.
            state = await store.register(self._group)
            if wanted.ordinal > state.position.ordinal:
                # Another process may have moved it further; and what the log has lost is found by `lost`.
                with suppress(WrongPosition):
                    await store.advance(self._group, state.fence, wanted)

        there = (await self._log.layout()).partitions()
        await self._log.each(move, [one for one in there if str(one) in positions])


async def lost(log: Log, positions: Mapping[str, tuple[int, str]]) -> dict[str, LakeError]:
    """The partitions of a log that do not go on where the table ``events`` is, and why."""
    found: dict[str, LakeError] = {}

    async def check(store: PartitionStore) -> None:
        at = Position(*positions[str(store.partition)])
        try:
            await store.check(at)
        except LogDiverged as problem:
            found[str(store.partition)] = SourceDiverged(
                f"partition {store.partition}: the table events has it up to {at}, and the log goes on "
                f"without that entry; a failover has lost it ({problem}). The partition is left alone "
                f"until `toril lake rewind {store.partition}` takes the lake back to what both have"
            )
            return
        trimmed = (await store.look()).trimmed
        if at.ordinal < trimmed:
            found[str(store.partition)] = LakeError(
                f"partition {store.partition}: entries {at.ordinal + 1:,} to {trimmed:,} were trimmed "
                "before they were in the table events. The partition is left alone"
            )

    there = (await log.layout()).partitions()
    await log.each(check, [one for one in there if str(one) in positions])
    if found:  # an epoch that was read to its end may have been removed meanwhile
        there = (await log.layout(anew=True)).partitions()
    return {str(one): found[str(one)] for one in there if str(one) in found}


class EventsStep(Step):
    """Feeds ``events`` from the log.

    ``url`` and ``log`` say which log, ``group`` the archive's name there, ``most`` how many events a batch
    has at most. With ``until`` (positions, see :func:`toril.lake.source.tails`) it goes no further.
    """

    table = EVENTS
    most: int

    def __init__(
        self,
        url: str | None = None,
        log: str = "log",
        *,
        group: str = GROUP,
        most: int = MOST,
        until: Mapping[str, tuple[int, str]] | None = None,
    ) -> None:
        if most < 1:
            raise InvalidValue("most", most, "at least 1 event")
        # Workers on other machines do not have the variable.
        self.url = url or environment_url()
        self.log = log
        self.group = check_reader(group)
        self.most = most
        self.until = until
        self._door: Door | None = None
        self._identity = ""
        self._is_known = False
        """Whether the log was last found to be archived by this lake: else its floors are another's."""
        self._missing = 0
        self._seen: Marks | None = None
        """How far the table was when it was last looked at. It only saves a look."""

    @property
    def reads(self) -> Table | None:
        """No table: it reads the log."""
        return None

    @property
    def tables(self) -> tuple[Table, ...]:
        """Where it writes: what was erased is noted."""
        return (EVENTS, ERASURES)

    @property
    def missing(self) -> int:
        """Events that were trimmed before there was an archive; not said any more when that has begun."""
        return self._missing

    def prepare(self, lake: Lake) -> None:
        """Make the table, be known to the log, and let it go what the table has."""
        super().prepare(lake)
        # After that: whoever has opened the log is known to it when it is closed.
        if self._door is None:
            door = Door(self.url, self.log)
            self._door = door.__enter__()
        self._identity = lake.identity(EVENTS)
        self._begin(lake)

    def close(self, lake: Lake) -> None:
        """Let the log go what the table has, and leave it."""
        door, self._door = self._door, None
        if door is None:
            return
        try:
            if self._is_known and self._has_name(door):
                standing = door.do(self._floors(door).standing())
                self._follow(lake, door, lake.wrote(EVENTS), standing)
        finally:
            door.close()

    def once(self, lake: Lake, run: str = "") -> Record | None:
        """One batch of the log; None where the table has all there is, or all up to ``until``."""
        door = self._opened()
        left = TRIES
        while True:
            tails = self._sound(self.until if self.until is not None else door.tails())
            if self._seen is not None and _are_same(self._seen, tails):
                return None
            have, after = self._begin(lake)
            after = self._sound(after)
            # Another process may have archived more than there was when the log was looked at.
            tails = {name: max(place, after.get(name, START)) for name, place in self._sound(tails).items()}
            try:
                upto = door.next_batch(after, self.most, tails)
                if between(after, upto) == 0:
                    return None
                began = {name: at[0] for name, at in after.items() if at[0]}
                record = Record(
                    batch=have.batch + 1,
                    positions={**have.positions, **{name: at for name, at in upto.items() if at[0]}},
                    # By its places: an erasure may have taken a number before anything was archived.
                    began=have.began if have.positions else began,
                    run=run,
                )
                self.write(lake, read_log(lake.spark, self.url, self.log, after, upto), record)
            except Exception as problem:
                # What was to be read is gone: a failover has lost it, or another process has archived it and
                # the log has let it go. All is looked at again.
                gone, left = told(problem), left - 1
                if not left or not isinstance(gone, (SourceDiverged, GapFound)):
                    raise
                if self.until is not None and isinstance(gone, SourceDiverged):
                    self.until = door.tails()
                continue
            wrote = lake.wrote(EVENTS)  # which another process may have written
            self._follow(lake, door, wrote, after)
            return wrote.record

    def write(self, lake: Lake, rows: DataFrame, record: Record) -> None:
        """Append them."""
        lake.append(rows, EVENTS, record)

    def _opened(self) -> Door:
        if self._door is None:
            raise InvalidValue("step", self.table.name, "it must be prepared first")
        return self._door

    def _floors(self, door: Door) -> Floors:
        return Floors(door.log, self.group)

    def _sound(self, positions: Mapping[str, tuple[int, str]]) -> Marks:
        """Those of partitions that are not left alone."""
        return {name: place for name, place in positions.items() if name not in self.stopped}

    def _begin(self, lake: Lake) -> tuple[Record, Marks]:
        """What the table has recorded, and from where the log is read on."""
        door = self._opened()
        floors = self._floors(door)
        self._is_known = False
        if door.do(door.log.kept_in(self.group)) is None:
            # Before it is made known there: what is another's is not changed.
            self._refuse_another_log(lake, lake.last(EVENTS).positions)
        # In this order: what another process archives in between moves the table past its floors, not before.
        standing = door.do(floors.standing())
        wrote = lake.wrote(EVENTS)
        have = wrote.record
        after: Marks = dict(have.positions)
        for name, (ordinal, entry_id) in standing.items():
            if entry_id == START.id:  # it was never moved
                # What was removed before there was an archive is none of its; what was removed since, is.
                after.setdefault(name, START if have.positions else (ordinal, entry_id))
            elif ordinal > after.get(name, START)[0]:
                has = after.get(name, START)[0]
                raise LakeError(
                    f"partition {name} of log {self.log!r} was archived as {self.group!r} up to entry "
                    f"{ordinal:,}, and {lake.place(EVENTS)} has it up to {has:,}: it was another lake, or "
                    f"this one was put back. {self._ways_on()}"
                )
        # After that: a lake that cannot be it does not get the name.
        if door.do(door.log.keep_in(self.group, self._identity)) != self._identity:
            raise LakeError(
                f"log {self.log!r} is archived as {self.group!r}, and not in {lake.place(EVENTS)}: it was "
                f"another lake. {self._ways_on()}"
            )
        gone = door.do(lost(door.log, self._sound(after)))
        if gone and lake.last(EVENTS).batch != have.batch:
            # Another process has archived that meanwhile, and the log has let it go.
            return self._begin(lake)
        if len(gone) > 1:  # of one alone, a failover has taken it
            self._refuse_another_log(lake, after)
        self.stopped.update(gone)
        self._missing = 0 if have.positions else sum(ordinal for ordinal, _ in after.values())
        self._is_known = True
        self._follow(lake, door, wrote, standing)
        return have, after

    def _refuse_another_log(self, lake: Lake, positions: Mapping[str, tuple[int, str]]) -> None:
        """Raise where the log has no entry of what was archived, in whichever of its partitions."""
        door = self._opened()
        there = door.tails()
        begun = {name: at for name, at in positions.items() if at[0] and name in there}
        gone = door.do(lost(door.log, begun))
        if gone and len(gone) == len(begun) and all(isinstance(one, SourceDiverged) for one in gone.values()):
            raise SourceDiverged(
                f"log {self.log!r} has nothing of what {lake.place(EVENTS)} was archived from: "
                "it is another log"
            )

    def _has_name(self, door: Door) -> bool:
        """Whether the log still has this lake under the archive's name: it may have been retired since."""
        return door.do(door.log.kept_in(self.group)) == self._identity

    def _ways_on(self) -> str:
        return (
            "Name that one, or another group. Where it is gone for good, `toril log retire "
            f"{self.log} {self.group}` lets this one begin with what the log still has"
        )

    def _follow(self, lake: Lake, door: Door, wrote: Told, after: Marks) -> None:
        """Let the log go what the table has after some positions; what was erased of it is noted first."""
        upto = self._sound(wrote.record.positions)
        # As many rows as places of all that it has: the usual case, and there is nothing to look for.
        if self.stopped or between(after, upto) not in (0, wrote.rows):
            note_stretches(lake, door.do(erased_in(door.log, after, upto)))
        if self._has_name(door):
            door.do(self._floors(door).move(upto))
        self._seen = dict(wrote.record.positions)


def _are_same(seen: Mapping[str, tuple[int, str]], tails: Mapping[str, tuple[int, str]]) -> bool:
    """Whether the log ends where the table does; one that ends before it has lost something."""
    for name, (last, last_id) in tails.items():
        done, done_id = seen.get(name, START)
        # Of a partition that was trimmed to its end, only the ordinal is known.
        if done != last or (last_id != done_id and START.id not in (last_id, done_id)):
            return False
    return True
