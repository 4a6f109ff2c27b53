"""``toril traces show``: one trace as a tree, with a time bar for each span."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click
import msgspec
from rich.text import Text

from toril.cli.careful import Refused
from toril.cli.looks import aside
from toril.cli.show import as_json, one_line, say, say_line, width
from toril.cli.traces.looks import (
    KINDS,
    clock,
    exact_money,
    length,
    money,
    short,
    sign,
    time_bar,
    tokens,
    zone,
)
from toril.cli.traces.ls import MOST, ORDERS
from toril.cli.traces.target import Target, on_server
from toril.cli.traces.tree import Line, lines, tree
from toril.errors import InvalidValue
from toril.pipelines.spans.reading import TraceView
from toril.pipelines.spans.span import Span

LINES = 60
"""So many spans are shown, without ``--all``."""
ALL = 10_000
"""What a server shows of a trace at most."""
_WHOLE_ID = re.compile(r"[0-9a-f]{32}")
_PART_OF_ID = re.compile(r"[0-9a-f]{4,31}")


@click.command()
@click.argument("trace", metavar="TRACE_ID")
@click.option("--all", "whole", is_flag=True, help=f"All spans, not only {LINES}.")
@on_server
async def show(at: Target, trace: str, whole: bool) -> None:
    """Show a trace: what it came to, and its spans as a tree.

    TRACE_ID is a trace's id, or how it begins. Or one of: latest, slowest, dearest, failing, for the trace
    that 'toril traces ls' would list first.
    """
    trace_id = await _find(at, trace)
    view = await at.client.trace(trace_id, limit=ALL)
    if view is None:
        raise Refused(f"there is no trace {trace_id}: 'toril traces ls' lists those there are")
    if at.json:
        as_json(msgspec.to_builtins(view))
    else:
        show_trace(view, None if whole else LINES)


async def _find(at: Target, said: str) -> str:
    """The id that is meant."""
    for order in ORDERS:
        if said == order:
            first = await at.client.traces(order=order, limit=1)
            if not first:
                raise Refused(f"there is no {order} trace")
            return first[0].trace_id
    said = said.lower()
    if _WHOLE_ID.fullmatch(said):
        return said
    if not _PART_OF_ID.fullmatch(said):
        raise InvalidValue("TRACE_ID", said, f"hexadecimal digits, 4 to 32 of them, or {', '.join(ORDERS)}")
    for order in ORDERS:
        listed = await at.client.traces(order=order, limit=MOST)
        found = sorted({trace.trace_id for trace in listed if trace.trace_id.startswith(said)})
        if len(found) == 1:
            return found[0]
        if found:
            raise Refused(f"several traces begin with {said}: {', '.join(found[:3])}")
    raise Refused(f"none of the {MOST:,} {', '.join(ORDERS)} traces begins with {said}: give the whole id")


def show_trace(view: TraceView, most: int | None) -> None:
    """Print a trace, with at most so many spans."""
    spans = [seen.span for seen in view.spans]
    _show_summary(view)
    say("")
    _show_tree(spans, most)
    if view.truncated:
        aside(f"The trace has more than these {len(spans):,} spans, which are as many as a server shows.")


def _show_summary(view: TraceView) -> None:
    told = view.summary or {}
    head = Text.assemble((one_line(told.get("trace_name") or "a trace"), "bold"))
    if told.get("service"):
        head.append(f"  {one_line(told['service'])}")
    if told.get("failed"):
        head.append("  ✘ failed", "bold red")
    if view.summary is None:
        head.append("  its summary is not ready yet", "yellow")
    say_line(head)
    say_line(Text(" · ".join(filter(None, (view.trace_id, _began(told.get("started_at"))))), "dim"))
    say_line(Text(" · ".join(filter(None, _sums(told)))))
    about = [
        f"{name} {one_line(str(told[name]))}"
        for name in ("user", "conversation", "customer")
        if told.get(name)
    ]
    if told.get("labels"):
        about.append(f"labels {one_line(', '.join(told['labels']))}")
    if about:
        say_line(Text(" · ".join(about), "dim"))
    for name in ("input", "output"):
        if told.get(name) is not None:
            say_line(Text.assemble((f"{name:7}", "dim"), one_line(_spoken(str(told[name])))))
    if told.get("error_message"):
        say_line(Text.assemble(("error  ", "red"), (one_line(told["error_message"]), "red")))


def _spoken(said: str) -> str:
    """Of messages, what the last one says; anything else as it is."""
    try:
        messages = msgspec.json.decode(said, type=list[dict[str, Any]])
    except msgspec.MsgspecError:  # no messages, or cut short
        return said
    content = messages[-1].get("content") if messages else None
    return content if isinstance(content, str) else said


def _began(ns: int | None) -> str:
    moment = None if ns is None else clock(ns)
    if ns is None or moment is None:
        return ""
    return f"{moment:%Y-%m-%d %H:%M:%S}.{ns // 1_000_000 % 1000:03} {zone(moment)}"


def _sums(told: dict[str, Any]) -> list[str]:
    """What the spans come to."""
    spans, errors = told.get("spans"), told.get("errors")
    said = [length(told["duration"]) if told.get("duration") is not None else ""]
    said.append("" if spans is None else f"{spans:,} span{'' if spans == 1 else 's'}")
    said.append(f"{errors:,} error{'' if errors == 1 else 's'}" if errors else "")
    said.append("" if told.get("cost") is None else exact_money(told["cost"]))
    counted = tokens(told.get("input_tokens"), told.get("output_tokens"))
    if counted:
        cached, hidden = told.get("cache_read_tokens"), told.get("reasoning_tokens")
        more = [f"{short(cached)} cached" if cached else "", f"{short(hidden)} reasoning" if hidden else ""]
        inside = f" ({', '.join(filter(None, more))})" if any(more) else ""
        said.append(f"{counted} tokens{inside}")
    if told.get("first_token") is not None:
        said.append(f"first token {length(told['first_token'])}")
    if told.get("tokens_per_second"):
        said.append(f"{told['tokens_per_second']:,} tokens/s")
    return said


def _show_tree(spans: Sequence[Span], most: int | None) -> None:
    every = list(lines(tree(spans)))
    shown = every if most is None or len(every) <= most + 1 else every[:most]
    start = min((span.start for span in spans), default=0)
    end = max((max(span.start, span.end) for span in spans), default=0)
    room = width() if width() < 1000 else 160  # a pipe has no edge
    cells = min(48, max(12, room // 4 - 4))
    names = [_named(line) for line in shown]
    _pad(names, most=max(24, room * 2 // 5))
    measures = [_measures(line.node.span) for line in shown]
    for column in zip(*measures, strict=True):
        _pad(column, right=True)
    for line, name, measured in zip(shown, names, measures, strict=True):
        span = line.node.span
        if span is None:
            say_line(name)
            continue
        bar = time_bar(span.start - start, span.end - start, end - start, cells, _style(span))
        if span.status == 2 and not any(text.plain.strip() for text in measured[1:]):
            measured = measured[:1]  # more room for what went wrong
        drawn = Text("  ").join([name, bar, *filter(None, measured), _said(span)])
        drawn.rstrip()
        say_line(drawn)
    _show_rest(every[len(shown) :])
    _show_signs(shown)


def _pad(texts: Sequence[Text], *, most: int = 1000, right: bool = False) -> None:
    """Make them equally long: as the longest is, but for one that is too long."""
    wide = min(max((text.cell_len for text in texts), default=0), most)
    for text in texts:
        if right:
            text.pad_left(wide - text.cell_len)
        else:
            text.truncate(wide, overflow="ellipsis", pad=True)


def _named(line: Line) -> Text:
    made = Text.assemble((line.guide, "bright_black"))
    span = line.node.span
    if span is None:
        return made.append(f"? parent {line.node.missing} is missing", "yellow")
    char, style = sign(span)
    made.append(f"{char} ", style)
    made.append(one_line(span.name), "red" if span.status == 2 else "")
    if line.node.circular:
        made.append(" ↻ its parent is below it", "yellow")
    return made


def _style(span: Span) -> str:
    return "red" if span.status == 2 else sign(span)[1]


def _measures(span: Span | None) -> tuple[Text, ...]:
    """How long a span took, its tokens and its cost."""
    if span is None:
        return Text(), Text(), Text()
    took, ai = Text(length(max(0, span.end - span.start))), span.ai
    if ai is None:
        return took, Text(), Text()
    return took, Text(tokens(ai.input_tokens, ai.output_tokens)), Text(money(ai.cost))


def _said(span: Span) -> Text:
    """What went wrong, and the model, unless the span is named after it."""
    said = []
    if span.status == 2:
        said.append(Text(f"✘ {one_line(span.status_message or 'failed')}", "red"))
    models = span.ai.models if span.ai else []
    if models and not any(model in span.name for model in models):
        said.append(Text(one_line(models[0]), "dim"))
    return Text("  ").join(said)


def _show_rest(hidden: Sequence[Line]) -> None:
    if hidden:
        failed = sum(line.node.span is not None and line.node.span.status == 2 for line in hidden)
        worse = f", {failed:,} of them failed" if failed else ""
        say(Text(f"… {len(hidden):,} more{worse}: --all", "dim"))


def _show_signs(shown: Sequence[Line]) -> None:
    """What the signs mean, of those that occur."""
    kinds = {line.node.span.ai.kind for line in shown if line.node.span and line.node.span.ai}
    signs = Text()
    for kind, (char, style) in KINDS.items():
        if kind in kinds:
            signs.append(f"{char} ", style).append(f"{kind}  ", "dim")
    if signs:
        signs.rstrip()
        say("")
        say_line(signs)
