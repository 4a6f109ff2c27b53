"""How far Spark is with what it was asked for: the tasks of its stages, as it counts them itself."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    over = threading.Event()

    def look() -> None:
        tracker = context.statusTracker()
        while not over.wait(LOOK_EVERY):
            done = of = 0
            for job in tracker.getJobIdsForGroup(group):
                info = tracker.getJobInfo(job)
                for stage in (tracker.getStageInfo(number) for number in (info.stageIds if info else ())):
                    # A stage that was made before and is not made again has none done.
                    if stage is not None and (stage.numActiveTasks or stage.numCompletedTasks):
                        done, of = done + stage.numCompletedTasks, of + stage.numTasks
            if told is not None and of:
                told(Tasks(done, of))

    thread = threading.Thread(target=look, name="toril-lake-progress", daemon=True)
    if told is not None:
        thread.start()
    try:
        yield
    except BaseException:
        context.cancelJobGroup(group)
        raise
    finally:
        over.set()
        if told is not None:
            thread.join()
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]
