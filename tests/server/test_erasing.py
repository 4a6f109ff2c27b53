"""What remains of a tenant that was erased: nothing, whoever still holds a key of it."""

from __future__ import annotations

from tests.server.parts import PROTOBUF, serving, span
from toril.pipelines.spans import otlp
from toril.server.erasing import erase_tenant
from toril.server.keys import ApiKeys


async def test_once_a_tenant_is_erased_its_keys_are_refused_everywhere(redis_url: str) -> None:
    async with serving(redis_url) as served, served.sourcing.worker():
        redis = served.sourcing.redis
        assert redis is not None
        served.parts.keys.fresh = 1.0
        body = otlp.encode_protobuf([span()])
        assert (await served.post(body, PROTOBUF)).status_code == 200  # from now on, the key is believed

        erased = await erase_tenant(
            "acme",
            sourcing=served.sourcing,
            keys=ApiKeys(redis, fresh=1.0),  # another process's
            tables={"spans": served.parts.spans, "traces": served.parts.traces},
        )
        assert erased.keys == 1
        assert (await served.post(body, PROTOBUF)).status_code == 401
        assert await served.parts.spans.count("acme") == 0
        assert await served.parts.traces.count("acme") == 0
