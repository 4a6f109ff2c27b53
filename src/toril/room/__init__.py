"""A waiting room that admits a crowd fairly to something scarce, and the seats behind it.

The names to know: a :class:`Room` (made with :class:`Settings`) gives a :class:`Ticket` to whoever joins; its
:class:`Status` says how far somebody is; :meth:`Room.enter` gives a :class:`Session` to whoever was let in. A
:class:`Doorkeeper` lets people in, and makes the rate follow a :class:`LoadSignal`.
"""

from toril.room.audit import Violation
from toril.room.check import RoomCheck, check_room
from toril.room.doorkeeper import Doorkeeper
from toril.room.errors import (
    AlreadyUsed,
    IdempotencyConflict,
    NoSuchLane,
    NoSuchRoom,
    NotInside,
    NotReady,
    RoomClosed,
    RoomError,
    RoomExists,
    RoomFull,
    TicketOver,
    UnknownTicket,
)
from toril.room.load import Follow, Load, LoadSignal
from toril.room.room import Room, room_names
from toril.room.settings import LaneSettings, Seed, Settings
from toril.room.shuffle import drawn_order, verify_place
from toril.room.snapshot import STRETCH, Line, Snapshot
from toril.room.stats import WAIT_BOUNDS, LaneStats, Stats
from toril.room.store import Tick
from toril.room.ticket import Lane, Mode, Phase, Session, State, Status, Ticket, Token, parse_session

__all__ = [
    "STRETCH",
    "WAIT_BOUNDS",
    "AlreadyUsed",
    "Doorkeeper",
    "Follow",
    "IdempotencyConflict",
    "Lane",
    "LaneSettings",
    "LaneStats",
    "Line",
    "Load",
    "LoadSignal",
    "Mode",
    "NoSuchLane",
    "NoSuchRoom",
    "NotInside",
    "NotReady",
    "Phase",
    "Room",
    "RoomCheck",
    "RoomClosed",
    "RoomError",
    "RoomExists",
    "RoomFull",
    "Seed",
    "Session",
    "Settings",
    "Snapshot",
    "State",
    "Stats",
    "Status",
    "Tick",
    "Ticket",
    "TicketOver",
    "Token",
    "UnknownTicket",
    "Violation",
    "check_room",
    "drawn_order",
    "parse_session",
    "room_names",
    "verify_place",
]
