"""How far Spark is with what it was asked for: the tasks of its stages, as it counts them itself."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

LOOK_EVERY = 0.5
"""Seconds."""


class Tasks(NamedTuple):
    """Tasks of Spark: of all stages that were begun so far."""

    done: int
    of: int


@contextmanager
def watching(spark: SparkSession, what: str, told: Callable[[Tasks], None] | None) -> Iterator[None]:
    """Tell how far Spark is with what this thread asks of it, a few times a second. Cut off, it is cancelled.

    Spark Connect does not count for its clients: nothing is told there.
    """
    group = f"toril-{secrets.token_hex(6)}"
    try:
        context = spark.sparkContext
        context.setJobGroup(group, what, interruptOnCancel=True)
    except PySparkException:
        yield
        return
    tracker = context.statusTracker()

    def look() -> Tasks:
        done = of = 0
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            for stage in (tracker.getStageInfo(number) for number in (info.stageIds if info else ())):
                # A stage that was made before and is not made again has none done.
                if stage is not None and (stage.numActiveTasks or stage.numCompletedTasks):
                    done, of = done + stage.numCompletedTasks, of + stage.numTasks
        return Tasks(done, of)

    try:
        with _looking(look, told) if told is not None else nullcontext():
            yield
    except BaseException:
        context.cancelJobGroup(group)
        raise
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]


@contextmanager
def watching_all(spark: SparkSession, told: Callable[[Tasks], None]) -> Iterator[None]:
    """Tell how far Spark is with all that it is asked for, by whichever thread; else as :func:`watching`."""
    try:
        tracker = spark.sparkContext.statusTracker()
    except PySparkException:
        yield
        return
    active: dict[int, Tasks] = {}
    ended = 0

    def look() -> Tasks:
        nonlocal ended
        now = tracker.getActiveStageIds()
        ended += sum(active.pop(number).of for number in active.keys() - set(now))
        for number in now:
            if (stage := tracker.getStageInfo(number)) is not None:
                active[number] = Tasks(stage.numCompletedTasks, stage.numTasks)
        return Tasks(
            ended + sum(tasks.done for tasks in active.values()),
            ended + sum(tasks.of for tasks in active.values()),
        )

    with _looking(look, told):
        yield


@contextmanager
def _looking(look: Callable[[], Tasks], told: Callable[[Tasks], None]) -> Iterator[None]:
    """Look and tell, in a thread, until it is over."""
    over = threading.Event()

    def again() -> None:
        while not over.wait(LOOK_EVERY):
            if (tasks := look()).of:
                told(tasks)

    thread = threading.Thread(target=again, name="toril-lake-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
