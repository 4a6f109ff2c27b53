"""A job with what can be done to it."""

from __future__ import annotations

from typing import Any, Literal

from toril import codec
from toril.errors import InvalidValue
from toril.queue.errors import QueueError, error_of
from toril.queue.events import result_of
from toril.queue.job import JobData
from toril.queue.options import Milliseconds, check_priority, check_whole, milliseconds
from toril.queue.outcomes import Delayed, HandedBack
from toril.queue.store import QueueStore


class Job(JobData):
    """A job of a queue: what was read of it, and what can be done to it now."""

    __slots__ = ("store",)

    def __init__(self, store: QueueStore, job_id: str, fields: dict[bytes, bytes], token: str = "") -> None:
        super().__init__(job_id, fields, token)
        self.store = store

    @classmethod
    def of(cls, store: QueueStore, data: JobData) -> Job:
        """A job that was taken or read, with its queue."""
        return cls(store, data.id, data.fields, data.token)

    # ------------------------------------------------------------------ looking

    async def state(self) -> str:
        """The state it is in now."""
        return await self.store.state(self.id)

    async def result(self, timeout: float | None = None) -> Any:
        """Wait until it is done; what the handler returned.

        Raises :class:`~toril.queue.events.JobFailed` with the reason when it has failed for good,
        :class:`~toril.queue.events.ResultTimeout` when that takes more than ``timeout`` seconds, and
        :class:`~toril.queue.JobMissing` when it does not exist, or is removed before it has finished. A job
        that is removed when it is completed gives its value to those who are waiting by then, only.
        """
        return await result_of(self.store, self.id, timeout)

    async def logs(self, start: int = 0, end: int = -1, *, newest_first: bool = False) -> list[str]:
        """Lines of its log."""
        key = self.store.keys.logs(self.id)
        first, last = (-(end + 1), -(start + 1)) if newest_first else (start, end)
        lines = [line.decode() for line in await self.store.redis.command("LRANGE", key, first, last)]
        return lines[::-1] if newest_first else lines

    async def children_values(self) -> dict[str, Any]:
        """What its finished children returned, by their keys."""
        return await self._by_child(self.store.keys.processed(self.id), decoded=True)

    async def ignored_failures(self) -> dict[str, str]:
        """Why children failed whose failure does not matter, by their keys."""
        return await self._by_child(self.store.keys.failed_children(self.id), decoded=False)

    async def _by_child(self, key: Any, *, decoded: bool) -> dict[str, Any]:
        flat = await self.store.redis.command("HGETALL", key)
        return {
            child.decode(): codec.decode(value) if decoded else value.decode()
            for child, value in zip(flat[::2], flat[1::2], strict=True)
        }

    async def pending_children(self) -> list[str]:
        """The keys of the children it waits for."""
        found = await self.store.redis.command("SMEMBERS", self.store.keys.dependencies(self.id))
        return [child.decode() for child in found]

    async def failed_children(self) -> list[str]:
        """The keys of children whose failure fails it."""
        found = await self.store.redis.command("ZRANGE", self.store.keys.unsuccessful(self.id), 0, -1)
        return [child.decode() for child in found]

    # ------------------------------------------------------------------ while it runs

    async def update_progress(self, progress: Any) -> None:
        """Tell how far it is: any JSON value."""
        raw = codec.encode("progress", progress)
        await self.store.progress(self.id, raw)
        self.fields[b"progress"] = raw

    async def log(self, line: str) -> int:
        """Add a line to its log; how many there are."""
        if not isinstance(line, str) or line != line.encode(errors="replace").decode():
            raise InvalidValue("log line", line, "it must be a string that UTF-8 can encode")
        return await self.store.log(self.id, line, self.opts.get("kl") or None)

    async def update_data(self, data: Any) -> None:
        """Replace its data."""
        raw = codec.encode("data", data)
        await self.store.update_data(self.id, raw)
        self.fields[b"data"] = raw
        self._data = data

    async def extend_lock(self, duration: Milliseconds, token: str | None = None) -> bool:
        """Keep the job for so long from now; False when the lock is lost. Workers do this by themselves."""
        time = milliseconds("duration", duration)
        return not await self.store.renew([(self.id, token or self.token)], time)

    async def move_to_delayed(self, timestamp: int, token: str | None = None) -> None:
        """Let it run again at a time (ms since 1970). Then raise :class:`~toril.queue.DelayedError`."""
        check_whole("timestamp", timestamp)
        wait = max(0, timestamp - self.store.clock())
        await self.store.give_up(Delayed(self.id, token or self.token, wait, keeps_attempt=True))

    async def move_to_wait(self, token: str | None = None) -> int:
        """Put it back to the front of the queue; for how many ms the rate limit holds."""
        return await self.store.give_up(HandedBack(self.id, token or self.token))

    async def move_to_waiting_children(self, token: str | None = None, child: str = "") -> bool:
        """Let it wait for its children, or for one of them.

        When it returns True, raise :class:`~toril.queue.WaitingChildrenError`. False: there is none to
        wait for.
        """
        return await self.store.wait_for_children(self.id, token or self.token, child)

    # ------------------------------------------------------------------ keeping order

    async def remove(self, *, children: bool = True) -> None:
        """Remove it, with its children."""
        if not await self.store.remove(self.id, children):
            raise QueueError(f"Job {self.id} could not be removed because it is locked by another worker")

    async def retry(self, state: Literal["failed", "completed"] = "failed") -> None:
        """Run it again, when it has failed (or is completed)."""
        if state not in ("failed", "completed"):
            raise InvalidValue("state", state, "failed or completed")
        await self.store.reprocess(self.id, state, bool(self.opts.get("lifo")))

    async def promote(self) -> None:
        """Let it run now, when it is delayed."""
        await self.store.promote(self.id)

    async def change_delay(self, delay: Milliseconds) -> None:
        """Let it run after ``delay`` from now, when it is delayed."""
        await self.store.change_delay(self.id, milliseconds("delay", delay))

    async def change_priority(self, priority: int = 0, *, lifo: bool = False) -> None:
        """Give it another priority; with ``lifo`` in front of those that have it."""
        check_priority(priority)
        await self.store.change_priority(self.id, priority, lifo)

    async def clear_logs(self, keep: int = 0) -> None:
        """Remove its log, but for the last ``keep`` lines."""
        check_whole("keep", keep)
        key = self.store.keys.logs(self.id)
        if keep:
            await self.store.redis.command("LTRIM", key, -keep, -1)
        else:
            await self.store.redis.command("DEL", key)

    async def leave_parent(self) -> bool:
        """Let its parent no longer wait for it; whether it did."""
        if self.parent_key is None:
            there = await self.store.redis.command("EXISTS", self.store.keys.job(self.id))
            raise error_of(-5 if there else -1, "removeChildDependency", job=self.id)
        return await self.store.leave_parent(self.id, self.parent_key)

    async def remove_unprocessed_children(self) -> None:
        """Remove the children it still waits for, except those being worked on."""
        await self.store.remove_unprocessed_children(self.id)
