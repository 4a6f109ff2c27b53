"""What is measured, what is wanted, and what of it was reached."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median

from benchmarks.queue.peers import TORIL
from benchmarks.queue.report import TITLES as QUEUE_TITLES
from benchmarks.queue.report import Comparison, Measure, Readings, Targets

from .peers import BARE, QUEUES

RESULTS = Path(__file__).parents[1] / "results" / "stream.json"

TITLES: Mapping[str, Measure] = {
    **QUEUE_TITLES,
    "flow_rate": Measure("jobs/s from a producer to a worker", more_is_better=True),
    "half_rate": Measure("jobs/s in a steady flow, half of these", more_is_better=True),
    "half_p50": Measure("latency in that flow, p50 ms", 2),
    "half_p99": Measure("latency in that flow, p99 ms", 2),
}

HALF_OF_BARE, TIMES_A_PEER = 0.5, 8.0
LONGEST_DISPATCH = 100.0
"""Milliseconds that 99 of 100 jobs are to be below of, in the flow."""


def targets(readings: Readings) -> Targets:
    """What is wanted next to whom: half of the bare loop, and so much of the best queue."""
    fastest = max(QUEUES, key=lambda name: median(reading.process for reading in readings[name]))
    quickest = min(QUEUES, key=lambda name: median(reading.p99 for reading in readings[name]))
    return {("process", BARE): HALF_OF_BARE, ("process", fastest): TIMES_A_PEER, ("p99", quickest): 1.0}


def against_the_limit(readings: Readings) -> Comparison:
    """The latency in a flow next to what it must not be above."""
    found = median(getattr(reading, "half_p99") for reading in readings[TORIL])  # noqa: B009 - a StreamReading
    measure = TITLES["half_p99"]
    return {
        "measure": measure.title,
        "toril": round(found, measure.digits),
        "peer": LONGEST_DISPATCH,
        "peer_name": "the limit",
        "ratio": round(LONGEST_DISPATCH / found, 3),
        "target": 1.0,
    }
