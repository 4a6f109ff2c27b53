"""The waiting room over HTTP: its API, its page, its metrics."""

from toril.server.room.api import RoomApi, create_room_app
from toril.server.room.options import PATIENCE, USUAL, RoomOptions
from toril.server.room.rates import Rate

__all__ = ["PATIENCE", "USUAL", "Rate", "RoomApi", "RoomOptions", "create_room_app"]
