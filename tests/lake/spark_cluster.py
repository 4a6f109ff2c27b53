"""Spark as real processes on loopback, from the package: a master and workers with a core each, or a server
of Spark Connect."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TypeVar

from pyspark.find_spark_home import _find_spark_home

from tests import java
from toril.connection.server import free_port
from toril.lake.given import at_start
from toril.lake.sessions import settings

T = TypeVar("T")

STARTS_WITHIN = 300.0
"""Seconds: Java on a busy machine."""


class Daemon:
    """A process of the cluster, and all processes that it starts."""

    def __init__(self, folder: Path, name: str, *args: str, memory: str = "256m") -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        home = _find_spark_home()
        environment = {
            **os.environ,
            "SPARK_HOME": home,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": memory,
            "SPARK_DAEMON_JAVA_OPTS": java.SHORT,
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

    def __init__(self, url: str, add_worker: Callable[[str], Daemon]) -> None:
        self.url = url
        self.workers: list[Daemon] = []
        self._add_worker = add_worker

    def add_workers(self, count: int = 1) -> None:
        """So many more; they are there when this returns."""
        first = len(self.workers)
        self.workers += [self._add_worker(f"worker{number}") for number in range(first, first + count)]
        for worker in self.workers[first:]:
            _wait(worker, "Successfully registered with master")


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
        worker = ("org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", memory, *where, url)
        made = SparkCluster(url, lambda name: start(name, *worker))
        made.add_workers(workers)
        yield made


@contextmanager
def connect_server() -> Iterator[str]:
    """A running server of Spark Connect; its address, as a session takes it."""
    with tempfile.TemporaryDirectory(prefix="toril-connect-", ignore_cleanup_errors=True) as place:
        port = free_port()
        given = {
            **settings("local[2]", at_start()),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": f"{java.SHORT} -Dlog4j2.level=ERROR",  # it would say too much
        }
        conf = [part for key, value in given.items() for part in ("--conf", f"{key}={value}")]
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        submit = ("org.apache.spark.deploy.SparkSubmit", "--class", server)
        made = Daemon(Path(place), "connect", *submit, *conf, memory="1g")
        try:
            _until(made, lambda: _answers(port) or None)
            yield f"sc://127.0.0.1:{port}"
        finally:
            made.kill()


def _wait(daemon: Daemon, pattern: str) -> re.Match[str]:
    return _until(daemon, lambda: daemon.says(pattern))


def _until(daemon: Daemon, ready: Callable[[], T | None]) -> T:
    until = time.monotonic() + STARTS_WITHIN
    while (found := ready()) is None:
        if daemon.process.poll() is not None or time.monotonic() > until:
            raise AssertionError(
                f"{daemon.name} did not start: {daemon.log.read_text(errors='replace')[-2000:]}"
            )
        time.sleep(0.1)
    return found


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
