"""Who takes part: how a peer is started, and what is tried with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.installed import find_problems as find_problems

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "benchmarks" / "queue.requirements.txt"
NODE_PACKAGES = ROOT / "tests" / "conformance" / "node"
NODE_VERSION = "5.62.0"
ARQ, ARQ_FOLDER = "arq==0.28.0", Path(sys.prefix) / "peers" / "arq"
"""It wants an older redis-py than the others: it gets a folder of its own, in this environment."""

TORIL = "Toril"
NODE = f"Node BullMQ {NODE_VERSION}"
PYPI = "PyPI bullmq 3.4.4"


class Counts(NamedTuple):
    """How many jobs there are, as the server knows it: two scripts. No library's word is taken for it."""

    waiting: str
    done: str


BULLMQ_COUNTS = Counts(
    "return redis.call('LLEN', 'bull:{bench}:wait')",
    "return redis.call('ZCARD', 'bull:{bench}:completed')",
)
SAQ_COUNTS = Counts(
    "return redis.call('LLEN', 'saq:{bench}:queued')",
    "return #redis.call('KEYS', 'saq:job:*') - redis.call('ZCARD', 'saq:{bench}:incomplete')",
)
ARQ_COUNTS = Counts(
    "return redis.call('ZCARD', '{bench}')",
    "return #redis.call('KEYS', 'arq:result:*')",
)
TASKIQ_COUNTS = Counts(  # the fields of its only group: 6 jobs not yet acknowledged, 10 read, 12 not yet read
    "local group = redis.call('XINFO', 'GROUPS', '{bench}')[1] "
    "return group and group[12] or redis.call('XLEN', '{bench}')",
    "local group = redis.call('XINFO', 'GROUPS', '{bench}')[1] return group[10] - group[6]",
)


@dataclass(frozen=True, slots=True)
class Peer:
    """One queue, and how much it is asked for."""

    name: str
    module: str
    backlog: int
    """Jobs of one reading. Slow peers get fewer: a rate does not depend on it, the time of the run does."""
    concurrencies: tuple[int, ...]
    """The best of these is found out first."""
    batches: tuple[int, ...]
    """The same for sizes of a bulk; 0 for all jobs in one call."""
    path: str = ""
    """Where its packages are, if not with the others'."""
    counts: Counts = BULLMQ_COUNTS

    @property
    def command(self) -> list[str]:
        """What starts a player."""
        if self.module == "node":
            node = shutil.which("node")
            assert node is not None
            return [node, str(ROOT / "benchmarks" / "queue" / "players" / "node.mjs")]
        return [sys.executable, "-m", f"benchmarks.queue.players.{self.module}"]

    @property
    def environment(self) -> Mapping[str, str]:
        """In which it is started."""
        return {**os.environ, "PYTHONPATH": self.path} if self.path else os.environ

    @property
    def warm_up(self) -> int:
        """Jobs of a backlog that come before the clock starts."""
        return self.backlog // 10


FAST, SLOW = 30_000, 3_000

PEERS = (
    Peer(TORIL, "toril", FAST, (50, 100, 200, 400), (0,)),
    Peer(NODE, "node", FAST, (10, 50, 100, 200), (100, 500, 2000, 0)),
    Peer(PYPI, "bullmq", SLOW, (5, 20, 100), (100, 500, 2000)),
    Peer("SAQ 0.26.4", "saq", SLOW, (10, 50, 100), (20, 100, 500), counts=SAQ_COUNTS),
    Peer("arq 0.28.0", "arq", SLOW, (10, 100, 500), (20, 100, 500), str(ARQ_FOLDER), ARQ_COUNTS),
    Peer("taskiq-redis 1.2.2", "taskiq", SLOW, (10, 50, 100), (20, 100, 500), counts=TASKIQ_COUNTS),
)


@dataclass(slots=True)
class Tuning:
    """What was found to be best."""

    concurrency: int = 0
    batch: int = 0
    rates: dict[int, float] = field(default_factory=dict)
    """Jobs per second, by concurrency."""
    bulk_rates: dict[int, float] = field(default_factory=dict)


def set_up() -> None:
    """Install what the requirements file cannot: BullMQ for Node, and arq in a folder of its own."""
    if shutil.which("node") is None:
        raise FileNotFoundError("no `node` on the path: install Node.js 18 or newer (Debian: nodejs, npm)")
    subprocess.run([ROOT / "tools" / "node.sh"], check=True)
    found = json.loads((NODE_PACKAGES / "node_modules" / "bullmq" / "package.json").read_text())["version"]
    if found != NODE_VERSION:
        raise FileNotFoundError(f"BullMQ {found} is installed in {NODE_PACKAGES}, {NODE_VERSION} is wanted")
    if not (ARQ_FOLDER / "arq").is_dir():
        install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(ARQ_FOLDER), ARQ]
        subprocess.run(install, check=True, stderr=subprocess.DEVNULL)
