"""Adding jobs: checked one by one, and added to their partitions in calls that are all or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from toril import codec
from toril.connection import CommandRefused, Durability, DurabilityNotReached
from toril.connection.durability import Level
from toril.errors import InvalidValue, TorilError
from toril.handler import fit
from toril.stream.errors import BulkFailed
from toril.stream.job import DEFAULT_NAME, AddJob, JobOptions, NewJob
from toril.stream.options import Route, StreamOptions, check_seconds, check_text, check_whole
from toril.stream.partitions import Opened, partition_of, public_id

BULK_JOBS, BULK_BYTES = 500, 1_000_000
"""Jobs, and bytes of their data, that one call adds: Redis is busy for about 3 µs with each."""

_NO_ROUTE = Route()
_NOTHING: dict[str, Any] = {}


class Added(NamedTuple):
    """A job that is there now."""

    id: str
    is_new: bool
    """Whether this call has added it."""


def check_job(job: AddJob, schema: Any, opened: Opened, context: str | None = None) -> NewJob:
    """A job in the form it is stored in; an error names what is wrong with it."""
    options = opened.options
    data = job.data
    if schema is not None and not (isinstance(schema, type) and type(data) is schema):
        data = fit(schema, data)
    raw = codec.encode("data", _plain(data))
    if len(raw) > options.largest:
        raise InvalidValue("data", f"{len(raw)} bytes", f"at most {options.largest} bytes of JSON")
    routed = opened.route.of(_fields_of(data)) if opened.route != _NO_ROUTE else _NOTHING
    name = routed.get("name") if job.name is None else job.name
    key = routed.get("key") if job.key is None else job.key
    tenant = routed.get("tenant") if job.tenant is None else job.tenant
    priority = routed.get("priority") if job.priority is None else job.priority
    unique_for = options.unique_for if job.unique_for is None else job.unique_for
    return NewJob(
        DEFAULT_NAME if name is None else check_text("name", name),
        raw,
        _brought(job, options, context),
        "" if key is None else check_text("key", key),
        "" if tenant is None else check_text("tenant", tenant),
        0 if priority is None else min(check_whole("priority", priority, 0), options.levels - 1),
        check_seconds("delay", job.delay),
        "" if job.unique is None else check_text("unique", job.unique),
        check_seconds("unique_for", unique_for, 0.001),
    )


def _brought(job: AddJob, options: StreamOptions, context: str | None) -> bytes:
    """What a job brings along for its worker, as its entry has it."""
    ttl = check_seconds("result_ttl", options.result_ttl if job.result_ttl is None else job.result_ttl)
    if job.retries is not None:
        check_whole("retries", job.retries, 0)
    if job.timeout is not None and not job.timeout > 0:
        raise InvalidValue("timeout", job.timeout, "a number of seconds above 0")
    if not ttl and job.retries is None and job.timeout is None and context is None:
        return b""  # as most do
    return msgspec.json.encode(JobOptions(ttl, job.retries, job.timeout, context))


async def add_jobs(
    jobs: Sequence[NewJob], opened: Opened, turns: Iterator[int], durability: Durability | Level
) -> list[Added]:
    """Add jobs, each to the partition of its key, of its unique name, or to the one whose turn it is."""
    partitions = opened.options.partitions
    places: dict[int, list[int]] = {}
    for place, job in enumerate(jobs):
        chosen_by = job.key or job.unique
        number = partition_of(chosen_by, partitions) if chosen_by else next(turns) % partitions
        places.setdefault(number, []).append(place)
    added: list[Added | None] = [None] * len(jobs)
    problems: list[TorilError] = []

    async def add_to(number: int) -> None:
        mine, store = places[number], opened.stores[number]
        left, left_bytes = len(mine), sum(len(jobs[place].data) for place in mine)
        try:
            for part in _parts(mine, jobs):
                left -= len(part)
                left_bytes -= sum(len(jobs[place].data) for place in part)
                try:
                    ids: Any = await store.add([jobs[place] for place in part], left, left_bytes, durability)
                except DurabilityNotReached as problem:
                    problems.append(problem)
                    ids = problem.result  # they are there; it is not known how safely
                for place, raw in zip(part, ids, strict=True):
                    job_id = public_id(raw.removeprefix(b"=").decode(), store.keys.number)
                    added[place] = Added(job_id, is_new=not raw.startswith(b"="))
        except TorilError as problem:
            problems.append(problem)

    if len(places) == 1:
        await add_to(*places)  # without a task of its own
    else:
        await asyncio.gather(*map(add_to, places))
    if problems:
        if not any(added) and isinstance(problems[0], CommandRefused):
            raise problems[0]
        raise BulkFailed([each.id if each else None for each in added], problems[0])
    return [each for each in added if each is not None]


def _plain(data: Any) -> Any:
    """Data that the encoder can take: a pydantic model as its fields."""
    dump = getattr(data, "model_dump", None)
    return dump(mode="json") if callable(dump) else data


def _fields_of(data: Any) -> object:
    if isinstance(data, dict):
        return data
    try:
        return msgspec.to_builtins(_plain(data))
    except TypeError:
        return None


def _parts(places: Sequence[int], jobs: Sequence[NewJob]) -> Iterator[list[int]]:
    """Jobs in parts that one call may add."""
    part: list[int] = []
    size = 0
    for place in places:
        if part and (len(part) == BULK_JOBS or size + len(jobs[place].data) > BULK_BYTES):
            yield part
            part, size = [], 0
        part.append(place)
        size += len(jobs[place].data)
    yield part
