"""Where a request comes from: the address of its connection, or what a trusted proxy says of it."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

from starlette.requests import Request

from toril.errors import InvalidValue

UNKNOWN = "unknown"


class Callers:
    """Tells callers apart by their address.

    ``trusted`` are the addresses and networks of proxies (``10.0.0.0/8``). ``X-Forwarded-For`` counts where
    one of them has sent it, and there from the right: the last address that is not a trusted proxy's. What
    stands before that anyone can write. Without trusted proxies, the header says nothing.
    """

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        self._trusted = []
        for one in trusted:
            try:
                self._trusted.append(ip_network(one))
            except ValueError as problem:
                raise InvalidValue("trusted proxy", one, f"an address or a network: {problem}") from None

    def of(self, request: Request) -> str:
        """Who calls: an address, of IPv6 the network that one household has."""
        peer = request.client.host if request.client is not None else UNKNOWN
        if not self._is_trusted(peer):
            return _grouped(peer)
        told = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
        for hop in reversed([part.strip() for part in told if part.strip()]):
            if _address(hop) is None:
                return _grouped(peer)  # a proxy that is trusted writes addresses: this is none
            if not self._is_trusted(hop):
                return _grouped(hop)
            peer = hop
        return _grouped(peer)

    def _is_trusted(self, host: str) -> bool:
        address = _address(host)
        return address is not None and any(address in network for network in self._trusted)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(host)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found


def _grouped(host: str) -> str:
    address = _address(host)
    if isinstance(address, IPv6Address):
        return str(IPv6Network((int(address) >> 64 << 64, 64)))
    return host if address is None else str(address)
