"""The report of an audit: one page of HTML that needs nothing else, with plots drawn here.

Plots are SVG whose lengths across are in percent: on a narrow screen bars are shorter, and text is as large.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Any

from toril.lake.audit import Audit, Check, Figures

MOST_BARS = 16
"""Bars of one plot; what is smaller is one bar together."""

MOST_COLUMNS = 96
"""Columns of one plot: more hours than that are shown by day."""

HOUR = 3600
DAY = 24 * HOUR


def report(audit: Audit) -> str:
    """The page."""
    style = files("toril.lake").joinpath("report.css").read_text(encoding="utf-8")
    mark = '<span class="mark good">✓</span>' if audit.ok else '<span class="mark bad">✕</span>'
    verdict = _verdict(audit)
    body = [
        f"<header><h1>{mark}{escape(verdict)}</h1><p class='soft'>{escape(_scope(audit))}</p></header>",
        _tiles(audit),
        f"<div class='plots'>{''.join(_plots(audit))}</div>",
        _checks(audit),
        f"<footer class='small'>Lake <code>{escape(audit.lake)}</code>. Times are UTC.</footer>",
    ]
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(verdict)}</title><style>{style}</style></head><body><main>"
        f"{''.join(body)}</main></body></html>\n"
    )


def _verdict(audit: Audit) -> str:
    if audit.ok:
        done = {check.name for check in audit.checks if not check.skipped}
        sides = [
            name
            for name, of in (("log", "log"), ("lake", ""), ("live store", "live"))
            if not of or of in done
        ]
        if len(sides) == 1:
            return "The tables of the lake agree with each other"
        return f"{', '.join(sides[:-1])} and {sides[-1]} agree".capitalize()
    wrong = [check for check in audit.checks if check.findings]
    if not wrong:
        return "Nothing could be checked"
    return f"{_count(audit.problems, 'difference')} in {len(wrong)} of {_count(len(audit.checks), 'check')}"


def _scope(audit: Audit) -> str:
    whole = "All aggregates"
    if audit.fraction < 1:
        whole = f"A sample of the aggregates, {100 * audit.fraction:.4g} %, chosen by a hash of their keys"
    when = datetime.fromtimestamp(audit.began_at / 1e9, UTC)
    said = f"{when.day} {when:%B %Y at %H:%M} UTC in {_seconds(audit.seconds)}"
    return f"{whole}, looked at on {said}."


def _tiles(audit: Audit) -> str:
    figures = audit.figures
    rows = {name: count for name, count, _ in figures.tables}
    tiles = [(f"{rows.get('events', 0):,}", "events in the lake")]
    if figures.lag:
        tiles.append((f"{sum(one.behind for one in figures.lag):,}", "events not archived yet"))
    if "trace_summaries" in rows:
        tiles.append((f"{rows['trace_summaries']:,}", "traces"))
    elif "spans" in rows:
        tiles.append((f"{rows['spans']:,}", "spans"))
    if figures.costs:
        tiles.append((_usd(sum(cost for _, cost, _ in figures.costs)), "cost of all models"))
    tiles.append((f"{audit.problems:,}", "differences"))
    made = "".join(
        f"<div class='card tile'><b>{escape(value)}</b><span class='small'>{escape(what)}</span></div>"
        for value, what in tiles
    )
    return f"<div class='tiles'>{made}</div>"


# ---------------------------------------------------------------------------- plots


def _plots(audit: Audit) -> Iterable[str]:
    figures = audit.figures
    if figures.volume:
        yield _volume(figures)
    if figures.lag:
        yield _lag(figures)
    if figures.costs:
        yield _costs(figures)
    yield _differences(audit)


def _volume(figures: Figures) -> str:
    first, last = figures.volume[0][0], figures.volume[-1][0]
    step = HOUR if (last - first) // HOUR < MOST_COLUMNS else DAY
    while (last - first) // step >= MOST_COLUMNS:
        step *= 2
    counted: dict[int, int] = {}
    for hour, count in figures.volume:
        counted[hour // step * step] = counted.get(hour // step * step, 0) + count
    columns = [(start, counted.get(start, 0)) for start in range(first // step * step, last + 1, step)]
    peak, most = max(columns, key=lambda one: one[1])
    unit = "hour" if step == HOUR else "day" if step == DAY else f"{step // DAY} days"
    title = f"Most events came on {_when(peak, step)}: {most:,} in one {unit}"
    if len(columns) == 1:
        title = f"All {most:,} events came in one {unit}, on {_when(peak, step)}"
    table = _table(
        ("from", "events"), [(_when(start, step), f"{count:,}") for start, count in columns if count]
    )
    return _figure(title, f"Events recorded per {unit}", _columns(columns, step), table, wide=True)


def _lag(figures: Figures) -> str:
    behind = [one for one in figures.lag if one.behind]
    total = sum(one.behind for one in behind)
    many = len(figures.lag)
    if not behind:
        title = (
            f"The archive is up to date in {'its one partition' if many == 1 else f'all {many} partitions'}"
        )
    elif len(behind) == 1:
        title = (
            f"Partition {behind[0].partition} is {_count(total, 'event')} behind, the others are up to date"
        )
        title = title if many > 1 else f"The archive is {_count(total, 'event')} behind"
    else:
        title = f"{_count(total, 'event')} in {len(behind)} of {many} partitions are not archived yet"
    table = _table(
        ("partition", "in the log", "archived", "behind"),
        [(one.partition, f"{one.tail:,}", f"{one.archived:,}", f"{one.behind:,}") for one in figures.lag],
    )
    bars = [
        (f"partition {one.partition}", one.behind, f"{one.behind:,}", f"{one.archived:,} of {one.tail:,}")
        for one in sorted(behind, key=lambda one: (-one.behind, one.partition))
    ]
    if not bars:
        bars = [("archived", 1, f"{sum(one.tail for one in figures.lag):,}", "all events of the log")]
    return _figure(title, "Events of the log that are not in the lake, by partition", _bars(bars), table)


def _costs(figures: Figures) -> str:
    total = sum(cost for _, cost, _ in figures.costs)
    dearest, cost, _ = figures.costs[0]
    title = f"{dearest} is {_share(cost, total)} of {_usd(total)}" if total else "No model has cost anything"
    if len(figures.costs) == 1 and total:
        title = f"All {_usd(total)} went to {dearest}"
    table = _table(
        ("model", "cost", "spans"),
        [(model, _usd(cost), f"{spans:,}") for model, cost, spans in figures.costs],
    )
    bars = [
        (model, cost, _usd(cost), f"{_count(spans, 'span')}, {_share(cost, total)}")
        for model, cost, spans in figures.costs
    ]
    return _figure(title, "Cost by the model that answered, in US dollars", _bars(bars), table)


def _differences(audit: Audit) -> str:
    found = sorted(
        ((finding, check) for check in audit.checks for finding in check.findings),
        key=lambda one: -one[0].count,
    )
    done = [check for check in audit.checks if not check.skipped]
    if not found:
        title = f"No differences in {_count(len(done), 'check')}"
        bars = [(check.name, check.looked, f"{check.looked:,}", check.promise) for check in done]
        table = _table(("check", "compared"), [(check.name, f"{check.looked:,}") for check in done])
        return _figure(
            title, "What was compared, by check, and found the same", _bars(bars), table, wide=True
        )
    worst, where = found[0]
    title = f"Most differences are in {where.name}: {worst.kind}, {worst.count:,} times"
    bars = [(f"{check.name}: {one.kind}", one.count, f"{one.count:,}", one.reason) for one, check in found]
    table = _table(
        ("check", "what", "count"), [(check.name, one.kind, f"{one.count:,}") for one, check in found]
    )
    return _figure(title, "Differences by kind", _bars(bars, bad=True), table, wide=True)


def _figure(title: str, what: str, plot: str, table: str, *, wide: bool = False) -> str:
    return (
        f"<figure class='card{' wide' if wide else ''}'><figcaption><h2>{escape(title)}</h2>"
        f"<p class='small'>{escape(what)}</p></figcaption>{plot}"
        f"<details><summary>Numbers</summary>{table}</details></figure>"
    )


Bar = tuple[str, int, str, str]
"""Its name, its length, the number beside it, and what is said of it when it is pointed at."""


def _bars(bars: Sequence[Bar], *, bad: bool = False) -> str:
    """Bars across, below their names: the same on a wide screen and on a narrow one."""
    if len(bars) > MOST_BARS:
        rest = bars[MOST_BARS - 1 :]
        count = sum(bar[1] for bar in rest)
        bars = [*bars[: MOST_BARS - 1], (f"{len(rest)} others", count, "", "see the numbers below")]
    longest = max((bar[1] for bar in bars), default=0) or 1
    height = 40
    kind = "bar bad" if bad else "bar"
    made = []
    for place, (name, length, number, said) in enumerate(bars):
        top = place * height
        width = 100 * length / longest
        # The bar begins outside of the picture, so that only its end is round.
        made.append(
            f"<g><title>{escape(name)}: {escape(number)} ({escape(said)})</title>"
            f"<rect class='hit' x='0' y='{top}' width='100%' height='{height}'/>"
            f"<text x='0' y='{top + 13}'>{escape(_short(name, 44))}</text>"
            f"<text class='value' x='100%' y='{top + 13}' text-anchor='end'>{escape(number)}</text>"
            f"<rect class='rail' x='-4' y='{top + 20}' width='101%' height='10' rx='4'/>"
            # However short, it can be seen.
            f"<rect class='{kind}' x='-4' y='{top + 20}' width='{7 if length else 0}' height='10' rx='4'/>"
            f"<rect class='{kind}' x='-4' y='{top + 20}' width='{width:.3f}%' height='10' rx='4'/></g>"
        )
    size = len(bars) * height - 8
    label = escape("; ".join(f"{name}: {number}" for name, _, number, _ in bars[:5]))
    return f"<svg role='img' aria-label='{label}' height='{size}'>{''.join(made)}</svg>"


def _columns(columns: Sequence[tuple[int, int]], step: int) -> str:
    """Columns over time, on a grid of round numbers."""
    high, foot, head = 190, 24, 18
    most = max(count for _, count in columns)
    ticks = _ticks(most)
    top = max(ticks[-1], most, 1)
    across = 100 / len(columns)
    # One hour alone would be a wall.
    width = min(across * (0.82 if len(columns) > 8 else 0.6), 12)
    made = []
    for tick in ticks:
        y = head + high - high * tick / top
        line = "base" if not tick else "grid"
        made.append(f"<line class='{line}' x1='0' x2='100%' y1='{y:.1f}' y2='{y:.1f}'/>")
        if tick:
            number = f"<text class='muted' x='-8' y='{y + 4:.1f}' text-anchor='end'>{_brief(tick)}</text>"
            made.append(number)
    bars = []
    for place, (start, count) in enumerate(columns):
        tall = max(high * count / top, 1.5) if count else 0
        left = place * across + (across - width) / 2
        bars.append(
            f"<g><title>{escape(_when(start, step))}: {count:,}</title>"
            f"<rect class='hit' x='{place * across:.3f}%' y='0' width='{across:.3f}%' height='100%'/>"
            # It goes on below the picture, so that only its head is round.
            f"<rect class='bar' x='{left:.3f}%' y='{high - tall:.1f}' width='{width:.3f}%' "
            f"height='{tall + 6 if count else 0:.1f}' rx='3'/></g>"
        )
    made.append(f"<svg x='0' y='{head}' width='100%' height='{high}'>{''.join(bars)}</svg>")
    ends = [(0, "start")] if len(columns) == 1 else [(0, "start"), (len(columns) - 1, "end")]
    if len(columns) > 4:
        ends.insert(1, (len(columns) // 2, "middle"))
    for place, anchor in ends:
        x = {"start": 0.0, "middle": (place + 0.5) * across, "end": 100.0}[anchor]
        text = _when(columns[place][0], step)
        y = head + high + foot - 6
        made.append(f"<text class='muted' x='{x:.3f}%' y='{y}' text-anchor='{anchor}'>{escape(text)}</text>")
    label = f"{len(columns)} columns, the highest is {most:,}"
    size = head + high + foot
    return f"<svg class='over' role='img' aria-label='{label}' height='{size}'>{''.join(made)}</svg>"


def _ticks(most: int) -> list[int]:
    """Round numbers from 0 to about the most."""
    step = 1
    while most / step > 4:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return list(range(0, most + 1, step))


# ---------------------------------------------------------------------------- checks


def _checks(audit: Audit) -> str:
    made = "".join(_check(check) for check in audit.checks)
    return f"<section class='card'><ol class='checks'>{made}</ol></section>"


def _check(check: Check) -> str:
    if check.skipped:
        mark, said = "<span class='mark soft'>–</span>", f"Not checked: {check.skipped}"
    elif check.findings:
        mark = "<span class='mark bad'>✕</span>"
        said = f"{_count(check.problems, 'difference')} among {check.looked:,}, in {_seconds(check.seconds)}"
    else:
        mark, said = (
            "<span class='mark good'>✓</span>",
            f"{check.looked:,} looked at in {_seconds(check.seconds)}",
        )
    promise = escape(check.promise[:1].upper() + check.promise[1:])
    notes = "".join(f"<p class='small'>{escape(note)}.</p>" for note in check.notes)
    findings = "".join(
        f"<div class='finding'><p><b class='bad'>{one.count:,} × {escape(one.kind)}</b></p>"
        f"<p class='soft'>{escape(one.reason[:1].upper() + one.reason[1:])}.</p>{_samples(one.samples)}</div>"
        for one in check.findings
    )
    return (
        f"<li>{mark}<div><h2>{promise}</h2><p class='small'>{escape(check.name)} · {escape(said)}</p>"
        f"{notes}{findings}</div></li>"
    )


def _samples(samples: Sequence[dict[str, Any]]) -> str:
    if not samples:
        return ""
    names = list(dict.fromkeys(name for sample in samples for name in sample))
    rows = [tuple(_text(sample.get(name)) for name in names) for sample in samples]
    return f"<details><summary>{_count(len(rows), 'sample')}</summary>{_table(names, rows)}</details>"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    right = [bool(rows) and all(_is_number(row[place]) for row in rows) for place in range(len(names))]
    kinds = [" class='n'" if one else "" for one in right]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in zip(names, kinds, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


# ---------------------------------------------------------------------------- words


def _is_number(text: str) -> bool:
    return text.lstrip("$-").replace(",", "").replace(".", "", 1).isdigit()


def _text(value: Any) -> str:
    return "null" if value is None else str(value)


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _usd(nano: int) -> str:
    dollars = nano / 1e9
    if dollars >= 0.01 or not nano:
        return f"${dollars:,.2f}"
    return f"${dollars:.2g}" if dollars >= 1e-4 else f"${dollars:.9f}".rstrip("0")


def _share(part: int, of: int) -> str:
    percent = 100 * part / of if of else 0
    return f"{percent:.0f} %" if percent >= 1 or not percent else "under 1 %"


def _brief(count: int) -> str:
    for size, unit in ((10**9, " G"), (10**6, " M"), (10**3, " k")):
        if count >= size:
            return f"{count / size:g}{unit}"
    return str(count)


def _seconds(seconds: float) -> str:
    return (
        f"{seconds:.1f} s"
        if seconds < 10
        else f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
    )


def _when(seconds: int, step: int) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment.day} {moment:%b %Y}" if step >= DAY else f"{moment.day} {moment:%b, %H:00}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
