"""The audit finds nothing where nothing is wrong, and each kind of damage that was done on purpose."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.conftest import Servers, emptied
from tests.lake.filling import with_log
from tests.lake.span_events import a_span, body_of
from toril.aggregate import Aggregate
from toril.errors import InvalidValue
from toril.events import fold
from toril.lake.archive import EventsStep
from toril.lake.audit import CHECKS, Audit, audit
from toril.lake.lake import Lake
from toril.lake.report import report
from toril.lake.rollups import RollupsStep
from toril.lake.spans import SpansStep
from toril.lake.steps import Step
from toril.lake.summaries import TRACE_SUMMARIES, SummariesStep
from toril.lake.tables import EVENTS, ROLLUPS
from toril.log import Log
from toril.log.entry import Append
from toril.pipelines.spans.summary import TraceSummary, _event_of
from toril.pipelines.spans.tables import SpanRow

pytestmark = pytest.mark.timeout(900)

SPANS = 40
SUMMARY = TRACE_SUMMARIES


async def fill(log: Log) -> None:
    """Spans of two tenants, one that is none, and a tenant that was erased before the archive came."""
    spans = [a_span(number) for number in range(SPANS)]
    appends = [
        Append(Aggregate(f"t{place % 2}", "span", span.trace_id), [body_of(span)])
        for place, span in enumerate(spans)
    ]
    appends += [Append(Aggregate("gone", "span", span.trace_id), [body_of(span)]) for span in spans[:8]]
    appends.append(
        Append(Aggregate("t0", "span", "ab" * 16), [body_of(spans[0]).replace(b'"data"', b'"dada"')])
    )
    for result in await log.append_many(appends):
        assert not isinstance(result, BaseException)
    await log.erase_tenant("gone")


def folded(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, dict[str, Any]] | None]:
    """What the live class says of traces of :func:`fill`."""
    made: list[tuple[int, dict[str, Any]] | None] = []
    for row in rows:
        mine = [
            (place, span)
            for place, span in enumerate(map(a_span, range(SPANS)))
            if (span.trace_id, f"t{place % 2}") == (row["trace_id"], row["tenant"])
        ]
        state = fold(
            TraceSummary,
            [
                _event_of(
                    SpanRow(
                        tenant=row["tenant"],
                        record_id=str(n),
                        version=n,
                        recorded_at=row["created_at"],
                        span=span,
                    )
                )
                for n, (_, span) in enumerate(mine, 1)
            ],
        )
        shown = state.as_dict()
        del shown["updated_at"]  # by the server's clock
        made.append((len(mine), shown))
    return made


def kinds(found: Audit) -> dict[str, set[str]]:
    return {check.name: {one.kind for one in check.findings} for check in found.checks if check.findings}


def test_each_damage_is_found_and_nothing_else(servers: Servers, lake: Lake) -> None:
    """A doubled row, a missing one, a changed body, a wrong cost, a rollup off by one."""
    url = emptied(servers.get("valkey-standalone")).url
    with_log(url, fill, partitions=2)
    steps: list[Step] = [EventsStep(url), SpansStep(), SummariesStep(), RollupsStep()]
    for step in steps:
        step.prepare(lake)
        assert step.once(lake) is not None
    told: list[str] = []
    found = audit(lake, url=url, live=folded, told=lambda _, __, what: told.append(what))
    assert kinds(found) == {}
    assert found.ok
    assert told == [*CHECKS, ""]
    assert {check.name: check.skipped for check in found.checks if check.skipped} == {}
    assert all(check.looked for check in found.checks)
    ordinals = next(check for check in found.checks if check.name == "ordinals")
    assert ordinals.notes == ["8 places are empty: their tenants were erased"]
    # The archive has noted them: it is known when the log has let go of them, too.
    (alone,) = audit(lake, log=None, only=["ordinals"]).checks
    assert (alone.findings, alone.notes) == ([], ordinals.notes)
    assert sum(one.tail for one in found.figures.lag) == SPANS + 9
    assert sum(count for _, count in found.figures.volume) == SPANS + 1

    spark, events = lake.spark, lake.sql_name(EVENTS)
    first, second, third = lake.read(EVENTS).where("tenant = 't1'").orderBy("entry_id").limit(3).collect()
    twice = lake.read(EVENTS).where(f"event_id = '{first['event_id']}'")
    twice.write.format("delta").mode("append").save(lake.place(EVENTS))
    spark.sql(f"DELETE FROM {events} WHERE event_id = '{second['event_id']}'")
    spark.sql(
        f"UPDATE {events} SET body = encode(replace(decode(body, 'UTF-8'), '\"kind\"', '\"kinD\"'), 'UTF-8') "
        f"WHERE event_id = '{third['event_id']}'"
    )
    trace = lake.read(SUMMARY).where("cost IS NOT NULL").first()
    assert trace is not None
    spark.sql(
        f"UPDATE {lake.sql_name(SUMMARY)} SET cost = cost + 1 "
        f"WHERE tenant = '{trace['tenant']}' AND trace_id = '{trace['trace_id']}'"
    )
    spark.sql(
        f"UPDATE {lake.sql_name(ROLLUPS)} SET errors = errors + 1 WHERE grain = 'minute' AND tenant = 't0'"
    )
    damaged = audit(lake, url=url, live=folded)
    assert not damaged.ok
    seen = kinds(damaged)
    assert seen["versions"] >= {"version twice"}
    assert seen["ordinals"] == {"place twice", "place missing"}
    assert seen["log"] >= {"in the log and not in the lake", "differs from the log: body"}
    assert "span without an event" in seen["spans"]
    assert seen["summaries"] == {"cost is not what the spans say"}
    assert seen["live"] == {"live cost differs"}
    assert seen["rollups"] == {
        "errors is not what the spans come to",
        "the sum of cost is not that of the summaries",
    }
    value = json.loads(json.dumps(damaged.as_value()))
    assert (value["ok"], value["problems"]) == (False, damaged.problems)
    for one, title in ((found, "Log, lake and live store agree"), (damaged, "differences in 7 of 7 checks")):
        text = report(one)
        assert title in text
        assert not re.search(r"https?://|src=|href=|<script|@import|url\(", text)
    assert trace["trace_id"] in report(damaged)


def test_bad_input_is_refused(lake: Lake) -> None:
    """A fraction of more than all, a check that there is not, a lake without tables."""
    for given, rule in (({"fraction": 0.0}, "more than 0"), ({"only": ["everything"]}, "one of versions")):
        with pytest.raises(InvalidValue, match=rule):
            audit(lake, **given)
