"""A real cluster, and ways to hurt it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from toril.connection.server import form_cluster
from toril.connection.wire import ErrorReply
from toril.keyspace import slot_of
from toril.testing.server import Server, Settings, _folder, _start_on_free_port

GIVEN_UP = 6.0
"""Seconds after which a replica does not try any more to take over."""


class Cluster:
    """The servers of a cluster."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers

    @property
    def url(self) -> str:
        """What :func:`toril.connect` takes."""
        return "redis+cluster://" + ",".join(str(server.address) for server in self.servers)

    # ------------------------------------------------------------------ who is who

    def primaries(self) -> list[Server]:
        """The servers that have slots, as the cluster sees it now."""
        return [self._by_port(row[2][1]) for row in self._slots()]

    def primary_of(self, key: str | int) -> Server:
        """The server that takes writes for a key, or for a slot."""
        slot = key if isinstance(key, int) else slot_of(key)
        for first, last, primary, *_ in self._slots():
            if first <= slot <= last:
                return self._by_port(primary[1])
        raise AssertionError(f"no server has slot {slot}")

    def replicas_of(self, primary: Server) -> list[Server]:
        """The replicas of a server."""
        for _, _, own, *replicas in self._slots():
            if own[1] == primary.address.port:
                return [self._by_port(row[1]) for row in replicas]
        return []

    def _slots(self) -> Any:
        for server in self.servers:
            with suppress(OSError, ErrorReply):
                return server.ask("CLUSTER", "SLOTS", timeout=2.0)
        raise AssertionError("no server of the cluster answers")

    def _by_port(self, port: int) -> Server:
        return next(server for server in self.servers if server.address.port == port)

    # ------------------------------------------------------------------ what can happen to it

    def fail_over(self, primary: Server) -> Server:
        """A coordinated failover: a replica takes over and nothing is lost; the new primary."""
        _wait(lambda: bool(self.replicas_of(primary)), "a replica that can take over")
        replica = self.replicas_of(primary)[0]
        asked = -math.inf

        def taken_over() -> bool:
            nonlocal asked
            if b"role:master" in replica.ask("INFO", "replication"):
                return True
            if time.monotonic() > asked + GIVEN_UP:  # the others had no vote to give, so soon after a change
                asked = time.monotonic()
                replica.ask("CLUSTER", "FAILOVER")
            return False

        _wait(taken_over, "the replica to take over")
        others = [server for server in self.servers if server.pid]
        _wait(lambda: all(self._sees(server, replica) for server in others), "all servers to know of it")
        return replica

    def kill(self, primary: Server) -> Server:
        """Kill a primary, wait until a replica was elected in its place; the new primary."""
        slot = next(row[0] for row in self._slots() if row[2][1] == primary.address.port)
        primary.kill()
        self.servers.remove(primary)
        self.servers.append(primary)  # asked last: it is gone

        def elected() -> bool:
            with suppress(OSError, ErrorReply, AssertionError):
                return self.primary_of(slot) is not primary
            return False

        _wait(elected, "a replica to be elected", timeout=60)
        return self.primary_of(slot)

    def move_slot(self, slot: int, target: Server, *, batch: int = 10) -> None:
        """Move a slot with its keys to another server while it is in use, as ``reshard`` does."""
        source = self.primary_of(slot)
        if source is target:
            return
        target_id, source_id = target.ask("CLUSTER", "MYID"), source.ask("CLUSTER", "MYID")
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        where = target.address
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, batch):
            source.ask("MIGRATE", where.host, where.port, "", 0, 5000, "KEYS", *keys)
        for server in (target, source, *(s for s in self.primaries() if s not in (target, source))):
            server.ask("CLUSTER", "SETSLOT", slot, "NODE", target_id)

    def wait_until_whole(self) -> None:
        """Return when every running server sees a healthy cluster and every replica follows."""
        running = [server for server in self.servers if server.pid]

        def whole() -> bool:
            with suppress(OSError, ErrorReply):
                return all(
                    b"cluster_state:ok" in server.ask("CLUSTER", "INFO")
                    and b"master_link_status:down" not in server.ask("INFO", "replication")
                    for server in running
                )
            return False

        _wait(whole, "the cluster to be whole", timeout=60)

    def _sees(self, server: Server, primary: Server) -> bool:
        rows = server.ask("CLUSTER", "SLOTS")
        return any(row[2][1] == primary.address.port for row in rows)


@contextmanager
def cluster(
    masters: int = 3, replicas: int = 1, settings: Settings | None = None, *, binary: Path | None = None
) -> Iterator[Cluster]:
    """A cluster; ``masters=1, replicas=0`` is one server with all slots, enough to see CROSSSLOT."""
    every: dict[str, str | int] = {
        "cluster-enabled": "yes",
        "cluster-node-timeout": 1500,
        "cluster-replica-validity-factor": 0,
        "repl-diskless-sync-delay": 0,
        "repl-ping-replica-period": 1,  # Redis 7.0 does not list a replica that has heard nothing yet
        **(settings or {}),
    }
    with ExitStack() as stack:
        servers = []
        for _ in range(masters * (1 + replicas)):
            folder = stack.enter_context(_folder())
            server = _start_on_free_port(lambda folder=folder: Server(folder, every, binary=binary))
            stack.callback(server.kill)
            servers.append(server)
        primaries = [server.address for server in servers[:masters]]
        followers = {s.address: primaries[i % masters] for i, s in enumerate(servers[masters:])}
        form_cluster(primaries, followers)
        yield Cluster(servers)


def _wait(condition: Callable[[], bool], what: str, timeout: float = 30.0) -> None:
    until = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"waited {timeout:g} s in vain for {what}")
        time.sleep(0.02)
