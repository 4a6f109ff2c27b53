"""Event sourcing: events, projections, handlers, commands, and what stores must be able to do.

Nothing here needs a server or a runtime. ``toril.stores.memory`` has a store of each kind.
"""

from toril.aggregate import Aggregate
from toril.events.checkpoints import Checkpoint, CheckpointKey, CheckpointStatus, Claim
from toril.events.choices import FirstBy, LastBy, Maximum, Minimum
from toril.events.commands import Command, CommandHandler, execute, execute_many
from toril.events.computed import first_of, members, quotient, size, text
from toril.events.declared import DeclaredProjection, Derived
from toril.events.errors import (
    Category,
    CheckpointError,
    ConfigurationError,
    EventSourcingError,
    HandlerError,
    OrderingError,
    ProjectionError,
    PublishError,
    SchemaTooNew,
    SchemaUnknown,
    SecurityError,
    StateUnreadable,
    StoreError,
    ValidationError,
    VersionConflict,
    category_of,
    is_retryable,
    retry_after,
)
from toril.events.event import AnyEvent, AnyNewEvent, Event, NewEvent
from toril.events.expressions import Condition, Expression, Value, literal, path
from toril.events.fields import Count, Field, Flag, SetOf, Sum
from toril.events.handlers import BatchEventHandler, EventHandler, HandlerContext, handle_event
from toril.events.identity import Clock, new_event_id, now, use_clock
from toril.events.maps import FirstPerKey
from toril.events.projection import AnyProjection, FoldProjection, Projection, ProjectionState, fold
from toril.events.snapshots import restore_snapshot, state_at, take_snapshot
from toril.events.stores import (
    Appended,
    EventPublisher,
    EventStore,
    NewAppend,
    ProcessorCheckpointStore,
    ProjectionStore,
    Snapshot,
    SnapshotStore,
)
from toril.events.stream import EventStream, StreamMetadata
from toril.events.upcasters import Upcasters, UpcastingEventStore

__all__ = [
    "Aggregate",
    "AnyEvent",
    "AnyNewEvent",
    "AnyProjection",
    "Appended",
    "BatchEventHandler",
    "Category",
    "Checkpoint",
    "CheckpointError",
    "CheckpointKey",
    "CheckpointStatus",
    "Claim",
    "Clock",
    "Command",
    "CommandHandler",
    "Condition",
    "ConfigurationError",
    "Count",
    "DeclaredProjection",
    "Derived",
    "Event",
    "EventHandler",
    "EventPublisher",
    "EventSourcingError",
    "EventStore",
    "EventStream",
    "Expression",
    "Field",
    "FirstBy",
    "FirstPerKey",
    "Flag",
    "FoldProjection",
    "HandlerContext",
    "HandlerError",
    "LastBy",
    "Maximum",
    "Minimum",
    "NewAppend",
    "NewEvent",
    "OrderingError",
    "ProcessorCheckpointStore",
    "Projection",
    "ProjectionError",
    "ProjectionState",
    "ProjectionStore",
    "PublishError",
    "SchemaTooNew",
    "SchemaUnknown",
    "SecurityError",
    "SetOf",
    "Snapshot",
    "SnapshotStore",
    "StateUnreadable",
    "StoreError",
    "StreamMetadata",
    "Sum",
    "Upcasters",
    "UpcastingEventStore",
    "ValidationError",
    "Value",
    "VersionConflict",
    "category_of",
    "execute",
    "execute_many",
    "first_of",
    "fold",
    "handle_event",
    "is_retryable",
    "literal",
    "members",
    "new_event_id",
    "now",
    "path",
    "quotient",
    "restore_snapshot",
    "retry_after",
    "size",
    "state_at",
    "take_snapshot",
    "text",
    "use_clock",
]
