"""What the Java of tests is told."""

from __future__ import annotations

_ALL = "-XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
"""The room for compiled code must be said: with one compiler alone it is a fifth, and code is thrown away and
made anew all the time."""

_LATER = (
    "-XX:Tier4InvocationThreshold=20000 -XX:Tier4MinInvocationThreshold=2400 "
    "-XX:Tier4CompileThreshold=60000 -XX:Tier4BackEdgeThreshold=160000"
)
"""Four times what Java would have: the second compiler takes half the time, and the tests hardly more."""

LONG = f"{_ALL} {_LATER}"
"""What lives for as long as the tests is worth compiling, where it is used often."""

SHORT = f"{_ALL} -XX:TieredStopAtLevel=1"
"""What lives for a minute starts with half the work, and is never as fast as it could be."""
