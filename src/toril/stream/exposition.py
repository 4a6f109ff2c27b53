"""The metrics of stream queues in the text form of Prometheus, which needs no library to be written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from toril.stream.views import PartitionMetrics, StreamMetrics

Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One value of one metric."""

    name: str
    kind: Literal["gauge", "counter"]
    text: str
    labels: Labels
    value: float


class _Measure(NamedTuple):
    field: str
    name: str
    text: str


_GAUGES = tuple(
    _Measure(*row)
    for row in (
        ("oldest_waiting", "oldest_ready_seconds", "How long the oldest job has been ready that nobody has."),
        ("pending", "running", "Jobs that workers have."),
        ("oldest_idle", "oldest_lease_seconds", "Seconds since the oldest lease was renewed."),
        ("waiting", "waiting", "Jobs that wait for others with their key, for a time, for another attempt."),
        ("delayed", "delayed", "Of those that wait, the jobs that wait for a time."),
        ("backlog", "backlog", "All jobs that have not ended."),
        ("backlog_limit", "backlog_limit", "Jobs that there may be; more are refused."),
        ("backlog_bytes", "backlog_bytes", "Bytes of the data of all jobs that have not ended."),
        ("inlet", "inlet", "Entries of foreign producers that were not taken in yet."),
        ("dead", "dead", "Dead letters that wait for somebody to look at them."),
        ("oldest_dead", "oldest_dead_seconds", "How long ago the oldest dead letter died."),
        ("keys", "keys", "Order keys that have jobs."),
        ("schedules", "schedules", "Schedules that add jobs."),
        ("workers", "workers", "Workers that the queue knows."),
        ("paused", "paused", "1 where the queue is paused."),
        ("memory", "memory_bytes", "Bytes that the queue takes up in Redis, about."),
        ("done_per_second", "done_per_second", "Jobs done per second, over the last minute or so."),
        (
            "time_to_drain",
            "drain_seconds",
            "Seconds until nothing is left at that rate; +Inf: nothing moves.",
        ),
    )
)

_COUNTERS = tuple(
    _Measure(*row)
    for row in (
        ("added_total", "added", "Jobs that were added."),
        ("done_total", "done", "Jobs that were done."),
        ("retried_total", "retried", "Runs that failed and were put off."),
        ("dead_total", "died", "Jobs that became dead letters."),
        ("redriven_total", "redriven", "Dead letters that became jobs again."),
        ("cancelled_total", "cancelled", "Jobs that were cancelled."),
        ("skipped_total", "skipped", "Jobs of schedules that fell out, because the backlog was full."),
        ("lost_total", "lost", "Jobs that somebody deleted before they were done. Not 0: raise an alarm."),
    )
)


def samples(found: StreamMetrics) -> Iterator[Sample]:
    """All values of a queue. No label names a tenant, a key or a job."""
    queue = (("queue", found.queue),)
    for level, lag in enumerate(found.total.lag_by_level):
        text = "Jobs that are ready and nobody has, by level of priority."
        yield Sample("toril_stream_ready", "gauge", text, (*queue, ("level", str(level))), lag)
    for field, name, text in _GAUGES:
        yield Sample(f"toril_stream_{name}", "gauge", text, queue, _value(found.total, field))
    for field, name, text in _COUNTERS:
        yield Sample(f"toril_stream_{name}", "counter", text, queue, _value(found.total, field))
    if len(found.partitions) > 1:
        for number, part in enumerate(found.partitions):
            text = "All jobs of a partition that have not ended."
            labels = (*queue, ("partition", f"{number:02d}"))
            yield Sample("toril_stream_partition_backlog", "gauge", text, labels, part.backlog)


def _value(metrics: PartitionMetrics, field: str) -> float:
    value = getattr(metrics, field)
    return float("inf") if value is None else float(value)


def exposition(queues: Iterable[StreamMetrics]) -> str:
    """The metrics of queues, as Prometheus reads them: each name once, with a value for each queue."""
    families: dict[str, list[Sample]] = {}
    for found in queues:
        for sample in samples(found):
            families.setdefault(sample.name, []).append(sample)
    return "".join(f"{line}\n" for family in families.values() for line in _lines(family))


def _lines(family: Sequence[Sample]) -> Iterator[str]:
    name, kind, text, *_ = family[0]
    full = f"{name}_total" if kind == "counter" else name
    yield f"# HELP {full} {text}"
    yield f"# TYPE {full} {kind}"
    for sample in family:
        labels = ",".join(f'{label}="{_escaped(value)}"' for label, value in sample.labels)
        yield f"{full}{{{labels}}} {_number(sample.value)}"


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(round(value, 6))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
