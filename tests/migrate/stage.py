"""An old queue and a new one on one server, with Node on both sides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.conformance.dump import Dump
from tests.conformance.oracle import NodeOracle
from tests.conformance.sides import NodeSide
from toril import Connection, connect
from toril.keyspace import QueueKeys
from toril.migrate import (
    Copier,
    CopyOptions,
    Move,
    Moves,
    QueueCheck,
    QueueCleanup,
    QueueReport,
    cleanup,
    verify,
)
from toril.testing import Cluster, Server

OLD, NEW = "mail", "{mail}"


class Stage:
    """See the module's text. Node's clock runs."""

    def __init__(self, node: NodeSide, redis: Connection, manifest: Path) -> None:
        self.node = node
        self.redis = redis
        self.manifest = manifest
        self.moves = Moves([Move(QueueKeys(OLD), QueueKeys(NEW))])

    async def add(self, queue: str = OLD, count: int = 1, **opts: Any) -> list[str]:
        jobs = [{"name": "send", "data": {"n": number}, "opts": opts} for number in range(count)]
        ids: list[str] = await self.node.call("addBulk", queue=queue, jobs=jobs)
        return ids

    def copier(self, **options: Any) -> Copier:
        return Copier(self.redis, self.redis, self.moves, CopyOptions(**options))

    async def copy(self, **options: Any) -> QueueReport:
        (report,) = await self.copier(**options).copy()
        return report

    async def verify(self) -> QueueCheck:
        (check,) = await verify(self.redis, self.redis, self.moves)
        return check

    async def cleanup(self, **options: Any) -> QueueCleanup:
        (done,) = await cleanup(self.redis, self.redis, self.moves, manifest=self.manifest, **options)
        return done

    async def fetch(self, queue: str, token: str, **worker: Any) -> str | None:
        reply = await self.node.call("fetch", queue=queue, token=token, worker=worker)
        return reply["job"]["id"] if reply["job"] else None

    async def work_off(self, queue: str = NEW) -> list[str]:
        """Let Node complete what waits; the ids in the order in which it took them."""
        taken: list[str] = []
        while (job := await self.fetch(queue, f"t{len(taken)}")) is not None:
            token = f"t{len(taken)}"
            await self.node.call(
                "complete",
                queue=queue,
                job={"held": token},
                token=token,
                value=None,
                fetchNext=False,
                worker={},
            )
            taken.append(job)
        return taken

    async def job(self, queue: str, ident: str) -> Any:
        return await self.node.call("getJob", queue=queue, job=ident)

    async def state(self, queue: str, ident: str) -> str:
        found: str = await self.node.call("getJobState", queue=queue, job=ident)
        return found

    def old_keys(self) -> Dump:
        """The old queue's keys, whatever time they have to live."""
        dump = self.node.store.dump()
        return {name: replace(key, ttl=-1) for name, key in dump.items() if name.startswith(f"bull:{OLD}:")}


@asynccontextmanager
async def open_stage(oracle: NodeOracle, server: Server | Cluster, folder: Path) -> AsyncIterator[Stage]:
    node = await NodeSide.open(oracle, server)
    try:
        async with connect(server.url) as redis:
            yield Stage(node, redis, folder / "removed.jsonl")
    finally:
        await node.close()
