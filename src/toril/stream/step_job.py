"""The data of a stream queue's jobs, unless it is said otherwise: one step of a run of an agent."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from toril.stream.options import Route

StepType = Literal["llm", "tool", "retrieval", "sandbox"]


class StepJob(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a run. The steps of a run are done in order, and tenants take turns."""

    run_id: str
    step_id: str
    step_type: StepType
    input: dict[str, Any]
    tenant_id: str
    agent_id: str
    priority: Annotated[int, msgspec.Meta(ge=0)] = 0


STEP_ROUTE = Route(name="step_type", key="run_id", tenant="tenant_id", priority="priority")
