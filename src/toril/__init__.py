"""Toril: work and events that must not be lost and must stay in order, on Redis or Redis Cluster."""

from importlib.metadata import version

from toril.connection import Connection, Durability, connect
from toril.errors import InvalidValue, TorilError
from toril.keyspace import InvalidName, QueueNames, make_queue_name

__version__ = version("toril")

__all__ = [
    "Connection",
    "Durability",
    "InvalidName",
    "InvalidValue",
    "QueueNames",
    "TorilError",
    "__version__",
    "connect",
    "make_queue_name",
]
