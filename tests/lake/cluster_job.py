"""What runs on a cluster in the tests: the run job, and replays. It says in lines how far it is.

``python -m tests.lake.cluster_job MASTER URL LAKE [WHEEL]``
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests import java
from toril.cli.lake.tables import known
from toril.events import AnyEvent, FoldProjection
from toril.lake.archive import EventsStep
from toril.lake.erase import erase
from toril.lake.errors import LakeError
from toril.lake.lake import Lake
from toril.lake.maintain import maintain
from toril.lake.progress import Tasks
from toril.lake.replay import Progress, replay
from toril.lake.rewind import rewind
from toril.lake.rollups import RollupsStep
from toril.lake.run import News, Run, Wrote
from toril.lake.serving import ask_spark
from toril.lake.sessions import session
from toril.lake.source import tails
from toril.lake.spans import SpansStep
from toril.lake.subjects import TRACE_SUMMARY, Subject
from toril.lake.summaries import SummariesStep


class Slow(FoldProjection[int]):
    """A sum that takes its time, so that a worker can be lost in the middle."""

    name = "slow"
    state_type = int

    def initial(self) -> int:
        return 0

    def apply(self, state: int, event: AnyEvent) -> int:
        time.sleep(0.02)
        return state + int(event.data["price"])


SLOW = Subject(pipeline="shop", name="slow", projection=Slow(), aggregate_type="basket")


class Says(Progress):
    """Says when tasks are done."""

    def tasks(self, portion: int, tasks: Tasks) -> None:
        assert portion == 0
        print("tasks", tasks.done, tasks.of, flush=True)


def told(news: News) -> None:
    """Say what is written."""
    if isinstance(news, Wrote):
        print("wrote", news.table, flush=True)


def where_from(batches: Iterator[Any]) -> Iterator[Any]:
    """Where a worker has Toril from."""
    import pyarrow as pa  # type: ignore[import-untyped]

    import toril

    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"path": [str(toril.__file__)]})


def on_cluster(path: str, wheel: str) -> dict[str, str]:
    """What a small session on a cluster is set to."""
    return {
        "spark.ui.enabled": "false",
        "spark.submit.pyFiles": wheel,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": java.SHORT,
        "spark.cores.max": "2",
        "spark.executor.cores": "1",
        "spark.sql.warehouse.dir": f"{path}-warehouse",  # else it is a folder here
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.default.parallelism": "2",  # a task for each worker
        "spark.sql.adaptive.coalescePartitions.enabled": "false",  # in a storm
    }


def main(master: str, url: str, path: str, *wheel: str) -> None:
    spark = session(master, name="toril-cluster-test", conf=on_cluster(path, *wheel) if wheel else {})
    lake = Lake(spark, path)
    (found,) = spark.range(0, 1, 1, 1).mapInArrow(where_from, "path string").collect()
    print("from", found["path"], flush=True)
    steps = [EventsStep(url, until=tails(url, "log")), SpansStep(), SummariesStep(), RollupsStep()]
    with Run(lake, steps, once=True, told=told) as run:
        run.wait()
    assert not run.problems, run.problems
    print("archived", flush=True)
    # The slow one has several tasks one after the other, so that there is a middle of it.
    for subject, engine, tasks, progress in (
        (SLOW, "fold", 6, Says()),
        (TRACE_SUMMARY, "native", 2, None),
    ):
        spark.conf.set("spark.sql.shuffle.partitions", tasks)
        made = replay(lake, subject, url=url, engine=engine, progress=progress)
        print("replayed", made.plan.name, made.rows, flush=True)
    if not wheel:
        refused(lake, url)
    spark.stop()


def refused(lake: Lake, url: str) -> None:
    """What needs the files of tables, which a remote session does not have: it must not take none for all."""
    wanted: list[Callable[[], object]] = [
        lambda: list(maintain(lake)),
        lambda: erase(lake, "acme"),
        lambda: rewind(lake, "00", url=url),
    ]
    for what in wanted:
        try:
            print("did", what())
        except LakeError as problem:
            print("refused", problem)
    found = ask_spark(lake, known(lake), "SELECT count(*) FROM events")
    print("asked", found.rows[0][0], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
