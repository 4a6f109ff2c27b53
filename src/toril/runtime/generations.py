"""Generations of a projection: made anew elsewhere, loaded beside the one that readers see, then seen.

1. :meth:`Generations.reserve` keeps a place in the log at a cut. Whoever makes the states reads up to there.
2. :meth:`Generations.load` brings the states. Then workers go on from the cut, beside the old generation.
3. :meth:`Generations.switch` lets readers see it: one write. Taking it back is another one.
4. :meth:`Generations.retire` removes the one that nobody sees any more.

Each step can be cut off anywhere and run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from toril.errors import InvalidValue
from toril.events.errors import ConfigurationError, StateUnreadable
from toril.events.projection import ProjectionState
from toril.log.entry import START, Positions
from toril.runtime.backend import (
    Arrived,
    Backend,
    Generation,
    GenerationError,
    Rebuilt,
    seen_generation,
)
from toril.runtime.names import generation_name, split_generation
from toril.runtime.pipeline import Definition
from toril.runtime.program import Program
from toril.runtime.work import ProjectionWork

AT_ONCE = 2000
"""States that are brought in one go."""

BYTES_AT_ONCE = 16 * 1024 * 1024
"""Bytes of states, and of events that wait, that are brought in one go; passed by one aggregate at most."""

WITHIN = 1000
"""Events, over all partitions, that a generation may be behind where readers are switched to it."""

LEVEL_WITHIN = 5.0
"""Seconds that a switch waits for the last few events; then it is done all the same."""

LOOK_EVERY = 0.01
"""Seconds between two looks at them."""

State = Literal["loading", "catching up", "ready", "current", "retiring", "retired"]


class GenerationBehind(GenerationError):
    """A generation is more events behind than was allowed; nothing was changed."""

    retryable = True


@dataclass(frozen=True, slots=True)
class GenerationStanding:
    """How a generation stands."""

    projection: str
    """Its name in the pipeline."""
    number: int
    state: State
    version: int
    """The version of the projection it is made by; 0: nobody said."""
    known: bool
    """Whether this program has that version of the projection, and can read and run it."""
    cut: Positions
    """Up to where in the log its states were made elsewhere; empty where they were not."""
    positions: Positions
    """Up to where in the log its processor is."""
    behind: int
    """Events from there to the end of the log."""
    failed: int
    """Aggregates with an event that waits for a person's decision."""
    reserved_at: int
    """When its place was taken (ms); 0: it was not loaded."""
    loaded_at: int
    """When its states had all come (ms)."""

    @property
    def name(self) -> str:
        """The name of its processor in the pipeline."""
        return generation_name(self.projection, self.number)


@dataclass(slots=True)
class Loaded:
    """What a load has done so far."""

    placed: int = 0
    """States that came."""
    there: int = 0
    """States that had come before, in a run that was cut off."""
    gone: int = 0
    """States left out, as their tenant was erased since they were made."""

    def count(self, arrived: Iterable[Arrived]) -> None:
        """Add what became of some."""
        for each in arrived:
            setattr(self, each, getattr(self, each) + 1)


@dataclass(slots=True)
class Learnt:
    """What a program has found out about generations."""

    added: set[str] = field(default_factory=set)
    """Processors that were not in the program: it has the class, and their number is from the log."""
    retired: set[str] = field(default_factory=set)


class Generations:
    """See the module's text. Of the projections of one pipeline; ``name`` is always the projection's."""

    def __init__(self, definition: Definition, backend: Backend) -> None:
        self.program = Program(definition)
        """The pipeline whose projections these are of, as this program has it."""
        self._backend = backend
        self._store = backend.generations
        self._learnt = Learnt()

    # ------------------------------------------------------------------ what there is

    async def standings(self, name: str | None = None) -> list[GenerationStanding]:
        """How the generations of a projection, or of all of the pipeline, stand; the oldest first."""
        names = [self.program.checked(name)] if name is not None else self.program.projections()
        seen, known = await self._store.all()
        found = []
        for each in names:
            projection = self.program.full(each)
            numbers = {number for of, number in known if of == projection}
            numbers |= {number for of, number in map(split_generation, self.program.works()) if of == each}
            current = seen_generation(projection, seen, known)
            for number in sorted({*numbers, current} - {0}):
                made = known.get((projection, number), Generation())
                found.append(await self._standing(each, number, made, current == number, WITHIN))
        return found

    async def _standing(
        self, name: str, number: int, made: Generation, current: bool, within: int
    ) -> GenerationStanding:
        processor = self.program.full(generation_name(name, number))
        positions: Positions = {}
        behind = failed = 0
        if made.stage in ("reserved", "retired", "retiring"):
            positions = made.positions if made.stage == "reserved" else {}
        if made.stage in ("reserved", "loaded"):
            for partition in await self._backend.partitions():
                at = positions.get(partition, START)
                if made.stage == "loaded":
                    at = (await self._backend.positions(partition, [processor]))[0] or START
                    positions[partition] = at
                    troubles = await self._backend.troubles(processor, partition)
                    failed += sum(one.status == "failed" for one in troubles.values())
                behind += await self._backend.tail(partition) - at.ordinal
        state: State
        match made.stage:
            case "reserved":
                state = "loading"
            case "loaded":
                state = "current" if current else "ready" if behind <= within else "catching up"
            case stage:
                state = stage
        work = self.program.work(name, number, made)
        return GenerationStanding(
            projection=name,
            number=number,
            state=state,
            version=made.version or (0 if work is None else work.projection.version),
            known=work is not None,
            cut=made.positions,
            positions=positions,
            behind=behind,
            failed=failed,
            reserved_at=made.reserved_at,
            loaded_at=made.loaded_at,
        )

    # ------------------------------------------------------------------ loading

    async def reserve(
        self,
        name: str,
        number: int | None = None,
        *,
        cut: Positions | None = None,
        version: int | None = None,
    ) -> GenerationStanding:
        """Keep a place in the log for a generation whose states will be made elsewhere, and say where.

        From now on nothing after the cut is trimmed. ``number``: by default the next one; of a projection
        that is new and starts ``loaded``, the first. ``cut``: up to where the states are made, by default up
        to where the log is now. ``version``: of the projection that makes them, by default the latest that
        this program has. With a number that is being loaded already, it goes on with that one: the cut must
        be the same, or not be given. Refused where its states would be in the rows of another generation:
        of the same version, in the same store of their own.
        """
        projection = self.program.full(self.program.checked(name))
        _, known = await self._store.all()
        if number is None:
            number = self.program.following(name, known)
        _check_number(number)
        first = self.program.works().get(name)
        if number == 1 and first is not None and first.start != "loaded":
            raise GenerationError(
                f"generation 1 of {name!r} is built from the log by workers; the next one is "
                f"{self.program.following(name, known)}"
            )
        if version is None:
            version = max(work.projection.version for work in self.program.versions(name))
        self._refuse_shared_rows(name, number, version, known)
        there = known.get((projection, number))
        if there is None:
            made = Generation(
                stage="reserved",
                version=version,
                cut={} if cut is None else _plain(cut),
                came=False,
                reserved_at=await self._backend.now(),
            )
            there = await self._store.begin(projection, number, made)
        if there.stage != "reserved":
            raise GenerationError(
                f"generation {number} of {name!r} is {_said(there)} already; the next one is "
                f"{self.program.following(name, known)}"
            )
        if cut is not None and there.cut and there.cut != _plain(cut):
            raise GenerationError(f"generation {number} of {name!r} is being loaded, with another cut")
        if there.version != version:
            raise GenerationError(
                f"generation {number} of {name!r} is being loaded, made by version {there.version} of the "
                f"projection, not {version}"
            )
        if not there.kept:
            there = await self._keep(name, number, there)
        return await self._standing(name, number, there, False, WITHIN)

    async def _keep(self, name: str, number: int, made: Generation) -> Generation:
        """Keep the place of a generation that has none yet; where that cannot be, nobody has asked."""
        projection, processor = self.program.full(name), self.program.full(generation_name(name, number))
        try:
            if not made.cut:
                await self._store.hold(processor)
                made = msgspec.structs.replace(made, cut=_plain(await self._store.tails()))
                await self._note(name, number, made)
            await self._store.reserve(processor, made.positions)
        except GenerationError:
            await self._store.release(processor)
            await self._store.note(projection, number, None)
            raise
        made = msgspec.structs.replace(made, kept=True)
        await self._note(name, number, made)
        return made

    async def _note(self, name: str, number: int, made: Generation) -> None:
        """What is known from now on; one that was given up meanwhile has no place in the log."""
        projection, processor = self.program.full(name), self.program.full(generation_name(name, number))
        if await self._store.note(projection, number, made):
            await self._backend.retire(processor)
            await self._store.release(processor)
            raise GenerationError(f"generation {number} of {name!r} was retired meanwhile")

    async def place(self, name: str, number: int, batch: Sequence[Rebuilt]) -> Loaded:
        """Bring some states, without saying that these are all: several processes may at the same time."""
        made = await self._loading(name, number)
        done = Loaded()
        if made.stage == "reserved":
            await self._place(name, number, made, batch, done)
        return done

    async def finish(self, name: str, number: int) -> None:
        """All states have come: let workers go on from the cut."""
        made = await self._loading(name, number)
        processor = self.program.full(generation_name(name, number))
        if made.stage == "reserved":
            try:
                await self._store.enlist(processor)
            except GenerationError:
                if (await self._loading(name, number)).stage == "loaded":
                    return  # somebody else was quicker
                raise
            now = await self._backend.now()
            await self._note(
                name, number, msgspec.structs.replace(made, stage="loaded", came=True, loaded_at=now)
            )
        await self._store.release(processor)

    async def load(
        self,
        name: str,
        number: int,
        states: Iterable[Rebuilt] | AsyncIterable[Rebuilt],
        *,
        progress: Callable[[Loaded], None] | None = None,
    ) -> Loaded:
        """Bring all states, in small steps, then let workers go on from the cut.

        Where it was cut off, run it again with the same states: those that came stay. ``progress`` is told
        how far it is after each step.
        """
        made = await self._loading(name, number)
        done = Loaded()
        if made.stage == "reserved":
            async for batch in _batches(states):
                await self._place(name, number, made, batch, done)
                if progress is not None:
                    progress(done)
        await self.finish(name, number)
        return done

    async def _place(
        self, name: str, number: int, made: Generation, batch: Sequence[Rebuilt], done: Loaded
    ) -> None:
        processor = self.program.full(generation_name(name, number))
        work = self.program.work(name, number, made)
        own = work is not None and work.store is not None
        if work is None and any(one.store is not None for one in self.program.versions(name)):
            raise self.program.unknown(name, number, made)
        if work is not None and batch and batch[0].state:
            try:
                work.projection.decode(batch[0].state)
            except StateUnreadable as problem:
                raise GenerationError(f"the states of generation {number} of {name!r}: {problem}") from None
        brought = [replace(one, state=b"") for one in batch] if own else batch
        arrived = await self._store.place(processor, brought)
        if own and work is not None:
            for one, its in zip(batch, arrived, strict=True):
                if its != "gone" and one.state:
                    at = ProjectionState(work.projection.decode(one.state), one.version)
                    await work.save(one.aggregate.key, at)
        done.count(its for one, its in zip(batch, arrived, strict=True) if not one.after)

    async def _loading(self, name: str, number: int) -> Generation:
        _, known = await self._store.all()
        made = known.get((self.program.full(self.program.checked(name)), number))
        if made is None or (made.stage == "reserved" and not made.kept):
            raise GenerationError(
                f"generation {number} of {name!r} has no place in the log: reserve one first"
            )
        if made.stage not in ("reserved", "loaded"):
            raise GenerationError(f"generation {number} of {name!r} is {_said(made)}")
        self._refuse_shared_rows(name, number, made.version, known)
        return made

    def _refuse_shared_rows(
        self, name: str, number: int, version: int, known: Mapping[tuple[str, int], Generation]
    ) -> None:
        """Refuse a generation that would go on from the states of another one, and change them."""
        work = self.program.work(name, number, Generation(version=version))
        if work is None or work.store is None:
            return
        begun = {
            split_generation(one.name)[1] for one in self.program.versions(name) if one.start != "loaded"
        }
        for other in sorted((begun | {n for of, n in known if of == self.program.full(name)}) - {number}):
            made = known.get((self.program.full(name), other), Generation())
            its = self.program.work(name, other, made)
            has_rows = made.came or made.stage != "retired"
            if has_rows and its is not None and work.shares_rows(its):
                raise GenerationError(
                    f"the states of generation {number} of {name!r} would be in the rows of generation "
                    f"{other}: both are of version {work.projection.version} of the projection, in the same "
                    "store; make it by another version of the projection, or give it another store"
                )

    # ------------------------------------------------------------------ readers

    async def ready(self, name: str, number: int, *, within: int = WITHIN) -> GenerationStanding:
        """How a generation stands; its state is ``ready`` where it is so few events behind at most."""
        seen, known = await self._store.all()
        projection = self.program.full(self.program.checked(name))
        made = known.get((projection, number), Generation())
        current = seen_generation(projection, seen, known)
        return await self._standing(name, number, made, current == number, within)

    async def before(self, name: str) -> tuple[int, ...]:
        """Which generations readers saw before the one they see, each once, the last one last."""
        return await self._store.before(self.program.full(self.program.checked(name)))

    async def switch(
        self, name: str, number: int, *, within: int = WITHIN, force: bool = False, back: bool = False
    ) -> int:
        """Let all readers see a generation, in one write; says which one they saw before, 0 where none.

        Refused (:class:`GenerationBehind`) while it is more events behind than ``within``; else the last few
        are waited for, see :meth:`draw_level`. Forced, it is done at once, however far it is. Refused always
        where it is being loaded, or is retired, or was never begun. ``back``: go back to the one that they
        saw before, see :meth:`before`; refused where that was another one.
        """
        projection = self.program.full(self.program.checked(name))
        seen, known = await self._store.all()
        before = seen_generation(projection, seen, known)
        if (projection, number) not in known:
            declared = self.program.works().get(generation_name(name, number))
            if declared is None:
                raise GenerationError(f"there is no generation {number} of {name!r}")
            if declared.start == "loaded":
                raise GenerationError(f"generation {number} of {name!r} was never loaded")
        standing = await self.ready(name, number, within=within)
        if standing.state == "catching up" and not force:
            raise GenerationBehind(
                f"generation {number} of {name!r} is {standing.behind} events behind; {within} are allowed"
            )
        if not force and standing.state == "ready":
            await self.draw_level(name, number)
        stage = await self._store.see(projection, number, back=back)
        if stage == "other":
            raise GenerationError(
                f"readers see generation {before} of {name!r}, and {number} is not what they saw before it"
            )
        if stage:
            raise GenerationError(
                f"generation {number} of {name!r} is {_STAGES[stage]}: readers see {before or 'none'}"
            )
        return before

    async def draw_level(self, name: str, number: int) -> bool:
        """Wait a moment until a generation is where the one is that readers see; says whether it is.

        Then what they saw in the one is in the other, but for what came during the last round trip. One that
        no worker runs is not waited for.
        """
        before = await self._store.current(self.program.full(self.program.checked(name)))
        if not before:
            return True
        seen, own = (self.program.full(generation_name(name, each)) for each in (before, number))
        partitions = await self._backend.partitions()

        async def behind() -> bool:
            places = await asyncio.gather(
                *(self._backend.positions(each, [seen, own]) for each in partitions)
            )
            return any(at is not None and (its is None or its.ordinal < at.ordinal) for at, its in places)

        with suppress(TimeoutError):
            async with asyncio.timeout(LEVEL_WITHIN):
                while await behind():
                    owners = await asyncio.gather(*(self._backend.owner(own, each) for each in partitions))
                    if not any(owners):
                        return False
                    await asyncio.sleep(LOOK_EVERY)
                return True
        return False

    async def retire(self, name: str, number: int, *, progress: Callable[[int], None] | None = None) -> int:
        """Remove a generation that readers do not see: its place in the log, its states, what it has parked.

        Says how many aggregates had a state of it; ``progress`` is told so as it goes. One that is being
        loaded is given up. Where it was cut off, run it again. Its number is not used again.
        """
        projection = self.program.full(self.program.checked(name))
        _, known = await self._store.all()
        made = known.get((projection, number))
        if made is None:
            declared = self.program.works().get(generation_name(name, number))
            if declared is None:
                raise GenerationError(f"there is no generation {number} of {name!r}")
            made = Generation(version=declared.projection.version)
        came = made.came
        # Where this is cut off, the next run cannot tell any more.
        made = msgspec.structs.replace(made, stage="retiring", came=True)
        if await self._store.dismiss(projection, number, made):
            raise GenerationError(f"readers see generation {number} of {name!r}: switch to another one first")
        cleared = await self._store.clear(self.program.full(generation_name(name, number)), progress)
        gone = msgspec.structs.replace(made, stage="retired", cut={}, came=came or cleared > 0)
        await self._store.note(projection, number, gone)
        return cleared

    # ------------------------------------------------------------------ what this program can run

    async def learn(self) -> Learnt:
        """Find out which generations there are, so that this program can run and read them too."""
        _, known = await self._store.all()
        for (projection, number), made in known.items():
            pipeline, _, name = projection.partition("/")
            if pipeline != self.program.definition.name or name not in self.program.projections():
                continue
            own = generation_name(name, number)
            processor = self.program.full(own)
            if made.stage == "loaded" and own not in self.program.definition.works:
                work = self.program.work(name, number, made)
                if work is not None:
                    self.program.definition.works[own] = work
                    self._learnt.added.add(processor)
            elif made.stage in ("retiring", "retired"):
                self._learnt.retired.add(processor)
                if processor in self._learnt.added:
                    self.program.definition.works.pop(own, None)
        return self._learnt

    async def reading(self, name: str) -> ProjectionWork:
        """What the generation that readers see is read by; an error where they see none yet."""
        found = await self.seen(name)
        if found is None:
            raise ConfigurationError(f"readers see no generation of {name!r} yet: it was not promoted")
        return found

    async def seen(self, name: str) -> ProjectionWork | None:
        """The same; None where they see none yet. The pointer is followed once."""
        projection = self.program.full(name)
        number = await self._store.current(projection)
        if not number:
            return None
        own = generation_name(name, number)
        if own not in self.program.works():
            await self.learn()
        work = self.program.works().get(own)
        if work is None:
            _, known = await self._store.all()
            raise self.program.unknown(
                name, number, known.get((self.program.full(name), number), Generation())
            )
        return work


async def _batches(states: Iterable[Rebuilt] | AsyncIterable[Rebuilt]) -> AsyncIterator[list[Rebuilt]]:
    batch: list[Rebuilt] = []
    size = 0
    async for one in _each(states):
        if one.after and batch:  # no batch has an aggregate twice
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += len(one.state) + sum(len(body) for _, _, body in one.waiting)
        if len(batch) >= AT_ONCE or size >= BYTES_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def _each(states: Iterable[Rebuilt] | AsyncIterable[Rebuilt]) -> AsyncIterator[Rebuilt]:
    if isinstance(states, AsyncIterable):
        async for one in states:
            yield one
    else:
        for one in states:
            yield one


def _plain(cut: Positions) -> dict[str, tuple[int, str]]:
    return {str(partition): (at.ordinal, at.id) for partition, at in sorted(cut.items())}


_STAGES = {
    "reserved": "being loaded",
    "loaded": "loaded",
    "retiring": "being retired",
    "retired": "retired",
}


def _said(made: Generation) -> str:
    return _STAGES[made.stage]


def _check_number(number: object) -> None:
    if type(number) is not int or number < 1:
        raise InvalidValue("generation", number, "a whole number from 1")
