"""``toril traces ls``: which traces there are, and which stand out."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, get_args

import click
import msgspec
from rich.text import Text

from toril.cli.listing import tell_left_out
from toril.cli.looks import aside, number
from toril.cli.show import Column, as_json, fitted_table, one_line, say, width
from toril.cli.times import duration, whole
from toril.cli.traces.looks import clock, length, money, time_bar, tokens, zone
from toril.cli.traces.target import Target, on_server
from toril.pipelines.spans.reading import TraceSeen
from toril.pipelines.spans.tables import TraceOrder

ORDERS: tuple[TraceOrder, ...] = get_args(TraceOrder)
MOST = 999
"""Of what a server lists at most, one less: the next would say that there are more."""
ID_SHOWN = 8
"""So many digits of an id are enough for ``show``."""
BAR = 6
_DATE = re.compile(r"-latest$|[-@][0-9]{4}-?[0-9]{2}-?[0-9]{2}$|-[0-9]{3,4}$")
"""What providers put behind the name of a model."""


@click.command()
@click.option(
    "--order",
    type=click.Choice(ORDERS),
    default="latest",
    show_default=True,
    help="The last begun first, the longest, the most expensive, or the most errors.",
)
@click.option("--since", metavar="TIME", callback=duration("since"), help="Only of the last 15m, 2h, 7d.")
@click.option(
    "--limit",
    default="20",
    show_default=True,
    metavar="N",
    callback=whole("limit", 1, MOST),
    help="How many.",
)
@on_server
async def ls(at: Target, order: TraceOrder, since: int | None, limit: int) -> None:
    """List traces: the latest, slowest, dearest or failing ones."""
    begun = None if since is None else max(0, time.time_ns() - since * 1_000_000)
    found = await at.client.traces(order=order, since=begun, limit=limit + 1)
    shown, more = found[:limit], len(found) > limit
    if at.json:
        as_json({"traces": msgspec.to_builtins(shown), "more": more})
    elif shown:
        show_list(shown, order, more=more)
    else:
        which = "failing traces" if order == "failing" else "traces"
        say(Text(f"No {which} in that time." if since is not None else f"There are no {which}."))


def show_list(traces: Sequence[TraceSeen], order: TraceOrder, *, more: bool) -> None:
    """Print a table of traces."""
    moments = [_moment(trace) for trace in traces]
    is_one_day = len({moment.date() for moment in moments if moment}) < 2
    slowest = max((trace.summary.get("duration") or 0 for trace in traces), default=0)
    digits = 32 if width() >= 170 else ID_SHOWN
    rows: list[list[str | Text]] = []
    for trace, moment in zip(traces, moments, strict=True):
        told, took = trace.summary, trace.summary.get("duration")
        rows.append(
            [
                Text(trace.trace_id[:digits], "dim"),
                _when(moment, is_one_day),
                _name(told),
                one_line(told.get("service") or ""),
                length(took),
                time_bar(0, took or 0, slowest, BAR, "red" if told.get("failed") else "cyan"),
                number(told.get("spans")),
                one_line(", ".join(_models(told))),
                tokens(told.get("input_tokens"), told.get("output_tokens")),
                money(told.get("cost")),
                number(told.get("errors", 0), "bold red"),
                Text(one_line(told.get("error_message") or ""), "red"),
            ]
        )
    columns = [
        Column("trace"),
        Column("began"),
        Column("name", least=16),
        Column("service", least=12, leave=6),
        Column("took", right=True),
        Column("", leave=2),
        Column("spans", right=True, leave=3),
        Column("models", least=14, leave=5),
        Column("tokens", right=True, leave=4),
        Column("cost", right=True, leave=1),
        Column("errors", right=True),
        Column("error", least=20),
    ]
    if order != "failing":
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    left_out = [name or "bars" for name in fitted_table(columns, rows)]
    aside(_footer(len(traces), order, more, next(filter(None, moments), None), is_one_day))
    tell_left_out(left_out)


def _moment(trace: TraceSeen) -> datetime | None:
    began = trace.summary.get("started_at")
    return None if began is None else clock(began)


def _when(moment: datetime | None, is_one_day: bool) -> Text:
    if moment is None:
        return Text("?", "dim")
    return Text(f"{moment:%H:%M:%S}" if is_one_day else f"{moment:%Y-%m-%d %H:%M}")


def _name(told: dict[str, Any]) -> Text:
    said = told.get("trace_name")
    return Text(one_line(said), "bold") if said else Text("?", "dim")


def _models(told: dict[str, Any]) -> list[str]:
    """Each model once: where a response's is the request's with a date, only the shorter."""
    named: dict[str, str] = {}
    for model in sorted(told.get("models") or (), key=len):
        named.setdefault(_DATE.sub("", model), model)
    return sorted(named.values())


def _footer(count: int, order: TraceOrder, more: bool, moment: datetime | None, is_one_day: bool) -> str:
    word = {"latest": "latest ", "slowest": "slowest ", "dearest": "dearest ", "failing": "failing "}[order]
    traces = "trace" if count == 1 else "traces"
    text = f"The {count:,} {word}{traces}" if more else f"{count:,} {traces}, and no more"
    if moment is not None:
        text += f"; times are {f'of {moment:%Y-%m-%d}, ' if is_one_day else ''}{zone(moment)}"
    return f"{text}. More: --limit" if more else f"{text}."
