"""What a program has of the projections of a pipeline: which class makes, runs and reads a generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from toril.events.errors import ConfigurationError
from toril.runtime.backend import Generation
from toril.runtime.names import generation_name, split_generation
from toril.runtime.pipeline import Definition
from toril.runtime.work import ProjectionWork


@dataclass(frozen=True, slots=True)
class Program:
    """A pipeline as this program has it; ``name`` is always a projection's."""

    definition: Definition

    def works(self) -> dict[str, ProjectionWork]:
        """What runs the generations that it knows, by their names."""
        works = self.definition.works
        return {name: work for name, work in works.items() if isinstance(work, ProjectionWork)}

    def projections(self) -> list[str]:
        """The names of its projections."""
        return list(dict.fromkeys(split_generation(name)[0] for name in self.works()))

    def versions(self, name: str) -> list[ProjectionWork]:
        """What it has of a projection, the first generation first."""
        return [work for own, work in self.works().items() if split_generation(own)[0] == name]

    def work(self, name: str, number: int, made: Generation | None = None) -> ProjectionWork | None:
        """What runs a generation: declared under its number, or by the class of its version."""
        declared = self.works().get(generation_name(name, number))
        if declared is not None:
            return declared
        if made is not None:
            for work in self.versions(name):
                if work.projection.version == made.version:
                    return replace(work, name=generation_name(name, number), start="loaded")
        return None

    def following(self, name: str, known: Mapping[tuple[str, int], Generation]) -> int:
        """The number of the next generation, where these are known."""
        projection, first = self.full(name), self.works().get(name)
        if first is not None and first.start == "loaded" and (projection, 1) not in known:
            return 1
        numbers = [number for of, number in known if of == projection]
        return max([1, *numbers]) + 1

    def full(self, name: str) -> str:
        """What a projection, or a generation of it, is called among all pipelines."""
        return f"{self.definition.name}/{name}"

    def checked(self, name: str) -> str:
        """The name of a projection; an error where it has none that is called so."""
        if name not in self.projections():
            known = ", ".join(self.projections()) or "none"
            raise ConfigurationError(
                f"pipeline {self.definition.name!r} has no projection {name!r}; it has: {known}"
            )
        return name

    def unknown(self, name: str, number: int, made: Generation) -> ConfigurationError:
        """The error of a generation that it cannot run."""
        has = ", ".join(sorted({str(work.projection.version) for work in self.versions(name)}))
        return ConfigurationError(
            f"generation {number} of {name!r} is made by version {made.version or 'unknown'} of the "
            f"projection, and this program has: {has}"
        )
