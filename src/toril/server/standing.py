"""How queues, logs, processors and scripts stand, as metrics. No label names a tenant or an aggregate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from toril.connection import Connection
from toril.log import Standing
from toril.runtime import EventSourcing, RegisteredPipeline
from toril.runtime.service import ProcessorStanding

TEMPORARY = "(temporary)"
"""Stands for all readers that come and go: each has a name of its own."""


class Families:
    """Metrics in the making: each name once, with a value for each set of labels."""

    def __init__(self) -> None:
        self._made: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._made.values())

    def gauge(self, name: str, text: str, value: float, **labels: str) -> None:
        """How much there is now."""
        self._add(GaugeMetricFamily, name, text, value, labels)

    def count(self, name: str, text: str, value: float, **labels: str) -> None:
        """How much there was in all."""
        self._add(CounterMetricFamily, name, text, value, labels)

    def _add(
        self,
        kind: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        text: str,
        value: float,
        labels: dict[str, str],
    ) -> None:
        family = self._made.get(name)
        if family is None:
            family = self._made[name] = kind(name, text, labels=list(labels))
        family.add_metric(list(labels.values()), value)


async def look(sourcings: Sequence[EventSourcing]) -> Families:
    """How all that belongs to these stands."""
    found = Families()
    for sourcing in sourcings:
        if sourcing.log is not None:
            _log(found, sourcing.log.name, await sourcing.log.standings())
    pipelines = [pipeline for sourcing in sourcings for pipeline in sourcing.pipelines.values()]
    for pipeline in pipelines:
        await _queues(found, pipeline)
    works = [(pipeline, name) for pipeline in pipelines for name in pipeline.definition.works]
    # Each asks partition after partition, so they are asked side by side.
    standings = await asyncio.gather(*(pipeline.service.standing(name) for pipeline, name in works))
    for (pipeline, _), standing in zip(works, standings, strict=True):
        _processor(found, pipeline.name, standing)
    _scripts(found, [sourcing.redis for sourcing in sourcings if sourcing.redis is not None])
    return found


async def _queues(found: Families, pipeline: RegisteredPipeline) -> None:
    for name in pipeline.commands:
        dispatcher = await pipeline.commands[name].dispatcher()
        if dispatcher.queue is None:
            continue
        for state, count in (await dispatcher.queue.counts()).items():
            found.gauge("toril_queue_jobs", "Jobs by state.", count, queue=dispatcher.queue_name, state=state)


def _log(found: Families, log: str, standings: Sequence[Standing]) -> None:
    lengths = [one.length for one in standings]
    found.gauge("toril_log_partitions", "Partitions of a log.", len(standings), log=log)
    found.gauge("toril_log_entries", "Entries that are in a log.", sum(lengths), log=log)
    found.gauge(
        "toril_log_partition_entries_max",
        "Entries in the fullest partition.",
        max(lengths, default=0),
        log=log,
    )
    found.count(
        "toril_log_appended", "Entries that were appended.", sum(one.ordinal for one in standings), log=log
    )
    found.count(
        "toril_log_trimmed", "Entries that were trimmed.", sum(one.trimmed for one in standings), log=log
    )
    hot = sum(one.hot for one in standings)
    found.gauge("toril_log_hot_aggregates", "Aggregates that are in Redis.", hot, log=log)
    behind: dict[str, int] = {}
    holds: dict[str, int] = {}
    for one in standings:
        for name, state in one.readers.items():
            if state.expires_at and state.expires_at < one.now:
                continue  # it was silent for too long: it holds nothing up any more
            label = TEMPORARY if state.expires_at else name
            behind[label] = behind.get(label, 0) + one.backlog(name)
            holding = bool(one.backlog(name)) and name in one.holding
            holds[label] = holds.get(label, 0) + holding
    for reader, count in behind.items():
        text = "Entries that a reader is not done with."
        found.gauge("toril_log_reader_behind", text, count, log=log, reader=reader)
    for reader, count in holds.items():
        text = "Partitions in which nobody is further behind: they cannot be trimmed past this reader."
        found.gauge("toril_log_reader_holds_partitions", text, count, log=log, reader=reader)


def _processor(found: Families, pipeline: str, its: ProcessorStanding) -> None:
    oldest = 0.0 if its.oldest is None else max(0.0, time.time() - its.oldest / 1000)
    for name, text, value in (
        ("behind", "Events that a processor has not processed.", its.behind),
        ("retrying", "Aggregates whose next event is tried again.", its.retrying),
        ("failed", "Aggregates with an event that waits for a person.", its.failed),
        ("waiting", "Aggregates that wait for another processor, or for a paused tenant.", its.waiting),
        ("paused", "1 where a processor is paused.", its.paused),
        ("oldest_seconds", "How old the oldest event is that was not processed; 0: none.", oldest),
        ("workers", "Workers that run a processor.", len(its.owners)),
    ):
        found.gauge(f"toril_processor_{name}", text, value, pipeline=pipeline, processor=its.name)


def _scripts(found: Families, connections: Sequence[Connection]) -> None:
    calls: dict[str, int] = {}
    seconds: dict[str, float] = {}
    errors: dict[tuple[str, str], int] = {}
    for connection in connections:
        for name, its in list(connection.script_counts.items()):
            calls[name] = calls.get(name, 0) + its.calls
            seconds[name] = seconds.get(name, 0) + its.seconds
            for code, count in its.errors.items():
                errors[name, code] = errors.get((name, code), 0) + count
    for name, count in calls.items():
        found.count("toril_script_calls", "Calls of a script by this process.", count, script=name)
        text = "How long this process has waited for a script."
        found.count("toril_script_seconds", text, seconds[name], script=name)
    for (name, code), count in errors.items():
        found.count("toril_script_errors", "Calls that ended in an error.", count, script=name, code=code)
