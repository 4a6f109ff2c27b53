"""What an engine cannot do."""

from __future__ import annotations

from toril.lake.errors import LakeError


class NotNative(LakeError):
    """A projection, or a part of it, that Spark's own expressions cannot compute exactly as it runs live."""
