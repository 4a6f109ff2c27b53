"""A real standalone cluster, with Toril from its wheel: the run job and a replay, while a worker is lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Servers, emptied
from tests.lake.cluster_job import Slow
from tests.lake.filling import with_log
from tests.lake.shop import Shop, during, states
from tests.lake.span_events import a_span, body_of
from tests.lake.spark_cluster import spark_cluster
from toril.aggregate import Aggregate
from toril.lake.generations import find, read
from toril.lake.lake import Lake
from toril.lake.tables import EVENTS, SPANS
from toril.log import Append, Log

ROOT = Path(__file__).parents[2]
BASKETS, PRICES, TRACED = 40, 12, 30


async def trace(log: Log) -> None:
    """Spans beside the baskets."""
    spans = [a_span(number) for number in range(TRACED)]
    for result in await log.append_many(
        [Append(Aggregate("acme", "span", span.trace_id), [body_of(span)]) for span in spans]
    ):
        assert not isinstance(result, BaseException)


@pytest.mark.timeout(900)
def test_a_cluster_runs_the_job_and_a_replay_and_survives_the_loss_of_a_worker(
    servers: Servers, lake: Lake, tmp_path: Path
) -> None:
    url = emptied(servers.get("valkey-standalone")).url
    shop = Shop(url)

    async def trade() -> None:
        for number in range(BASKETS):
            await shop.buy(f"b{number}", *range(number, number + PRICES))

    during(shop, trade)
    with_log(url, trace)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    package = shutil.copy(wheel, tmp_path / "toril.zip")  # Spark looks at the ending
    killed = False
    lines: list[str] = []
    with spark_cluster(2) as cluster:
        command = [sys.executable, "-m", "tests.lake.cluster_job", cluster.url, url, lake.path, str(package)]
        errors = tmp_path / "errors.txt"  # not a pipe: nobody would read it meanwhile, and Spark may say much
        with (
            errors.open("wb") as told,
            subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=told) as job,
        ):
            assert job.stdout is not None
            for line in job.stdout:
                lines.append(line.strip())
                if line.startswith("tasks") and not killed:
                    cluster.workers[0].kill()
                    killed = True
    assert job.returncode == 0, errors.read_text(errors="replace")[-3000:]
    assert killed, lines
    assert "toril.zip" in lines[0], "workers have it from the wheel"
    assert lines[-1] == f"replayed 1 {BASKETS}"
    assert lake.read(EVENTS).count() == BASKETS * PRICES + TRACED
    assert sorted(row[0] for row in lake.read(SPANS).select("span_id").collect()) == sorted(
        a_span(number).span_id for number in range(TRACED)
    )
    found = states(read(lake, find(lake, "shop/slow", 1)))
    assert {key: Slow().decode(state) for key, (_, state) in found.items()} == {
        f"acme:b{number}": sum(range(number, number + PRICES)) for number in range(BASKETS)
    }
