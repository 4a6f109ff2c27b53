"""Workers: they take jobs, run handlers, and see to it that every job ends in a state."""

from toril.queue.worker.run import TimedOut
from toril.queue.worker.worker import Limiter, Worker

__all__ = ["Limiter", "TimedOut", "Worker"]
