"""What happens to the servers while the clients work."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping

from toril.testing import Cluster

MOVES = 6
HALF_WAY = 1.0
CUTS = 5
STALL = 6.0
"""Seconds; one more than redis-py waits for an answer by default, and long enough for an election."""


def reshard(nodes: Cluster, slot: int) -> None:
    """The slot goes back and forth between two masters, with all its keys."""
    home = nodes.primary_of(slot)
    other = next(server for server in nodes.primaries() if server is not home)
    for turn in range(MOVES):
        nodes.move_slot(slot, home if turn % 2 else other)
        time.sleep(0.1)


def pause_half_way(nodes: Cluster, slot: int) -> None:
    """A reshard that takes its time: the keys have moved, and the slot is not handed over yet."""
    source = nodes.primary_of(slot)
    target = next(server for server in nodes.primaries() if server is not source)
    target_id, source_id = target.ask("CLUSTER", "MYID"), source.ask("CLUSTER", "MYID")
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
        source.ask("MIGRATE", target.address.host, target.address.port, "", 0, 5000, "KEYS", *keys)
    time.sleep(HALF_WAY)
    nodes.move_slot(slot, target)


def fail_over(nodes: Cluster, slot: int) -> None:
    """A replica takes over in good order."""
    nodes.fail_over(nodes.primary_of(slot))


def cut(nodes: Cluster, slot: int) -> None:
    """The network breaks after calls were executed and before their answers left; the server is well."""
    where = nodes.primary_of(slot).address
    for _ in range(CUTS):
        with (
            socket.create_connection((where.host, where.port)) as holder,
            socket.create_connection((where.host, where.port)) as cutter,
        ):
            for raw in (holder, cutter):
                raw.sendall(b"PING\r\n")
                raw.recv(64)
            # While the server is held, calls pile up in its sockets, and this cut behind them. It then
            # takes them in this order, in one turn of its loop, and writes answers at the end of it.
            holder.sendall(b"DEBUG SLEEP 0.06\r\n")
            time.sleep(0.04)
            cutter.sendall(b"CLIENT KILL TYPE normal\r\n")
            cutter.recv(64)
        time.sleep(0.2)


def kill(nodes: Cluster, slot: int) -> None:
    """The master is killed and a replica is elected."""
    nodes.kill(nodes.primary_of(slot))


def stall(nodes: Cluster, slot: int) -> None:
    """The master stands still with its connections open, as a machine does that is moved or swaps."""
    server = nodes.primary_of(slot)
    server.pause()
    try:
        time.sleep(STALL)
    finally:
        server.resume()


Event = Callable[[Cluster, int], None]

ALONE: Mapping[str, Event] = {
    "reshard": reshard,
    "slot half-way": pause_half_way,
    "failover": fail_over,
    "cut": cut,
    "kill": kill,
}
"""Events that each client goes through by itself. All clients go through :func:`stall` at once."""
