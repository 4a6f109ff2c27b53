"""All checks, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from toril.errors import InvalidValue, TorilError
from toril.events import Upcasters
from toril.lake.audit import events, gold, spans, summaries
from toril.lake.audit.figures import figures
from toril.lake.audit.found import Audit, Check
from toril.lake.audit.looking import LiveStore, Looking, Skip
from toril.lake.lake import Lake
from toril.lake.problems import SPARKS, one_line
from toril.lake.source.told import told as told_by_spark
from toril.lake.tables import EVENTS

Told = Callable[[int, int, str], None]
"""Is told how far it is: so many checks, of so many, and which one is at work."""

CHECKS = {
    "versions": "every aggregate has versions 1, 2, 3 … once each",
    "ordinals": "every partition has ordinals 1, 2, 3 … once each, up to where the table says it is",
    "log": "every event that is still in the log is in the lake, byte by byte",
    "spans": "every event that recorded a span is in spans or in quarantine, once, as it was recorded",
    "summaries": "every trace's summary is what its spans come to",
    "live": "every live summary is in the lake, and says the same at the same version",
    "rollups": "every rollup is what its spans come to, and their sums are those of the summaries",
}
"""The checks, and what each proves."""

_WORK: Mapping[str, Callable[[Looking, Check], None]] = {
    "versions": events.versions,
    "ordinals": events.ordinals,
    "log": events.log,
    "spans": spans.spans,
    "summaries": gold.summaries,
    "live": summaries.live,
    "rollups": gold.rollups,
}


def audit(
    lake: Lake,
    *,
    url: str | None = None,
    log: str | None = "log",
    fraction: float = 1.0,
    only: Sequence[str] = (),
    live: LiveStore | TorilError | None = None,
    upcasters: Upcasters | None = None,
    told: Told | None = None,
) -> Audit:
    """Look through a lake. ``log=None``: without asking the log; ``only``: these checks, by name.

    ``live``: the live store, or why it cannot be asked, which is then a finding. ``upcasters``: those by
    which its spans were read.
    """
    if not 0 < fraction <= 1:
        raise InvalidValue("fraction", fraction, "more than 0, and at most 1")
    for name in only:
        if name not in CHECKS:
            raise InvalidValue("check", name, f"one of {', '.join(CHECKS)}")
    lake.check_all()
    lake.check(EVENTS)
    began = time.monotonic()
    made = Audit(lake.path, log or "", fraction, time.time_ns())
    work = Looking(lake, url, log, fraction, live, upcasters)
    lake.last(EVENTS)  # a table that has lost batches is refused at once
    names = [name for name in CHECKS if not only or name in only]
    for place, name in enumerate(names):
        if told is not None:
            told(place, len(names), name)
        made.checks.append(_do(name, work))
    if told is not None:
        told(len(names), len(names), "")
    made.figures = figures(work)
    made.seconds = time.monotonic() - began
    return made


def _do(name: str, work: Looking) -> Check:
    check = Check(name, CHECKS[name])
    began = time.monotonic()
    work.anew()
    try:
        _WORK[name](work, check)
    except Skip as why:
        check.skipped = str(why)
    except SPARKS as problem:
        ours = told_by_spark(problem)
        check.add("not readable", 1, str(ours) if ours is not None else one_line(problem))
    except TorilError as problem:
        check.add("not readable", 1, str(problem))
    check.seconds = time.monotonic() - began
    return check
