"""The simulator: the same seed gives the same spans, and its account of what was taken is true."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.conftest import SCALE, Servers, emptied
from tests.receiver import Answer, Receiver, partly
from tests.server.parts import serving
from tests.test_cli import run as toril
from toril.errors import InvalidValue
from toril.pipelines.spans import otlp
from toril.pipelines.spans.dialects import understand
from toril.simulate import Report, Run, Simulator, TracePlan, bodies, checksum, plan, simulate
from toril.simulate.dialects import DIALECTS
from toril.simulate.scenes import SCENES
from toril.simulate.sdk import SpanMaker

BASE = 1_767_225_600_123_456_789
"""2026, to the nanosecond."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().open() as made:
        yield made


def short(url: str, **how: Any) -> Run:
    """A run whose late spans are not very late."""
    given: dict[str, Any] = {"url": url, "keys": {"acme": "k1"}, "base": BASE, "late": 0.2, "per_request": 64}
    return Run(**given | how)


def decoded(data: bytes) -> list[tuple[str, Any]]:
    """The spans of a request, with their service."""
    request = ExportTraceServiceRequest.FromString(data)
    return [
        (
            next(one.value.string_value for one in resource.resource.attributes if one.key == "service.name"),
            span,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def ids(plans: Iterator[TracePlan]) -> Counter[tuple[str, str]]:
    return Counter(
        (f"{trace.trace_id:032x}", f"{span.span_id:016x}") for trace in plans for span in trace.spans
    )


# ---------------------------------------------------------------------------- the plan


def test_the_same_seed_gives_the_same_plan(rng: random.Random) -> None:
    seed = rng.randrange(2**63)
    how: dict[str, Any] = {"traces": 60, "tenants": ("acme", "globex")}
    first = list(plan(seed, **how))
    assert first == list(plan(seed, **how))
    assert not ids(iter(first)) & ids(plan(seed + 1, **how)), "another seed has other ids"


def test_shares_are_the_whole(rng: random.Random) -> None:
    seed, senders = rng.randrange(2**63), rng.randint(2, 5)
    dealt = [list(plan(seed, traces=41, share=(place, senders))) for place in range(senders)]
    assert sorted(itertools.chain(*dealt), key=lambda trace: trace.index) == list(plan(seed, traces=41))
    spans = rng.randrange(1, 999)
    assert (
        sum(
            len(trace.spans)
            for place in range(senders)
            for trace in plan(seed, spans=spans, share=(place, senders))
        )
        == spans
    )


@pytest.mark.parametrize("spans", [1, 2, 17, 500])
def test_exactly_so_many_spans_each_with_its_parent(rng: random.Random, spans: int) -> None:
    plans = list(plan(rng.randrange(2**63), spans=spans))
    assert sum(len(trace.spans) for trace in plans) == spans
    for trace in plans:
        known = {span.span_id for span in trace.spans}
        assert all(span.parent in known for span in trace.spans if span.parent is not None)


def test_traces_are_as_in_life() -> None:
    """All scenes and dialects occur, and all that makes a collector's life hard."""
    plans = list(plan(7, traces=1500, tenants=("acme", "globex", "initech"), largest=500))
    assert {trace.scene for trace in plans} == set(SCENES)
    shares = Counter(trace.tenant for trace in plans)
    assert shares["acme"] > shares["globex"] > shares["initech"] > 0
    spans = [span for trace in plans for span in trace.spans]
    assert {span.scope for span in spans} >= {dialect.scope for dialect in DIALECTS.values()}
    assert len({span.service for span in spans}) >= 5
    assert {span.attributes.get("gen_ai.request.model") for span in spans} >= {
        "gpt-4o", "claude-sonnet-4-0", "gemini-2.0-flash", "text-embedding-3-small",
    }  # fmt: skip
    assert max(len(trace.spans) for trace in plans) >= 500
    for sign in (
        [span for span in spans if span.error and any(event.name == "exception" for event in span.events)],
        [span for span in spans if span.attributes.get("http.request.resend_count") is not None],
        [
            span
            for span in spans
            if any(event.name == "gen_ai.content.completion.chunk" for event in span.events)
        ],
        [span for span in spans if span.attributes.get("gen_ai.usage.cost")],
        [span for span in spans if span.attributes.get("gen_ai.usage.cache_read.input_tokens")],
        [span for span in spans if span.delay],
        [span for span in spans if span.again],
        [span for span in spans if span.remote],
        [span for span in spans if span.links],
    ):
        assert 5 < len(sign) < len(spans) / 2
    conversations = Counter(span.attributes.get("gen_ai.conversation.id") for span in spans)
    assert max(count for name, count in conversations.items() if name) > 1


def test_times_are_those_of_a_tree() -> None:
    for index, trace in enumerate(plan(3, traces=400, rate=1000, largest=300)):
        turn = round(index * 17 / 1000 * 1e9)
        assert trace.end == turn, "a trace ends when it is its turn"
        by_id = {span.span_id: span for span in trace.spans}
        for span in trace.spans:
            assert span.start < span.end
            assert all(span.start <= event.time <= span.end for event in span.events)
            if span.parent is not None:
                assert by_id[span.parent].start < span.start
                assert by_id[span.parent].end >= span.end


def test_bad_wishes_are_refused() -> None:
    for bad in cast("list[dict[str, Any]]", [{"share": (2, 2)}, {"tenants": ()}]):
        with pytest.raises(InvalidValue):
            next(plan(1, **bad))
    for wrong in cast(
        "list[dict[str, Any]]",
        [{"keys": {}}, {"url": "ftp://x"}, {"traces": 0}, {"rate": 0.0}, {"connections": 0}],
    ):
        with pytest.raises(InvalidValue):
            short(**{"url": "http://x"} | wrong)


# ---------------------------------------------------------------------------- spans of the SDK


def test_the_sdk_gives_the_same_bytes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    first = list(bodies(5, 700, 100, base=BASE))
    for variable in ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"):
        monkeypatch.setenv(variable, "2")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=other")
    assert list(bodies(5, 700, 100, base=BASE)) == first


def test_what_is_planned_is_what_is_encoded() -> None:
    trace = next(
        trace for trace in plan(2) if trace.scene == "chat" and any(span.error for span in trace.spans)
    )
    made = {span.context.span_id: span for span in SpanMaker(BASE).spans(trace)}
    assert len(made) == len(trace.spans)
    for planned in trace.spans:
        span = made[planned.span_id]
        assert span.context.trace_id == trace.trace_id
        assert (span.start_time, span.end_time) == (BASE + planned.start, BASE + planned.end)
        assert (span.parent.span_id if span.parent else None) == planned.parent
        assert span.parent is None or span.parent.is_remote == planned.remote
        told = {name: tuple(it) if isinstance(it, list) else it for name, it in planned.attributes.items()}
        assert dict(span.attributes or {}) == told
        assert span.status.description == planned.error
        assert span.resource.attributes["service.name"] == planned.service
        assert span.dropped_attributes == span.dropped_events == 0


def test_toril_understands_all_that_is_said() -> None:
    """Every dialect's models, tokens, first tokens, costs, people."""
    plans = {span.span_id: span for trace in plan(11, spans=3_000, largest=100) for span in trace.spans}
    understood = [
        understand(span)
        for body in bodies(11, 3_000, base=BASE)
        for span in otlp.decode_protobuf(body).spans
        if int(span.span_id, 16) in plans  # of those that the two have in common
    ]
    seen: Counter[tuple[str, str]] = Counter()
    scopes = {dialect.scope: name for name, dialect in DIALECTS.items()}
    for span in understood:
        planned, dialect = plans[int(span.span_id, 16)], scopes.get(span.scope.name, "web")
        streamed = any(event.name == one.first_token for event in span.events for one in DIALECTS.values())
        if span.ai is not None and span.ai.kind == "llm":
            assert span.ai.models, span.attributes
            seen[dialect, "llm"] += 1
            if span.status != 2:
                assert span.ai.input_tokens
                assert span.ai.output_tokens
                assert span.ai.input
                assert span.ai.output
                assert (span.ai.first_token is not None) == streamed
                seen[dialect, "first token"] += streamed
                seen[dialect, "cost"] += span.ai.cost is not None
        elif span.ai is not None and span.ai.kind == "embedding":
            assert span.ai.input_tokens
            seen[dialect, "embedding"] += 1
        above = None if planned.parent is None else plans[planned.parent].scope
        if dialect != "web" and above != planned.scope:
            assert span.ai is not None
            assert span.ai.user
            assert span.ai.conversation
    for dialect in DIALECTS:
        assert seen[dialect, "llm"]
        assert seen[dialect, "first token"]
        if dialect != "langwatch":  # it has no word for it
            assert seen[dialect, "embedding"]
    for dialect in ("genai", "openinference", "langwatch"):
        assert seen[dialect, "cost"]


@pytest.mark.parametrize(
    ("spans", "per_request"), [(1, 500), (1234, 100), (5_000, 512), (12_345, 512), (9_999, 7_000)]
)
def test_bodies_are_so_many_different_spans(spans: int, per_request: int) -> None:
    found = [decoded(data) for data in bodies(9, spans, per_request, base=BASE)]
    assert [len(one) for one in found[:-1]] == [per_request] * (len(found) - 1)
    assert 0 < len(found[-1]) <= per_request
    every = [span for one in found for _, span in one]
    by_id = {(span.trace_id, span.span_id): span for span in every}
    assert len(by_id) == len(every) == spans
    for span in every:
        assert 0 < span.start_time_unix_nano < span.end_time_unix_nano
        assert all(
            span.start_time_unix_nano <= one.time_unix_nano <= span.end_time_unix_nano for one in span.events
        )
    with_parent = [span for span in every if span.parent_span_id]
    known = sum((span.trace_id, span.parent_span_id) in by_id for span in with_parent)
    assert known >= 0.95 * len(with_parent), "traces are whole, but for those that are cut at an end"


def test_bodies_are_faster_than_a_collector() -> None:
    started = time.process_time()  # whatever else this machine does meanwhile
    spans = sum(1 for _ in bodies(1, 50_000, 500)) * 500
    assert spans / (time.process_time() - started) > 20_000


# ---------------------------------------------------------------------------- sending


def agrees(report: Report, receiver: Receiver, tenant: str = "acme", key: str = "k1") -> None:
    """The account is what the receiver saw, and nothing is missing from it."""
    taken = receiver.spans(key)
    assert report.tenants[tenant].spans == len(taken)
    assert report.tenants[tenant].checksum == checksum(taken)
    assert report.sent == report.acknowledged + report.rejected + report.unclear + report.lost


@pytest.mark.promise
def test_every_span_arrives_and_is_accounted_for(
    receiver: Receiver, tmp_path: Path, rng: random.Random
) -> None:
    seed, manifest = rng.randrange(2**63), tmp_path / "taken.jsonl"
    run = short(
        receiver.url,
        seed=seed,
        traces=int(80 * SCALE),
        manifest=manifest,
        keys={"acme": "k1", "globex": "k2"},
    )
    report = Simulator(run).send()
    planned = ids(plan(seed, traces=run.traces, tenants=tuple(run.keys)))
    assert set(receiver.spans()) == set(planned)
    assert report.errors == report.unsent == 0
    assert report.acknowledged == receiver.spans().total() > report.spans == len(planned), "some came twice"
    agrees(report, receiver)
    agrees(report, receiver, "globex", "k2")
    lines = [json.loads(line) for line in manifest.read_text().splitlines()]
    for tenant, key in run.keys.items():
        mine = [(line["trace_id"], line["span_id"]) for line in lines if line["tenant"] == tenant]
        assert Counter(mine) == Counter(set(receiver.spans(key))), "each once"


@pytest.mark.promise
async def test_a_real_collector_takes_each_span_once(servers: Servers, rng: random.Random) -> None:
    async with serving(emptied(servers.get("valkey-standalone")).url) as served:
        run = short(served.url, keys={"acme": served.key}, seed=rng.randrange(2**63), traces=int(60 * SCALE))
        report = await asyncio.to_thread(Simulator(run).send)
        assert report.errors == 0
        assert report.acknowledged > report.spans, "some were sent twice"
        assert await served.stored() == report.tenants["acme"].spans == report.spans


def test_two_runs_send_the_same_bytes(rng: random.Random) -> None:
    run = {"seed": rng.randrange(2**63), "traces": 40}
    seen = []
    for _ in range(2):
        with Receiver().open() as receiver:
            Simulator(short(receiver.url, **run)).send()
        spans = (
            span.SerializeToString(deterministic=True)
            for _, request in receiver.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        )
        seen.append(Counter(spans))
    assert seen[0] == seen[1]


def test_late_spans_come_after_the_rest(receiver: Receiver) -> None:
    seed = next(
        seed
        for seed in itertools.count()
        if any(span.delay for trace in plan(seed, traces=1) for span in trace.spans)
    )
    (trace,) = plan(seed, traces=1, late=1)
    late = {f"{span.span_id:016x}" for span in trace.spans if span.delay}
    report = Simulator(short(receiver.url, seed=seed, traces=1, late=1, interval=0.02)).send()
    agrees(report, receiver)
    arrived = [[span for _, span in Receiver(requests=[one]).spans()] for one in receiver.requests]
    is_late = [bool(late & set(spans)) for spans in arrived]
    assert is_late == sorted(is_late)
    assert is_late[-1]
    assert not is_late[0]


def test_too_many_requests_are_tried_again(receiver: Receiver) -> None:
    receiver.first = [(429, {"Retry-After": "0"}, b"slow down")] * 2
    report = Simulator(short(receiver.url, traces=5, connections=1)).send()
    agrees(report, receiver)
    assert report.errors == 0
    assert (report.retries, report.answers["429"]) == (2, 2)


def test_what_the_exporter_gives_up_is_given_to_it_again(receiver: Receiver) -> None:
    """At 500 the stock exporter does not try again; nor at a Retry-After that is longer than its timeout."""
    receiver.first = [(500, {}, b"oops")] * 2
    report = Simulator(short(receiver.url, traces=5, connections=1)).send()
    agrees(report, receiver)
    assert (report.errors, report.retries) == (0, 2)


def test_outages_are_survived() -> None:
    """The collector goes away and comes back, on the same port."""
    receiver, stop = Receiver(), threading.Event()
    with receiver.open():
        port = int(receiver.url.rpartition(":")[2])
    found: list[Report] = []
    simulator = Simulator(short(receiver.url, traces=30, connections=2), stop=stop)
    sender = threading.Thread(target=lambda: found.append(simulator.send()))
    sender.start()  # nobody is there
    while not simulator.report.answers["no answer"]:
        time.sleep(0.01)
    with receiver.open(port):
        sender.join(30)
    assert not sender.is_alive()
    agrees(found[0], receiver)
    assert found[0].errors == 0


def test_without_patience_it_is_lost_and_said() -> None:
    with Receiver().open() as receiver:
        receiver.answer = (500, {}, b"out of order")
        report = Simulator(short(receiver.url, traces=3, patience=0.1)).send()
    assert report.lost == report.sent > 0
    assert report.tenants["acme"].spans == report.acknowledged == 0
    assert report.problems == ["status 500: out of order"]


@pytest.mark.parametrize(
    "answer",
    [
        (400, {}, b"a bad span"),
        (413, {}, b""),
        (302, {"Location": "/elsewhere"}, b""),  # the stock exporter takes it for a success
        (200, {}, b"<html>a proxy</html>"),
    ],
)
def test_refusals_are_not_tried_again(receiver: Receiver, answer: Answer) -> None:
    receiver.answer = answer
    report = Simulator(short(receiver.url, traces=3)).send()
    assert report.rejected == report.sent > 0
    assert report.acknowledged == report.retries == report.tenants["acme"].spans == 0
    assert len(report.problems) == 1


def test_a_part_that_was_taken_is_not_claimed(receiver: Receiver) -> None:
    receiver.answer = partly(1, "one id is bad")
    report = Simulator(short(receiver.url, traces=3)).send()
    assert report.rejected == report.requests
    assert report.unclear == report.sent - report.requests
    assert report.acknowledged == report.tenants["acme"].spans == 0


def test_a_refused_key_ends_it(receiver: Receiver) -> None:
    receiver.answer = (401, {}, b"this API key is not known")
    report = Simulator(short(receiver.url, per_request=8, connections=1)).send()  # without a limit
    assert report.key_refused
    assert receiver.tries == 1
    assert report.unsent > 0


def test_a_rate_is_kept(receiver: Receiver) -> None:
    report = Simulator(short(receiver.url, spans=300, rate=400.0, late=0.01, largest=50)).send()
    assert 300 / 400 * 0.6 < report.seconds < 20
    report = Simulator(short(receiver.url, seconds=2.0, rate=300.0, late=0.01, largest=50)).send()
    assert 1.9 < report.seconds < 20
    assert 100 < report.spans < 900


def test_it_can_be_stopped(receiver: Receiver) -> None:
    """Also while the exporter waits between its tries."""
    receiver.answer = (503, {}, b"")
    stop = threading.Event()
    told: list[Report] = []

    def hear(report: Report) -> None:
        told.append(report)
        if receiver.tries:
            stop.set()

    started = time.monotonic()
    report = Simulator(short(receiver.url), told=hear, stop=stop).send()
    assert time.monotonic() - started < 20
    assert report.stopped
    assert report.lost > 0
    assert told


def test_a_manifest_that_cannot_be_written_is_said(receiver: Receiver, tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        Simulator(short(receiver.url, manifest=tmp_path)).send()  # without a limit


def test_several_processes_send_the_same(receiver: Receiver, rng: random.Random) -> None:
    seed = rng.randrange(2**63)
    report = simulate(short(receiver.url, seed=seed, traces=30), processes=2)
    agrees(report, receiver)
    assert set(receiver.spans()) == set(ids(plan(seed, traces=30)))
    assert report.traces == 30


# ---------------------------------------------------------------------------- the command


def test_the_command_reports(receiver: Receiver, tmp_path: Path) -> None:
    taken = tmp_path / "taken.jsonl"
    args = (
        "simulate",
        "--url",
        receiver.url,
        "--tenants",
        "acme=k1,globex=k2",
        "--spans",
        "200",
        "--late",
        "100ms",
    )
    done = toril(*args, "--at", "2026-01-01T00:00:00.5Z", "--manifest", str(taken))
    assert done.returncode == 0, done.stderr
    assert "200 spans of" in done.stdout
    assert "--at 2026-01-01T00:00:00.500000Z" in done.stdout
    assert "k1" not in done.stdout + done.stderr
    assert len(taken.read_text().splitlines()) == len(receiver.spans()) == 200
    first = receiver.spans()
    value = json.loads(toril(*args, "--at", "2026-01-01T00:00:00.5Z", "--json").stdout)
    assert value["base"] == 1_767_225_600_500_000_000
    assert set(receiver.spans()) == set(first)
    assert int(value["tenants"]["acme"]["checksum"], 16) == checksum(receiver.spans("k1"))


def test_the_command_fails_when_spans_were_refused(receiver: Receiver) -> None:
    receiver.answer = (401, {}, b"this API key is not known")
    done = toril("simulate", "--url", receiver.url, "--key", "wrong", "--traces", "5")
    assert done.returncode == 1
    assert "this API key is not known" in done.stderr
    assert "TORIL_API_KEY" in done.stderr
    assert "wrong" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("args", "rule"),
    [
        (("--tenants", "acme"), "tenant=key"),
        (("--at", "yesterday"), "2026-01-31T12:00:00Z"),
        (("--spans", "0"), "a whole number from 1"),
        (("--url", "localhost:8000"), "http://"),
    ],
)
def test_the_command_says_what_is_wrong(args: tuple[str, ...], rule: str) -> None:
    done = toril("simulate", *args)
    assert done.returncode == 1
    assert rule in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("processes", ["1", "2"])
def test_ctrl_c_ends_it_with_the_report(receiver: Receiver, processes: str) -> None:
    command = [sys.executable, "-m", "toril.cli", "simulate", "--url", receiver.url, "--seconds", "100"]
    process = subprocess.Popen(
        [*command, "--processes", processes, "--rate", "500", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        deadline = time.monotonic() + 30
        while len(receiver.requests) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        shown, _ = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    report = json.loads(shown)
    assert report["stopped"]
    assert report["tenants"]["default"]["spans"] == len(receiver.spans())
