"""OpenTelemetry traces of BullMQ jobs; a job carries its context in the option ``tm``, as BullMQ's do."""

from __future__ import annotations

from typing import ClassVar

from toril.handler.telemetry import JobTelemetry


class Telemetry(JobTelemetry):
    """Traces for a queue or a worker: ``Queue(…, telemetry=Telemetry())``. Needs ``toril[telemetry]``."""

    system: ClassVar[str] = "bullmq"
