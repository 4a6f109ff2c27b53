"""What can go wrong between Toril and a server, by what the caller can conclude from it."""

from __future__ import annotations

from toril.errors import TorilError


class ConnectionFailed(TorilError):
    """The server could not be used, and nothing was changed there by this call."""


class Unreachable(ConnectionFailed):
    """No connection to an address could be made."""


class AuthenticationFailed(ConnectionFailed):
    """The server asks for credentials and does not take those it got."""


class Unavailable(ConnectionFailed):
    """The server refused for a passing reason for longer than the patience allows.

    A failover, a reshard, a server that loads its data. The call was not executed.
    """


class OutcomeUnknown(TorilError):
    """The connection broke after the call was sent: it may or may not have been executed.

    Reads, and calls made with ``repeatable=True``, are sent again instead. Look at the state, or make
    the call again if executing it twice is harmless.
    """


class CommandRefused(TorilError):
    """The server answered with an error. ``code`` is its first word, such as ``WRONGTYPE``."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = code_of(message)


class CrossSlot(CommandRefused):
    """Keys of more than one slot in one call. Refused before sending, or by the server."""


class OutOfMemory(CommandRefused):
    """The server is at ``maxmemory`` and refuses new work. What is there can still be drained."""


class ScriptBusy(CommandRefused):
    """Another script has been running for too long, and the server takes no calls until it ends."""


class ScriptFailed(CommandRefused):
    """A script stopped with an error that it does not state itself."""


class DurabilityRefused(TorilError):
    """The server cannot give the durability asked for. Nothing was written."""


class DurabilityNotReached(TorilError):
    """The write took place, but was not confirmed as durable as asked for in time.

    ``result`` is the call's result: the write is there, and may still reach the disk or the replicas.
    """

    def __init__(self, message: str, result: object) -> None:
        super().__init__(message)
        self.result = result


class EmbeddedServerError(TorilError):
    """The embedded server cannot be started or joined."""


class NoServerBinary(EmbeddedServerError):
    """There is no server to embed on this platform."""


class ForeignDataDirectory(EmbeddedServerError):
    """A data directory written by a version that this one cannot take over."""


PASSING = frozenset(
    {"CLUSTERDOWN", "TRYAGAIN", "LOADING", "READONLY", "MASTERDOWN", "BUSY", "UNBLOCKED", "NOREPLICAS"}
)
"""Error codes of a server that did not execute a call and may do so soon."""


def code_of(message: str) -> str:
    """The error code of a server's error text: its first word, where that is in capitals."""
    word = message.split(" ", 1)[0]
    return word if word.isupper() else "ERR"
