"""Errors that came through Spark, as what they were."""

from __future__ import annotations

import re

from toril.errors import TorilError
from toril.lake.errors import LakeError, NotWhole, SourceDiverged
from toril.log.errors import GapFound, UnknownForm

_OURS = re.compile(r"^(?:\w+: )?toril(?:\.\w+)*\.(\w+): (.+)$", re.MULTILINE)
"""How Python ends the trace of an exception of ours."""

_KINDS: dict[str, type[TorilError]] = {
    kind.__name__: kind for kind in (GapFound, SourceDiverged, NotWhole, UnknownForm, LakeError)
}


def told(problem: BaseException) -> TorilError | None:
    """The error of Toril's that an error of Spark's tells of; None where there is none in it."""
    if isinstance(problem, TorilError):
        return problem
    found = _OURS.findall(str(problem))
    if not found:
        return None
    name, text = found[-1]
    return _KINDS.get(name, LakeError)(text.strip())
