"""Metrics, health and the description of the API."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tests.conftest import Servers, emptied
from tests.server.parts import PROTOBUF, Served, serving, span
from tests.waiting import until
from toril import connect
from toril.events import CommandHandler, Count, DeclaredProjection, EventHandler, NewEvent
from toril.pipelines.spans import otlp
from toril.runtime import EventSourcing, Retry
from toril.server.routes import Endpoint, RouteGroup, answer
from toril.stream import AddJob, StreamOptions, StreamQueue


class Place(CommandHandler[dict[str, Any]]):
    @classmethod
    def get_aggregate_id(cls, payload: dict[str, Any]) -> str:
        return str(payload["order"])

    def handle(self, command: Any) -> Any:
        return [NewEvent(type="placed", data=command.data)]


class Mail(EventHandler[Any]):
    async def handle(self, event: Any, context: Any) -> None:  # noqa: ARG002
        raise RuntimeError("no mail today")


class Totals(DeclaredProjection):
    orders = Count()


def shop(url: str) -> EventSourcing:
    sourcing = EventSourcing(url, partitions=4, log="shop")
    (
        sourcing.register_pipeline()
        .with_name("orders")
        .with_aggregate_type("order")
        .with_command_handler(Place)
        .with_event_handler("mail", Mail(), retry=Retry(attempts=1))
        .with_projection("totals", None, Totals)
        .build()
    )
    return sourcing


Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


async def samples(served: Served) -> Samples:
    """All metrics, as Prometheus reads them."""
    found: Samples = {}
    reply = await served.http.get("/metrics")
    assert reply.status_code == 200
    for family in text_string_to_metric_families(reply.text):
        assert family.documentation, family.name
        for one in family.samples:
            found.setdefault(one.name, {})[tuple(sorted(one.labels.items()))] = one.value
    return found


@pytest.mark.parametrize("where", ["valkey-standalone", "valkey-cluster"])
async def test_metrics_show_how_everything_stands(servers: Servers, where: str) -> None:
    url = emptied(servers.get(where)).url
    async with shop(url) as sourcing, serving(url, sourcings=[sourcing]) as served:
        orders = sourcing.pipelines["orders"]
        for number in range(3):
            await orders.commands.place.execute({"order": str(number)}, tenant="tenant-unseen")
        await orders.commands.place.send({"order": "9"}, tenant="tenant-unseen")
        await served.post(otlp.encode_protobuf([span(1), span(2)]), PROTOBUF)
        await served.post(b"\xff", PROTOBUF)
        await served.http.get("/nowhere")
        found = await samples(served)

        def value(name: str, **labels: str) -> float:
            return found[name][tuple(sorted(labels.items()))]

        assert value("toril_queue_jobs", queue="{orders/command/place}", state="waiting") == 1
        assert value("toril_log_entries", log="shop") == 3
        assert value("toril_log_appended_total", log="shop") == 3
        assert value("toril_processor_behind", pipeline="orders", processor="mail") == 3
        assert value("toril_processor_oldest_seconds", pipeline="orders", processor="mail") > 0
        assert value("toril_collector_spans_total", outcome="recorded") == 2
        assert value("toril_http_requests_total", route="/v1/traces", status="200") == 1
        assert value("toril_http_requests_total", route="/v1/traces", status="400") == 1
        assert value("toril_http_requests_total", route="(other)", status="404") == 1
        assert value("toril_http_request_seconds_count", route="/v1/traces") == 2
        assert value("toril_script_calls_total", script="log/append") >= 1
        assert value("toril_look_ok") == 1

        async with sourcing.worker():

            async def done() -> bool:
                found.clear()
                found.update(await samples(served))
                behind = found["toril_processor_behind"].values()
                failed = value("toril_processor_failed", pipeline="orders", processor="mail")
                return not any(behind) and failed == 4

            await until(done)
            assert value("toril_log_reader_behind", log="shop", reader="orders/totals") == 0
            assert value("toril_processor_workers", pipeline="orders", processor="totals") == 1
            assert value("toril_queue_jobs", queue="{orders/command/place}", state="completed") == 1
        text = (await served.http.get("/metrics")).text
        assert "tenant-unseen" not in text
        assert "acme" not in text
        assert span().trace_id not in text


async def test_metrics_of_stream_queues(servers: Servers) -> None:
    url = emptied(servers.get("valkey-cluster")).url
    async with connect(url) as redis:
        options = StreamOptions(partitions=2, weights=(6, 3, 1))
        steps = StreamQueue("fd:step_queue", redis, schema=None, options=options)
        await steps.add_bulk([AddJob(data=n, priority=n % 2, tenant="acme") for n in range(10)])
        gone = StreamQueue("gone", redis, schema=None)
        await gone.add(1)
        async with serving(url) as served:
            found = await samples(served)
            queue = ("queue", "fd:step_queue")
            assert found["toril_stream_ready"][("level", "0"), queue] == 5
            assert found["toril_stream_ready"][("level", "1"), queue] == 5
            assert found["toril_stream_added_total"][queue,] == 10
            assert found["toril_stream_drain_seconds"][queue,] == float("inf")
            parts = found["toril_stream_partition_backlog"]
            assert sum(parts[("partition", part), queue] for part in ("00", "01")) == 10
            assert "acme" not in (await served.http.get("/metrics")).text
            await redis.command("UNLINK", gone.home.meta)

            async def forgotten() -> bool:
                return (("queue", "gone"),) not in (await samples(served))["toril_stream_backlog"]

            await until(forgotten)
        assert not await redis.command("EXISTS", gone.home.meta)  # looking has not made it again


async def test_temporary_readers_share_one_label(servers: Servers) -> None:
    url = emptied(servers.get("valkey-standalone")).url
    async with serving(url) as served:
        log = served.sourcing.log
        assert log is not None
        for partition in (await log.layout()).partitions():
            for number in range(3):
                await log.store(partition).register(f"tail-{number}", "first", silent_ms=60_000)
        await served.post(otlp.encode_protobuf([span()]), PROTOBUF)
        found = await samples(served)
        assert found["toril_log_reader_behind"] == {(("log", "log"), ("reader", "(temporary)")): 3}


async def test_a_storm_of_scrapes_looks_once(redis_url: str) -> None:
    async with serving(redis_url, metrics_fresh=60.0) as served:
        assert served.sourcing.redis is not None
        counts = served.sourcing.redis.script_counts
        await served.http.get("/metrics")
        before = counts["log/look"].calls
        assert before
        replies = await asyncio.gather(*(served.http.get("/metrics") for _ in range(50)))
        assert {reply.status_code for reply in replies} == {200}
        assert counts["log/look"].calls == before


async def test_readiness_says_what_is_not_ready(redis_url: str) -> None:
    broken = True

    async def store() -> None:
        if broken:
            raise RuntimeError("no tables here")

    async def stuck() -> None:
        await asyncio.sleep(0 if not broken else 60)

    async with serving(redis_url, checks={"clickhouse": store, "slow": stuck}) as served:
        reply = await served.http.get("/readyz")
        assert reply.status_code == 503
        assert reply.json() == {
            "ready": False,
            "parts": {
                "redis": "ok",
                "clickhouse": "RuntimeError: no tables here",
                "slow": "no answer within 3 seconds",
            },
        }
        broken = False

        async def ready() -> bool:
            return (await served.http.get("/readyz")).status_code == 200

        await until(ready)
        assert (await served.http.get("/healthz")).json() == {"status": "ok"}


async def test_health_needs_no_key_and_wrong_paths_get_json(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url) as http:
        for path in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
            assert (await http.get(path)).status_code == 200
        assert (await http.get("/nowhere")).json() == {"error": "Not Found"}
        wrong = await http.get("/v1/traces")
        assert wrong.status_code == 405
        assert wrong.headers["allow"] == "POST"


# ------------------------------------------------------------------------- the description


def refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for part in value.values():
            yield from refs(part)
    elif isinstance(value, list):
        for part in value:
            yield from refs(part)


async def test_every_route_is_described_and_every_description_is_a_route(served: Served) -> None:
    document = (await served.http.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1.")
    described = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
    routes = {
        (route.path, method)
        for route in served.server.app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert described == routes
    assert len(routes) == 7


async def test_the_description_is_whole(served: Served) -> None:
    document = (await served.http.get("/openapi.json")).json()
    for target in refs(document):
        place = document
        for step in target.removeprefix("#/").split("/"):
            place = place[step]
    names = set()
    for path, methods in document["paths"].items():
        for operation in methods.values():
            names.add(operation["operationId"])
            assert operation["summary"]
            assert operation["tags"][0] in {tag["name"] for tag in document["tags"]}
            for status, response in operation["responses"].items():
                assert re.fullmatch(r"[1-5][0-9]{2}", status)
                assert response["description"]
            given = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
            assert given == set(re.findall(r"{(\w+)}", path))
            for way in operation.get("security", ()):
                assert set(way) <= set(document["components"]["securitySchemes"])
    assert len(names) == sum(map(len, document["paths"].values()))


async def test_other_rooms_can_be_added(redis_url: str) -> None:
    ran: list[str] = []

    async def show(request: Request) -> Response:
        if "broken" in request.query_params:
            raise RuntimeError("a secret of the house")
        return PlainTextResponse("room")

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        ran.append("begun")
        yield
        ran.append("ended")

    group = RouteGroup(
        name="rooms",
        endpoints=[
            Endpoint(
                method="GET",
                path="/api/rooms",
                handle=show,
                operation={
                    "operationId": "rooms",
                    "summary": "Rooms",
                    "responses": {"200": answer("Rooms.")},
                },
            )
        ],
        pages=[Route("/page", show)],
        running=running,
    )
    async with serving(redis_url, groups=[group]) as served:
        assert (await served.http.get("/api/rooms")).text == "room"
        assert (await served.http.get("/page")).text == "room"
        broken = await served.http.get("/api/rooms?broken=1")
        assert broken.status_code == 500
        assert "secret" not in broken.text
        paths = json.loads((await served.http.get("/openapi.json")).text)["paths"]
        assert "/api/rooms" in paths
        assert "/page" not in paths
        assert ran == ["begun"]
    assert ran == ["begun", "ended"]
