"""What names of queues, logs and rooms may look like, and why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NewType, Self

from toril.keyspace.slots import InvalidName, tag_of

Kind = Literal["queue", "stream", "log", "partition", "room", "seats", "rate", "idempotency", "server"]


@dataclass(frozen=True, slots=True)
class NameRule:
    """What a name of one kind of keyspace may look like, and why."""

    kind: Kind
    allowed: re.Pattern[str]
    longest: int
    rule: str
    example: str

    def check(self, name: object) -> str:
        """The name itself, or an :class:`InvalidName` that states the rule."""
        what = f"{self.kind} name"
        if not isinstance(name, str):
            raise InvalidName(what, name, f"it must be a string; {self.rule}")
        if not name:
            raise InvalidName(what, name, f"it must not be empty; {self.rule}")
        if not is_utf8(name):
            raise InvalidName(what, name, "it must be text that UTF-8 can encode")
        if tag_of(name) is not None:
            raise InvalidName(
                what, name, "it already carries a hash tag; give the plain name, the tag is added"
            )
        if len(name) > self.longest:
            raise InvalidName(what, name, f"it has more than {self.longest} characters")
        if not self.allowed.fullmatch(name):
            raise InvalidName(what, name, f"{self.rule}, like {self.example!r}")
        return name


_PART = r"[A-Za-z0-9_.\-]+"

NAME_RULES: Mapping[Kind, NameRule] = {
    rule.kind: rule
    for rule in (
        NameRule(
            kind="queue",
            allowed=re.compile(r"[^:{}]+", re.DOTALL),
            longest=512,
            rule="BullMQ queue names hold no ':' (it separates the parts of a key) and no brace",
            example="span_ingestion/command/record_span",
        ),
        NameRule(
            kind="stream",
            allowed=re.compile(rf"{_PART}(:{_PART})*"),
            longest=128,
            rule="stream queue names are parts of letters, digits, '_', '.', '-', joined by ':'",
            example="fd:step_queue",
        ),
        NameRule(
            kind="log",
            allowed=re.compile(_PART),
            longest=64,
            rule="log names are letters, digits, '_', '.', '-'; ':' comes before the partition",
            example="log",
        ),
        NameRule(
            kind="room",
            allowed=re.compile(rf"{_PART}(:{_PART})*"),
            longest=128,
            rule="room names are parts of letters, digits, '_', '.', '-', joined by ':'",
            example="evt_2025_1001",
        ),
    )
}
"""The one table of naming rules. A kind's tag is its name (and parts Toril adds) inside braces."""


def is_utf8(name: str) -> bool:
    """Whether UTF-8 can encode it: half characters are no text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


QueueName = NewType("QueueName", str)
"""A queue name that carries its hash tag, like ``{collector}``."""


def make_queue_name(name: str) -> QueueName:
    """The cluster-safe form of a plain queue name: ``collector`` becomes ``{collector}``.

    Static names and pipeline names (``span_ingestion/command/record_span``) go through the same call.
    Each queue gets a tag of its own, so that queues spread over the slots of a cluster.
    """
    return QueueName("{" + NAME_RULES["queue"].check(name) + "}")


class QueueNames(StrEnum):
    """The queue names of an application, declared once, each tagged.

    ::

        class Queues(QueueNames):
            COLLECTOR = "collector"
            EVALUATIONS = "evaluations"

        assert Queues.COLLECTOR == "{collector}"

    A name that breaks the rule, or is listed twice, is an error when the class is made. In the
    application's tests, :func:`toril.testing.assert_tagged` proves the tags and shows the slots.
    """

    def __new__(cls, name: str) -> Self:
        member = str.__new__(cls, make_queue_name(name))
        member._value_ = str(member)
        return member

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for alias, member in cls.__members__.items():
            if alias != member.name:
                raise InvalidName("queue name", str(member), f"declared twice, as {member.name} and {alias}")
