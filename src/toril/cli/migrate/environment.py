"""The server that the environment names, as applications with BullMQ name theirs."""

from __future__ import annotations

import os

from toril.connection.open import environment_url
from toril.errors import InvalidValue

ENDPOINTS = "REDIS_CLUSTER_ENDPOINTS"

TO_URL_VARIABLE = "TORIL_TO_REDIS_URL"
"""Where to, as a variable: a password in the command line can be read by all users of a machine."""


def usual_url() -> str | None:
    """The URL of the old queues' server; None where Toril's own variable, or nothing, names it."""
    if environment_url():
        return None
    if endpoints := os.environ.get(ENDPOINTS):
        return cluster_url(endpoints)
    return os.environ.get("REDIS_URL") or None


def cluster_url(endpoints: str) -> str:
    """One URL of a list of servers, each with or without scheme, user, password and parameters."""
    said: dict[str, set[str]] = {"scheme": set(), "user": set(), "parameters": set()}
    hosts = []
    for endpoint in filter(None, map(str.strip, endpoints.split(","))):
        scheme, _, rest = endpoint.rpartition("://")
        place, _, parameters = rest.partition("?")
        user, _, host = place.rpartition("@")
        hosts.append(host.partition("/")[0])
        for name, value in (("scheme", scheme), ("user", user), ("parameters", parameters)):
            said[name] |= {value} if value else set()
    for name, values in said.items():
        if len(values) > 1:
            raise InvalidValue(ENDPOINTS, ",".join(hosts), f"its servers must not differ in their {name}")
    scheme, user, parameters = (next(iter(values), "") for values in said.values())
    if scheme not in ("", "redis", "rediss", "valkey", "valkeys"):
        raise InvalidValue(ENDPOINTS, ",".join(hosts), "the scheme must be redis:// or rediss://")
    secure = "rediss" if scheme in ("rediss", "valkeys") else "redis"
    return (
        f"{secure}+cluster://{user}{'@' if user else ''}{','.join(hosts)}"
        f"{'?' if parameters else ''}{parameters}"
    )
