"""What happens in a queue, as BullMQ's stream of events tells it, and waiting for a job's result.

A reader remembers the id of the last entry it has seen, never "now": what happens between two reads, or
while a server is away, is read afterwards. The stream is bounded, so a reader that stays away for too long
loses entries; it notices, and says how many.
"""

from toril.queue.events.errors import EventsClosed, JobFailed, ResultTimeout
from toril.queue.events.event import MISSED, Event
from toril.queue.events.queue_events import QueueEvents
from toril.queue.events.results import result_of

__all__ = ["MISSED", "Event", "EventsClosed", "JobFailed", "QueueEvents", "ResultTimeout", "result_of"]
