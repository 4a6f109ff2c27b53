"""``GET /api/traces``: what is there, of the key's tenant and of no other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.parts import TRACE, Served, serving, span
from toril.pipelines.spans.tables import SpanRow, TraceRow

HUGE = 2**63 - 1
START = 1_700_000_000_000_000_000


def summary(start: int, duration: int = 1, cost: int = 0, errors: int = 0) -> dict[str, Any]:
    return {
        "started_at": start,
        "ended_at": start + duration,
        "duration": duration,
        "cost": cost,
        "errors": errors,
        "exact": HUGE,
    }


def trace_id(number: int) -> str:
    return f"{number:032x}"


@pytest.fixture
async def filled(served: Served) -> Served:
    rows = [
        TraceRow(tenant=tenant, trace_id=trace_id(number), version=1, summary=summary(START + number, number))
        for tenant in ("acme", "globex")
        for number in range(1, 6)
    ]
    await served.parts.traces.insert(rows)
    await served.parts.traces.insert(
        [TraceRow(tenant="globex", trace_id=trace_id(99), version=1, summary=summary(START + 99, 99))]
    )
    await served.parts.spans.insert(
        [
            SpanRow(
                tenant="acme",
                record_id=f"span_{number}",
                version=number,
                recorded_at=HUGE,
                span=span(number, trace_id=trace_id(1), start=START + number, attributes={"n": HUGE, "z": 0}),
            )
            for number in range(1, 6)
        ]
    )
    return served


async def ids(served: Served, query: str) -> list[int]:
    answer = await served.http.get(f"/api/traces?{query}")
    assert answer.status_code == 200, answer.text
    return [int(trace["trace_id"], 16) for trace in answer.json()["traces"]]


async def test_traces_are_listed_in_the_order_asked_for(filled: Served) -> None:
    assert await ids(filled, "") == [5, 4, 3, 2, 1]
    assert await ids(filled, "order=slowest&limit=2") == [5, 4]
    assert await ids(filled, f"since={START + 2}&until={START + 4}") == [3, 2]
    assert await ids(filled, "order=failing") == []


async def test_whole_numbers_are_exact(filled: Served) -> None:
    text = (await filled.http.get("/api/traces?limit=1")).text
    assert f'"exact":{HUGE}' in text
    text = (await filled.http.get(f"/api/traces/{trace_id(1)}")).text
    assert f'"n":{HUGE}' in text
    assert '"z":0' in text


async def test_a_trace_is_shown_with_its_spans(filled: Served) -> None:
    shown = (await filled.http.get(f"/api/traces/{trace_id(1)}")).json()
    assert [one["span"]["span_id"] for one in shown["spans"]] == [f"{n:016x}" for n in range(1, 6)]
    assert (shown["version"], shown["truncated"]) == (1, False)
    cut = (await filled.http.get(f"/api/traces/{trace_id(1).upper()}?limit=3")).json()
    assert (len(cut["spans"]), cut["truncated"]) == (3, True)
    exact = (await filled.http.get(f"/api/traces/{trace_id(1)}?limit=5")).json()
    assert (len(exact["spans"]), exact["truncated"]) == (5, False)
    no_spans = (await filled.http.get(f"/api/traces/{trace_id(2)}")).json()
    assert (no_spans["version"], no_spans["spans"]) == (1, [])


async def test_spans_without_a_summary_are_shown(served: Served) -> None:
    row = SpanRow(tenant="acme", record_id="a", version=1, recorded_at=1, span=span())
    await served.parts.spans.insert([row])
    shown = (await served.http.get(f"/api/traces/{TRACE}")).json()
    assert (shown["version"], shown["summary"], len(shown["spans"])) == (None, None, 1)


async def test_tenant_walls_stand_in_the_read_api(filled: Served) -> None:
    missing = await filled.http.get(f"/api/traces/{trace_id(99)}")
    assert missing.status_code == 404
    assert missing.json() == {"error": f"there is no trace {trace_id(99)}"}
    key, _ = await filled.parts.keys.add("globex")
    theirs = {"Authorization": f"Bearer {key}"}
    assert (await filled.http.get(f"/api/traces/{trace_id(99)}", headers=theirs)).status_code == 200
    shown = (await filled.http.get(f"/api/traces/{trace_id(1)}", headers=theirs)).json()
    assert shown["spans"] == []  # the spans of this id are another tenant's
    for path in ("/api/traces", f"/api/traces/{trace_id(1)}"):
        answer = await filled.http.get(path, headers={"Authorization": ""})
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.json()["error"]


async def test_tenant_walls_only_the_operator_names_a_tenant(redis_url: str) -> None:
    async with serving(redis_url, operator="hush") as served:
        key, _ = await served.parts.keys.add("globex")
        await served.parts.traces.insert(
            [TraceRow(tenant="acme", trace_id=trace_id(1), version=1, summary=summary(START))]
        )
        for secret, tenant, status in (
            ("hush", "acme", 200),
            ("hush", "globex", 404),
            ("hush", None, 400),
            ("hush", "a:b", 400),
            ("hushhush", "acme", 401),
            ("trl_", "acme", 401),
            (key, "acme", 404),  # what a key is for is not for the sender to say
        ):
            headers = {"Authorization": f"Bearer {secret}"} | ({"X-Toril-Tenant": tenant} if tenant else {})
            answer = await served.http.get(f"/api/traces/{trace_id(1)}", headers=headers)
            assert answer.status_code == status, (secret, tenant)
    async with serving(redis_url) as served:  # without an operator, no secret is his
        for secret in ("hush", "None"):
            headers = {"Authorization": f"Bearer {secret}", "X-Toril-Tenant": "acme"}
            assert (await served.http.get("/api/traces", headers=headers)).status_code == 401


@pytest.mark.parametrize(
    ("query", "field", "value", "rule"),
    [
        ("?order=cheapest", "order", "cheapest", "latest, slowest, dearest, failing"),
        ("?since=yesterday", "since", "yesterday", "whole number"),
        ("?since=-1", "since", "-1", "whole number"),
        ("?until=1.5", "until", "1.5", "whole number"),
        (f"?until={2**63}", "until", str(2**63), "9223372036854775807"),
        ("?since=5&until=4", "since", "5", "not after until"),
        ("?limit=0", "limit", "0", "from 1 to 1000"),
        ("?limit=1001", "limit", "1001", "from 1 to 1000"),
        ("?limit=", "limit", "", "whole number"),
        ("?tenant=globex", "parameter", "tenant", "one of order"),
        ("/xyz", "trace_id", "xyz", "32 hexadecimal digits"),
        (f"/{TRACE}0", "trace_id", f"{TRACE}0", "32 hexadecimal digits"),
        (f"/{TRACE}?limit=10001", "limit", "10001", "from 1 to 10000"),
    ],
)
async def test_bad_parameters_are_told_with_field_value_and_rule(
    served: Served, query: str, field: str, value: str, rule: str
) -> None:
    answer = await served.http.get(f"/api/traces{query}")
    assert answer.status_code == 400
    told = answer.json()
    assert told["field"] == field
    for part in (field, value, rule):
        assert part in told["error"]
