"""Connections: ``connect(url)`` and nothing else to learn."""

from toril.connection.client import Connection, ServerFacts
from toril.connection.durability import Durability
from toril.connection.errors import (
    AuthenticationFailed,
    CommandRefused,
    ConnectionFailed,
    CrossSlot,
    DurabilityNotReached,
    DurabilityRefused,
    EmbeddedServerError,
    ForeignDataDirectory,
    NoServerBinary,
    OutcomeUnknown,
    OutOfMemory,
    ScriptBusy,
    ScriptFailed,
    Unavailable,
    Unreachable,
)
from toril.connection.open import connect
from toril.connection.scripts import BadScript, Script, ScriptCount, load_script
from toril.connection.subscription import Subscription
from toril.connection.topology import Shard
from toril.connection.url import Address

__all__ = [
    "Address",
    "AuthenticationFailed",
    "BadScript",
    "CommandRefused",
    "Connection",
    "ConnectionFailed",
    "CrossSlot",
    "Durability",
    "DurabilityNotReached",
    "DurabilityRefused",
    "EmbeddedServerError",
    "ForeignDataDirectory",
    "NoServerBinary",
    "OutOfMemory",
    "OutcomeUnknown",
    "Script",
    "ScriptBusy",
    "ScriptCount",
    "ScriptFailed",
    "ServerFacts",
    "Shard",
    "Subscription",
    "Unavailable",
    "Unreachable",
    "connect",
    "load_script",
]
