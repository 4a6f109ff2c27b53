"""Workers: they take jobs, run handlers, and see to it that every job ends in a state."""

from toril.handler import TimedOut
from toril.queue.worker.worker import Limiter, Worker

__all__ = ["Limiter", "TimedOut", "Worker"]
