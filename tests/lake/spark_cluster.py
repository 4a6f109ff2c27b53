"""A real standalone Spark cluster on loopback, from the package: a master, and workers with a core each."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from pyspark.find_spark_home import _find_spark_home

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""What a JVM is told that lives for a minute."""

STARTS_WITHIN = 300.0
"""Seconds: Java on a busy machine."""


class Daemon:
    """A process of the cluster, and all processes that it starts."""

    def __init__(self, folder: Path, name: str, *args: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        home = _find_spark_home()
        environment = {
            **os.environ,
            "SPARK_HOME": home,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_START,
            "SPARK_WORKER_DIR": str(folder / f"{name}-work"),
            "SPARK_LOCAL_DIRS": str(folder / f"{name}-local"),
            "PYSPARK_PYTHON": sys.executable,
        }
        out: IO[bytes]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [str(Path(home) / "bin" / "spark-class"), *args],
                env=environment,
                cwd=folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that it can be ended with all that it has started
                preexec_fn=_die_with_parent,
            )

    def says(self, pattern: str) -> re.Match[str] | None:
        """What its log says, where it matches."""
        return re.search(pattern, self.log.read_text(errors="replace"))

    def kill(self) -> None:
        """End it with all that it has started, without a warning."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


def _die_with_parent() -> None:
    """Tests may be killed too: then nothing of theirs stays."""
    parent_death_signal = 1
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)


class SparkCluster:
    """A master and its workers. ``url`` is what a session takes as its master."""

    def __init__(self, url: str, master: Daemon, workers: list[Daemon]) -> None:
        self.url = url
        self.master = master
        self.workers = workers


@contextmanager
def spark_cluster(workers: int = 2, memory: str = "1g") -> Iterator[SparkCluster]:
    """A running cluster; what was started is ended, and nothing else."""
    with ExitStack() as stack:
        place = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="toril-spark-", ignore_cleanup_errors=True)
        )
        folder = Path(place)

        def start(name: str, *args: str) -> Daemon:
            made = Daemon(folder, name, *args)
            stack.callback(made.kill)
            return made

        where = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = start("master", "org.apache.spark.deploy.master.Master", *where)
        url = _wait(master, r"Starting Spark master at (spark://\S+)")[1]
        made = []
        for number in range(workers):
            args = ("--cores", "1", "--memory", memory, *where, url)
            made.append(start(f"worker{number}", "org.apache.spark.deploy.worker.Worker", *args))
        for worker in made:
            _wait(worker, "Successfully registered with master")
        yield SparkCluster(url, master, made)


def _wait(daemon: Daemon, pattern: str) -> re.Match[str]:
    until = time.monotonic() + STARTS_WITHIN
    while (found := daemon.says(pattern)) is None:
        if daemon.process.poll() is not None or time.monotonic() > until:
            raise AssertionError(
                f"{daemon.name} did not start: {daemon.log.read_text(errors='replace')[-2000:]}"
            )
        time.sleep(0.1)
    return found
