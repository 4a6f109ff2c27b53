"""The four clients behind one small interface.

They are opened as their documentation shows it, with their own defaults for retries, timeouts and
pools. Because the peers' defaults give up before a failover is over, each peer is there a second time,
*tuned* with the settings that its documentation names for more patience. Scripts are called the way each
client wants it, so that a server that does not know a script yet gets it. Answers are bytes everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from toril import connect
from toril.connection import Address, Script
from toril.keyspace import Key

TORIL = "Toril"
TUNED_RETRIES = 100
TUNED_TIMEOUT = 30_000
"""Milliseconds: as long as Toril tries by default."""
REQUIREMENTS = Path(__file__).parent.with_name("client.requirements.txt")

Call = Callable[[list[Any], list[Any]], Awaitable[Any]]
"""Calls a script with keys and arguments."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client that is connected."""

    get: Callable[[Any], Awaitable[Any]]
    prepare: Callable[[str], Call]
    """From the text of a script to what calls it."""
    key: Callable[[str], Any] = str
    """How the client wants a key; Toril routes by the type."""


def _module(name: str) -> Any:
    """A peer's module, without its types: type checking must not need the peers."""
    return import_module(name)


Opener = Callable[[Sequence[Address], bool], AbstractAsyncContextManager[Client]]


@asynccontextmanager
async def _toril(addresses: Sequence[Address], clustered: bool) -> AsyncIterator[Client]:
    scheme = "redis+cluster" if clustered else "redis"
    async with connect(f"{scheme}://{','.join(map(str, addresses))}") as connection:

        def prepare(source: str) -> Call:
            sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
            one = Script("benchmark", source, sha, ("first",), "queue")
            two = Script("benchmark", source, sha, ("first", "second"), "queue")
            return lambda keys, args: connection.run(one if len(keys) == 1 else two, keys, *args)

        yield Client(lambda key: connection.command("GET", key), prepare, Key)


@asynccontextmanager
async def _redis_py(
    addresses: Sequence[Address], clustered: bool, *, tuned: bool = False
) -> AsyncIterator[Client]:
    peer = _module("redis.asyncio")
    if clustered:
        settings: dict[str, Any] = {}
        if tuned:
            # By default it closes all its connections on every fifth MOVED.
            settings["reinitialize_steps"] = 0
            backoff = _module("redis.backoff").ExponentialWithJitterBackoff()
            settings["retry"] = _module("redis.asyncio.retry").Retry(backoff, TUNED_RETRIES)
        nodes = [_module("redis.asyncio.cluster").ClusterNode(at.host, at.port) for at in addresses]
        made = peer.RedisCluster(startup_nodes=nodes, **settings)
    else:
        made = peer.Redis(host=addresses[0].host, port=addresses[0].port)
    async with made:
        yield Client(made.get, made.register_script)


@asynccontextmanager
async def _coredis(
    addresses: Sequence[Address], clustered: bool, *, tuned: bool = False
) -> AsyncIterator[Client]:
    peer = _module("coredis")
    if clustered:
        settings: dict[str, Any] = {}
        if tuned:
            passing = (peer.exceptions.ClusterDownError, peer.exceptions.ConnectionError, TimeoutError)
            policy = _module("coredis.retry").ConstantRetryPolicy
            settings["retry_policy"] = policy(passing, retries=TUNED_RETRIES, delay=0.1)
        nodes = [_module("coredis.connection").TCPLocation(at.host, at.port) for at in addresses]
        made = peer.RedisCluster(startup_nodes=nodes, **settings)
    else:
        made = peer.Redis(host=addresses[0].host, port=addresses[0].port)
    async with made:
        yield Client(made.get, made.register_script)


@asynccontextmanager
async def _glide(
    addresses: Sequence[Address], clustered: bool, *, tuned: bool = False
) -> AsyncIterator[Client]:
    peer = _module("glide")
    peer.Logger.set_logger_config(peer.LogLevel.OFF)  # it would write a line per failed call
    nodes = [peer.NodeAddress(at.host, at.port) for at in addresses]
    # Its one setting for patience: the time a request may take with all its retries, else 250 ms.
    limit = TUNED_TIMEOUT if tuned else None
    if clustered:
        config = peer.GlideClusterClientConfiguration(nodes, request_timeout=limit)
        made = await peer.GlideClusterClient.create(config)
    else:
        made = await peer.GlideClient.create(peer.GlideClientConfiguration(nodes, request_timeout=limit))

    def prepare(source: str) -> Call:
        script = peer.Script(source)
        return lambda keys, args: made.invoke_script(script, keys, args)

    try:
        yield Client(made.get, prepare)
    finally:
        await made.close()


OPENERS: Mapping[str, Opener] = {
    TORIL: _toril,
    "redis-py": _redis_py,
    "coredis": _coredis,
    "valkey-glide": _glide,
}

TUNED: Mapping[str, Opener] = {
    "redis-py tuned": partial(_redis_py, tuned=True),
    "coredis tuned": partial(_coredis, tuned=True),
    "valkey-glide tuned": partial(_glide, tuned=True),
}
