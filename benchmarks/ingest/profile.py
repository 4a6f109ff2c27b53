"""Where the time of a process goes, by sampling.

A timer that runs with the processor time of the process (``ITIMER_PROF``) looks at the stacks of all Python
threads some 200 times a second: that costs far less than a call-by-call profile, and does not make small
functions look large. The samples of a thread in which it was not waiting share out the processor time that
the thread really used, so rows add up to what the process used. Native threads, those of the ClickHouse
engine, have no Python stack: what they used is a row of its own.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import CodeType, FrameType

EVERY = 0.005
"""Seconds of processor time between two samples."""
NATIVE = "ClickHouse engine, own threads"
LOOP = "event loop, sockets"
OTHER = "other"

FOLDING = ("choices", "computed", "declared", "expressions", "fields", "maps", "orders", "projection")
RULES: Sequence[tuple[str, str]] = (
    ("/toril/pipelines/spans/otlp/", "read OTLP protobuf"),
    ("/toril/pipelines/spans/dialects/", "understand dialects"),
    ("/toril/pipelines/spans/prices/", "price"),
    ("/toril/pipelines/spans/redaction", "check, record id, redact"),
    ("/toril/pipelines/spans/recording", "check, record id, redact"),
    ("/toril/pipelines/spans/span.py", "check, record id, redact"),
    ("/toril/pipelines/spans/summary", "fold summaries"),
    ("/toril/pipelines/spans/clickhouse", "rows for ClickHouse"),
    ("/toril/pipelines/spans/storage", "rows for ClickHouse"),
    ("/toril/pipelines/spans/aggregation", "settle: trigger, command, event"),
    ("/toril/pipelines/spans/ingestion", "commands in process"),
    ("/toril/pipelines/archive", "archive"),
    ("/toril/stores/clickhouse/history", "archive"),
    ("/toril/stores/clickhouse/cold", "go cold, trim"),
    ("/toril/stores/clickhouse/", "ClickHouse insert, driver"),
    ("/clickhouse_connect/", "ClickHouse insert, driver"),
    ("/chdb/", "ClickHouse insert, driver"),
    ("/toril/runtime/folding", "fold summaries"),
    ("/toril/runtime/reading", "read the log"),
    ("/toril/runtime/handling", "handlers: order, turns, checkpoints"),
    ("/toril/runtime/fair", "handlers: order, turns, checkpoints"),
    ("/toril/runtime/processing", "handlers: order, turns, checkpoints"),
    ("/toril/runtime/trouble", "handlers: order, turns, checkpoints"),
    ("/toril/runtime/slice", "handlers: order, turns, checkpoints"),
    ("/toril/runtime/work", "handlers: order, turns, checkpoints"),
    ("/toril/runtime/desk", "handlers: order, turns, checkpoints"),
    ("/toril/runtime/inline", "handlers: order, turns, checkpoints"),
    ("/toril/runtime/committing", "commit"),
    ("/toril/runtime/leases", "commit"),
    ("/toril/runtime/redis", "commit"),
    ("/toril/runtime/telemetry", "telemetry"),
    ("/toril/queue/telemetry", "telemetry"),
    ("/opentelemetry/", "telemetry"),
    ("/toril/runtime/", "commands in process"),
    ("/toril/handler", "commands in process"),
    ("/toril/queue/", "queue of commands"),
    ("/toril/log/reader", "read the log"),
    ("/toril/log/entry.py:decode", "read the log"),
    ("/toril/log/entry.py:_recorded_at", "read the log"),
    ("/toril/log/entry.py:Entry.", "read the log"),
    ("/toril/log/store.py:PartitionStore.page", "read the log"),
    ("/toril/log/cold", "go cold, trim"),
    ("/toril/log/upkeep", "go cold, trim"),
    ("/toril/log/", "append to the log"),
    ("/toril/stores/log", "events from and to JSON"),
    ("/toril/codec", "events from and to JSON"),
    ("/toril/events/event", "events from and to JSON"),
    ("/toril/events/identity", "events from and to JSON"),
    ("/toril/events/upcasters", "events from and to JSON"),
    *((f"/toril/events/{file}.py", "fold summaries") for file in FOLDING),
    ("/toril/events/", "commands in process"),
    ("/toril/connection/", "wire to Valkey"),
    ("/toril/server/", "HTTP"),
    ("/uvicorn/", "HTTP"),
    ("/starlette/", "HTTP"),
    ("/prometheus_client/", "HTTP"),
)
"""By file (and function), to which row time belongs. The innermost frame that any rule fits decides."""

IDLE = (("selectors.py", "select"), ("threading.py", "wait"), ("thread.py", "_worker"))
"""Where threads wait."""


class Sampler:
    """Notes where threads are, from :meth:`start` to :meth:`stop`. Both are called in the main thread."""

    def __init__(self) -> None:
        self._seen: dict[int, Counter[str]] = {}
        self._rows: dict[CodeType, str | None] = {}
        self._clocks: dict[int, float] = {}
        self._cpu = 0.0

    def start(self) -> None:
        """From now on."""
        self._cpu = time.process_time()
        self._clocks = _thread_times()
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)

    def stop(self) -> dict[str, float]:
        """Seconds of processor time by row."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        ended = _thread_times()
        rows: dict[str, float] = {}
        native = time.process_time() - self._cpu
        for thread, seconds in ended.items():
            used = seconds - self._clocks.get(thread, 0.0)
            native -= used
            seen = self._seen.get(thread) or Counter({OTHER: 1})
            for row, count in seen.items():
                rows[row] = rows.get(row, 0.0) + used * count / seen.total()
        rows[NATIVE] = max(native, 0.0)
        return rows

    def _sample(self, _: int, interrupted: FrameType | None) -> None:
        main = threading.get_ident()
        for thread, frame in sys._current_frames().items():
            inner = interrupted if thread == main else frame
            if inner is None or _is_idle(inner):
                continue
            # A thread that is in none of our files hands over what it has done, and waits for its turn.
            row = self._row(inner) or (LOOP if thread == main else None)
            if row is not None:
                self._seen.setdefault(thread, Counter())[row] += 1

    def _row(self, frame: FrameType) -> str | None:
        inner: FrameType | None = frame
        while inner is not None:
            row = self._row_of(inner.f_code)
            if row is not None:
                return row
            inner = inner.f_back
        return None

    def _row_of(self, code: CodeType) -> str | None:
        if code not in self._rows:
            name = f"{code.co_filename}:{code.co_qualname}"
            self._rows[code] = next((row for part, row in RULES if part in name), None)
        return self._rows[code]


def _is_idle(frame: FrameType) -> bool:
    code = frame.f_code
    return any(code.co_filename.endswith(file) and code.co_name == name for file, name in IDLE)


def _thread_times() -> dict[int, float]:
    """Processor time of each Python thread so far."""
    times: dict[int, float] = {}
    for thread in threading.enumerate():
        if thread.ident is not None:
            times[thread.ident] = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return times


def per_span(rows: Mapping[str, float], spans: int) -> list[tuple[str, float, float]]:
    """Rows as µs per span and as parts of all; the largest first."""
    whole = sum(rows.values())
    made = [(name, seconds / spans * 1e6, seconds / whole) for name, seconds in rows.items()]
    return sorted(made, key=lambda row: -row[1])
