"""Moving queues from untagged names to tagged ones, without losing a job."""

from toril.migrate.cleaning import QueueCleanup, cleanup
from toril.migrate.copying import Copier, CopyOptions
from toril.migrate.discovery import choose_queues, find_links, find_queues
from toril.migrate.errors import (
    GoingBack,
    LinkedOutside,
    MigrationError,
    NotSafe,
    OtherSource,
    Superseded,
    WorkersConnected,
)
from toril.migrate.moves import Move, Moves, new_names, read_mapping
from toril.migrate.planning import Plan, QueuePlan, choose_moves, make_plan
from toril.migrate.renaming import KeyRule, KeysReport, rename_keys
from toril.migrate.report import Problem, QueueReport
from toril.migrate.rollback import QueueRollback, rollback
from toril.migrate.status import QueueStatus, status
from toril.migrate.verifying import QueueCheck, verify

__all__ = [
    "Copier",
    "CopyOptions",
    "GoingBack",
    "KeyRule",
    "KeysReport",
    "LinkedOutside",
    "MigrationError",
    "Move",
    "Moves",
    "NotSafe",
    "OtherSource",
    "Plan",
    "Problem",
    "QueueCheck",
    "QueueCleanup",
    "QueuePlan",
    "QueueReport",
    "QueueRollback",
    "QueueStatus",
    "Superseded",
    "WorkersConnected",
    "choose_moves",
    "choose_queues",
    "cleanup",
    "find_links",
    "find_queues",
    "make_plan",
    "new_names",
    "read_mapping",
    "rename_keys",
    "rollback",
    "status",
    "verify",
]
