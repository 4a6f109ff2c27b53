"""One projection, two engines: Spark's own expressions where they give the same, else the class itself."""

from toril.lake.engine.choice import Choice, Engine, engine_for, explain, states
from toril.lake.engine.errors import NotNative
from toril.lake.engine.fold import FOLDED, folded
from toril.lake.engine.native import Native, compiled, encoded
from toril.lake.engine.typing import SPANS_TYPED, Typed, Typing

__all__ = [
    "FOLDED",
    "SPANS_TYPED",
    "Choice",
    "Engine",
    "Native",
    "NotNative",
    "Typed",
    "Typing",
    "compiled",
    "encoded",
    "engine_for",
    "explain",
    "folded",
    "states",
]
