"""From one server to another by URL: users, passwords and TLS; and a password is never shown."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

import pytest
import trustme

from tests.migrate.stage import NEW, OLD
from tests.test_cli import run
from toril import connect
from toril.cli.migrate.environment import cluster_url
from toril.connection.server import free_port
from toril.connection.url import Address, Credentials, parse_url
from toril.errors import InvalidValue
from toril.keyspace import QueueKeys
from toril.queue import AddJob, JobOptions, Queue
from toril.testing import Server, cluster, standalone

USER = "mover"
OLD_PASSWORD, NEW_PASSWORD = "old/s3cret@1", "new#s3cret:2"  # characters that a URL has to quote
RIGHTS = ("~bull:*", "~migration:*", "+@all", "-@admin", "-@dangerous", "+info")
"""What docs/migrate.md says a user needs; and this, to see old workers:"""
SEE_WORKERS = "+client|list"


@dataclass(frozen=True)
class Place:
    """A server that speaks TLS, and lets in a user with few rights."""

    server: Server
    port: int
    ca: Path

    def url(self, password: str) -> str:
        return f"rediss://{USER}:{quote(password, safe='')}@localhost:{self.port}?ssl_ca_certs={self.ca}"

    def allow(self, password: str, *rights: str) -> None:
        self.server.ask("ACL", "SETUSER", USER, "reset", "on", f">{password}", *RIGHTS, *rights)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Place]]:
    """Debian's Redis; the wheel's server is built without TLS."""
    redis = shutil.which("redis-server")
    assert redis, "redis-server is not installed: make test installs it, or apt-get install redis-server"
    with ExitStack() as stack:
        made = []
        for name, password in (("old", OLD_PASSWORD), ("new", NEW_PASSWORD)):
            folder, port, ca = tmp_path_factory.mktemp(name), free_port(), trustme.CA()
            cert = ca.issue_cert("localhost")
            ca.cert_pem.write_to_path(folder / "ca.pem")
            cert.private_key_pem.write_to_path(folder / "server.key")
            cert.cert_chain_pems[0].write_to_path(folder / "server.pem")
            settings: dict[str, str | int] = {
                "requirepass": "admin-s3cret",
                "tls-port": port,
                "tls-cert-file": str(folder / "server.pem"),
                "tls-key-file": str(folder / "server.key"),
                "tls-ca-cert-file": str(folder / "ca.pem"),
                "tls-auth-clients": "no",
            }
            server = stack.enter_context(standalone(settings, binary=Path(redis)))
            made.append(Place(server, port, folder / "ca.pem"))
            made[-1].allow(password, SEE_WORKERS)
        yield made[0], made[1]


@pytest.fixture
def old(places: tuple[Place, Place]) -> Place:
    places[0].server.ask("FLUSHALL")
    places[0].allow(OLD_PASSWORD, SEE_WORKERS)
    return places[0]


@pytest.fixture
def new(places: tuple[Place, Place]) -> Place:
    places[1].server.ask("FLUSHALL")
    places[1].allow(NEW_PASSWORD, SEE_WORKERS)
    return places[1]


async def fill(old: Place) -> None:
    async with connect(old.server.url) as redis:
        queue = Queue(OLD, redis)
        await queue.add_bulk([AddJob("send", {"n": number}) for number in range(5)])
        await queue.add("later", options=JobOptions(delay=3_600_000))


async def migrate(*args: str, code: int = 0, env: Mapping[str, str] = MappingProxyType({})) -> str:
    """What a command says, of which nothing is a password."""
    done = await asyncio.to_thread(run, "migrate", *args, **env)
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    for password in ("s3cret", OLD_PASSWORD, NEW_PASSWORD, quote(OLD_PASSWORD, safe="")):
        assert password not in said
    return said


async def test_from_one_secured_server_to_another(old: Place, new: Place, tmp_path: Path) -> None:
    await fill(old)
    where = ("--url", old.url(OLD_PASSWORD), "--to-url", new.url(NEW_PASSWORD))
    manifest = tmp_path / "removed.jsonl"
    assert "0 already copied, 6 pending." in await migrate(*where)
    assert "6 jobs copied." in await migrate("copy", *where)
    assert json.loads(await migrate("copy", "--json", *where))["queues"][0]["already"] == 6
    assert "Safe to run --cleanup." in await migrate("verify", *where)
    assert json.loads(await migrate("verify", "--json", *where))["safe"]
    assert "6 jobs back; it goes on." in " ".join((await migrate("rollback", "--yes", *where)).split())
    assert new.server.ask("LLEN", str(QueueKeys(NEW).wait)) == 0
    assert "6 jobs copied." in await migrate("copy", *where)
    assert f"bull:{OLD}" in await migrate("status", *where)
    await migrate("cleanup", "--yes", "--manifest", str(manifest), "--json", *where)
    assert old.server.ask("KEYS", "*") == []
    assert "s3cret" not in await asyncio.to_thread(manifest.read_text)
    assert new.server.ask("LLEN", str(QueueKeys(NEW).wait)) == 5
    facts = b" ".join(new.server.ask("HGETALL", str(QueueKeys(NEW).migration)))
    assert b"s3cret" not in facts
    # The same from the environment, where no list of processes shows it.
    env = {"TORIL_REDIS_URL": old.url(OLD_PASSWORD), "TORIL_TO_REDIS_URL": new.url(NEW_PASSWORD)}
    assert "cleaned" in await migrate("status", env=env)


async def test_errors_do_not_show_passwords(old: Place, new: Place) -> None:
    await fill(old)
    good = ("--url", old.url(OLD_PASSWORD))
    assert "refused to let us in" in await migrate(*good, "--to-url", new.url("wr0ng-s3cret"), code=1)
    unknown = new.url(NEW_PASSWORD).replace(str(new.ca), str(old.ca))
    assert "CERTIFICATE_VERIFY_FAILED" in await migrate(*good, "--to-url", unknown, code=1)
    unquoted = f"rediss://{USER}:{OLD_PASSWORD}@localhost:{old.port}"
    assert "%2F" in await migrate("--url", unquoted, code=1)
    assert "no such queue" in await migrate("nobody", *good, code=1)
    new.server.ask("ACL", "SETUSER", USER, "-evalsha")
    refused = await migrate("copy", *good, "--to-url", new.url(NEW_PASSWORD), "--json", code=1)
    assert "NOPERM" in refused
    async with connect(old.server.url) as redis:
        assert not await redis.command("HEXISTS", QueueKeys(OLD).meta, "paused")  # nothing was changed


async def test_where_workers_cannot_be_seen_nothing_is_taken_for_safe(old: Place, new: Place) -> None:
    await fill(old)
    old.allow(OLD_PASSWORD)
    where = ("--url", old.url(OLD_PASSWORD), "--to-url", new.url(NEW_PASSWORD))
    assert "it refuses CLIENT LIST" in " ".join((await migrate(*where)).split())
    assert "may be connected" in await migrate("copy", "--no-pause", *where, code=1)
    assert "6 jobs copied." in await migrate("copy", *where)
    assert "may be connected" in await migrate("cleanup", "--yes", *where, code=3)
    assert len(old.server.ask("KEYS", f"bull:{OLD}:*")) > 6


async def test_a_cluster_with_a_user_from_its_endpoints(tmp_path: Path) -> None:
    old = QueueKeys(OLD)
    with cluster(masters=1, replicas=0) as made:
        (server,) = made.servers
        server.ask("ACL", "SETUSER", USER, "on", f">{OLD_PASSWORD}", *RIGHTS, SEE_WORKERS)
        server.ask("HSET", str(old.job("1")), "name", "n", "data", "{}", "timestamp", 1)
        server.ask("LPUSH", str(old.wait), "1")
        server.ask("ACL", "SETUSER", "default", "resetpass")
        login = f"{USER}:{quote(OLD_PASSWORD, safe='')}"
        env = {"TORIL_REDIS_URL": "", "REDIS_CLUSTER_ENDPOINTS": f"redis://{login}@{server.address}"}
        assert "1 job copied." in await migrate("--migrate", env=env)
        await migrate("--cleanup", "--yes", "--manifest", str(tmp_path / "m"), env=env)
        assert "Migration is clean." in await migrate(env=env)


def test_endpoints_of_a_cluster() -> None:
    hosts = Address("h1", 6379), Address("h2", 7000)
    for endpoints, user, secure in (
        ("h1,h2:7000", None, False),
        ("redis://h1, redis://h2:7000/", None, False),
        ("redis://u:p%2F@h1,redis://u:p%2F@h2:7000", Credentials("u", "p/"), False),
        ("rediss://:p@h1,h2:7000", Credentials("", "p"), True),
    ):
        target = parse_url(cluster_url(endpoints))
        assert (target.mode, target.addresses, target.credentials) == ("cluster", hosts, user)
        assert (target.tls is not None) is secure
    assert (
        parse_url(cluster_url("rediss://h1?ssl_cert_reqs=none")).tls
        == parse_url("rediss+cluster://h1?ssl_cert_reqs=none").tls
    )
    for endpoints, rule in (
        ("redis://u:s3cret@h1,redis://u:0ther-s3cret@h2", "differ in their user"),
        ("redis://h1,rediss://h2", "differ in their scheme"),
        ("http://u:s3cret@h1", "the scheme must be"),
    ):
        with pytest.raises(InvalidValue, match=rule) as refused:
            cluster_url(endpoints)
        assert "s3cret" not in str(refused.value)
