"""Whose request it is."""

from __future__ import annotations

import ipaddress
import re
import secrets

from starlette.requests import Request

from toril.aggregate import check_tenant
from toril.server.keys import ApiKeys
from toril.server.refusals import Refused

TENANT_HEADER = "x-toril-tenant"
"""For whom a request with the operator's secret is made."""

HEADERS = ("x-auth-token", "api-key")
"""Where a key may be, apart from ``Authorization: Bearer …``."""

_PORT = re.compile(r":[0-9]*$")


class Access:
    """Finds the tenant of a request by its key.

    ``open_tenant``: for development, requests from this machine that bring no key are this tenant's.
    ``operator``: a secret with which a request is for the tenant that it names in ``X-Toril-Tenant``.
    """

    def __init__(self, keys: ApiKeys, open_tenant: str | None = None, operator: str | None = None) -> None:
        self._keys = keys
        self._open_tenant = None if open_tenant is None else check_tenant(open_tenant)
        self._operator = operator

    async def tenant_of(self, request: Request) -> str:
        """The tenant, or a refusal with 401."""
        secret = key_in(request)
        if secret is None:
            if self._open_tenant is not None and _is_local(request):
                return self._open_tenant
            raise _denied("an API key is missing: send it as 'Authorization: Bearer trl_…'")
        if self._operator is not None and secrets.compare_digest(secret.encode(), self._operator.encode()):
            return check_tenant(request.headers.get(TENANT_HEADER, ""))
        tenant = await self._keys.tenant_of(secret)
        if tenant is None:
            raise _denied("this API key is not known, or was revoked", ', error="invalid_token"')
        return tenant


def key_in(request: Request) -> str | None:
    """The key that a request brings."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and secret.strip():
        return secret.strip()
    return next((found for name in HEADERS if (found := request.headers.get(name))), None)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_local(request: Request) -> bool:
    """Whether a request comes from this machine, and means it.

    The ``Host`` is looked at as well: a web page can let its own name lead to this machine, and its scripts
    would read here what they like.
    """
    host = _PORT.sub("", request.headers.get("host", ""))
    return request.client is not None and is_loopback(request.client.host) and is_loopback(host)


def _denied(message: str, more: str = "") -> Refused:
    return Refused(401, message, headers={"WWW-Authenticate": f'Bearer realm="toril"{more}'})
