"""Handlers: how a user writes one, and how it is run. One form for jobs, stream jobs and events."""

from toril.handler.errors import BudgetExceeded, PolicyDenied, TransientError, UnrecoverableError
from toril.handler.handler import Handler, UnfitPayload, fit
from toril.handler.process import HandlerDied, HandlerFailed
from toril.handler.registry import Handlers
from toril.handler.run import Runnable, Runner, TimedOut

__all__ = [
    "BudgetExceeded",
    "Handler",
    "HandlerDied",
    "HandlerFailed",
    "Handlers",
    "PolicyDenied",
    "Runnable",
    "Runner",
    "TimedOut",
    "TransientError",
    "UnfitPayload",
    "UnrecoverableError",
    "fit",
]
