"""Requests on their way: threads with the SDK's own exporters, and the account of what became of each.

The stock exporter tries again by itself, within its timeout (10 s) and at most five times: at 429, 502, 503,
504 and when there is no connection, after 1, 2 and 4 s, or as ``Retry-After`` says where that is soon enough.
Then it gives up, and an application's spans would be lost; here they are given to it again, with patience.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Protocol

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from toril.codec import encode
from toril.simulate.report import Acknowledged, Report, checksum
from toril.simulate.run import Run
from toril.simulate.watching import WatchedSession

PAUSE = 0.5
"""Seconds until the exporter gets again what it gave up."""

# It tells of each failed try, and without a handler that would go to the terminal; the account has it all.
logging.getLogger("opentelemetry").addHandler(logging.NullHandler())


class Stop(Protocol):
    """An event of threads or of processes."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Spans that go out together."""

    tenant: str
    spans: Sequence[ReadableSpan]


class Delivery:
    """Sends batches, several at a time; :attr:`report` is the account."""

    def __init__(self, run: Run, stop: Stop) -> None:
        self.run = run
        self.report = Report(tenants={tenant: Acknowledged() for tenant in run.keys})
        self.repeated: set[int] = set()
        """The ids of spans that are sent more than once: only these are looked up before they are counted."""
        self.broken: BaseException | None = None
        """What ended a thread that should not have ended."""
        self._stop = stop
        self._lock = threading.Lock()
        self._seen: set[int] = set()
        self._queue: queue.Queue[Batch] = queue.Queue(run.connections)
        self._closed = threading.Event()
        self._exporters: list[OTLPSpanExporter] = []
        self._threads = [
            threading.Thread(target=self._work, name=f"sender-{number}", daemon=True)
            for number in range(run.connections)
        ]

    def start(self) -> None:
        """Begin to send."""
        for thread in self._threads:
            thread.start()

    def put(self, batch: Batch) -> bool:
        """Hand a batch over; False: too many are on their way, though it has waited a little."""
        try:
            self._queue.put(batch, timeout=0.05)
        except queue.Full:
            return False
        return True

    def unsent(self, spans: int) -> None:
        """So many will not be sent any more."""
        with self._lock:
            self.report.unsent += spans

    def snapshot(self) -> Report:
        """The account as it is now."""
        with self._lock:
            return deepcopy(self.report)

    def alive(self) -> bool:
        """Whether something is still on its way."""
        return any(thread.is_alive() for thread in self._threads)

    def no_more(self) -> None:
        """There will be no more batches: the threads end when the last one is through."""
        self._closed.set()

    def hurry(self) -> None:
        """Let exporters that wait for their next try give up."""
        with self._lock:
            waiting, self._exporters = self._exporters, []
        for exporter in waiting:
            exporter.shutdown()  # type: ignore[no-untyped-call]

    def stopping(self) -> bool:
        """Whether nothing more is to be sent."""
        return self._stop.is_set() or self.report.key_refused or self.broken is not None

    def _work(self) -> None:
        try:
            self._send_all()
        except BaseException as problem:  # noqa: BLE001 - the simulator raises it
            self.broken = problem

    def _send_all(self) -> None:
        lines: dict[str, tuple[OTLPSpanExporter, WatchedSession]] = {}
        while (batch := self._next()) is not None:
            if self.stopping():
                self.unsent(len(batch.spans))
                continue
            if batch.tenant not in lines:
                lines[batch.tenant] = self._line(batch.tenant)
            self._deliver(batch, *lines[batch.tenant])
        for _, session in lines.values():
            session.close()

    def _next(self) -> Batch | None:
        """What is to be sent; None: there is no more."""
        while True:
            closed = self._closed.is_set()
            try:
                return self._queue.get(timeout=0.05)
            except queue.Empty:
                if closed:
                    return None

    def _line(self, tenant: str) -> tuple[OTLPSpanExporter, WatchedSession]:
        session, key = WatchedSession(), self.run.keys[tenant]
        exporter = OTLPSpanExporter(
            endpoint=f"{self.run.url.rstrip('/')}/v1/traces",
            headers={"Authorization": f"Bearer {key}"} if key else None,
            compression=Compression.Gzip,
            session=session,
        )
        with self._lock:
            self._exporters.append(exporter)
        return exporter, session

    def _deliver(self, batch: Batch, exporter: OTLPSpanExporter, session: WatchedSession) -> None:
        """Send until it is taken, refused, or there is no more patience."""
        deadline = time.monotonic() + self.run.patience
        tries = 0
        while True:
            session.forget()
            success = exporter.export(batch.spans) is SpanExportResult.SUCCESS
            with self._lock:
                made = session.answers.total()
                self.report.answers.update(session.answers)
                self.report.retries += made if tries else max(0, made - 1)
            session.answers.clear()
            tries += made
            if success or _refused(session.status) or self.stopping():
                break
            pause = max(PAUSE, session.retry_after)
            if time.monotonic() + pause > deadline or self._stop.wait(pause):
                break
        with self._lock:
            self._account(batch, success, session)

    def _account(self, batch: Batch, success: bool, session: WatchedSession) -> None:
        report, size = self.report, len(batch.spans)
        report.requests += 1
        report.sent += size
        taken = success and session.status == 200
        if taken and not session.rejected:
            report.acknowledged += size
            self._acknowledge(batch)
        elif taken:
            report.rejected += session.rejected
            report.unclear += size - session.rejected
        elif _refused(session.status) or success:
            report.rejected += size
        else:
            report.lost += size
        if session.status in (401, 403):
            report.key_refused = True
        if session.said:
            answer = "no answer" if session.status is None else f"status {session.status}"
            report.problem(f"{answer}: {session.said}")

    def _acknowledge(self, batch: Batch) -> None:
        """Count each span the first time."""
        ids = []
        for span in batch.spans:
            context = span.context
            if context.span_id in self._seen:
                continue
            if context.span_id in self.repeated:
                self._seen.add(context.span_id)
            ids.append((f"{context.trace_id:032x}", f"{context.span_id:016x}"))
        self.report.tenants[batch.tenant].add(len(ids), checksum(ids))
        if self.run.manifest is not None:
            lines = (
                encode("manifest", {"tenant": batch.tenant, "trace_id": trace, "span_id": span}) + b"\n"
                for trace, span in ids
            )
            _append(str(self.run.manifest), b"".join(lines))


def _refused(status: int | None) -> bool:
    """Whether the collector would say the same next time."""
    return status is not None and 300 <= status < 500 and status not in (408, 429)


def _append(path: str, data: bytes) -> None:
    """In one write, so that the lines of several senders do not mix."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, data)
    finally:
        os.close(file)
