"""Traces by chance, as events and as rows, for the tests of engines and summaries."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from toril.events import AnyProjection, NewEvent
from toril.events.event import restore_event
from toril.lake.tables import LOG_COLUMNS
from toril.pipelines.spans.recording import SPAN_RECORDED
from toril.pipelines.spans.span import Ai, Resource, Scope, Span
from toril.pipelines.spans.summary import SPAN_AGGREGATE

S = 1_000_000_000
T0 = 1_790_000_000 * S
WORDS = [
    "",
    "a",
    "b",
    "a b",
    "gpt-4o",
    "${name}",
    "ü😀",
    "x" * 300,
    'c\x00\x1f"\\/\x7f\u2028',
    "null",
    "true",
    "1",
    "\ue000",
    "😀",
]
TEXTS = [*WORDS, "ü" * 3000, "y" * 4096, "z" * 4097, "€" * 400, "a" + "😀" * 1100, "ab" + "€" * 90]
JSON = [
    *WORDS,
    True,
    False,
    0,
    -3,
    2**70,
    0.5,
    1.0,
    1e300,
    [],
    ["a", None, "ü\n"],
    {},
    {"ü": 1, "b": {"d": [None]}, "a": '"'},
]
NAMES = [
    "metadata",
    "metadata.",
    "metadata." + "k" * 300,
    "langwatch.topic_id",
    "langwatch.subtopic_id",
    "langwatch.annotated",
    "langgraph.thread_id",
    "url.full",
    "url.path",
    "http.target",
    "http.status_code",
    "http.response.status_code",
    "exception.message",
    "error.type",
    "it's",
    *(f"metadata.{number:03}" for number in range(70)),
]
COUNTS = [None, None, 0, 1, 5, 2**62, 2**63 - 1, -(2**63), -7]
TIMES = [0, 1, T0, T0 + 1, T0 + 2, T0 + S, T0 + 7 * S, 2**63 - 1]


def chance_span(chance: random.Random, trace_id: str, number: int) -> Span:
    """A span with a bit of everything."""
    pick = chance.choice

    def maybe(values: Sequence[Any]) -> Any:
        return None if chance.random() < 0.4 else pick(values)

    ai = Ai(
        kind=maybe(["llm", "agent", "evaluation", "guardrail"]),
        provider=maybe(WORDS),
        request_model=maybe(WORDS),
        response_model=maybe(WORDS),
        input_tokens=pick(COUNTS),
        output_tokens=pick(COUNTS),
        cache_read_tokens=pick(COUNTS),
        cache_write_tokens=pick(COUNTS),
        reasoning_tokens=pick(COUNTS),
        tokens_estimated=pick([None, True, False]),
        first_token=pick(COUNTS),
        last_token=pick(COUNTS),
        input=maybe([*TEXTS, *JSON]),
        output=maybe([*TEXTS, *JSON]),
        conversation=maybe(WORDS),
        user=maybe(WORDS),
        customer=maybe(WORDS),
        labels=chance.choices(WORDS, k=pick([0, 0, 1, 3])),
        cost=pick(COUNTS),
    )
    many = pick([0, 0, 1, 3, 8, 80])
    return Span(
        trace_id=trace_id,
        span_id=f"{number:016x}",
        parent_span_id=pick([None, f"{1:016x}", f"{99:016x}"]),
        name=pick(WORDS),
        kind=chance.randrange(6),
        start=pick(TIMES),
        end=pick(TIMES),
        status=chance.randrange(3),
        status_message=pick(["", "", *TEXTS]),
        attributes={name: maybe(JSON) for name in chance.choices(NAMES, k=many)},
        resource=Resource(
            attributes={
                name: pick(JSON)
                for name in chance.choices(
                    ["service.name", "telemetry.sdk.name", "telemetry.sdk.version"], k=2
                )
            }
        ),
        scope=Scope(name=pick(["", "lib"])),
        ai=pick([None, ai, ai]),
    )


Row = dict[str, Any]


def chance_events(chance: random.Random, traces: int, most: int = 9) -> list[Row]:
    """The events of so many traces, as the table ``events`` has them: shuffled, with ties and doubled ids."""
    made: list[Row] = []
    for number in range(traces):
        trace_id = f"{number + 1:032x}"
        count = chance.choice([1, 2, 3, 5, most])
        for version in range(1, count + 1):
            span = chance_span(
                chance, trace_id, chance.randrange(1, 6) if chance.random() < 0.2 else 10 + version
            )
            made.append(
                event_row(
                    chance.choice(["acme", "bolt"]) if number % 9 == 0 else "acme", span, version, chance
                )
            )
    seen: dict[tuple[str, str], int] = defaultdict(int)
    for row in made:  # a trace of two tenants is two traces
        seen[row["tenant"], row["aggregate_id"]] += 1
        row["version"] = seen[row["tenant"], row["aggregate_id"]]
    chance.shuffle(made)
    return made


def event_row(tenant: str, span: Span, version: int, chance: random.Random) -> Row:
    """The event that has recorded a span, as the log has it."""
    data = span if chance.random() < 0.8 else said_empty(span, chance)
    event: NewEvent[Any] = NewEvent(
        type=SPAN_RECORDED, id=span.record_id(tenant), occurred_at=span.start, data=data
    )
    return row_of(event, tenant, SPAN_AGGREGATE, span.trace_id, version, T0 + chance.randrange(6) * S)


def said_empty(span: Span, chance: random.Random) -> dict[str, Any]:
    """A span as another program may write it: what is empty is there, where Toril leaves it out."""
    said: dict[str, Any] = msgspec.to_builtins(span)
    places: list[tuple[dict[str, Any], str, Any]] = [(said, "status_message", ""), (said, "rules", [])]
    places += [(said.setdefault("scope", {}), name, "") for name in ("name", "version")]
    if said.get("ai") is not None:
        places.append((said["ai"], "labels", []))
    for inside, name, empty in places:
        if chance.random() < 0.7:
            inside.setdefault(name, empty)
    return said


def row_of(event: NewEvent[Any], tenant: str, kind: str, ident: str, version: int, recorded_at: int) -> Row:
    """Any event, as the log has it."""
    return {
        "log_epoch": 1,
        "log_partition": 0,
        "ordinal": 1,
        "entry_id": "1-1",
        "tenant": tenant,
        "aggregate_type": kind,
        "aggregate_id": ident,
        "version": version,
        "recorded_at": recorded_at,
        "event_id": event.id,
        "event_type": event.type,
        "schema_version": event.schema_version,
        "occurred_at": event.occurred_at,
        "body": event.to_bytes(),
    }


def frame(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    """Events as a DataFrame."""
    names = [column.name for column in LOG_COLUMNS]
    schema = ", ".join(f"{column.name} {column.type}" for column in LOG_COLUMNS)
    return spark.createDataFrame([tuple(row[name] for name in names) for row in rows], schema)


def live(projection: AnyProjection, rows: Iterable[Row]) -> dict[tuple[str, str], tuple[int, bytes]]:
    """By tenant and aggregate, the version and the encoded state that the projection has live."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["version"]):
        found[row["tenant"], row["aggregate_id"]].append(row)
    made = {}
    for key, events in found.items():
        state, version = projection.initial(), 0
        for row in events:
            try:
                name = f"{row['tenant']}:{row['aggregate_type']}:{row['aggregate_id']}"
                event = restore_event(
                    row["body"], name, version=row["version"], recorded_at=row["recorded_at"]
                )
                if projection.event_types is None or event.type in projection.event_types:
                    state = projection.apply(state, event)
            except Exception:  # noqa: BLE001 - as live: the aggregate stops there
                break
            version = event.version
        made[key] = (version, projection.encode(state))
    return made


def collected(states: DataFrame) -> dict[tuple[str, str], tuple[int, bytes]]:
    """States of an engine, as :func:`live` gives them."""
    rows = states.select("tenant", "aggregate_id", "version", "state").collect()
    made = {(row[0], row[1]): (row[2], bytes(row[3])) for row in rows}
    assert len(made) == len(rows), "an aggregate came twice"
    return made


def assert_same(one: dict[Any, tuple[int, bytes]], other: dict[Any, tuple[int, bytes]]) -> None:
    """Say which field differs first."""
    assert one.keys() == other.keys()
    for key, (version, state) in one.items():
        if (version, state) == other[key]:
            continue
        a, b = msgspec.json.decode(state)["state"], msgspec.json.decode(other[key][1])["state"]
        wrong = {name: (a[name], b[name]) for name in a if a[name] != b[name]}
        raise AssertionError(f"{key}: versions {version} and {other[key][0]}; {wrong!r:.2000}")
