"""An event: something that has happened to one aggregate; and one that is still to be stored."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec

from toril import codec
from toril.aggregate import Aggregate, check_aggregate_id, check_aggregate_type, check_tenant
from toril.events.errors import StoreError, ValidationError
from toril.events.identity import new_event_id, now
from toril.handler import fit

Data = TypeVar("Data")
Other = TypeVar("Other")

LARGEST_TIME = 2**63 - 1
"""The last nanosecond that an event can have: in the year 2262."""

LARGEST_VERSION = 2**53 - 1
"""The largest number that is the same in Python, JavaScript and Lua."""

LONGEST_EVENT_ID = 256
"""Characters of an event's id, at most."""

KNOWN_METADATA = ("traceparent", "causation_id", "correlation_id")
"""Entries of the metadata that have a meaning here; they are text. All others pass through untouched."""

_EVENT_TYPE = re.compile(r"[A-Za-z0-9_.\-]{1,256}")


class NewEvent(msgspec.Struct, Generic[Data], frozen=True, kw_only=True):
    """What a command decides has happened. Aggregate, version and recorded time come when it is stored.

    ::

        NewEvent(type="lw.obs.span_ingestion.recorded", data={"span_id": "7", "cost": 120_000})
    """

    type: str
    """What happened: letters, digits, ``_``, ``.`` and ``-``."""
    data: Data
    """What there is to say about it: anything that is JSON, or that msgspec makes JSON of."""
    id: str = msgspec.field(default_factory=new_event_id)
    """Unique. Ids made here sort by time."""
    schema_version: int = 1
    """Which form the data has, from 1."""
    occurred_at: int = msgspec.field(default_factory=now)
    """When it happened: nanoseconds since 1970. 0 is a time, not an absence."""
    metadata: dict[str, Any] = {}
    """``traceparent``, ``causation_id``, ``correlation_id``, and whatever else."""

    def __post_init__(self) -> None:
        _check_common(self)

    def __repr__(self) -> str:
        return f"NewEvent({self.type!r}, id={self.id!r})"

    def caused_by(self, cause: Event[Any]) -> NewEvent[Data]:
        """The same, with the event that brought it about, and the story that both belong to."""
        links = {"causation_id": cause.id, "correlation_id": cause.correlation_id or cause.id}
        return msgspec.structs.replace(self, metadata={**self.metadata, **links})

    def recorded(self, aggregate: Aggregate, *, version: int, recorded_at: int) -> Event[Data]:
        """The event that it becomes when it is stored."""
        return Event(
            id=self.id,
            tenant=aggregate.tenant,
            aggregate_type=aggregate.type,
            aggregate_id=aggregate.id,
            version=version,
            type=self.type,
            schema_version=self.schema_version,
            occurred_at=self.occurred_at,
            recorded_at=recorded_at,
            data=self.data,
            metadata=self.metadata,
        )

    def to_bytes(self) -> bytes:
        """As JSON. Data that is no JSON, ``nan`` and ``inf`` among it, is refused."""
        return codec.encode("event", self)

    @staticmethod
    def from_bytes(raw: bytes) -> NewEvent[Any]:
        """From JSON."""
        return _decode(_new_event_decoder, raw)


class Event(msgspec.Struct, Generic[Data], frozen=True, kw_only=True):
    """Something that has happened to one aggregate, as stored. Its ``repr`` shows no tenant and no data."""

    id: str
    tenant: str
    aggregate_type: str
    aggregate_id: str
    version: int
    """Its place among the events of its aggregate: 1, 2, 3 … without a gap, given when it is stored."""
    type: str
    schema_version: int
    occurred_at: int
    """When it happened: nanoseconds since 1970."""
    recorded_at: int
    """When it was stored: nanoseconds since 1970."""
    data: Data
    metadata: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _check_common(self)
        try:
            _check_names(self.tenant, self.aggregate_type)
        except TypeError:  # no text, and nothing that could be remembered
            _check_names.__wrapped__(self.tenant, self.aggregate_type)
        check_aggregate_id(self.aggregate_id)
        if type(self.version) is not int or not 1 <= self.version <= LARGEST_VERSION:
            raise ValidationError("version", self.version, f"a whole number from 1 to {LARGEST_VERSION}")
        _check_time("recorded_at", self.recorded_at)

    def __repr__(self) -> str:
        return f"Event({self.type!r}, id={self.id!r}, version={self.version})"

    @property
    def aggregate(self) -> Aggregate:
        """Whose event it is."""
        return Aggregate(self.tenant, self.aggregate_type, self.aggregate_id)

    @property
    def traceparent(self) -> str | None:
        """The trace that was under way when it happened, as W3C Trace Context writes it."""
        return self.metadata.get("traceparent")

    @property
    def causation_id(self) -> str | None:
        """The id of the event or command that brought it about."""
        return self.metadata.get("causation_id")

    @property
    def correlation_id(self) -> str | None:
        """What all events of one story share."""
        return self.metadata.get("correlation_id")

    def data_as(self, schema: builtins.type[Other]) -> Other:
        """The data as a type: a msgspec struct, dataclass, TypedDict or pydantic model."""
        made: Other = fit(schema, self.data)
        return made

    def with_data(self, data: Other, *, schema_version: int | None = None) -> Event[Other]:
        """The same event with its data in another form."""
        form = self.schema_version if schema_version is None else schema_version
        changed: Any = msgspec.structs.replace(self, data=data, schema_version=form)
        return changed  # type: ignore[no-any-return]

    def to_bytes(self) -> bytes:
        """As JSON. Data that is no JSON, ``nan`` and ``inf`` among it, is refused."""
        return codec.encode("event", self)

    @staticmethod
    def from_bytes(raw: bytes) -> Event[Any]:
        """From JSON."""
        return _decode(_event_decoder, raw)


AnyEvent = Event[Any]
"""An event whose data may have any form."""

AnyNewEvent = NewEvent[Any]
"""A new event whose data may have any form."""

_event_decoder: msgspec.json.Decoder[Event[Any]] = msgspec.json.Decoder(Event[Any])
_new_event_decoder: msgspec.json.Decoder[NewEvent[Any]] = msgspec.json.Decoder(NewEvent[Any])

Decoded = TypeVar("Decoded")

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not the JSON that was asked for."""


def _decode(decoder: msgspec.json.Decoder[Decoded], raw: bytes) -> Decoded:
    try:
        return decoder.decode(raw)
    except UNREADABLE as problem:
        raise _unreadable(problem) from problem


def _unreadable(problem: Exception) -> StoreError:
    why = "it is nested too deeply" if isinstance(problem, RecursionError) else problem
    return StoreError(f"a stored event cannot be read: {why}", retryable=False)


@lru_cache(4096)
def _is_event_type(name: str) -> bool:
    return _EVENT_TYPE.fullmatch(name) is not None


@lru_cache(4096)
def _check_names(tenant: object, aggregate_type: object) -> None:
    """Few tenants and types have many events: what was found good once needs no second look."""
    check_tenant(tenant)
    check_aggregate_type(aggregate_type)


def check_event_type(name: object, field: str = "event type") -> str:
    """The event type itself, or a :class:`ValidationError` that states the rule."""
    if isinstance(name, str) and _is_event_type(name):
        return name
    raise ValidationError(
        field, name, "1 to 256 letters, digits, '_', '.' and '-', like 'lw.obs.span_ingestion.recorded'"
    )


def _check_time(field: str, value: object) -> None:
    if type(value) is not int or not 0 <= value <= LARGEST_TIME:
        raise ValidationError(field, value, "whole nanoseconds since 1970, from 0 to 2**63 - 1")


def _check_common(event: Event[Any] | NewEvent[Any]) -> None:
    """The rules that an event has before and after it is stored. Looked at for each event: keep it short."""
    ident = event.id
    if not isinstance(ident, str) or not 0 < len(ident) <= LONGEST_EVENT_ID or not ident.isprintable():
        raise ValidationError("event id", ident, f"1 to {LONGEST_EVENT_ID} characters, all of them printable")
    check_event_type(event.type)
    schema = event.schema_version
    if type(schema) is not int or not 1 <= schema <= LARGEST_VERSION:
        raise ValidationError("schema_version", schema, f"a whole number from 1 to {LARGEST_VERSION}")
    _check_time("occurred_at", event.occurred_at)
    metadata = event.metadata
    if type(metadata) is not dict:
        raise ValidationError("metadata", metadata, "it must be a dict")
    for name in metadata:
        if not isinstance(name, str):
            raise ValidationError("metadata", name, "the names of its entries must be text")
        if name in KNOWN_METADATA and not isinstance(metadata[name], str):
            raise ValidationError(f"metadata {name}", metadata[name], "it must be text, or left out")


# ---------------------------------------------------------------------------- what was stored


class _Body(msgspec.Struct, kw_only=True):
    """What a :class:`NewEvent` wrote, without its rules."""

    type: str
    data: Any
    id: str = msgspec.field(default_factory=new_event_id)
    schema_version: int = 1
    occurred_at: int = msgspec.field(default_factory=now)
    metadata: dict[str, Any] = {}


_decode_body = msgspec.json.Decoder(_Body).decode
_some_event: Event[Any] = Event(
    id="-",
    tenant="-",
    aggregate_type="-",
    aggregate_id="-",
    version=1,
    type="-",
    schema_version=1,
    occurred_at=0,
    recorded_at=0,
    data=None,
)
_put = msgspec.structs.force_setattr
_blank: Callable[[], AnyEvent] = _some_event.__copy__  # type: ignore[attr-defined]


def blank_event(key: str) -> AnyEvent:
    """An event of an aggregate (by its key) that :func:`fill_in` has to complete; so have copies of it.

    A copy whose fields are set is an event without ``__post_init__``: its rules were looked at when it was
    written, and are not again for each event that is read.
    """
    parts = key.split(":", 2)
    if len(parts) != 3:
        Aggregate.parse(key)  # which says what is wrong
    made = _blank()
    _put(made, "tenant", parts[0])
    _put(made, "aggregate_type", parts[1])
    _put(made, "aggregate_id", parts[2])
    return made


def fill_in(made: AnyEvent, body: bytes, version: int, recorded_at: int) -> AnyEvent:
    """A blank event, with what :meth:`NewEvent.to_bytes` wrote."""
    try:
        stored = _decode_body(body)
    except UNREADABLE as problem:
        raise _unreadable(problem) from problem
    _put(made, "id", stored.id)
    _put(made, "version", version)
    _put(made, "type", stored.type)
    if stored.schema_version != 1:  # which a blank one has
        _put(made, "schema_version", stored.schema_version)
    _put(made, "occurred_at", stored.occurred_at)
    _put(made, "recorded_at", recorded_at)
    _put(made, "data", stored.data)
    _put(made, "metadata", stored.metadata)
    return made


def restore_event(body: bytes, key: str, *, version: int, recorded_at: int) -> AnyEvent:
    """The event of an aggregate (by its key) that :meth:`NewEvent.to_bytes` wrote."""
    return fill_in(blank_event(key), body, version, recorded_at)
