"""A realistic load: traces of LLM applications, from a seed, sent by the real OpenTelemetry SDK.

:func:`plan` says what there will be; :func:`simulate` sends it and reports what became of it; :func:`bodies`
are requests for benchmarks. The SDK and its exporter come with ``toril[simulate]``.
"""

from toril.simulate.bodies import bodies
from toril.simulate.planning import plan
from toril.simulate.plans import EventPlan, SpanPlan, TracePlan
from toril.simulate.processes import simulate
from toril.simulate.report import Acknowledged, Report, checksum
from toril.simulate.run import Run
from toril.simulate.sending import Simulator

__all__ = [
    "Acknowledged",
    "EventPlan",
    "Report",
    "Run",
    "Simulator",
    "SpanPlan",
    "TracePlan",
    "bodies",
    "checksum",
    "plan",
    "simulate",
]
