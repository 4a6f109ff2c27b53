"""``toril simulate``: a realistic load, by the real OpenTelemetry SDK."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from toril.aggregate import check_tenant
from toril.cli.asking import key_option, server_option
from toril.cli.careful import INTERRUPTED, Refused
from toril.cli.looks import number
from toril.cli.show import as_json, complain, errors, one_line, say
from toril.cli.times import duration, whole
from toril.errors import InvalidValue
from toril.simulate import Report, Run
from toril.simulate import simulate as send

DEFAULT_TRACES = 100
MOST = 10**12


@click.command()
@server_option("--url")
@key_option
@click.option("--tenants", metavar="T=KEY,…", help="Several tenants and their keys; the first gets the most.")
@click.option("--traces", metavar="N", callback=whole("traces", 1, MOST), help="So many traces (100).")
@click.option("--spans", metavar="N", callback=whole("spans", 1, MOST), help="Exactly so many spans.")
@click.option("--seconds", metavar="S", callback=whole("seconds", 1, 10**7), help="For so many seconds.")
@click.option(
    "--rate", metavar="N", callback=whole("rate", 1, 10**7), help="Spans per second (as fast as it goes)."
)
@click.option(
    "--seed",
    default="1",
    show_default=True,
    metavar="N",
    callback=whole("seed", 0, 2**63 - 1),
    help="What to send.",
)
@click.option("--at", metavar="TIME", help="When it all happens: 2026-01-31T12:00:00Z (now).")
@click.option(
    "--late",
    default="3s",
    show_default=True,
    metavar="TIME",
    callback=duration("late"),
    help="How late some spans are, at most.",
)
@click.option(
    "--largest",
    default="2000",
    show_default=True,
    metavar="N",
    callback=whole("largest", 1, 1_000_000),
    help="Spans of the largest traces, about.",
)
@click.option(
    "--processes",
    default="1",
    show_default=True,
    metavar="N",
    callback=whole("processes", 1, 64),
    help="Send from so many.",
)
@click.option(
    "--connections",
    default="4",
    show_default=True,
    metavar="N",
    callback=whole("connections", 1, 256),
    help="Requests at a time, of each process.",
)
@click.option(
    "--per-request",
    default="512",
    show_default=True,
    metavar="N",
    callback=whole("per-request", 1, 100_000),
    help="Spans in a request, at most.",
)
@click.option(
    "--patience",
    default="2m",
    show_default=True,
    metavar="TIME",
    callback=duration("patience"),
    help="How long to try a request that the collector does not take.",
)
@click.option(
    "--manifest",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write each acknowledged span into this file: a line of JSON with tenant, trace_id, span_id.",
)
@click.option("--json", "json_", is_flag=True, help="Print the report as JSON.")
def simulate(
    server: str,
    key: str | None,
    tenants: str | None,
    traces: int | None,
    spans: int | None,
    seconds: int | None,
    at: str | None,
    late: int,
    patience: int,
    manifest: Path | None,
    processes: int,
    json_: bool,
    **how: Any,
) -> None:
    """Send traces of LLM applications to a collector, as the OpenTelemetry SDK sends them.

    Chats, agents with tools, retrieval, embeddings, evaluations; errors and retries; late spans, spans that
    are sent twice, large traces; several services, models, tenants and dialects. The same seed and time give
    the same spans. What the collector does not take is tried again, through outages, until --patience ends.

    Ends with 1 if spans were refused or given up. Ctrl-C ends it early, with the report.
    """
    if traces is None and spans is None and seconds is None:
        traces = DEFAULT_TRACES
    run = Run(
        url=server,
        keys=_keys(key, tenants),
        base=time.time_ns() // 1000 * 1000 if at is None else _moment(at),
        traces=traces,
        spans=spans,
        seconds=seconds,
        late=late / 1000,
        patience=patience / 1000,
        manifest=manifest,
        **how,
    )
    if manifest is not None:
        manifest.write_bytes(b"")
    report = _send(run, processes, quiet=json_)
    if json_:
        as_json(report.as_dict() | {"seed": run.seed, "base": run.base})
    else:
        _show(report, run)
    if report.stopped:
        sys.exit(INTERRUPTED)
    if report.errors:
        sys.exit(1)


def _keys(key: str | None, tenants: str | None) -> dict[str, str]:
    """The keys by tenant; of one key alone, the tenant is not known here."""
    if tenants is None:
        return {"default": key or ""}
    found = {}
    for one in tenants.split(","):
        name, sign, secret = one.strip().partition("=")
        if not sign or not secret:
            # Not the value: it is, or looks like, a secret.
            raise Refused("--tenants is tenant=key, with commas between them")
        found[check_tenant(name)] = secret
    return found


def _moment(said: str) -> int:
    try:
        found = datetime.fromisoformat(said)
    except ValueError:
        raise InvalidValue("at", said, "a date and time like 2026-01-31T12:00:00Z") from None
    # Exactly: a float has no nanoseconds.
    since = (found if found.tzinfo else found.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000


def _send(run: Run, processes: int, *, quiet: bool) -> Report:
    with _stopped_by_ctrl_c() as stop, _progress(run, quiet) as told:
        return send(run, processes=processes, told=told, stop=stop)


@contextmanager
def _stopped_by_ctrl_c() -> Iterator[threading.Event]:
    stop = threading.Event()

    def interrupted(*_: object) -> None:
        stop.set()
        # Should it hang, the next Ctrl-C does what it always does.
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress(run: Run, quiet: bool) -> Iterator[Callable[[Report], None]]:
    """A bar of how far it is, by whatever limits it."""
    total = run.spans or run.traces or run.seconds
    of = "spans" if run.spans else "traces" if run.traces else "seconds"
    shown = Progress(
        SpinnerColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[far]}"),
        TextColumn("[bold]{task.fields[rate]:>7}[/] spans/s"),
        TextColumn("[green]✔ {task.fields[acknowledged]}[/]"),
        TextColumn("{task.fields[trouble]}"),
        TimeElapsedColumn(),
        console=errors,
        transient=True,
        disable=quiet or not errors.is_terminal,
    )
    with shown:
        task = shown.add_task("", total=total, far="", rate="", acknowledged="0", trouble="")

        def told(report: Report) -> None:
            done = {"spans": report.spans, "traces": report.traces, "seconds": report.seconds}[of]
            trouble = []
            if report.retries:
                trouble.append(f"[yellow]↻ {report.retries:,}[/]")
            if report.errors:
                trouble.append(f"[red]✘ {report.errors:,}[/]")
            shown.update(
                task,
                completed=done,
                far=f"{done:,.0f} of {total:,.0f} {of}",
                rate=f"{report.rate:,.0f}",
                acknowledged=f"{report.acknowledged:,}",
                trouble=" ".join(trouble),
            )

        yield told


def _show(report: Report, run: Run) -> None:
    state = ("stopped: ", "yellow") if report.stopped else ""
    head = f"{report.spans:,} spans of {report.traces:,} traces in {report.seconds:,.1f} s"
    say(Text.assemble(state, (head, "bold")))
    counts = Table.grid(padding=(0, 2))
    counts.add_column(no_wrap=True)
    counts.add_column(justify="right", no_wrap=True)
    counts.add_column(style="dim")
    again = report.acknowledged - sum(found.spans for found in report.tenants.values())
    twice = f"; {again:,} of them not for the first time" if again else ""
    rows = (
        ("acknowledged", report.acknowledged, "green", f"{report.rate:,.0f} a second{twice}"),
        ("rejected", report.rejected, "red", "the collector refused them"),
        ("unclear", report.unclear, "red", "in requests that were taken in part"),
        ("lost", report.lost, "red", "given up; the collector may have them all the same"),
        ("not sent", report.unsent, "yellow", "the run was stopped before"),
        ("requests", report.requests, "", f"{report.retries:,} tries more than that"),
    )
    for name, count, style, about in rows:
        if count or name in ("acknowledged", "requests"):
            counts.add_row(f"  {name}", number(count, style), about)
    say(counts)
    if len(report.tenants) > 1:
        for tenant, found in report.tenants.items():
            say(Text(f"  {one_line(tenant)}: {found.spans:,} different spans", "dim"))
    if set(report.answers) - {"200"}:
        answers = ", ".join(f"{count:,} × {status}" for status, count in sorted(report.answers.items()))
        say(Text(f"  answers: {answers}", "dim"))
    say(Text(f"  The same spans once more: the same command with --at {_iso(run.base)}", "dim"))
    for text in report.problems if report.errors else ():
        complain(text)
    if report.key_refused:
        complain("the key was refused: give one of the server's with --key or TORIL_API_KEY")


def _iso(base: int) -> str:
    moment = datetime.fromtimestamp(base // 10**9, tz=UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{base % 10**9 // 1000:06}Z"
