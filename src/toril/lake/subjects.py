"""What a replay is of: a projection as a pipeline has it, and which code that is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import msgspec

import toril
from toril.errors import InvalidValue
from toril.events.declared import DeclaredProjection
from toril.events.event import AnyEvent, restore_event
from toril.events.projection import AnyProjection
from toril.events.upcasters import Upcasters
from toril.lake.codes import text_of
from toril.pipelines.spans.summary import SPAN_AGGREGATE, TraceSummary
from toril.runtime.names import NEXT, generation_name, split_generation
from toril.runtime.pipeline import Definition
from toril.runtime.work import ANY_TYPE, ProjectionWork


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A projection, whose events it is made of, and where its states live."""

    pipeline: str
    name: str
    """Its own name, without a generation."""
    projection: AnyProjection
    aggregate_type: str = ANY_TYPE
    upcasters: Upcasters | None = None
    others_upcast: bool = False
    """Whether another pipeline of such aggregates has upcasters."""
    definition: Definition | None = None
    """The pipeline that it belongs to; None: nothing live is known of it."""

    @property
    def processor(self) -> str:
        """Its full name, ``pipeline/name``."""
        return f"{self.pipeline}/{self.name}"

    @property
    def anew(self) -> str:
        """The name of its next generation, whichever that is: what it heeds of people's decisions."""
        return generation_name(self.processor, NEXT)

    def event(self, key: str, version: int, recorded_at: int, body: bytes) -> AnyEvent:
        """A recorded event in the form that is known now, as live has it."""
        event = restore_event(body, key, version=version, recorded_at=recorded_at)
        return event if self.upcasters is None else self.upcasters.apply(event)

    def of_version(self, said: str) -> Subject:
        """It by the version that made a generation (:func:`version_said`), where the program has that too."""
        if self.definition is None or version_said(self.projection) == said:
            return self
        for work in self.definition.works.values():
            if isinstance(work, ProjectionWork) and split_generation(work.name)[0] == self.name:
                own = _own(work)
                if version_said(own) == said:
                    return replace(self, projection=own, upcasters=work.upcasters)
        return self


def _own(work: ProjectionWork) -> AnyProjection:
    """Of a declared projection the class is the projection; pipelines have an instance of it."""
    return type(work.projection) if isinstance(work.projection, DeclaredProjection) else work.projection


TRACE_SUMMARY = Subject(
    pipeline="span_ingestion", name="trace_summary", projection=TraceSummary, aggregate_type=SPAN_AGGREGATE
)
"""What every lake has events of, where spans are collected."""


def subjects_of(definitions: Sequence[Definition]) -> dict[str, Subject]:
    """The projections of pipelines, by their full names; of several generations the latest one."""
    found: dict[str, tuple[int, Subject]] = {}
    upcast = {(one.aggregate_type, one.name) for one in definitions if one.upcasters is not None}
    for definition in definitions:
        for work in definition.works.values():
            if not isinstance(work, ProjectionWork):
                continue
            name, generation = split_generation(work.name)
            made = Subject(
                pipeline=work.pipeline,
                name=name,
                projection=_own(work),
                aggregate_type=work.aggregate_type,
                upcasters=work.upcasters,
                others_upcast=any(
                    kind == work.aggregate_type and name != work.pipeline for kind, name in upcast
                ),
                definition=definition,
            )
            if generation >= found.get(made.processor, (0, made))[0]:
                found[made.processor] = (generation, made)
    return {name: subject for name, (_, subject) in found.items()}


def find_subject(said: str, known: Mapping[str, Subject]) -> Subject:
    """A projection by its full name, or by its own where only one is called so."""
    if said in known:
        return known[said]
    called = [subject for subject in known.values() if subject.name == said]
    if len(called) != 1:
        several = "more than one is called so" if called else "there is none"
        raise InvalidValue("PROJECTION", said, f"{several}; there are: {', '.join(sorted(known)) or 'none'}")
    return called[0]


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """Which code has made states."""

    toril: str = toril.__version__
    projection: str = ""
    """What of the projection's class: its name and version."""
    digest: str = ""
    """Of its declaration or all code that it is made of, and of its upcasters: equal digests, equal code."""
    label: str = ""
    """What whoever started it calls this code: a release, a commit."""
    fields: dict[str, Any] = {}
    """By field, how it is declared, where it is; so that a difference can be explained."""

    def __str__(self) -> str:
        said = f"{self.projection}, code {self.digest[:8]}, toril {self.toril}"
        return f"{self.label} ({said})" if self.label else said


def code_of(projection: AnyProjection, label: str = "", upcasters: Upcasters | None = None) -> Code:
    """The code of a projection as it is here, with the upcasters that it sees events through."""
    fields: dict[str, Any] = {}
    parts = [projection.name, str(projection.version), str(sorted(projection.event_types or ()))]
    # A declared projection is its class; a written one is an instance of it.
    kind: type = projection if isinstance(projection, type) else type(projection)
    made_of: list[Any] = [projection]
    if issubclass(kind, DeclaredProjection):
        said = kind.describe()
        fields = {one["name"]: one for one in (*said["fields"], *said["derived"])}
        parts.append(json.dumps(said, sort_keys=True, default=str))
        # What is declared without any Python is what its declaration says.
        made_of = [] if kind.compilable and not _has_methods(kind) else [kind]
    steps = [] if upcasters is None else upcasters.steps()
    parts += (f"{event_type} {version}" for event_type, version, _ in steps)
    parts.append(text_of(*made_of, *(step for _, _, step in steps)))
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return Code(
        projection=version_said(projection),
        digest=digest,
        label=label,
        fields=json.loads(json.dumps(fields, default=str)),
    )


def version_said(projection: AnyProjection) -> str:
    """Which version of which projection."""
    return f"{projection.name} version {projection.version}"


def _has_methods(kind: type) -> bool:
    """Whether a declared projection has more than fields."""
    own = kind.__mro__[: kind.__mro__.index(DeclaredProjection)]
    return any(
        isinstance(getattr(one, "__func__", one), FunctionType) for each in own for one in vars(each).values()
    )
