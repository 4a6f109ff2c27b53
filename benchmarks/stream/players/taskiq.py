"""taskiq on Redis Streams, as in the benchmark of the job queue."""

from __future__ import annotations

from benchmarks.queue.players.taskiq import Taskiq

from .player import main

if __name__ == "__main__":
    main(Taskiq)
