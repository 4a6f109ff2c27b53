"""What can go wrong with a lake."""

from __future__ import annotations

from toril.errors import TorilError


class LakeError(TorilError):
    """The lake refused, or found something that must not be. Nothing was changed."""


class ForeignTable(LakeError):
    """What is at a table's path was not made by Toril, or not as this table."""


class NewerTable(LakeError):
    """The table was written by a later Toril. Upgrade this one."""


class SparkMissing(LakeError):
    """Spark cannot start here: Java, its jars, or a package is missing."""


class NoRoom(LakeError):
    """The disk is full. Where room is made, it goes on."""


class OtherWriter(LakeError):
    """Another process has written this batch of the table; go on from what it has recorded."""


class SourceDiverged(LakeError):
    """The log no longer has what the lake has archived: a failover has lost it, and it goes on without."""


class NotWhole(LakeError):
    """What is to be of all events is not: some are missing, or there twice."""
