"""``plan``: the traces of a run, from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

from toril.errors import InvalidValue
from toril.simulate.dialects import Person
from toril.simulate.plans import SECOND, SpanPlan, TracePlan
from toril.simulate.scenes import SCENE_WEIGHTS, SCENES
from toril.simulate.steps import Draft

SPANS_PER_TRACE = 17
"""About: what a rate of spans means for the distance between traces."""

DEFAULT_RATE = 20_000.0
"""Spans per second of the simulated world, where the sender goes as fast as it can."""

LARGEST = 2_000
"""About how many spans the largest traces have."""


def plan(
    seed: int,
    *,
    traces: int | None = None,
    spans: int | None = None,
    tenants: Sequence[str] = ("default",),
    rate: float = DEFAULT_RATE,
    late: float = 3.0,
    largest: int = LARGEST,
    share: tuple[int, int] = (0, 1),
) -> Iterator[TracePlan]:
    """The traces of a run: the same for the same arguments, wherever and whenever.

    Without ``traces`` and ``spans`` there is no end; with ``spans``, there are exactly so many (one that is
    sent twice counts once). Each trace ends when it is its turn to be sent, at ``rate`` spans per second from
    the beginning of the run. ``late``: the most seconds by which a span is sent after the rest of its trace.
    ``share``: of so many senders, the traces of this one, as ``(1, 4)`` for the second of four.
    """
    mine, senders = share
    if not tenants:
        raise InvalidValue("tenants", tenants, "at least one")
    if not 0 <= mine < senders:
        raise InvalidValue("share", share, "a place from 0, and a larger number of senders")
    gap = SPANS_PER_TRACE / rate * SECOND
    left = None if spans is None else spans // senders + (mine < spans % senders)
    for index in count(mine, senders):
        if left == 0 or (traces is not None and index >= traces):
            return
        made = _trace(seed, index, tenants, round(index * gap), late, largest)
        if left is not None:
            made = _cut(made, left)
            left -= len(made.spans)
        yield made


def _trace(seed: int, index: int, tenants: Sequence[str], turn: int, late: float, largest: int) -> TracePlan:
    rng = random.Random(f"toril/{seed}/{index}")
    # The first tenant has the most traffic, as in life.
    tenant = tenants[min(int(rng.expovariate(1.5)), len(tenants) - 1)]
    talk = index // 4
    person = Person(
        f"user-{talk * 7919 % 1000:04}",
        f"conversation-{seed}-{talk}",
        ("free", "team", "enterprise")[talk % 3],
        rng.choice(("production", "beta", "experiment")),
    )
    draft = Draft(rng, person, largest)
    scene = rng.choices(list(SCENES), SCENE_WEIGHTS)[0]
    trace_id = rng.getrandbits(128) or 1
    SCENES[scene](draft)
    whole = max(span.end for span in draft.spans)
    sent = [_troubled(rng, span, late) for span in draft.finished(turn - whole)]
    # An SDK sends a span when it has ended: children before their parents.
    sent.sort(key=lambda span: span.end)
    if rng.random() < 0.1:
        rng.shuffle(sent)
    return TracePlan(index, trace_id, tenant, scene, tuple(sent))


def _troubled(rng: random.Random, span: SpanPlan, late: float) -> SpanPlan:
    """On the way, some spans are held up, and some are sent again."""
    chance = rng.random()
    if chance < 0.02:
        return replace(span, delay=round(late * rng.uniform(0.3, 1), 3))
    if chance < 0.04:
        times = (0.0, round(late * rng.random(), 3), round(late * rng.random(), 3))
        return replace(span, again=times[: rng.randint(1, 2)] if rng.random() < 0.5 else times[1:2])
    return span


def _cut(trace: TracePlan, most: int) -> TracePlan:
    """The first spans to begin, so that each still has its parent."""
    if len(trace.spans) <= most:
        return trace
    kept = {span.span_id for span in sorted(trace.spans, key=lambda span: (span.start, span.end))[:most]}
    return replace(trace, spans=tuple(span for span in trace.spans if span.span_id in kept))
