"""How durable a write must be before a call returns (design, decision 13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from toril.connection.errors import DurabilityNotReached, DurabilityRefused
from toril.connection.wire import Command, ErrorReply
from toril.errors import InvalidValue

Level = Literal["memory", "fsync", "replicated"]


@dataclass(frozen=True, slots=True)
class Durability:
    """What a write must have reached before it is reported as done.

    ``memory``: the primary's memory. ``fsync``: the primary's disk; only on a server with
    ``appendfsync always``, because under ``everysec`` WAITAOF was seen to answer before the fsync.
    ``replicated``: the memory of ``replicas`` replicas too.
    """

    level: Level
    replicas: int = 1
    timeout: float = 5.0
    """Seconds to wait for the confirmation, before :class:`DurabilityNotReached` is raised."""

    def __post_init__(self) -> None:
        if self.level not in ("memory", "fsync", "replicated"):
            raise InvalidValue("durability", self.level, "one of memory, fsync, replicated")
        if self.replicas < 1:
            raise InvalidValue("durability replicas", self.replicas, "at least 1")
        # WAIT takes 0 as "for ever".
        if not 0.001 <= self.timeout <= 3600:
            raise InvalidValue("durability timeout", self.timeout, "0.001 to 3600 seconds")

    @classmethod
    def of(cls, wanted: Durability | Level) -> Durability:
        """A durability from its name."""
        return wanted if isinstance(wanted, Durability) else cls(wanted)

    def confirmation(self, has_waitaof: bool) -> Command | None:
        """The command that confirms a write; it must follow on the connection that wrote."""
        milliseconds = max(1, round(self.timeout * 1000))
        if self.level == "replicated":
            return ("WAIT", self.replicas, milliseconds)
        if self.level == "fsync" and has_waitaof:
            return ("WAITAOF", 1, 0, milliseconds)
        # Without WAITAOF (Redis 7.0): under `appendfsync always` a reply is sent only after the fsync.
        return None

    def check(self, confirmed: Any, result: object) -> None:
        """Raise where the confirmation says less than was asked for."""
        if isinstance(confirmed, ErrorReply):
            raise DurabilityNotReached(f"the write is done, but {confirmed}", result)
        if self.level == "replicated" and confirmed < self.replicas:
            raise DurabilityNotReached(
                f"the write is done, but {confirmed} of {self.replicas} replicas "
                f"confirmed it within {self.timeout:g} s",
                result,
            )
        if self.level == "fsync" and confirmed[0] < 1:
            raise DurabilityNotReached(
                f"the write is done, but was not on disk within {self.timeout:g} s", result
            )


SETTINGS: Command = ("CONFIG", "GET", "append*")
FSYNC_DURING_REWRITE: Command = ("CONFIG", "GET", "no-appendfsync-on-rewrite")


def require_fsync(replies: list[Any]) -> None:
    """Refuse ``fsync`` on a server whose settings (replies to the commands above) can't give it."""
    for reply in replies:
        if isinstance(reply, ErrorReply):
            raise DurabilityRefused(
                f"durability 'fsync' needs to see the server's persistence settings, and it said: {reply}"
            )
    flat = [item.decode() for reply in replies for item in reply]
    settings = dict(zip(flat[::2], flat[1::2], strict=True))
    wanted = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
    wrong = [
        f"{name} is {settings.get(name, 'unknown')!r} and must be {value!r}"
        for name, value in wanted.items()
        if settings.get(name) != value
    ]
    if wrong:
        raise DurabilityRefused(
            f"durability 'fsync' cannot be promised by this server: {'; '.join(wrong)}. "
            "Change the setting, or ask for 'memory' or 'replicated'"
        )
