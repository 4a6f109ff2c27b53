"""How a dialect is read: by rules, each of which takes one field of :class:`Ai` from what a span says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from toril.pipelines.spans.dialects import messages, values
from toril.pipelines.spans.span import AiKind, Span

MODEL_CALLS = frozenset({"llm", "embedding", "rerank"})
"""Kinds that use tokens. What is above them often repeats the sum of what is below: it does not count."""
HOLD_OTHERS = frozenset({None, "agent", "workflow", "chain", "task"})
"""Kinds that consist of other spans: a cost that they say is the sum of what those cost."""
TOKENS = frozenset(
    {"input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens"}
)


class Refused(NamedTuple):
    """A value that is not taken, and why."""

    why: str


NOT_A_COUNT = Refused("not-a-count")
NOT_AN_AMOUNT = Refused("not-an-amount")
NOT_A_TIME = Refused("not-a-time")


class Reading:
    """What has been understood of one span so far."""

    def __init__(self, span: Span, attributes: Mapping[str, Any]) -> None:
        self.span = span
        self.attributes = attributes
        self.named = _named(span, attributes)
        """What a rule can be about: it is looked at only if one of its names is here."""
        self.kind: AiKind | None = None
        self.fields: dict[str, Any] = {}
        self.settled: set[str] = set()
        """Fields that are filled, or stay empty whatever else is said."""
        self._rules: dict[str, None] = {}

    @property
    def rules(self) -> list[str]:
        """The rules that applied, each once, in order."""
        return list(self._rules)

    def take(self, field: str, value: Any, rule: str) -> None:
        """Fill a field, unless the value says nothing or may not be taken."""
        if value is None:
            return
        if isinstance(value, Refused):
            rule = f"{rule}:{value.why}"
        elif self._counts(field):
            self.settled.add(field)
            self.fields[field] = value
        else:
            self.settled.add(field)
            rule = f"{rule}:not-counted"
        self._rules[rule] = None

    def _counts(self, field: str) -> bool:
        """Tokens and costs count only where they arise, so that a trace does not have them twice."""
        if field in TOKENS:
            return self.kind in MODEL_CALLS
        return field != "cost" or self.kind not in HOLD_OTHERS


def _named(span: Span, attributes: Mapping[str, Any]) -> set[str]:
    """Attributes, lists said as numbered attributes, events and what they say, and the span's name."""
    named = {"span.name", *attributes}
    named.update(name.partition(".0")[0] for name in attributes if ".0" in name)
    for event in span.events:
        named.add(event.name)
        named.update(event.attributes)
    return named


Read = Callable[[Reading, str], Any]
"""Takes a name and gives a value of a field: None where it is not said, or why it is not taken."""

KindOf = Callable[[str], AiKind | None]
"""Which kind a text in small letters says."""


class Rule(NamedTuple):
    """Which names say a field, the first of them that says it."""

    field: str
    read: Read
    names: tuple[str, ...]


class Dialect:
    """A way of saying things, by rules in order."""

    def __init__(self, name: str, kinds: tuple[tuple[str, KindOf], ...], rules: tuple[Rule, ...]) -> None:
        self.name = name
        self.kinds = kinds
        """Names whose value says the kind, and how."""
        self.rules = rules
        self._names = frozenset(name for rule in rules for name in rule.names)

    def read_kind(self, reading: Reading) -> None:
        """Fill the kind, if it is said and not yet known."""
        for name, kind_of in self.kinds:
            said = reading.attributes.get(name)
            kind = kind_of(said.lower()) if isinstance(said, str) else None
            if kind is not None:
                reading.kind = kind
                reading.take("kind", kind, f"{self.name}:{name}")
                return

    def read(self, reading: Reading) -> None:
        """Fill the fields that it says and that are not yet known."""
        named = self._names & reading.named
        if not named:
            return
        for field, read, names in self.rules:
            for name in names:
                if name in named and field not in reading.settled:
                    reading.take(field, read(reading, name), f"{self.name}:{name}")


def rule(field: str, read: Read, *names: str) -> Rule:
    """A rule."""
    return Rule(field, read, names)


def one_of(kinds: Mapping[str, AiKind]) -> KindOf:
    """Kinds by what they are called."""
    return kinds.get


def text(reading: Reading, name: str) -> Any:
    """Text, like an id or a name."""
    return values.text(reading.attributes.get(name))


def small_text(reading: Reading, name: str) -> Any:
    """Text in small letters."""
    said = values.text(reading.attributes.get(name))
    return None if said is None else said.lower()


def texts(reading: Reading, name: str) -> Any:
    """A list of texts."""
    return values.texts(reading.attributes.get(name))


def flag(reading: Reading, name: str) -> Any:
    """True or false."""
    said = reading.attributes.get(name)
    return said if isinstance(said, bool) else None


def count(reading: Reading, name: str) -> Any:
    """A number of tokens."""
    return _or(NOT_A_COUNT, values.count, reading.attributes.get(name))


def dollars(reading: Reading, name: str) -> Any:
    """An amount in USD, as nano-USD."""
    return _or(NOT_AN_AMOUNT, lambda said: values.scaled(said, 9), reading.attributes.get(name))


def seconds(reading: Reading, name: str) -> Any:
    """A time from the start of the span in seconds, as nanoseconds."""
    return _or(NOT_A_TIME, lambda said: values.scaled(said, 9), reading.attributes.get(name))


def milliseconds(reading: Reading, name: str) -> Any:
    """A time from the start of the span in milliseconds, as nanoseconds."""
    return _or(NOT_A_TIME, lambda said: values.scaled(said, 6), reading.attributes.get(name))


def first_event(reading: Reading, name: str) -> Any:
    """When the first event of that name was, from the start of the span."""
    return _since_start(reading, min((e.time for e in reading.span.events if e.name == name), default=None))


def last_event(reading: Reading, name: str) -> Any:
    """When the last event of that name was, from the start of the span."""
    return _since_start(reading, max((e.time for e in reading.span.events if e.name == name), default=None))


def data(reading: Reading, name: str) -> Any:
    """Messages in one form, or whatever JSON or text there is."""
    return messages.one_form(values.json(reading.attributes.get(name)))


def numbered_messages(role: str) -> Read:
    """Messages whose parts are attributes of their own, like ``name.0.content``; the role if none is said."""

    def read(reading: Reading, name: str) -> Any:
        found = values.numbered(reading.attributes, name) or []
        return messages.conversation(
            [{"role": role, **item} if isinstance(item, dict) else item for item in found]
        )

    return read


def total(reading: Reading, name: str) -> Any:
    """A number of tokens that does not tell input from output: all are input where nothing is written."""
    return count(reading, name) if reading.kind in ("embedding", "rerank") else None


def of_kind(kind: AiKind, read: Read) -> Read:
    """Read it only in spans of that kind."""
    return lambda reading, name: read(reading, name) if reading.kind == kind else None


def named_by_span(kind: AiKind, marker: str) -> Read:
    """The name of the span itself, in spans of that kind that have that attribute."""
    return lambda reading, _: reading.span.name or None if _is(reading, kind, marker) else None


def _is(reading: Reading, kind: AiKind, marker: str) -> bool:
    return reading.kind == kind and marker in reading.attributes


def _or(refused: Refused, convert: Callable[[Any], Any], said: Any) -> Any:
    if said is None:
        return None
    value = convert(said)
    return refused if value is None else value


def _since_start(reading: Reading, time: int | None) -> Any:
    if time is None:
        return None
    return time - reading.span.start if time >= reading.span.start else NOT_A_TIME
