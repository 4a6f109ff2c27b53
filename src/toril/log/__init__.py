"""The event log: partitions of Redis Streams, appended to by one script, read without a gap."""

from toril.log.cold import ColdStore, Frozen, History, MemoryColdStore
from toril.log.entry import Append, Appended, Entry, Partition, Position, Positions
from toril.log.errors import (
    GapFound,
    HistoryTrimmed,
    LogDiverged,
    LogError,
    LogFull,
    ReaderFenced,
    ReaderGone,
    TenantErased,
    UnknownForm,
    VersionConflict,
    WrongPosition,
)
from toril.log.layout import Epoch, Layout, Retention
from toril.log.log import Log
from toril.log.reader import Batch, Reader
from toril.log.store import Standing
from toril.log.upkeep import Trimmed, Upkeep

__all__ = [
    "Append",
    "Appended",
    "Batch",
    "ColdStore",
    "Entry",
    "Epoch",
    "Frozen",
    "GapFound",
    "History",
    "HistoryTrimmed",
    "Layout",
    "Log",
    "LogDiverged",
    "LogError",
    "LogFull",
    "MemoryColdStore",
    "Partition",
    "Position",
    "Positions",
    "Reader",
    "ReaderFenced",
    "ReaderGone",
    "Retention",
    "Standing",
    "TenantErased",
    "Trimmed",
    "UnknownForm",
    "Upkeep",
    "VersionConflict",
    "WrongPosition",
]
