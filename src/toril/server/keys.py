"""API keys: who may send to a server, and for which tenant.

Of a key, only its digest is kept: whoever reads Redis learns no key. A key is 256 random bits, so one SHA-256
is enough to keep it secret, and costs a microsecond. Slow digests (argon2, scrypt) protect what people make
up and others can guess; no one can guess these, and each request would pay for it.

A server asks Redis for a key once in :data:`FRESH` seconds. So a revoked key is refused everywhere after that
time at the latest, and one that Redis cannot be asked about is not taken on trust any longer than that.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from toril.aggregate import check_tenant
from toril.connection import Connection, load_script
from toril.errors import InvalidValue, TorilError
from toril.keyspace import ServerKeys

logger = logging.getLogger("toril.server")

FRESH = 5.0
"""Seconds for which a server believes what Redis said of a key."""

REMEMBERED = 10_000
"""Keys that a server remembers, known or not; of more, it forgets those it has not met for longest."""

NOTE_EVERY = 60.0
"""Seconds between two notes of which keys were used. When a key was used is known to that precision."""

LONGEST_NAME = 100

_FORM = re.compile(r"trl_[A-Za-z0-9_-]{43}")
_SHOWN = 12

USE, REVOKE = load_script("server/use_keys"), load_script("server/revoke_keys")


class NoSuchKey(TorilError):
    """There is no API key that begins like this, or more than one."""


class ApiKey(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is known of a key. The key itself is not."""

    tenant: str
    prefix: str
    """Its first characters, to tell it from others: ``trl_8fK2dQz1``."""
    name: str = ""
    created: int
    """Milliseconds since 1970."""
    used: int | None = None
    """When it was last used (ms), give or take a minute; None where it never was."""


class ApiKeys:
    """The API keys of all tenants, in Redis; with :meth:`tenant_of` for each request.

    ::

        keys = ApiKeys(redis)
        secret, key = await keys.add("acme", name="staging")
        await keys.tenant_of(secret)  # "acme"
    """

    def __init__(
        self, redis: Connection, *, fresh: float = FRESH, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.fresh = fresh
        self._redis = redis
        self._keys = ServerKeys()
        self._clock = clock
        self._known: OrderedDict[str, tuple[str | None, float]] = OrderedDict()
        """By digest: the tenant (None: there is no such key), and until when that is believed."""
        self._used: dict[str, int] = {}

    # ------------------------------------------------------------------ for people

    async def add(self, tenant: str, *, name: str = "") -> tuple[str, ApiKey]:
        """Make a key. It is returned here, and never again."""
        check_tenant(tenant)
        if not isinstance(name, str) or len(name) > LONGEST_NAME or not name.isprintable():
            raise InvalidValue("name", name, f"at most {LONGEST_NAME} characters that can be printed")
        secret = f"trl_{secrets.token_urlsafe(32)}"
        key = ApiKey(tenant=tenant, prefix=secret[:_SHOWN], name=name, created=_now())
        stored = msgspec.json.encode(key)
        # Sent again after a broken connection it writes the same: the secret is this call's alone.
        await self._redis.command("HSET", self._keys.api_keys, digest(secret), stored, repeatable=True)
        return secret, key

    async def list(self, tenant: str | None = None) -> list[ApiKey]:
        """All keys, or those of a tenant: the oldest first."""
        found = [key for key in (await self._all()).values() if tenant in (None, key.tenant)]
        return sorted(found, key=lambda key: (key.created, key.prefix))

    async def revoke(self, prefix: str) -> ApiKey:
        """Revoke the one key that begins like this; it is refused within :attr:`fresh` seconds."""
        if not prefix.startswith("trl_") or len(prefix) <= 4:
            raise InvalidValue("key", prefix[:_SHOWN], "the first characters of a key, like trl_8fK2dQz1")
        shown = prefix[:_SHOWN]
        found = {one: key for one, key in (await self._all()).items() if key.prefix.startswith(shown)}
        if len(found) != 1:
            rule = "no key begins" if not found else f"{len(found)} keys begin"
            raise NoSuchKey(f"{rule} with {shown!r} (nothing was revoked)")
        await self._revoke(list(found))
        return next(iter(found.values()))

    async def revoke_tenant(self, tenant: str) -> int:
        """Revoke all keys of a tenant; says how many there were."""
        check_tenant(tenant)
        return await self._revoke([one for one, key in (await self._all()).items() if key.tenant == tenant])

    async def _revoke(self, digests: Sequence[str]) -> int:
        for one in digests:
            self._known.pop(one, None)
        if not digests:
            return 0
        return int(await self._redis.run(REVOKE, self._keys, *digests, repeatable=True))

    async def _all(self) -> dict[str, ApiKey]:
        stored = await self._redis.command("HGETALL", self._keys.api_keys)
        used = await self._redis.command("HGETALL", self._keys.api_keys_used)
        times = dict(zip(used[::2], used[1::2], strict=True))
        found = {}
        for one, raw in zip(stored[::2], stored[1::2], strict=True):
            key = msgspec.json.decode(raw, type=ApiKey)
            last = times.get(one)
            found[one.decode()] = key if last is None else msgspec.structs.replace(key, used=int(last))
        return found

    # ------------------------------------------------------------------ for requests

    async def tenant_of(self, secret: str) -> str | None:
        """The tenant of a key; None where there is no such key. Raises where Redis cannot be asked."""
        if not _FORM.fullmatch(secret):
            return None
        # Looked up by digest: how long that takes says nothing of the key, which nothing is compared with.
        one = digest(secret)
        known = self._known.get(one)
        if known is None or known[1] <= self._clock():
            known = await self._ask(one)
        self._known.move_to_end(one)
        if known[0] is not None:
            self._used[one] = _now()
        return known[0]

    async def _ask(self, one: str) -> tuple[str | None, float]:
        until = self._clock() + self.fresh  # from before the question: what is revoked after it is not known
        raw = await self._redis.command("HGET", self._keys.api_keys, one)
        tenant = None if raw is None else msgspec.json.decode(raw, type=ApiKey).tenant
        known = self._known[one] = (tenant, until)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return known

    @asynccontextmanager
    async def noting(self, every: float = NOTE_EVERY) -> AsyncIterator[None]:
        """While it is entered, note now and then which keys were used; and once more when it is left."""
        task = asyncio.create_task(self._note_forever(every))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._try_to_note()

    async def note(self) -> None:
        """Note now which keys were used since the last time."""
        used, self._used = self._used, {}
        if used:
            flat = [part for one, time in used.items() for part in (one, time)]
            await self._redis.run(USE, self._keys, *flat, repeatable=True)

    async def _note_forever(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            await self._try_to_note()

    async def _try_to_note(self) -> None:
        try:
            await self.note()
        except TorilError as problem:  # nobody depends on it
            logger.warning("which API keys were used could not be noted: %s", problem)


def digest(secret: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _now() -> int:
    return time.time_ns() // 1_000_000
