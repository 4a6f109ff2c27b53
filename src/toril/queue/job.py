"""A job as its hash has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toril import codec


class JobData:
    """One job, as it was when it was read. Fields are decoded when they are looked at."""

    __slots__ = ("_data", "_opts", "fields", "id", "token")

    def __init__(self, job_id: str, fields: dict[bytes, bytes], token: str = "") -> None:
        self.id = job_id
        self.fields = fields
        self.token = token
        """The lock under which a worker has it."""
        self._data: Any = _UNREAD
        self._opts: Any = _UNREAD

    @classmethod
    def read(cls, job_id: str, flat: Sequence[bytes], token: str = "") -> JobData:
        """From a reply to HGETALL."""
        return cls(job_id, dict(zip(flat[::2], flat[1::2], strict=True)), token)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {self.name!r})"

    @property
    def name(self) -> str:
        """What kind of job it is."""
        return self.fields.get(b"name", b"").decode(errors="replace")

    @property
    def data(self) -> Any:
        """What it is about."""
        if self._data is _UNREAD:
            self._data = codec.decode(self.fields.get(b"data", b"{}"))
        return self._data

    @property
    def opts(self) -> dict[str, Any]:
        """Its options, as stored."""
        if self._opts is _UNREAD:
            self._opts = {"attempts": 0, **codec.decode(self.fields.get(b"opts", b"{}"))}
            self._opts.pop("repeatJobKey", None)  # as in Node: it stands in the field rjk
        options: dict[str, Any] = self._opts
        return options

    @property
    def trace_context(self) -> str | None:
        """The trace that added it (option ``tm``), as OpenTelemetry carries it."""
        carried = self.opts.get("tm")
        return carried if isinstance(carried, str) else None

    def _number(self, name: bytes, default: int = 0) -> int:
        raw = self.fields.get(name)
        if raw is None:
            return default
        return int(raw) if raw.isdigit() else float(raw)  # type: ignore[return-value]  # Node takes 1.5 ms

    def _time(self, name: bytes) -> int | None:
        raw = self.fields.get(name)
        return int(raw) if raw else None

    def _text(self, name: bytes) -> str | None:
        raw = self.fields.get(name)
        return raw.decode(errors="replace") if raw is not None else None

    def _json(self, name: bytes, default: Any = None) -> Any:
        raw = self.fields.get(name)
        return codec.decode(raw) if raw else default

    @property
    def timestamp(self) -> int:
        """When it was made (ms)."""
        return self._number(b"timestamp")

    @property
    def delay(self) -> int:
        """How long it is delayed (ms), while it is."""
        return self._number(b"delay")

    @property
    def priority(self) -> int:
        """Its priority; 0 for none."""
        return self._number(b"priority")

    @property
    def attempts_made(self) -> int:
        """How many attempts have ended. A field of BullMQ 4 goes before, as in Node (a.3)."""
        return self._number(b"attemptsMade", self._number(b"atm"))

    @property
    def attempts_started(self) -> int:
        """How many attempts have begun."""
        return self._number(b"ats")

    @property
    def stalled_count(self) -> int:
        """How often its worker was lost."""
        return self._number(b"stc")

    @property
    def processed_on(self) -> int | None:
        """When a worker last took it (ms)."""
        return self._time(b"processedOn")

    @property
    def finished_on(self) -> int | None:
        """When it was completed or failed (ms)."""
        return self._time(b"finishedOn")

    @property
    def processed_by(self) -> str | None:
        """The name of the worker that last took it."""
        return self._text(b"pb")

    @property
    def progress(self) -> Any:
        """What the handler last said about it."""
        return self._json(b"progress", 0)

    @property
    def return_value(self) -> Any:
        """What the handler returned."""
        return self._json(b"returnvalue")

    @property
    def failed_reason(self) -> str | None:
        """Why the last attempt failed."""
        return self._text(b"failedReason")

    @property
    def deferred_failure(self) -> str | None:
        """Why a worker must fail it without running it."""
        return self._text(b"defa")

    @property
    def stack_traces(self) -> list[str]:
        """Of failed attempts, the last one last."""
        traces: list[str] = self._json(b"stacktrace", [])
        return traces or []

    @property
    def parent(self) -> dict[str, Any] | None:
        """The link to its parent."""
        link: dict[str, Any] | None = self._json(b"parent")
        if link is None and (named := self.opts.get("parent")):
            link = {"id": named["id"], "queueKey": named["queue"]}
            link |= {flag: True for flag in ("fpof", "cpof", "idof", "rdof") if self.opts.get(flag)}
        return link

    @property
    def parent_key(self) -> str | None:
        """The key of its parent."""
        named = self.opts.get("parent")
        return self._text(b"parentKey") or (f"{named['queue']}:{named['id']}" if named else None)

    @property
    def scheduler_id(self) -> str | None:
        """The scheduler that made it."""
        return self._text(b"rjk")

    @property
    def deduplication_id(self) -> str | None:
        """Its deduplication id."""
        return self._text(b"deid")


_UNREAD = object()
