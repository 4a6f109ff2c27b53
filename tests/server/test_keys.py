"""API keys: on every kind of server."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.command import toril as command
from tests.conftest import Servers, emptied
from toril import Connection, InvalidValue, connect
from toril.connection import ConnectionFailed
from toril.keyspace import ServerKeys
from toril.server.keys import ApiKeys, NoSuchKey, digest
from toril.testing import standalone


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_key_opens_for_its_tenant_alone(redis: Connection) -> None:
    keys = ApiKeys(redis)
    acme, made = await keys.add("acme", name="staging")
    other, _ = await keys.add("globex")
    assert acme != other
    assert acme.startswith(made.prefix)
    assert await keys.tenant_of(acme) == "acme"
    assert await keys.tenant_of(other) == "globex"
    for bad in (
        "",
        "trl_",
        acme[:-1],
        acme + "x",
        acme.swapcase(),
        "trl_" + "A" * 43,
        digest(acme),
        "é" * 47,
    ):
        assert await keys.tenant_of(bad) is None
    assert {key.tenant for key in await keys.list()} == {"acme", "globex"}
    assert [key.name for key in await keys.list("acme")] == ["staging"]


async def test_redis_never_sees_a_key(redis: Connection) -> None:
    secret, made = await ApiKeys(redis).add("acme")
    await ApiKeys(redis).tenant_of(secret)
    stored = await redis.command("HGETALL", ServerKeys().api_keys)
    assert stored[0].decode() == digest(secret)
    assert made.prefix.encode() in stored[1]
    assert secret[len(made.prefix) :].encode() not in b"".join(stored)


async def test_a_revoked_key_is_refused_within_the_stated_time_everywhere(redis: Connection) -> None:
    clock = Clock()
    here, there = ApiKeys(redis), ApiKeys(redis, fresh=5, clock=clock)
    secret, made = await here.add("acme")
    kept, _ = await here.add("acme")
    assert await there.tenant_of(secret) == "acme"
    assert (await here.revoke(made.prefix)).tenant == "acme"
    assert await here.tenant_of(secret) is None
    clock.now = 4.9
    assert await there.tenant_of(secret) == "acme"  # what it was told is believed so long
    clock.now = 5.0
    assert await there.tenant_of(secret) is None
    assert await there.tenant_of(kept) == "acme"
    with pytest.raises(NoSuchKey, match="no key begins"):
        await here.revoke(made.prefix)


async def test_a_key_that_was_not_known_is_asked_for_again(redis: Connection) -> None:
    clock = Clock()
    keys = ApiKeys(redis, fresh=5, clock=clock)
    secret, made = await keys.add("acme")
    stored = await redis.command("HGET", ServerKeys().api_keys, digest(secret))
    await keys.revoke(made.prefix)
    assert await keys.tenant_of(secret) is None
    await redis.command("HSET", ServerKeys().api_keys, digest(secret), stored)
    assert await keys.tenant_of(secret) is None
    clock.now = 5.0
    assert await keys.tenant_of(secret) == "acme"


async def test_all_keys_of_a_tenant_are_revoked(redis: Connection) -> None:
    keys = ApiKeys(redis)
    gone = [(await keys.add("acme"))[0] for _ in range(3)]
    stays, _ = await keys.add("globex")
    assert await keys.revoke_tenant("acme") == 3
    assert await keys.revoke_tenant("acme") == 0
    assert [await keys.tenant_of(secret) for secret in (*gone, stays)] == [None, None, None, "globex"]


async def test_when_a_key_was_used_is_noted_now_and_then(redis: Connection) -> None:
    keys = ApiKeys(redis)
    secret, made = await keys.add("acme")
    never, _ = await keys.add("acme")
    async with keys.noting():
        await keys.tenant_of(secret)
        await keys.tenant_of(never[:-1] + ("A" if never[-1] != "A" else "B"))
        assert all(key.used is None for key in await keys.list())
    used = {key.prefix: key.used for key in await keys.list()}
    last = used[made.prefix]
    assert last is not None
    assert last >= made.created
    assert sum(time is not None for time in used.values()) == 1
    # A note that comes after the revocation leaves nothing behind.
    await keys.tenant_of(secret)
    await keys.revoke(made.prefix)
    await keys.note()
    assert await redis.command("HLEN", ServerKeys().api_keys_used) == 0


async def test_bad_names_are_refused_by_rule(redis: Connection) -> None:
    keys = ApiKeys(redis)
    with pytest.raises(InvalidValue, match="tenant .*not shown"):
        await keys.add("a:b")
    with pytest.raises(InvalidValue, match="name"):
        await keys.add("acme", name="x" * 101)
    for bad in ("", "trl_", "x"):
        with pytest.raises(InvalidValue, match="first characters"):
            await keys.revoke(bad)
    assert await keys.list() == []


async def test_a_key_is_not_taken_on_trust_when_redis_is_away() -> None:
    clock = Clock()
    with standalone() as server:
        async with connect(server.url, patience=0.2) as redis:
            keys = ApiKeys(redis, fresh=5, clock=clock)
            secret, _ = await keys.add("acme")
            await keys.tenant_of(secret)
            server.kill()
            assert await keys.tenant_of(secret) == "acme"
            clock.now = 5.0
            with pytest.raises(ConnectionFailed):
                await keys.tenant_of(secret)


def test_keys_on_the_command_line(servers: Servers) -> None:
    server = emptied(servers.get("valkey-cluster"))

    def toril(*args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "TORIL_REDIS_URL": server.url, "COLUMNS": "100"}
        done = command("keys", *args, env=env)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    assert "There are no keys" in toril("ls").stdout
    added = toril("add", "acme", "--name", "staging")
    secret = added.stdout.strip()
    assert len(secret) == 47
    assert "shown only now" in added.stderr
    assert secret not in added.stderr
    listed = toril("ls").stdout
    assert secret[:12] in listed
    assert secret not in listed
    assert "never" in listed
    (known,) = json.loads(toril("ls", "--tenant", "acme", "--json").stdout)
    assert (known["tenant"], known["name"], known["prefix"]) == ("acme", "staging", secret[:12])
    assert "--yes" in toril("revoke", secret[:12], code=1).stderr
    assert "is revoked" in toril("revoke", secret[:12], "--yes").stdout
    assert "no key begins" in toril("revoke", secret[:12], "--yes", code=1).stderr
    assert json.loads(toril("ls", "--json").stdout) == []
