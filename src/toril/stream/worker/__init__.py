"""Workers of stream queues: they take jobs, run handlers, and see to it that every job ends in a state."""

from toril.stream.worker.job import StreamJob
from toril.stream.worker.worker import StreamWorker

__all__ = ["StreamJob", "StreamWorker"]
