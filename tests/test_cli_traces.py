"""``toril traces …``, as somebody uses it who wants to know what an application did."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest
from rich.console import Console

from tests.conftest import Servers, emptied
from tests.server.parts import Served, serving
from tests.test_cli import run
from toril.cli import show as shown_by
from toril.cli.traces.looks import exact_money, length, money, short, time_bar, tokens
from toril.cli.traces.ls import show_list
from toril.cli.traces.show import LINES, show_trace
from toril.cli.traces.tree import lines, tree
from toril.pipelines.spans import otlp
from toril.pipelines.spans.dialects import understand
from toril.pipelines.spans.reading import SpanSeen, TraceSeen, TraceView
from toril.pipelines.spans.span import Ai, Span
from toril.pipelines.spans.summary import recompute
from toril.pipelines.spans.tables import SpanRow, TraceRow
from toril.simulate import bodies

TRACE = "5b8efff798038103d269b633813fc60c"
BEGIN = 1_767_225_600_123_456_789
MS = 1_000_000
Screen = Callable[[int], io.StringIO]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    """A screen of a certain width, without colours."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()

    def made(columns: int) -> io.StringIO:
        seen = io.StringIO()
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(shown_by, "console", Console(file=seen, width=columns, highlight=False))
        return seen

    yield made
    monkeypatch.undo()
    time.tzset()


def span(number: int, parent: int | None = None, start: int = 0, took: int = 10, **more: Any) -> Span:
    """One of the trace's; times are ms from its beginning."""
    told: dict[str, Any] = {
        "trace_id": TRACE,
        "span_id": f"{number:016x}",
        "parent_span_id": None if parent is None else f"{parent:016x}",
        "name": f"step {number}",
        "kind": 1,
        "start": BEGIN + start * MS,
        "end": BEGIN + (start + took) * MS,
        "status": 0,
    }
    return Span(**told | more)


def rows_of(spans: list[Span]) -> list[SpanRow]:
    return [
        SpanRow(tenant="acme", record_id=one.record_id("acme"), version=place, recorded_at=place, span=one)
        for place, one in enumerate(spans, 1)
    ]


def view_of(spans: list[Span], **more: Any) -> TraceView:
    rows = rows_of(spans)
    told: dict[str, Any] = {
        "trace_id": TRACE,
        "version": len(rows),
        "summary": recompute(rows).as_dict(),
        "spans": [SpanSeen.of(row) for row in rows],
        "truncated": False,
    }
    return TraceView(**told | more)


def chat() -> list[Span]:
    ai = Ai(
        kind="llm", response_model="gpt-4o-2024-08-06", input_tokens=1234, output_tokens=56, cost=3_645_000
    )
    talk: dict[str, Any] = {
        "input": [{"role": "user", "content": "Hello\nthere"}],
        "output": "[1] \x1b[31mred",
    }
    return [
        span(1, None, 0, 2000, name="answer", ai=Ai(kind="workflow", user="ann", **talk)),
        span(2, 1, 10, 40, name="jailbreak", ai=Ai(kind="guardrail")),
        span(3, 1, 50, 1900, name="ask", ai=msgspec.structs.replace(ai, first_token=412 * MS)),
        span(4, 1, 1950, 40, name="get_order", ai=Ai(kind="tool"), status=2, status_message="no such order"),
    ]


def plain(nodes: list[Any]) -> list[str]:
    """A tree as text: guides, and the numbers of the spans."""
    return [
        line.guide
        + (str(int(line.node.span.span_id, 16)) if line.node.span else f"missing {line.node.missing}")
        for line in lines(nodes)
    ]


# ---------------------------------------------------------------------------- the tree


def test_children_stand_below_their_parents_by_start() -> None:
    spans = [span(3, 1, 5), span(1), span(5, 3, 6), span(2, 1, 2), span(4, 1, 9)]
    assert plain(tree(spans)) == ["1", "├╴2", "├╴3", "│ └╴5", "└╴4"]
    random.Random(1).shuffle(spans)
    assert plain(tree(spans)) == ["1", "├╴2", "├╴3", "│ └╴5", "└╴4"]


def test_spans_whose_parent_is_not_there_stand_below_its_place() -> None:
    spans = [span(1), span(2, 1, 1), span(4, 99, 4), span(3, 99, 3), span(5, 98, 2)]
    assert plain(tree(spans)) == [
        "1", "└╴2", "missing 0000000000000062", "└╴5", "missing 0000000000000063", "├╴3", "└╴4",
    ]  # fmt: skip


def test_data_that_goes_round_is_shown_once() -> None:
    assert plain(tree([span(1, 1)])) == ["1"], "its own parent"
    spans = [span(1), span(2, 4, 2), span(3, 2, 3), span(4, 3, 4), span(5, 4, 1)]
    made = tree(spans)
    assert plain(made) == ["1", "2", "└╴3", "  └╴4", "    └╴5"]
    assert [node.circular for node in made] == [False, True]


def test_every_span_is_in_the_tree_once(rng: random.Random) -> None:
    for _ in range(300):
        size = rng.randint(1, 12)
        spans = [
            span(number, rng.choice([None, *range(1, size + 3)]), rng.randrange(5))
            for number in range(1, size + 1)
        ]
        found = [line.node.span for line in lines(tree([*spans, *spans[:2]])) if line.node.span]
        assert sorted(one.span_id for one in found) == [one.span_id for one in spans]


def test_a_deep_trace_takes_no_time_and_no_room() -> None:
    spans = [span(number, number - 1 or None, number) for number in range(1, 20_001)]
    started = time.process_time()
    drawn = list(lines(tree(spans)))
    assert len(drawn) == 20_000
    assert max(len(line.guide) for line in drawn) < 40
    circle = [span(1, 20_000), *spans[1:]]
    assert len(list(lines(tree(circle)))) == 20_000
    assert time.process_time() - started < 5


# ---------------------------------------------------------------------------- how things look


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"), (999, "999 ns"), (1_000, "1.00 µs"), (12_340, "12.3 µs"), (999_499, "999 µs"),
        (999_500, "1.00 ms"), (9_994_999, "9.99 ms"), (9_995_000, "10.0 ms"), (412 * MS, "412 ms"),
        (1_234 * MS, "1.23 s"), (59_900 * MS, "59.9 s"), (59_960 * MS, "1 min 0 s"),
        (81_400 * MS, "1 min 21 s"), (3_599_600 * MS, "1 h 0 min"), (86_399_000 * MS, "23 h 59 min"),
        (200_000_000 * MS, "2 d 7 h"), (None, "?"),
    ],
)  # fmt: skip
def test_lengths_of_time(ns: int | None, text: str) -> None:
    assert length(ns) == text


@pytest.mark.parametrize(
    ("nano", "rounded", "exact"),
    [
        (0, "$0.0000", "$0.00"),
        (1, "<$0.0001", "$0.000000001"),
        (50_000, "$0.0001", "$0.00005"),
        (3_645_000, "$0.0036", "$0.003645"),
        (999_999_999, "$1.0000", "$0.999999999"),
        (1_500_000_000, "$1.5000", "$1.50"),
        (2**53 * 10**9 + 1, "$9,007,199,254,740,992.0000", "$9,007,199,254,740,992.000000001"),
    ],
)
def test_money_is_exact(nano: int, rounded: str, exact: str) -> None:
    assert (money(nano), exact_money(nano)) == (rounded, exact)
    assert money(None) == ""


def test_tokens() -> None:
    assert tokens(None, None) == ""
    assert tokens(0, 0) == "0→0", "zero is a value"
    assert tokens(21_873, None) == "21.9k"
    assert tokens(None, 5) == "?→5"
    assert [short(n) for n in (9_999, 10_000, 999_499, 999_500, 12_345_678, 10**9)] == [
        "9,999", "10k", "999k", "1M", "12.3M", "1G",
    ]  # fmt: skip


def test_bars_are_where_the_time_is() -> None:
    def bar(start: int, end: int, whole: int = 64) -> str:
        return time_bar(start, end, whole, 8, "").plain

    assert bar(0, 64) == "████████"
    assert bar(0, 1) == "▏       "
    assert bar(32, 64) == "    ████"
    assert bar(12, 29) == " ▐█▋    "
    assert bar(63, 64) == "       ▕"
    assert bar(64, 64) == "       ▕", "however short, and at the very end"
    assert bar(0, 0, 0) == "▏       ", "of a trace that took no time"
    assert bar(-5, 99) == "████████", "clocks differ"
    for start, end in itertools.combinations(range(65), 2):
        made = bar(start, end)
        assert len(made) == 8
        assert made[: start // 8].strip() == ""
        assert made[-(-end // 8) :].strip() == ""
        assert made.strip()


# ---------------------------------------------------------------------------- show


def test_a_trace_as_a_tree(screen: Screen) -> None:
    seen = screen(120)
    show_trace(view_of(chat()), None)
    text = seen.getvalue()
    head, _, body = text.partition("\n\n")
    assert head.splitlines()[0] == "answer  ✘ failed"
    assert f"{TRACE} · 2026-01-01 00:00:00.123 UTC+00:00" in head
    assert (
        "2.00 s · 4 spans · 1 error · $0.003645 · 1,234→56 tokens · first token 412 ms · 28 tokens/s" in head
    )
    assert "user ann" in head
    assert "input  Hello there" in head
    assert "output [1] \\x1b[31mred" in head, "data cannot steer the terminal"
    assert "error  no such order" in head
    rows = body.splitlines()
    assert re.fullmatch(r"▷ answer +█{26} +2\.00 s *", rows[0])
    assert re.fullmatch(r"├╴◈ jailbreak  \S{1,2} +40\.0 ms *", rows[1])
    assert re.fullmatch(r"├╴✦ ask +\S{25,26} +1\.90 s  1,234→56  \$0\.0036  gpt-4o-2024-08-06", rows[2])
    assert re.fullmatch(r"└╴■ get_order +\S{1,2} +40\.0 ms  ✘ no such order", rows[3])
    assert rows[-1].split() == ["▷", "workflow", "✦", "llm", "■", "tool", "◈", "guardrail"]


@pytest.mark.parametrize("columns", [40, 80, 120, 160])
def test_no_line_is_wider_than_the_screen(screen: Screen, columns: int) -> None:
    seen = screen(columns)
    long = [span(number, number - 1 or None, number, name="名前" * 40) for number in range(1, 30)]
    show_trace(view_of([*chat(), *long[4:]]), None)
    assert (
        max(map(Console().measure, seen.getvalue().splitlines()), key=lambda one: one.maximum).maximum
        <= columns
    )
    assert seen.getvalue().count("✘ no such") == (1 if columns >= 80 else seen.getvalue().count("✘ no such"))


def test_a_large_trace_is_cut_and_says_so(screen: Screen) -> None:
    spans = [span(1, None, 0, 9_999), *(span(n, 1, n, status=2 if n == 500 else 0) for n in range(2, 1_001))]
    seen = screen(100)
    show_trace(view_of(spans, truncated=True), LINES)
    text = seen.getvalue()
    assert text.count("step") == LINES + 1, "one of them is the name of the trace"
    assert f"… {1_000 - LINES} more, 1 of them failed: --all" in text
    assert "more than these 1,000 spans" in text
    seen = screen(100)
    show_trace(view_of(spans), None)
    assert "step 1000" in seen.getvalue()
    assert "--all" not in seen.getvalue()


def test_a_trace_in_bad_shape(screen: Screen) -> None:
    seen = screen(100)
    show_trace(view_of([span(2, 9, 1, -5), span(3, 4), span(4, 3, 1)], summary=None, version=None), None)
    text = seen.getvalue()
    assert "its summary is not ready yet" in text
    assert "? parent 0000000000000009 is missing" in text
    assert "↻ its parent is below it" in text
    assert "0 ns" in text, "it ends before it begins"


# ---------------------------------------------------------------------------- ls


def listed() -> list[TraceSeen]:
    ok = recompute(rows_of(chat()[:3])).as_dict()
    bad = recompute(rows_of(chat())).as_dict() | {"duration": 500 * MS, "service": "shop", "cost": None}
    odd: dict[str, Any] = {"spans": 1, "started_at": 2**62, "duration": None, "models": []}
    return [TraceSeen(trace_id=f"{n}" * 32, version=1, summary=told) for n, told in enumerate((ok, bad, odd))]


def test_a_list_on_a_wide_screen(screen: Screen) -> None:
    seen = screen(180)
    show_list(listed(), "failing", more=False)
    head, _, first, second, third, *_ = filter(None, map(str.strip, seen.getvalue().splitlines()))
    assert head.split() == [
        "trace", "began", "name", "service", "took", "spans", "models", "tokens", "cost", "errors", "error",
    ]  # fmt: skip
    assert first.split()[:5] == ["0" * 32, "2026-01-01", "00:00", "answer", "2.00"]
    assert "██████" in first
    assert "gpt-4o-2024-08-06" in first
    assert "$0.0036" in first
    assert "█▌ " in second
    assert second.endswith("1  no such order")
    assert third.split()[:4] == ["2" * 32, "2116-02-20", "23:53", "?"]
    assert "3 traces, and no more; times are UTC+00:00." in seen.getvalue()


@pytest.mark.parametrize("order", ["latest", "failing"])
@pytest.mark.parametrize("columns", [80, 100, 120, 180])
def test_a_list_fits_the_screen(screen: Screen, columns: int, order: Any) -> None:
    seen = screen(columns)
    show_list(listed()[:2], order, more=True)
    text = seen.getvalue()
    assert max(map(len, text.splitlines())) <= columns
    for always in ("00000000", "answer", "2.00 s", "errors"):
        assert always in text
    assert ("no such order" in text) == (order == "failing")
    assert f"The 2 {order} traces; times are of 2026-01-01, UTC+00:00. More: --limit" in text
    assert ("No room for" in text) == (columns < 120)


def test_models_are_named_once(screen: Screen) -> None:
    seen = screen(180)
    models = ["gpt-4o", "gpt-4o-2024-08-06", "gpt-4o-mini-2024-07-18", "gpt-4o-mini", "gemini-2.0-flash-001"]
    summary = listed()[0].summary | {"models": models}
    show_list([TraceSeen(trace_id=TRACE, version=1, summary=summary)], "latest", more=False)
    assert "gemini-2.0-flash-001, gpt-4o, gpt-4o-mini  " in seen.getvalue()


# ---------------------------------------------------------------------------- of a running server


@pytest.fixture
async def served(servers: Servers) -> AsyncIterator[Served]:
    """A server that has forty simulated traces."""
    async with serving(emptied(servers.get("valkey-standalone")).url) as made:
        spans: dict[str, list[Span]] = {}
        for body in bodies(3, 400, base=BEGIN):
            for one in otlp.decode_protobuf(body).spans:
                spans.setdefault(one.trace_id, []).append(understand(one))
        for trace_id, of_trace in spans.items():
            rows = rows_of(of_trace)
            await made.parts.spans.insert(rows)
            summary = recompute(rows).as_dict()
            await made.parts.traces.insert(
                [TraceRow(tenant="acme", trace_id=trace_id, version=len(rows), summary=summary)]
            )
        yield made


async def ask(served: Served, *args: str, **env: str) -> str:
    env = {"TORIL_SERVER_URL": served.url, "TORIL_API_KEY": served.key, **env}
    done = await asyncio.to_thread(run, "traces", *args, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_traces_of_a_server(served: Served) -> None:
    found: dict[str, Any] = {}
    for order, field in (("slowest", "duration"), ("dearest", "cost"), ("failing", "errors")):
        found = json.loads(await ask(served, "ls", "--order", order, "--json", "--limit", "3"))
        sizes = [trace["summary"][field] or 0 for trace in found["traces"]]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] > 0
        assert found["more"] == (len(sizes) == 3)
    first = found["traces"][0]
    shown = await ask(served, "show", "failing")
    assert first["trace_id"] in shown
    assert shown == await ask(served, "show", first["trace_id"][:8].upper())
    value = json.loads(await ask(served, "show", first["trace_id"], "--json"))
    assert len(value["spans"]) == first["summary"]["spans"]
    text = await ask(served, "ls", "--order", "failing", "--limit", "3", COLUMNS="80")
    assert first["trace_id"][:8] in text
    assert max(map(len, text.splitlines())) <= 80
    assert "No traces in that time." in await ask(served, "ls", "--since", "1s")


@pytest.mark.parametrize(
    ("args", "env", "says"),
    [
        (("ls",), {"TORIL_API_KEY": "trl_wrong"}, "--key or TORIL_API_KEY"),
        (("ls",), {"TORIL_SERVER_URL": "http://127.0.0.1:1"}, "no server answers at http://127.0.0.1:1"),
        (("ls",), {"TORIL_SERVER_URL": "localhost"}, "http://"),
        (("ls", "--limit", "0"), {}, "a whole number from 1"),
        (("ls", "--since", "yesterday"), {}, "like 90s"),
        (("show", "f" * 32), {}, f"there is no trace {'f' * 32}: 'toril traces ls' lists"),
        (("show", "ffffffff"), {}, "begins with ffffffff: give the whole id"),
        (("show", "xyz"), {}, "hexadecimal digits"),
    ],
)
async def test_what_is_wrong_is_said_in_one_line(
    servers: Servers, args: tuple[str, ...], env: dict[str, str], says: str
) -> None:
    async with serving(emptied(servers.get("valkey-standalone")).url) as served:
        whole = {"TORIL_SERVER_URL": served.url, "TORIL_API_KEY": served.key, **env}
        done = await asyncio.to_thread(run, "traces", *args, **whole)
    assert done.returncode == 1
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert "trl_" not in done.stderr.replace("trl_…", "")
    assert not done.stdout


async def test_an_empty_server(servers: Servers) -> None:
    async with serving(emptied(servers.get("valkey-standalone")).url) as served:
        assert await ask(served, "ls") == "There are no traces.\n"
        assert await ask(served, "ls", "--order", "failing") == "There are no failing traces.\n"
        assert json.loads(await ask(served, "ls", "--json")) == {"traces": [], "more": False}
