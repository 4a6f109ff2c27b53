"""``connect``: from a URL to a connection."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from toril.connection.client import QUESTIONS, Connection, ServerFacts
from toril.connection.embedded import default_home, ensure_cluster, ensure_server
from toril.connection.errors import AuthenticationFailed, Unreachable
from toril.connection.node import NodeOptions
from toril.connection.sentinel import find_master
from toril.connection.topology import ClusterTopology, Shard, SingleTopology, Topology
from toril.connection.url import Credentials, Target, hide_password, parse_url
from toril.connection.wire import Broken, ErrorReply, NotSent
from toril.errors import InvalidValue

URL_VARIABLE = "TORIL_REDIS_URL"

URL_FILE_VARIABLE = "TORIL_REDIS_URL_FILE"
"""Names a file that has the URL in it, where variables are shown to more people than a password is for."""


def environment_url() -> str | None:
    """The URL that the environment names: ``TORIL_REDIS_URL``, else what its file ``…_FILE`` has in it."""
    if said := os.environ.get(URL_VARIABLE):
        return said
    if not (file := os.environ.get(URL_FILE_VARIABLE)):
        return None
    try:
        said = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else "it is no text"
        raise InvalidValue(URL_FILE_VARIABLE, file, f"a file with a URL in it ({why})") from None
    if not said:
        raise InvalidValue(URL_FILE_VARIABLE, file, "a file with a URL in it (it is empty)")
    return said


def connect(
    url: str | None = None,
    *,
    patience: float = 30.0,
    connect_timeout: float = 5.0,
    silence: float = 15.0,
    client_name: str = "toril",
) -> _Connecting:
    """A connection to a server, a cluster, or the embedded server.

    ``async with connect(url) as redis:`` closes it at the end; ``redis = await connect(url)`` leaves that
    to the caller. Without a URL it is ``TORIL_REDIS_URL``, or what the file ``TORIL_REDIS_URL_FILE`` has in
    it, and without both the embedded server.

    =============================== ==================================================================
    ``redis://host:6379/0``         a server; a cluster is recognised by itself (``rediss://`` for TLS,
                                    ``valkey://`` is the same)
    ``redis+cluster://h1,h2``       a cluster
    ``redis+sentinel://h1,h2/name`` the master that the sentinels name
    ``unix:///run/valkey.sock``     a server on a unix socket
    ``embedded://``                 the embedded server (``embedded:///data/directory``)
    ``embedded+cluster://``         an embedded cluster of three masters, for development
    =============================== ==================================================================

    ``patience``: how many seconds a call is tried again through a failover, a reshard, a restart.
    ``connect_timeout``: for one attempt to reach a server. ``silence``: how long a server may leave a
    call without a reply before its connection counts as broken; blocking commands get their time on top.
    """
    for what, value in (
        ("patience", patience),
        ("connect_timeout", connect_timeout),
        ("silence", silence),
    ):
        if not value > 0:
            raise InvalidValue(what, value, "it must be a number of seconds above 0")
    chosen = url or environment_url() or "embedded://"
    target = parse_url(chosen)
    if target.mode == "memory":
        raise InvalidValue(
            "Redis URL", chosen, "memory:// is the in-process mode of the runtime; there is no server in it"
        )
    options = NodeOptions(
        target.credentials,
        target.tls.context() if target.tls else None,
        target.database,
        client_name,
        connect_timeout,
        silence,
    )
    return _Connecting(target, options, hide_password(chosen), patience)


class _Connecting:
    """A connection to be: await it, or enter it with ``async with``."""

    def __init__(self, target: Target, options: NodeOptions, url: str, patience: float) -> None:
        self._target = target
        self._options = options
        self._url = url
        self._patience = patience
        self._made: Connection | None = None

    def __await__(self) -> Generator[Any, None, Connection]:
        return self._open().__await__()

    async def __aenter__(self) -> Connection:
        self._made = await self._open()
        return self._made

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._made is not None:
            await self._made.close()

    async def _open(self) -> Connection:
        topology = await self._topology()
        try:
            facts = await self._ask_facts(topology)
            if facts.clustered and not topology.clustered:
                await topology.close()
                topology = self._cluster(self._target)
                facts = await self._ask_facts(topology)
        except BaseException:
            await topology.close()
            raise
        return Connection(topology, facts, self._url, self._patience, self._another)

    async def _another(self, client_name: str) -> Connection:
        options = replace(self._options, client_name=client_name)
        return await _Connecting(self._target, options, self._url, self._patience)

    def _cluster(self, target: Target) -> Topology:
        if self._options.database:
            raise InvalidValue("Redis URL", self._url, "it leads to a cluster, which has only database 0")
        return ClusterTopology(target.addresses, self._options)

    async def _topology(self) -> Topology:
        target, options = self._target, self._options
        if target.mode == "cluster":
            return self._cluster(target)
        home = Path(target.home) if target.home else default_home()
        if target.mode == "embedded-cluster":
            running = await asyncio.to_thread(ensure_cluster, home, target.fsync)
            self._options = options = _with_password(options, running[0].password)
            return ClusterTopology([server.address for server in running], options)
        if target.mode == "embedded":

            async def join() -> Shard:
                server = await asyncio.to_thread(ensure_server, home, target.fsync)
                return Shard(server.address)

            first = await asyncio.to_thread(ensure_server, home, target.fsync)
            return SingleTopology(join, _with_password(options, first.password))
        if target.mode == "sentinel":
            return SingleTopology(lambda: find_master(target, options.connect_timeout), options)

        async def fixed() -> Shard:
            return Shard(target.addresses[0])

        return SingleTopology(fixed, options)

    async def _ask_facts(self, topology: Topology) -> ServerFacts:
        try:
            node = await topology.primary(None)
            reply, reads = await node.ask(QUESTIONS)
        except (NotSent, Broken) as problem:
            raise Unreachable(
                f"{self._url} cannot be reached: {problem}. Is the server up, and the URL right?"
            ) from None
        if isinstance(reply, ErrorReply):
            if str(reply).startswith(("NOAUTH", "NOPERM")):
                raise AuthenticationFailed(f"{self._url}: {reply}")
            raise Unreachable(f"{self._url}: {reply}")
        return ServerFacts.read(reply, () if isinstance(reads, ErrorReply) else reads)


def _with_password(options: NodeOptions, password: str) -> NodeOptions:
    return replace(options, credentials=Credentials(password=password)) if password else options
