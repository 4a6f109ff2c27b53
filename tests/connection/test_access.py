"""TLS, passwords, unix sockets, sentinels."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from toril import connect
from toril.connection import AuthenticationFailed, Unreachable
from toril.keyspace import Key
from toril.testing import Server, sentinel, standalone

KEY = Key("k")


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    ca = trustme.CA()
    server, client = ca.issue_cert("localhost", "127.0.0.1"), ca.issue_cert("client@toril.test")
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    trustme.CA().cert_pem.write_to_path(tmp_path / "stranger.pem")
    for name, made in (("server", server), ("client", client)):
        made.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        made.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
    return tmp_path


@pytest.fixture
def tls_server(certificates: Path) -> Iterator[tuple[Server, int]]:
    """Debian's Redis; the wheel's server is built without TLS."""
    redis = shutil.which("redis-server")
    assert redis, "redis-server is not installed: make test installs it, or apt-get install redis-server"
    from toril.connection.server import free_port

    port = free_port()
    settings: dict[str, str | int] = {
        "tls-port": port,
        "tls-cert-file": str(certificates / "server.pem"),
        "tls-key-file": str(certificates / "server.key"),
        "tls-ca-cert-file": str(certificates / "ca.pem"),
    }
    with standalone(settings, binary=Path(redis)) as server:
        yield server, port


async def test_rediss(tls_server: tuple[Server, int], certificates: Path) -> None:
    server, port = tls_server
    ca = f"ssl_ca_certs={certificates}/ca.pem"
    mine = f"ssl_certfile={certificates}/client.pem&ssl_keyfile={certificates}/client.key"
    async with connect(f"rediss://localhost:{port}?{ca}&{mine}") as redis:
        await redis.command("SET", KEY, "x" * 1_000_000)
        assert await redis.command("STRLEN", KEY) == 1_000_000
        assert await redis.command("BLPOP", Key("empty"), 0.1, blocks_for=0.1) is None
    with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
        await connect(f"rediss://localhost:{port}?ssl_ca_certs={certificates}/stranger.pem&{mine}")
    with pytest.raises(Unreachable):
        await connect(f"rediss://localhost:{port}?{ca}")  # the server asks for a certificate
    server.ask("CONFIG", "SET", "tls-auth-clients", "no")
    async with connect(f"rediss://localhost:{port}?ssl_cert_reqs=none") as redis:
        assert await redis.command("STRLEN", KEY) == 1_000_000
    with pytest.raises(Unreachable):
        await connect(f"redis://localhost:{port}")  # no TLS where TLS is spoken


async def test_passwords(binary: Path | None) -> None:
    with standalone({"requirepass": "s3cret"}, binary=binary) as server:
        async with connect(server.url) as redis:
            assert "s3cret" not in redis.url
            assert await redis.command("PING") == b"PONG"
        for url in (
            f"redis://{server.address}",
            f"redis://:wrong@{server.address}",
            f"redis://nobody:s3cret@{server.address}",
        ):
            with pytest.raises(
                AuthenticationFailed, match="refused to let us in.*user and password go"
            ) as caught:
                await connect(url)
            assert "s3cret" not in str(caught.value)
            assert "wrong" not in str(caught.value).replace("WRONGPASS", "")
        server.ask("ACL", "SETUSER", "app", "on", ">pw", "~app:*", "+@all")
        async with connect(f"redis://app:pw@{server.address}") as redis:
            assert await redis.command("SET", Key("app:1"), 1) == b"OK"


async def test_unix_sockets(binary: Path | None, tmp_path: Path) -> None:
    with standalone({"unixsocket": str(tmp_path / "s.sock")}, binary=binary):
        async with connect(f"unix://{tmp_path}/s.sock?db=3") as redis:
            assert await redis.command("SET", KEY, 1) == b"OK"
    with pytest.raises(Unreachable, match="No such file"):
        await connect(f"unix://{tmp_path}/no.sock")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis://localhost:1", "cannot be reached: .*Is the server up, and the URL right"),
        ("redis://no-such-host.invalid", "cannot be reached"),
        ("redis+cluster://localhost:1,localhost:2", "localhost:1.*localhost:2"),
        ("redis+sentinel://localhost:1/mymaster", "localhost:1"),
    ],
)
async def test_a_wrong_url_gives_one_clear_error(url: str, problem: str) -> None:
    started = time.monotonic()
    with pytest.raises(Unreachable, match=problem):
        await connect(url)
    assert time.monotonic() - started < 10


async def test_something_that_is_not_redis_is_recognised() -> None:
    async def chat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(chat, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable, match="not a reply a Redis server would give"):
            await connect(f"redis://127.0.0.1:{port}")


async def test_a_server_that_never_answers_is_not_waited_for_long() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable, match=r"did not answer within 0\.2 s"):
            await connect(f"redis://127.0.0.1:{port}", connect_timeout=0.2)


async def test_sentinels_name_the_master_also_after_a_failover(binary: Path | None) -> None:
    replica_of = {"repl-diskless-sync-delay": 0}
    with (
        standalone(replica_of, binary=binary) as first,
        standalone(replica_of, binary=binary) as second,
        sentinel(first) as watcher,
    ):
        second.ask("REPLICAOF", first.address.host, first.address.port)
        while _replica_flags(watcher) != [b"slave"]:
            await asyncio.sleep(0.05)
        where = f"redis+sentinel://{watcher.address}/mymaster"
        async with connect(where) as redis:
            (shard,) = await redis.shards()
            assert shard.primary == first.address
            assert shard.replicas == (second.address,)
            await redis.command("SET", KEY, "before", durability="replicated")
            assert await redis.command("GET", KEY, replica=True) == b"before"
            first.kill()
            assert await redis.command("APPEND", KEY, "/after") == 12
            (shard,) = await redis.shards()
            assert shard.primary == second.address
        with pytest.raises(Unreachable, match="knows no master 'other'"):
            await connect(f"redis+sentinel://{watcher.address}/other")


def _replica_flags(watcher: Server) -> list[bytes]:
    """How the sentinel sees the replicas: ``slave`` and nothing else when it can reach them."""
    replicas = watcher.ask("SENTINEL", "REPLICAS", "mymaster")
    return [fields[fields.index(b"flags") + 1] for fields in replicas]
