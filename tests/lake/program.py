"""Programs as ``--program`` names them, on the server of the environment: each time a new one.

``everything``: baskets in two generations, and spans; ``baskets``: no spans; ``spans``: spans alone, whose
events were of another form once. ``Waits``: a projection alone, which takes as long as somebody wants.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.lake.shop import Shop
from toril.connection.open import URL_VARIABLE
from toril.events import AnyEvent, FoldProjection, Upcasters
from toril.pipelines.spans.ingestion import Ingestion
from toril.pipelines.spans.memory import MemorySpanTable, MemoryTraceTable
from toril.pipelines.spans.recording import SPAN_RECORDED
from toril.runtime import EventSourcing

UPCASTERS = Upcasters()


@UPCASTERS.step(SPAN_RECORDED, 1, 2)
def named(data: dict[str, Any]) -> dict[str, Any]:
    """Names were titles once, in any case."""
    said = {name: value for name, value in data.items() if name != "title"}
    return {**said, "name": data.get("title", data.get("name", "")).lower()}


class Waits(FoldProjection[int]):
    """Counts, and waits where the file is that an event names."""

    name = "waits"
    state_type = int

    def initial(self) -> int:
        return 0

    def apply(self, state: int, event: AnyEvent) -> int:
        gate = Path(event.data["gate"])
        while gate.exists():
            gate.with_suffix(".reached").touch()
            time.sleep(0.02)
        return state + 1


def shop() -> tuple[Shop, Ingestion]:
    """All of the program."""
    made = Shop(os.environ[URL_VARIABLE], both=True)
    spans, traces = MemorySpanTable(), MemoryTraceTable()
    later = timedelta(hours=1)  # no trace is settled meanwhile: that would be one more event
    return made, Ingestion(made.sourcing, spans=spans, traces=traces, debounce=later)


def __getattr__(name: str) -> EventSourcing:
    if name == "everything":
        return shop()[0].sourcing
    if name == "baskets":
        return Shop(os.environ[URL_VARIABLE]).sourcing
    if name == "spans":
        sourcing = EventSourcing(os.environ[URL_VARIABLE], partitions=2)
        builder = sourcing.register_pipeline().with_name("tracing").with_aggregate_type("span")
        builder.with_upcasters(UPCASTERS).build()
        return sourcing
    raise AttributeError(name)
