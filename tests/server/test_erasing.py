"""What remains of a tenant that was erased: nothing, whoever still holds a key of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.server.parts import PROTOBUF, Served, serving, span
from toril.pipelines.spans import otlp
from toril.pipelines.spans.ingestion import Ingestion
from toril.pipelines.spans.tables import SpanRow
from toril.server.erasing import ErasedTenant, erase_tenant
from toril.server.keys import ApiKeys

BODY = otlp.encode_protobuf([span()])


async def erase(served: Served, fresh: float = 0.1) -> ErasedTenant:
    """Erase the tenant as another process does."""
    assert served.sourcing.redis is not None
    return await erase_tenant(
        "acme",
        sourcing=served.sourcing,
        keys=ApiKeys(served.sourcing.redis, fresh=fresh),
        tables={"spans": served.parts.spans, "traces": served.parts.traces},
    )


async def test_once_a_tenant_is_erased_its_keys_are_refused_everywhere(redis_url: str) -> None:
    async with serving(redis_url) as served, served.sourcing.worker():
        served.parts.keys.fresh = 1.0
        assert (await served.post(BODY, PROTOBUF)).status_code == 200  # from now on, the key is believed
        assert (await erase(served, fresh=1.0)).keys == 1
        assert (await served.post(BODY, PROTOBUF)).status_code == 401
        assert await served.parts.spans.count("acme") == 0
        assert await served.parts.traces.count("acme") == 0


async def test_commands_of_an_erased_tenant_are_gone_and_those_of_others_are_not(redis_url: str) -> None:
    async with serving(redis_url) as served:
        recorder = served.parts.recorder
        assert isinstance(recorder, Ingestion)
        for tenant in ("acme", "globex"):
            await recorder.record_span.send(span(), tenant=tenant)
        assert (await erase(served)).jobs == 1
        queue = (await recorder.record_span.dispatcher()).queue
        assert queue is not None
        left = [await queue.job(job_id) for job_id in await queue.ids()]
        assert [job.data["tenant"] for job in left if job is not None] == ["globex"]


async def test_what_workers_had_read_of_a_tenant_is_waited_for(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, inserted = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with serving(redis_url) as served, served.sourcing.worker():
        table = served.parts.spans
        real = table.insert

        async def insert(rows: Sequence[SpanRow]) -> None:
            begun.set()
            await go.wait()
            await real(rows)
            inserted.set()

        monkeypatch.setattr(table, "insert", insert)
        assert (await served.post(BODY, PROTOBUF)).status_code == 200
        async with asyncio.timeout(20):
            await begun.wait()
            erasing = asyncio.create_task(erase(served))
            await asyncio.wait({erasing}, timeout=1.0)  # time enough, if it did not wait
            go.set()
            await inserted.wait()
            await erasing
        assert await table.count("acme") == 0
