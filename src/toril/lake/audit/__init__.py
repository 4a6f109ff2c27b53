"""The audit: whether every table says what the one before it says, and the first of them what the log says.

Each check recomputes something in one piece that a job has made in batches, and counts what differs. Nothing
is changed. With a ``fraction``, aggregates are chosen by a hash of their keys: the same ones in every table,
and every time.
"""

from toril.lake.audit.found import Audit, Check, Figures, Finding, Lag
from toril.lake.audit.live import LiveSummaries
from toril.lake.audit.look_through import CHECKS, Told, audit
from toril.lake.audit.looking import LiveStore

__all__ = [
    "CHECKS",
    "Audit",
    "Check",
    "Figures",
    "Finding",
    "Lag",
    "LiveStore",
    "LiveSummaries",
    "Told",
    "audit",
]
