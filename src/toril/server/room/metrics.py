"""How the rooms of this process stand, as metrics. No label names a person."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from toril.room import WAIT_BOUNDS, LaneStats, NoSuchRoom, Room, Stats

MOST = 200
"""Rooms that are shown: those beyond are left out, and counted."""

LABELS = ["room", "lane"]


async def room_metrics(rooms: Sequence[Room]) -> list[Metric]:
    """How rooms stand. The counts are Redis's own: the same from every process."""
    shown = sorted(rooms, key=lambda room: room.name)[:MOST]
    found = [stats for stats in await asyncio.gather(*map(_stats, shown)) if stats is not None]
    made = _Metrics()
    made.rooms.add_metric([], len(rooms))
    for stats in found:
        made.refused.add_metric([stats.room], stats.refused)
        made.paused.add_metric([stats.room], stats.paused)
        for lane, its in stats.lanes.items():
            if stats.settings.lane(lane) is not None:
                made.lane([stats.room, lane], its)
    return [value for value in vars(made).values() if isinstance(value, Metric)]


async def _stats(room: Room) -> Stats | None:
    try:
        return await room.stats()
    except NoSuchRoom:
        return None


class _Metrics:
    def __init__(self) -> None:
        self.rooms = GaugeMetricFamily("toril_rooms", "Waiting rooms that this process serves.", labels=[])
        self.refused = CounterMetricFamily(
            "toril_room_refused", "Joins that were turned away: closed, or full.", labels=["room"]
        )
        self.paused = GaugeMetricFamily("toril_room_paused", "1 where a room is paused.", labels=["room"])
        self.joined = CounterMetricFamily("toril_room_joined", "Tickets that were given.", labels=LABELS)
        self.admitted = CounterMetricFamily("toril_room_admitted", "Tickets that were let in.", labels=LABELS)
        self.waiting = GaugeMetricFamily("toril_room_waiting", "Tickets that wait.", labels=LABELS)
        self.active = GaugeMetricFamily("toril_room_active", "Let in, and not done yet.", labels=LABELS)
        self.rate = GaugeMetricFamily(
            "toril_room_admission_rate", "Admissions per second, lately.", labels=LABELS
        )
        self.ended = CounterMetricFamily(
            "toril_room_ended", "Tickets that have ended, by how; abandoned: ghosts.", labels=[*LABELS, "how"]
        )
        self.waited = HistogramMetricFamily(
            "toril_room_wait_seconds", "How long those who were let in had waited.", labels=LABELS
        )

    def lane(self, labels: list[str], its: LaneStats) -> None:
        self.joined.add_metric(labels, its.joined)
        self.admitted.add_metric(labels, its.admitted)
        self.waiting.add_metric(labels, its.waiting)
        self.active.add_metric(labels, its.active)
        self.rate.add_metric(labels, its.observed_rate)
        for how, count in its.ended.items():
            self.ended.add_metric([*labels, how], count)
        total, buckets = 0, []
        for bound, count in zip((*map(float, WAIT_BOUNDS), "+Inf"), its.wait_counts, strict=True):
            total += count
            buckets.append((str(bound), total))
        self.waited.add_metric(labels, buckets, its.wait_total_ms / 1000)
