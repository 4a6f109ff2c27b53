"""Pipelines: what belongs to one kind of aggregate, put together step by step.

Each step of the builder has a type of its own, so that a type checker knows what can follow; what it would
refuse is refused at run time as well, with what to do instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from toril.aggregate import check_aggregate_type
from toril.events.commands import CommandHandler
from toril.events.errors import ConfigurationError
from toril.events.handlers import EventHandler
from toril.events.projection import AnyProjection, event_type_set
from toril.events.stores import EventPublisher, ProjectionStore
from toril.events.upcasters import Upcasters
from toril.runtime.commands import CommandOptions
from toril.runtime.names import generation_name, split_generation
from toril.runtime.work import ANY_TYPE, HandlerWork, ProjectionWork, Retry, Work

if TYPE_CHECKING:
    from toril.runtime.sourcing import EventSourcing, RegisteredPipeline

Payload = TypeVar("Payload")


@dataclass(slots=True)
class Definition:
    """What a pipeline is made of."""

    name: str
    aggregate_type: str
    commands: dict[str, tuple[type[CommandHandler[Any]], CommandOptions | None]] = field(default_factory=dict)
    works: dict[str, Work] = field(default_factory=dict)
    publisher: EventPublisher | None = None
    upcasters: Upcasters | None = None


class PipelineBuilder:
    """The first step: a name."""

    def __init__(self, sourcing: EventSourcing) -> None:
        self._sourcing = sourcing

    def with_name(self, name: str) -> NamedPipelineBuilder:
        """What the pipeline is called: part of the names of its queues, readers and checkpoints."""
        return NamedPipelineBuilder(self._sourcing, check_name("pipeline name", name))

    if not TYPE_CHECKING:

        def __getattr__(self, step: str) -> NoReturn:
            _out_of_turn(step, "the pipeline has no name yet: .with_name(…) comes first")


class NamedPipelineBuilder:
    """The second step: the type of its aggregates."""

    def __init__(self, sourcing: EventSourcing, name: str) -> None:
        self._sourcing = sourcing
        self._name = name

    def with_aggregate_type(self, aggregate_type: str) -> TypedPipelineBuilder:
        """The type of the aggregates whose events it makes and processes."""
        return TypedPipelineBuilder(
            self._sourcing, Definition(self._name, check_aggregate_type(aggregate_type))
        )

    def with_any_aggregate_type(self) -> TypedPipelineBuilder:
        """It processes the events of all aggregates, whatever their type: an archive does."""
        return TypedPipelineBuilder(self._sourcing, Definition(self._name, ANY_TYPE))

    if not TYPE_CHECKING:

        def __getattr__(self, step: str) -> NoReturn:
            said = f"pipeline {self._name!r} has no aggregate type yet: .with_aggregate_type(…) comes next"
            _out_of_turn(step, said)


class TypedPipelineBuilder:
    """All further steps, in any order, and :meth:`build`."""

    def __init__(self, sourcing: EventSourcing, definition: Definition) -> None:
        self._sourcing = sourcing
        self._definition = definition
        self._depends_on: dict[str, tuple[str, ...]] = {}

    def with_command_handler(
        self, handler: type[CommandHandler[Any]], *, options: CommandOptions | None = None
    ) -> Self:
        """A command that makes events; it is ``pipeline.commands.<dispatcher_name>``."""
        if not (isinstance(handler, type) and issubclass(handler, CommandHandler)):
            raise ConfigurationError(f"{handler!r} must be a class that extends CommandHandler")
        name = handler.dispatcher_name
        if name in self._definition.commands:
            raise ConfigurationError(f"pipeline {self._definition.name!r} has two commands {name!r}")
        self._definition.commands[name] = (handler, options)
        return self

    def with_event_handler(
        self,
        name: str,
        handler: EventHandler[Any],
        *,
        event_types: Iterable[str] | None = None,
        depends_on: Iterable[str] = (),
        retry: Retry | None = None,
        concurrency: int = 32,
        start: str = "first",
    ) -> Self:
        """What is done in the world outside because of events.

        ``event_types``: those it is called for; by default, what the handler says. ``depends_on``: handlers
        and projections of this pipeline that must be done with an event before it comes here.
        """
        if not isinstance(handler, EventHandler):
            raise ConfigurationError(f"{handler!r} must be an instance of a class that extends EventHandler")
        types = handler.event_types if event_types is None else event_type_set(event_types)
        work = HandlerWork(
            pipeline=self._definition.name,
            name=name,
            aggregate_type=self._definition.aggregate_type,
            retry=retry or Retry(),
            concurrency=_check_concurrency(concurrency),
            start=_check_start(start, "first", "tail"),
            handler=handler,
            event_types=types,
        )
        return self._add(work, (*handler.depends_on, *depends_on))

    def with_projection(
        self,
        name: str,
        store: ProjectionStore | None,
        projection: AnyProjection | type[AnyProjection],
        *,
        depends_on: Iterable[str] = (),
        retry: Retry | None = None,
        generation: int = 1,
        start: str = "first",
    ) -> Self:
        """A state made of the events of each aggregate.

        ``store``: where states are kept; None: with the checkpoints, so that both change in one step.
        ``generation``: a later one is built beside the one that readers see, until they are switched to it.
        ``start``: with ``loaded`` it waits until its states were made elsewhere and loaded.
        """
        made = projection() if isinstance(projection, type) else projection
        if type(generation) is not int or generation < 1:
            raise ConfigurationError(f"generation {generation!r} must be a whole number from 1")
        work = ProjectionWork(
            pipeline=self._definition.name,
            name=generation_name(name, generation),
            aggregate_type=self._definition.aggregate_type,
            retry=retry or Retry(),
            start=_check_start(start, "first", "tail", "loaded"),
            projection=made,
            store=store,
        )
        return self._add(work, tuple(depends_on))

    def with_event_publisher(self, publisher: EventPublisher) -> Self:
        """Told of events when they are stored; that it cannot be told fails nothing."""
        if self._definition.publisher is not None:
            raise ConfigurationError(f"pipeline {self._definition.name!r} has a publisher already")
        self._definition.publisher = publisher
        return self

    def with_upcasters(self, upcasters: Upcasters) -> Self:
        """Bring events of older schemas into the form of today, wherever they are read."""
        self._definition.upcasters = upcasters
        return self

    def build(self) -> RegisteredPipeline:
        """The pipeline, registered."""
        definition = self._definition
        order = in_order(definition.name, self._depends_on)
        _check_rows(definition)
        awaited = {name for names in self._depends_on.values() for name in names}
        for name in order:
            work = definition.works[name]
            definition.works[name] = replace(
                work,
                depends_on=tuple(f"{definition.name}/{other}" for other in self._depends_on[name]),
                awaited=split_generation(name)[0] in awaited,
                upcasters=definition.upcasters,
            )
        definition.works = {name: definition.works[name] for name in order}
        return self._sourcing.register(definition)

    def _add(self, work: Work, depends_on: tuple[str, ...]) -> Self:
        check_name("processor name", work.name)
        if work.name in self._definition.works:
            raise ConfigurationError(f"pipeline {self._definition.name!r} has two processors {work.name!r}")
        self._definition.works[work.name] = work
        self._depends_on[work.name] = tuple(dict.fromkeys(depends_on))
        return self


def _check_rows(definition: Definition) -> None:
    """Refuse generations that workers would build from the log in the same rows."""
    works = [one for one in definition.works.values() if isinstance(one, ProjectionWork)]
    for one, other in combinations([one for one in works if one.start != "loaded"], 2):
        if split_generation(one.name)[0] == split_generation(other.name)[0] and one.shares_rows(other):
            raise ConfigurationError(
                f"{one.name!r} and {other.name!r} in pipeline {definition.name!r} are of version "
                f"{one.projection.version} of the projection, in the same store, and would change each "
                "other's states: give one of them another version of the projection, or another store"
            )


def in_order(pipeline: str, depends_on: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The names so that each comes after those it depends on; an unknown name or a circle is an error."""
    for name, others in depends_on.items():
        for other in others:
            if other not in depends_on:
                known = ", ".join(sorted(depends_on)) or "none"
                raise ConfigurationError(
                    f"{name!r} in pipeline {pipeline!r} depends on {other!r}, which it does not have; "
                    f"it has: {known}"
                )
    order: list[str] = []
    path: list[str] = []

    def visit(name: str) -> None:
        if name in order:
            return
        if name in path:
            circle = " → ".join([*path[path.index(name) :], name])
            raise ConfigurationError(f"processors of pipeline {pipeline!r} depend on each other: {circle}")
        path.append(name)
        for other in depends_on[name]:
            visit(other)
        path.pop()
        order.append(name)

    for name in depends_on:
        visit(name)
    return order


def check_name(what: str, name: object) -> str:
    """The name itself, or an error that states the rule."""
    good = isinstance(name, str) and 0 < len(name) <= 64
    if not good or not all(letter.isalnum() or letter in "_.-@" for letter in str(name)):
        raise ConfigurationError(f"{what} {name!r} must be 1 to 64 letters, digits, '_', '.', '-' and '@'")
    return str(name)


def _check_concurrency(concurrency: object) -> int:
    if type(concurrency) is not int or concurrency < 1:
        raise ConfigurationError(f"concurrency {concurrency!r} must be a whole number from 1")
    return concurrency


def _check_start(start: str, *known: str) -> str:
    if start not in known:
        raise ConfigurationError(f"start {start!r} must be one of: {', '.join(known)}")
    return start


def _out_of_turn(step: str, said: str) -> NoReturn:
    if step.startswith("__"):
        raise AttributeError(step)
    raise ConfigurationError(f".{step}(…): {said}")
