"""How times, money, tokens and kinds of spans look."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.text import Text

from toril.pipelines.spans.span import Span

SECOND = 1_000_000_000
_BEGIN = "█▐▐▐▐▕▕▕"
"""A cell that is empty for so many eighths, from the left; what there is of such characters."""
_END = " ▏▎▍▌▋▊▉█"
"""A cell that is full for so many eighths."""

KINDS = {
    "workflow": ("▷", "blue"),
    "chain": ("▷", "blue"),
    "task": ("▪", "blue"),
    "agent": ("◆", "cyan"),
    "llm": ("✦", "green"),
    "tool": ("■", "yellow"),
    "retrieval": ("▤", "bright_blue"),
    "embedding": ("▦", "bright_blue"),
    "rerank": ("⇅", "bright_blue"),
    "guardrail": ("◈", "magenta"),
    "evaluation": ("◉", "magenta"),
}
"""Signs and colours of the steps of AI applications; other spans are :data:`PLAIN`, and errors are red."""

PLAIN = ("○", "bright_black")


def sign(span: Span) -> tuple[str, str]:
    """A span's sign and colour."""
    return KINDS.get((span.ai and span.ai.kind) or "", PLAIN)


def length(ns: int | None) -> str:
    """A length of time, to three digits or two units."""
    if ns is None:
        return "?"
    if ns < 1000:
        return f"{ns} ns"
    if ns < 60 * SECOND - SECOND // 20:
        for unit, size in (("µs", 1_000), ("ms", 1_000_000), ("s", SECOND)):
            amount = ns / size
            if amount < 999.5 or unit == "s":
                return f"{amount:.{2 if amount < 9.995 else 1 if amount < 99.95 else 0}f} {unit}"
    seconds = round(ns / SECOND)
    for large, small, size, part in (("min", "s", 60, 1), ("h", "min", 3600, 60), ("d", "h", 86_400, 3600)):
        if seconds < size * (24 if large == "h" else 60) or large == "d":
            return f"{seconds // size:,} {large} {seconds % size // part} {small}"
    raise AssertionError("days have no end")


def money(nano: int | None) -> str:
    """Nano-USD in a column: four digits after the point."""
    if nano is None:
        return ""
    if 0 < abs(nano) < 50_000:
        return "<$0.0001"
    units, rest = divmod(abs(nano) + 50_000, SECOND)
    return f"{'-' if nano < 0 else ''}${units:,}.{rest // 100_000:04}"


def exact_money(nano: int) -> str:
    """All of it: at least cents, and as many digits more as there are."""
    units, rest = divmod(abs(nano), SECOND)
    digits = f"{rest:09}".rstrip("0")
    return f"{'-' if nano < 0 else ''}${units:,}.{digits:0<2}"


def short(count: int) -> str:
    """A number in little room."""
    if count < 10_000:
        return f"{count:,}"
    for unit, size in (("k", 1_000), ("M", 1_000_000)):
        if count < 999_500 * size / 1_000:
            return f"{count / size:.3g}{unit}"
    return f"{count / 10**9:,.3g}G"


def tokens(given: int | None, made: int | None) -> str:
    """Tokens in and out; an embedding has none out."""
    if given is None and made is None:
        return ""
    left, right = ("" if one is None else short(one) for one in (given, made))
    return f"{left or '?'}→{right}" if made is not None else left


def clock(ns: int) -> datetime | None:
    """A moment on the clock of whoever looks; None: beyond the calendar."""
    try:
        return datetime.fromtimestamp(ns // SECOND, tz=UTC).astimezone()
    except (OverflowError, ValueError, OSError):
        return None


def zone(moment: datetime) -> str:
    """Which clock it is."""
    name, offset = moment.tzname() or "", f"UTC{moment:%z}"
    offset = f"{offset[:-2]}:{offset[-2:]}"
    return f"{name}, {offset}" if name.isalpha() and name != "UTC" else offset


def time_bar(start: int, end: int, whole: int, cells: int, style: str) -> Text:
    """A bar from one moment to another of a whole; however short, it can be seen."""
    steps = cells * 8
    whole = max(whole, 1)
    first = min(max(0, start * steps // whole), steps - 1)
    last = min(max(-(-end * steps // whole), first + 1), steps)
    cell, used = divmod(first, 8)
    made = " " * cell
    if last <= (cell + 1) * 8:  # all of it is in one cell
        made += _END[last - first] if used < 4 else "▐" if last - first > 2 else "▕"
    else:
        full, rest = divmod(last, 8)
        made += _BEGIN[used] + "█" * (full - cell - 1) + (_END[rest] if rest else "")
    return Text(made.ljust(cells), style=style)
