"""For the operator on this machine: what a running server does for the command line.

An embedded ClickHouse belongs to the process that has opened it, so commands ask that process. It leaves a
file in the data directory, readable by its owner alone, with its address and a secret that lasts as long as
it runs.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from toril.server.erasing import ErasedTenant
from toril.server.refusals import Refused, json_response
from toril.server.routes import DENIED, Endpoint, RouteGroup, answer, parameter

FILE = "server.json"


class Running(msgspec.Struct, frozen=True):
    """A server that has the data directory."""

    url: str
    pid: int
    secret: str

    def __repr__(self) -> str:
        return f"Running({self.url!r}, pid={self.pid})"


def find_running(home: Path) -> Running | None:
    """The server that has a data directory; None where none runs."""
    try:
        found = msgspec.json.decode((home / FILE).read_bytes(), type=Running)
        os.kill(found.pid, 0)
    except (OSError, msgspec.MsgspecError):
        return None
    return found


@contextmanager
def announced(home: Path, url: str, secret: str) -> Iterator[None]:
    """Leave word of a server while it runs."""
    file = home / FILE
    passing = file.with_suffix(f".{secrets.token_hex(4)}")
    passing.touch(mode=0o600)
    passing.write_bytes(msgspec.json.encode(Running(url, os.getpid(), secret)))
    passing.replace(file)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            file.unlink()


Erase = Callable[[str], Awaitable[ErasedTenant]]


class Operator:
    """What only the operator may ask for."""

    def __init__(self, secret: str, erase: Erase) -> None:
        self._secret = secret
        self._erase = erase

    def group(self) -> RouteGroup:
        """Its routes."""
        return RouteGroup(
            name="operator",
            endpoints=[
                Endpoint(method="DELETE", path="/api/tenants/{tenant}", handle=self.erase, operation=ERASE)
            ],
        )

    async def erase(self, request: Request) -> Response:
        """Erase a tenant, everywhere."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secrets.compare_digest(
            given.strip().encode(), self._secret.encode()
        ):
            raise Refused(
                401, "only the operator of this machine may erase a tenant: use `toril tenant erase`"
            )
        return json_response(await self._erase(request.path_params["tenant"]))


ERASE = {
    "summary": "Erase a tenant, for good: for the operator of the machine alone.",
    "parameters": [parameter("tenant", "The tenant.", {"type": "string"}, where="path")],
    "responses": {"200": answer("What was removed.", {"type": "object"}), **DENIED},
}
