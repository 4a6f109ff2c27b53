"""What can go wrong in a waiting room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toril.connection.errors import CommandRefused
from toril.errors import TorilError

if TYPE_CHECKING:
    from toril.room.ticket import State, Status


class RoomError(TorilError):
    """A waiting room refused. Nothing was changed."""


class NoSuchRoom(RoomError, CommandRefused):
    """There is no room of that name. Rooms are made with :meth:`Room.create`."""


class RoomExists(RoomError):
    """There is already a room of that name."""


class RoomClosed(RoomError, CommandRefused):
    """The room takes nobody now: it rejects, or it is being reset."""


class NoSuchLane(RoomError, CommandRefused):
    """The room has no such lane: a lane for VIPs must have settings of its own."""


class RoundOver(RoomError, CommandRefused):
    """A shard has done another round: another process has gone on to the next one, or the room forgot it."""

    @property
    def done(self) -> tuple[int, str]:
        """The round that the shard has done, and when that began."""
        _, number, began, *_ = str(self).split()
        return int(number), began


class RoomFull(RoomError, CommandRefused):
    """As many wait as may. Try again in ``retry_after`` seconds."""

    retry_after: float = 5.0


class IdempotencyConflict(RoomError, CommandRefused):
    """The idempotency key was used for another request."""


class UnknownTicket(RoomError):
    """No ticket is known for this token: it is no token, or it ended a while ago."""


class TicketOver(RoomError):
    """The ticket has ended; ``state`` says how. To wait again is to join anew."""

    def __init__(self, state: State) -> None:
        self.state: State = state
        super().__init__(f"the ticket is {state}; join again to wait again")


class NotReady(RoomError):
    """It is not this one's turn yet. ``status`` says how far it is, and when to ask again."""

    def __init__(self, status: Status) -> None:
        self.status = status
        super().__init__(f"it is not your turn yet; ask again in {status.next_poll_ms} ms")


class NotInside(RoomError):
    """Only who has entered can do this."""


class AlreadyUsed(RoomError):
    """The admission was used by somebody else: it is good for one use."""
