"""Spark elsewhere, for real: a standalone cluster that has Toril from its wheel and loses workers, and a
server of Spark Connect. Both run the job with all its tables, and replays by both engines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.find_spark_home import _find_spark_home

from tests import java
from tests.conftest import Servers, emptied
from tests.lake.cluster_job import Slow, on_cluster
from tests.lake.filling import with_log
from tests.lake.rows import as_texts
from tests.lake.shop import Shop, during, states
from tests.lake.span_events import a_span, body_of
from tests.lake.spark_cluster import connect_server, spark_cluster
from toril.aggregate import Aggregate
from toril.lake import jars
from toril.lake.generations import find, read
from toril.lake.lake import Lake
from toril.lake.rollups import rollups_of
from toril.lake.summaries import TRACE_SUMMARIES, summaries_of
from toril.lake.tables import EVENTS, ROLLUPS, SPANS
from toril.log import Append, Log

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
BASKETS, PRICES, TRACED = 40, 12, 30


async def trace(log: Log) -> None:
    """Spans beside the baskets."""
    spans = [a_span(number) for number in range(TRACED)]
    for result in await log.append_many(
        [Append(Aggregate("acme", "span", span.trace_id), [body_of(span)]) for span in spans]
    ):
        assert not isinstance(result, BaseException)


def buy(url: str, baskets: Mapping[str, Iterable[int]]) -> None:
    shop = Shop(url)

    async def trade() -> None:
        for name, prices in baskets.items():
            await shop.buy(name, *prices)

    during(shop, trade)


@pytest.fixture
def url(servers: Servers) -> str:
    """A log with baskets and spans."""
    url = emptied(servers.get("valkey-standalone")).url
    buy(url, {f"b{number}": range(number, number + PRICES) for number in range(BASKETS)})
    with_log(url, trace)
    return url


def run_job(folder: Path, *args: str) -> Iterator[str]:
    """What the job says, line by line; an error where it fails."""
    errors = folder / "errors.txt"  # not a pipe: nobody would read it meanwhile, and Spark may say much
    command = [sys.executable, "-m", "tests.lake.cluster_job", *args]
    with (
        errors.open("wb") as told,
        subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=told) as job,
    ):
        assert job.stdout is not None
        yield from map(str.strip, job.stdout)
    assert job.returncode == 0, errors.read_text(errors="replace")[-3000:]


def check(lake: Lake, lines: list[str]) -> None:
    """Every table is what one piece makes of it, and the replays are whole."""
    traces = len({a_span(number).trace_id for number in range(TRACED)})
    assert [line for line in lines if line.startswith("replayed")] == [
        f"replayed generations/shop/slow/1 {BASKETS}",
        f"replayed generations/span_ingestion/trace_summary/1 {traces}",
    ]
    assert lake.read(EVENTS).count() == BASKETS * PRICES + TRACED
    spans = lake.read(SPANS)
    assert sorted(row[0] for row in spans.select("span_id").collect()) == sorted(
        a_span(number).span_id for number in range(TRACED)
    )
    assert as_texts(lake.read(TRACE_SUMMARIES)) == as_texts(summaries_of(spans))
    assert as_texts(lake.read(ROLLUPS)) == as_texts(rollups_of(spans))
    found = states(read(lake, find(lake, "shop/slow", 1)))
    assert {key: Slow().decode(state) for key, (_, state) in found.items()} == {
        f"acme:b{number}": sum(range(number, number + PRICES)) for number in range(BASKETS)
    }


def test_a_cluster_runs_the_job_and_replays_and_survives_the_loss_of_a_worker_in_each(
    url: str, lake: Lake, tmp_path: Path
) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    package = shutil.copy(wheel, tmp_path / "toril.zip")  # Spark looks at the ending
    lost: list[str] = []
    lines: list[str] = []
    with spark_cluster(2) as cluster:
        for line in run_job(tmp_path, cluster.url, url, lake.path, str(package)):
            lines.append(line)
            for what in ("wrote events", "tasks"):  # in the middle of the job, and of a replay
                if line.startswith(what) and what not in lost:
                    cluster.workers[len(lost)].kill()
                    lost.append(what)
                    cluster.add_workers()
        assert lost == ["wrote events", "tasks"], lines
        assert "toril.zip" in lines[0], "workers have it from the wheel"
        check(lake, lines)
        submit(cluster.url, url, lake, tmp_path, str(package))


def submit(master: str, url: str, lake: Lake, folder: Path, package: str) -> None:
    """One more event, archived by ``spark-submit`` as the guide has it: what it was told is what counts."""
    buy(url, {"late": [1]})
    events = lake.read(EVENTS).count()
    found = re.search(r"```py\n(.+?)```", (ROOT / "docs" / "lake-cluster.md").read_text(), re.DOTALL)
    assert found is not None
    program, address, told = folder / "lake_job.py", folder / "redis-url", folder / "told"
    program.write_text(found[1])
    address.write_text(url)
    told.mkdir()
    given = {
        **on_cluster(lake.path, package),
        "spark.cores.max": "1",
        "spark.sql.shuffle.partitions": "3",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": told.as_uri(),
    }
    environment = {key: value for key, value in os.environ.items() if key != "TORIL_REDIS_URL"}
    environment |= {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": java.SHORT,
        "TORIL_REDIS_URL_FILE": str(address),
        "TORIL_JARS": str(folder / "none"),  # as where the driver is another machine
    }
    command = [str(Path(_find_spark_home()) / "bin" / "spark-submit"), "--master", master]
    command += ["--jars", ",".join(map(str, jars.paths())), "--py-files", package]
    command += [part for pair in given.items() for part in ("--conf", "=".join(pair))]
    command += [str(program), "lake", "run", "--once", "--lake", lake.path, "--json"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    assert lake.read(EVENTS).count() == events + 1
    log = "".join(file.read_text() for file in told.rglob("*") if file.is_file())
    assert '"spark.sql.shuffle.partitions":"3"' in log
    assert master in log
    assert url not in log, "who looks at Spark's pages and logs does not see how to get into Redis"


def test_a_server_of_spark_connect_runs_the_job_and_replays(url: str, lake: Lake, tmp_path: Path) -> None:
    with connect_server() as server:
        lines = list(run_job(tmp_path, server, url, lake.path))
    refused = [line for line in lines if line.startswith("refused")]
    assert len(refused) == 3, lines
    assert all("run this with a session on the cluster" in line for line in refused)
    assert lines[-1] == f"asked {BASKETS * PRICES + TRACED}"
    check(lake, lines)
