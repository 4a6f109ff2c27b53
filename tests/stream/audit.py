"""The checker: the queue's final state and the handlers' own record prove what is promised."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from toril.stream import AddJob, DeadLetter, StreamQueue


@dataclass(frozen=True)
class Plan:
    """A job to be added, and how it must end."""

    number: int
    key: str
    fails: int = 0
    poison: bool = False
    tenant: str = ""
    priority: int = 0
    delay: float = 0.0

    @classmethod
    def draw(cls, rng: random.Random, number: int, retries: int = 3) -> Plan:
        key = f"k{rng.randrange(20)}" if rng.random() < 0.6 else ""
        return cls(
            number,
            key,
            fails=rng.choice((1, 2, retries + 1)) if rng.random() < 0.1 else 0,
            tenant=rng.choice(("", "a", "b")),
            priority=rng.randrange(3),
            delay=0.0 if key or rng.random() < 0.9 else rng.random(),
        )

    @property
    def job(self) -> AddJob:
        data: dict[str, Any] = {"n": self.number, "fails": self.fails, "poison": self.poison}
        return AddJob(
            data=data,
            key=self.key or None,
            tenant=self.tenant or None,
            priority=self.priority,
            delay=self.delay,
            unique=f"job-{self.number}",
        )


class Audit:
    """What is left when all is over."""

    def __init__(self, plans: Sequence[Plan], record: Path, dead: Sequence[DeadLetter], retries: int) -> None:
        self.plans = {plan.number: plan for plan in plans}
        self.dead = {letter.data["n"]: letter for letter in dead}
        self.retries = retries
        lines = record.read_text().split("\n") if record.exists() else []
        self.lines = [(what, int(number)) for line in lines if line for what, number in [line.split()]]
        self.begun = [number for what, number in self.lines if what == "begin"]
        self.ended = {number for what, number in self.lines if what == "end"}

    @classmethod
    async def of(cls, queue: StreamQueue, plans: Sequence[Plan], record: Path) -> Audit:
        dead = [letter async for letter in queue.each_dead()]
        options = await queue.options()
        metrics = (await queue.metrics()).total
        assert metrics.backlog == metrics.backlog_bytes == metrics.pending == metrics.lag == 0, metrics
        assert metrics.delayed == metrics.inlet == metrics.lost_total == 0, metrics
        return cls(plans, record, dead, options.retries)

    def check_nothing_lost(self) -> None:
        """Every job was done, or is a dead letter that the plan explains."""
        lost = self.plans.keys() - self.ended - self.dead.keys()
        assert not lost, f"{len(lost)} jobs are lost: {sorted(lost)[:20]}"
        for number, letter in self.dead.items():
            plan = self.plans[number]
            if plan.poison:
                assert letter.reason == "crashed", letter
            else:
                assert plan.fails > self.retries, f"{plan} should not be dead: {letter}"
                assert (letter.reason, letter.attempts) == ("exhausted", self.retries + 1), letter
                assert letter.first_error == letter.last_error == "ValueError: meant to fail"
            assert letter.consumer
            assert letter.origin
        undead = {plan.number for plan in self.plans.values() if plan.fails > self.retries or plan.poison}
        assert undead == self.dead.keys()

    def check_order(self) -> None:
        """No job of a key began after one that was added later: not even for a second time."""
        places: dict[int, list[int]] = defaultdict(list)
        for place, number in enumerate(self.begun):
            places[number].append(place)
        keys: dict[str, list[int]] = defaultdict(list)
        for number, plan in self.plans.items():
            if plan.key:
                keys[plan.key].append(number)
        for key, numbers in keys.items():
            for before, after in pairwise(numbers):
                assert max(places[before]) < min(places[after]), (
                    f"{after} of {key} began before {before} was over"
                )
