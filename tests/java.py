"""What the Java of tests is told."""

from __future__ import annotations

LONG = "-XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
"""What lives for as long as the tests is worth compiling.

The room for compiled code must be said: with one compiler alone it is a fifth, and code is thrown away and
made anew all the time."""

SHORT = f"{LONG} -XX:TieredStopAtLevel=1"
"""What lives for a minute starts with half the work, and is never as fast as it could be."""
