"""``Simulator``: sends what is planned, when it is planned, and reports what became of it."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count

from opentelemetry.sdk.trace import ReadableSpan

from toril.simulate.delivery import Batch, Delivery, Stop
from toril.simulate.planning import DEFAULT_RATE, plan
from toril.simulate.plans import TracePlan
from toril.simulate.report import Report
from toril.simulate.run import Run
from toril.simulate.sdk import SpanMaker

TELL_EVERY = 0.1

Told = Callable[[Report], None]

Lane = tuple[str, str]
"""A tenant and a service. Each sends for itself, as processes of their own would."""


class Simulator:
    """One sender. :func:`toril.simulate.simulate` runs several."""

    def __init__(self, run: Run, *, told: Told | None = None, stop: Stop | None = None) -> None:
        self.run = run
        self._told = told
        self._stop = stop or threading.Event()
        self._delivery = Delivery(run, self._stop)
        self._maker = SpanMaker(run.base)
        self._lanes: dict[Lane, tuple[float, list[ReadableSpan]]] = {}
        self._later: list[tuple[float, int, Lane, ReadableSpan]] = []
        self._order = count()
        self._started = 0.0
        self._told_at = 0.0

    @property
    def report(self) -> Report:
        """What became of the spans so far."""
        return self._delivery.report

    def send(self) -> Report:
        """Send it all, or until it is told to stop; what became of it."""
        self._started = time.monotonic()
        self._delivery.start()
        for trace in self._plans():
            if not self._pass_time(self._turn()) or self._is_over():
                break
            self._offer(trace)
        while self._later and self._pass_time(self._later[0][0]):
            pass
        self._end()
        return self.report

    def _plans(self) -> Iterator[TracePlan]:
        run = self.run
        return plan(
            run.seed,
            traces=run.traces,
            spans=run.spans,
            tenants=tuple(run.keys),
            rate=run.rate or DEFAULT_RATE,
            late=run.late,
            largest=run.largest,
            share=run.share,
        )

    def _turn(self) -> float:
        """When the next trace is to be sent."""
        if self.run.rate is None:
            return 0.0
        return self._started + self.report.spans * self.run.share[1] / self.run.rate

    def _is_over(self) -> bool:
        limit = self.run.seconds
        return limit is not None and time.monotonic() - self._started >= limit

    def _offer(self, trace: TracePlan) -> None:
        self.report.traces += 1
        self.report.spans += len(trace.spans)
        now = time.monotonic()
        for planned, span in zip(trace.spans, self._maker.spans(trace), strict=True):
            lane = trace.tenant, planned.service
            if planned.again:
                self._delivery.repeated.add(planned.span_id)
            for delay in (planned.delay, *planned.again):
                if delay:
                    heapq.heappush(self._later, (now + delay, next(self._order), lane, span))
                else:
                    self._put(lane, span)

    def _put(self, lane: Lane, span: ReadableSpan) -> None:
        _, waiting = self._lanes.setdefault(lane, (time.monotonic(), []))
        waiting.append(span)
        if len(waiting) >= self.run.per_request:
            self._flush(lane)

    def _flush(self, lane: Lane) -> None:
        _, spans = self._lanes.pop(lane)
        batch = Batch(lane[0], spans)
        while not self._delivery.stopping():
            if self._delivery.put(batch):
                return
            self._tell(time.monotonic())
        self._delivery.unsent(len(spans))

    def _pass_time(self, until: float) -> bool:
        """Do what is due, until a moment; False when it is time to stop."""
        while not self._delivery.stopping():
            now = time.monotonic()
            while self._later and self._later[0][0] <= now:
                _, _, lane, span = heapq.heappop(self._later)
                self._put(lane, span)
            for lane in [lane for lane, (since, _) in self._lanes.items() if now - since > self.run.interval]:
                self._flush(lane)
            self._tell(now)
            if now >= until:
                return True
            self._stop.wait(min(until - now, 0.05))
        return False

    def _tell(self, now: float) -> None:
        self.report.seconds = now - self._started
        if self._told is not None and now - self._told_at > TELL_EVERY:
            self._told_at = now
            self._told(self._delivery.snapshot())

    def _end(self) -> None:
        for lane in list(self._lanes):
            self._flush(lane)  # when stopping, this counts them as not sent
        self._delivery.unsent(len(self._later))
        self._delivery.no_more()
        while self._delivery.alive():
            if self._delivery.stopping():
                self._delivery.hurry()
            self._tell(time.monotonic())
            time.sleep(0.01)
        if self._delivery.broken is not None:
            raise self._delivery.broken
        self.report.stopped = self._stop.is_set()
        self._tell(time.monotonic())
