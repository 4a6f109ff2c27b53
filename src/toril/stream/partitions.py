"""The partitions of a queue, and the options that all of them have."""

from __future__ import annotations

import asyncio
import zlib
from typing import NamedTuple

from toril import codec
from toril.connection import Connection
from toril.errors import InvalidValue
from toril.keyspace import StreamKeys
from toril.stream.options import Route, StreamOptions, options_of
from toril.stream.store import PartitionStore


class Opened(NamedTuple):
    """A queue that is ready to be used."""

    options: StreamOptions
    route: Route
    stores: tuple[PartitionStore, ...]


class Partitions:
    """Finds a queue in Redis, or makes it; and finds the partition of a job."""

    def __init__(
        self, name: str, redis: Connection, options: StreamOptions | None, route: Route | None
    ) -> None:
        if options is not None and not isinstance(options, StreamOptions):
            raise InvalidValue("options", options, "they must be StreamOptions(…)")
        self.home = StreamKeys(name)
        self._redis = redis
        self._options = options
        self._route = route
        self._opened: Opened | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> Opened:
        """The queue; its options are written down where they are new or others than before."""
        if self._opened is None:
            async with self._opening:
                if self._opened is None:
                    self._opened = await self._open()
        return self._opened

    async def _open(self) -> Opened:
        kept, routed = await self._redis.command("HMGET", self.home.meta, "options", "route")
        options = options_of(kept) if kept else self._options or StreamOptions()
        if kept and self._options is not None:
            for fixed in ("partitions", "group"):
                was, given = getattr(options, fixed), getattr(self._options, fixed)
                if was != given:
                    raise InvalidValue(fixed, given, f"the queue {self.home.name!r} was made with {was!r}")
            if self._options.levels < options.levels:
                rule = f"the queue {self.home.name!r} has {options.levels}: jobs may wait in them"
                raise InvalidValue("levels", self._options.levels, rule)
            options = self._options
        route = self._route
        if route is None:
            route = Route(**codec.decode(routed)) if routed else Route()
        numbers = [None] if options.partitions == 1 else range(options.partitions)
        stores = tuple(
            PartitionStore(self._redis, StreamKeys(self.home.name, number), self._configure)
            for number in numbers
        )
        opened = Opened(options, route, stores)
        if kept and self._options is None and self._route is None:
            return opened  # whoever only looks writes nothing
        # The home last: where it is written, all partitions are.
        for store in stores:
            await self._write(store, opened)
        if options.partitions > 1:
            home = PartitionStore(self._redis, self.home, self._configure)
            await home.configure(_fields(opened))
        return opened

    async def read(self) -> StreamOptions:
        """The options that the queue has by now; those that are fixed are as they were."""
        assert self._opened is not None
        kept = await self._redis.command("HGET", self.home.meta, "options")
        if kept is not None:
            self._opened = self._opened._replace(options=options_of(kept))
        return self._opened.options

    async def _configure(self, store: PartitionStore) -> None:
        """Write the options again where they are gone: the server was flushed."""
        assert self._opened is not None
        await self._write(store, self._opened)
        if self._opened.options.partitions > 1:
            home = PartitionStore(self._redis, self.home, self._configure)
            await home.configure(_fields(self._opened))

    async def _write(self, store: PartitionStore, opened: Opened) -> None:
        await store.configure(_fields(opened))


def _fields(opened: Opened) -> list[str | bytes | int]:
    route = codec.encode("route", opened.route)
    return [*opened.options.fields(), "route", b"" if route == b"{}" else route]


def partition_of(text: str, partitions: int) -> int:
    """The partition of an order key: CRC-32 of its UTF-8, modulo the number of partitions."""
    return zlib.crc32(text.encode()) % partitions


def public_id(local: str, number: int | None) -> str:
    """A job's id as users see it: of one of several partitions, it ends in the partition's number."""
    return local if number is None else f"{local}-{number:02d}"


def local_id(job_id: str, partitions: int) -> tuple[int, str]:
    """The partition of a job, and its id there."""
    rule = "an id as the queue has given it"
    if not isinstance(job_id, str):
        raise InvalidValue("job id", job_id, rule)
    parts = job_id.split("-")
    if len(parts) != (2 if partitions == 1 else 3) or not all(part.isdigit() for part in parts):
        raise InvalidValue("job id", job_id, rule)
    if partitions == 1:
        return 0, job_id
    number = int(parts[2])
    if number >= partitions:
        raise InvalidValue("job id", job_id, f"the queue has {partitions} partitions")
    return number, f"{parts[0]}-{parts[1]}"
