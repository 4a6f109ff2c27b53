"""The pipelines that a command is about: MODULE:NAME of an EventSourcing, or of pipelines of one."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

import click

from toril.cli.careful import Refused
from toril.cli.loading import load
from toril.connection.open import URL_VARIABLE
from toril.errors import InvalidValue
from toril.runtime import EventSourcing, RegisteredPipeline

RULE = "it names a module and an EventSourcing (or pipelines of one) in it, like shop.orders:sourcing"

module_argument = click.argument("module", metavar="MODULE:NAME")
processor_argument = click.argument("processor", metavar="PIPELINE/PROCESSOR")
tenant_argument = click.argument("tenant")


class Target(NamedTuple):
    """What a command is about, and how to answer."""

    sourcing: EventSourcing
    pipelines: tuple[str, ...]
    json: bool = False

    def chosen(self) -> list[RegisteredPipeline]:
        """The pipelines."""
        return [self.sourcing.pipelines[name] for name in self.pipelines]

    def find(self, processor: str) -> tuple[RegisteredPipeline, str]:
        """The pipeline and the name of a processor, said as ``pipeline/processor``."""
        pipeline, slash, name = processor.partition("/")
        known = [work.processor for one in self.chosen() for work in one.definition.works.values()]
        if not slash or processor not in known:
            raise InvalidValue("PIPELINE/PROCESSOR", processor, f"one of: {', '.join(known) or 'none'}")
        return self.sourcing.pipelines[pipeline], name


def load_pipelines(module: str) -> Target:
    """What MODULE:NAME names."""
    found = load("MODULE:NAME", module, RULE)
    if isinstance(found, EventSourcing):
        return Target(found, tuple(found.pipelines))
    made = [found] if isinstance(found, RegisteredPipeline) else found
    pipelines = list(made) if isinstance(made, Iterable) else []
    if not pipelines or not all(isinstance(one, RegisteredPipeline) for one in pipelines):
        raise InvalidValue("MODULE:NAME", module, RULE)
    sourcing = pipelines[0].sourcing
    if any(one.sourcing is not sourcing for one in pipelines):
        raise InvalidValue("MODULE:NAME", module, "its pipelines must belong to one EventSourcing")
    return Target(sourcing, tuple(one.name for one in pipelines))


def on_pipelines(work: Callable[..., Awaitable[None]]) -> Callable[..., Any]:
    """A command on pipelines: gives ``work`` a :class:`Target`, opened."""

    @click.option("--json", "json_", is_flag=True, help="Print JSON.")
    @click.option("--url", help="The server, for an EventSourcing that does not name one.")
    @functools.wraps(work)
    def run(module: str, url: str | None, json_: bool, **given: Any) -> None:
        if url:
            os.environ[URL_VARIABLE] = url
        target = load_pipelines(module)._replace(json=json_)
        if target.sourcing.in_memory:
            raise Refused("these pipelines live in memory://, in a process of their own: nobody can look in")

        async def opened() -> None:
            async with target.sourcing:
                await work(target, **given)

        asyncio.run(opened())

    return run
