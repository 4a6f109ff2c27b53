"""The peers of this benchmark, each behind the commands of :mod:`benchmarks.queue.players.player`."""
