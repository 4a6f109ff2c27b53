"""Ask the sentinels who the master is."""

from __future__ import annotations

from typing import Any

from toril.connection.topology import Shard
from toril.connection.url import Address, Target
from toril.connection.wire import Broken, ErrorReply, NotSent, Wire


async def find_master(target: Target, timeout: float) -> Shard:
    """The master and the replicas of a sentinel service; ``NotSent`` where no sentinel can tell."""
    problems = []
    tls = target.tls.context() if target.tls else None
    for address in target.addresses:
        try:
            wire = await Wire.open(address, credentials=target.sentinel_credentials, tls=tls, timeout=timeout)
            try:
                master, replicas = await wire.ask(
                    [
                        ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", target.service),
                        ("SENTINEL", "REPLICAS", target.service),
                    ],
                    timeout,
                )
            finally:
                wire.close()
        except (NotSent, Broken) as problem:
            problems.append(str(problem))
            continue
        if isinstance(master, ErrorReply) or master is None:
            problems.append(f"{address} knows no master {target.service!r}")
            continue
        usable = [] if isinstance(replicas, ErrorReply) else [_replica(fields) for fields in replicas]
        return Shard(_address(*master), tuple(address for address in usable if address))
    raise NotSent("; ".join(problems))


def _address(host: bytes, port: bytes) -> Address:
    return Address(host.decode(), int(port))


def _replica(fields: list[Any]) -> Address | None:
    """A replica's address, unless the sentinel holds it to be down."""
    said = dict(zip(fields[::2], fields[1::2], strict=True))
    if b"down" in said[b"flags"] or b"disconnected" in said[b"flags"]:
        return None
    return _address(said[b"ip"], said[b"port"])
