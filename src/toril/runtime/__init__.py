"""The event-sourcing runtime: pipelines of commands, handlers and projections over the event log."""

from toril.runtime.backend import GenerationError, Rebuilt
from toril.runtime.commands import CommandDispatcher, CommandOptions, SendFailed, Sent
from toril.runtime.decisions import Decision, Skipped, decision_in, skipped
from toril.runtime.engine import EngineOptions
from toril.runtime.generations import GenerationBehind, Generations, GenerationStanding, Loaded
from toril.runtime.pipeline import NamedPipelineBuilder, PipelineBuilder, TypedPipelineBuilder
from toril.runtime.service import EventSourcingService, FailedEvent, Lag, ProcessorStanding
from toril.runtime.sourcing import (
    Commands,
    EventSourcing,
    PipelineCommand,
    RegisteredPipeline,
    event_sourcing,
)
from toril.runtime.work import PATIENT, Retry
from toril.runtime.worker import ProcessorWorker

__all__ = [
    "PATIENT",
    "CommandDispatcher",
    "CommandOptions",
    "Commands",
    "Decision",
    "EngineOptions",
    "EventSourcing",
    "EventSourcingService",
    "FailedEvent",
    "GenerationBehind",
    "GenerationError",
    "GenerationStanding",
    "Generations",
    "Lag",
    "Loaded",
    "NamedPipelineBuilder",
    "PipelineBuilder",
    "PipelineCommand",
    "ProcessorStanding",
    "ProcessorWorker",
    "Rebuilt",
    "RegisteredPipeline",
    "Retry",
    "SendFailed",
    "Sent",
    "Skipped",
    "TypedPipelineBuilder",
    "decision_in",
    "event_sourcing",
    "skipped",
]
