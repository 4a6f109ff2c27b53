"""OpenTelemetry traces of stream jobs."""

from __future__ import annotations

from typing import ClassVar

from toril.handler.telemetry import JobTelemetry


class Telemetry(JobTelemetry):
    """Traces for a stream queue or its workers: ``StreamQueue(…, telemetry=Telemetry())``.

    Needs ``toril[telemetry]``.
    """

    system: ClassVar[str] = "redis_streams"
