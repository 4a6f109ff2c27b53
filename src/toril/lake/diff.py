"""Two generations of a projection, field by field; or one of them against the live states.

Differences are counted by kind and field, with a few samples of each, and each kind has a reason. States
are equal where their bytes are: a field that is the same to the byte is not decoded, and values are compared
as JSON has them, to which 1, 1.0 and true are three.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql.functions import col

from toril.errors import InvalidValue
from toril.lake.generations import ALL_OF_IT, Generation, Plan, read
from toril.lake.lake import Lake
from toril.lake.subjects import Code

SAMPLES = 5
"""Samples kept of each kind of difference in each field."""

LONGEST = 200
"""Characters of a value in a sample."""

CLOSE = 1e-9
"""Two floats that differ by less than this part of them differ by rounding."""

SAME_CODE = (
    "the same code and events, and yet another value: a projection or an upcaster that is not pure, or a "
    "damaged state"
)

KEY = ("tenant", "aggregate_type", "aggregate_id")


class Sample(NamedTuple):
    """One aggregate in which a difference was found."""

    tenant: str
    aggregate_type: str
    aggregate_id: str
    one: str
    other: str


@dataclass(slots=True)
class Difference:
    """A kind of difference in one field, or in none of them."""

    kind: str
    field: str = ""
    count: int = 0
    samples: list[Sample] = dataclasses.field(default_factory=list)
    reason: str = ""

    def as_value(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "kind": self.kind,
            "field": self.field or None,
            "count": self.count,
            "reason": self.reason,
            "samples": [one._asdict() for one in self.samples],
        }


@dataclass(frozen=True, slots=True)
class Side:
    """What is compared: its name for people, and what is known of how it was made."""

    name: str
    code: Code
    cut: Mapping[str, tuple[int, str]] | None = None
    """None: it is live, and goes on."""
    filters: str = str(ALL_OF_IT)

    @classmethod
    def of(cls, plan: Plan) -> Side:
        """A generation."""
        return cls(f"generation {plan.number}", plan.code, plan.cut, str(plan.filters))


@dataclass(frozen=True, slots=True)
class Diff:
    """What was compared, and what was found."""

    one: Side
    other: Side
    compared: int
    """Aggregates that are in one of them or in both."""
    equal: int
    differences: list[Difference]
    not_read: int = 0
    """Aggregates that were not compared: live has not read so far."""
    waiting: int = 0
    """The same: an event of them waits live, to be tried again, for a person, or for a paused tenant."""

    def __bool__(self) -> bool:
        return bool(self.differences)

    @property
    def proves_nothing(self) -> bool:
        """Whether there was something to compare, and none of it could be."""
        return not self.compared and bool(self.not_read or self.waiting)

    def as_value(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "one": self.one.name,
            "other": self.other.name,
            "compared": self.compared,
            "equal": self.equal,
            "not_read": self.not_read,
            "waiting": self.waiting,
            "differences": [difference.as_value() for difference in self.differences],
        }


def diff(lake: Lake, one: Generation, other: Generation, *, samples: int = SAMPLES) -> Diff:
    """Compare two generations of a projection."""
    if one.plan.projection != other.plan.projection:
        raise InvalidValue("generation", other.plan.projection, f"it must be one of {one.plan.projection}")
    return diff_of(
        read(lake, one), read(lake, other), Side.of(one.plan), Side.of(other.plan), samples=samples
    )


def diff_of(
    one: DataFrame, other: DataFrame, side: Side, other_side: Side, *, samples: int = SAMPLES
) -> Diff:
    """Compare the rows of two generations, however they came about."""
    columns = Held._fields
    left = one.select(*KEY, *(col(name).alias(f"one_{name}") for name in columns))
    right = other.select(*KEY, *(col(name).alias(f"other_{name}") for name in columns))
    joined = left.join(right, list(KEY), "full_outer")
    same = " AND ".join(f"one_{name} <=> other_{name}" for name in ("version", "state", "failed_version"))
    marked = joined.selectExpr(*KEY, f"({same}) AS same", *_unless(same, columns))
    found: dict[tuple[str, str], Difference] = {}
    compared = equal = 0
    tasks = _Counting(samples, forms_of(side.code), forms_of(other_side.code))
    for row in marked.mapInArrow(tasks, _COUNTED).collect():
        if row["kind"] == _SEEN:
            compared += row["count"]
        elif row["kind"] == _EQUAL:
            equal += row["count"]
        else:
            _add(found, row["kind"], row["field"], row["count"], map(_sample, row["samples"]), samples)
    return finished(side, other_side, compared, equal, found.values())


def _unless(same: str, columns: Iterable[str]) -> Iterator[str]:
    """What is equal need not travel to Python."""
    for side in ("one", "other"):
        yield f"{side}_version"
        for name in columns:
            if name != "version":
                yield f"IF({same}, NULL, {side}_{name}) AS {side}_{name}"


# ---------------------------------------------------------------------------- one aggregate

ONLY_ONE, ONLY_OTHER = "only in one", "only in other"
VERSION = "other version"
FAILED = "failed"
UNREADABLE = "unreadable"
MISSING = "field missing"
KIND = "other kind"
ROUNDING = "rounding"
ORIGIN = "other event"
VALUE = "other value"
WRITTEN = "other bytes"


class Held(NamedTuple):
    """What one side has of an aggregate."""

    version: int
    state: bytes | None
    failed_version: int | None = None
    failed: str | None = None


class Found(NamedTuple):
    """A difference in one aggregate."""

    kind: str
    field: str
    one: str
    other: str


Forms = Mapping[str, str]
"""By field, what kind of field it is, where it is declared."""


def forms_of(code: Code) -> Forms:
    """The kinds of the fields of a declared projection."""
    return {name: said["field"] for name, said in code.fields.items() if "field" in said}


def differences(
    one: Held | None, other: Held | None, one_forms: Forms, other_forms: Forms
) -> Iterator[Found]:
    """What is different between the two."""
    if one is None or other is None:
        there = one or other
        assert there is not None
        said = f"version {there.version}"
        yield Found(ONLY_ONE, "", said, "") if other is None else Found(ONLY_OTHER, "", "", said)
    elif one.failed_version != other.failed_version:
        yield Found(FAILED, "", _failure(one), _failure(other))
    elif one.version != other.version:
        yield Found(VERSION, "", f"version {one.version}", f"version {other.version}")
    elif one.state != other.state:
        left, right = _fields(one.state), _fields(other.state)
        if left is None or right is None:
            yield Found(UNREADABLE, "", _shown(one.state), _shown(other.state))
            return
        found = False
        for name in sorted(left.keys() | right.keys()):
            a, b = left.get(name), right.get(name)
            if a is None or b is None:
                found = True
                yield Found(MISSING, name, _shown(a), _shown(b))
            elif a != b and (its := _in_field(name, a, b, one_forms.get(name), other_forms.get(name))):
                found = True
                yield its
        if not found:
            yield Found(WRITTEN, "", _shown(one.state), _shown(other.state))


def _failure(held: Held) -> str:
    if held.failed_version is None:
        return f"version {held.version}"
    return f"version {held.failed_version} failed: {held.failed or ''}"[:LONGEST]


class _Stored(msgspec.Struct):
    state: msgspec.Raw
    projection: msgspec.Raw = msgspec.Raw(b"null")
    version: msgspec.Raw = msgspec.Raw(b"null")


_stored = msgspec.json.Decoder(_Stored).decode
_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_value = msgspec.json.Decoder().decode
_canonical = msgspec.json.Encoder(order="deterministic").encode


def _fields(state: bytes | None) -> dict[str, bytes] | None:
    """The fields of a stored state, as JSON; a state that has none is one itself. None: it cannot be read."""
    try:
        said = _stored(state or b"")
        inside = bytes(said.state)
        made = _parts(inside) if inside.startswith(b"{") else {"state": inside}
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    header = b"[%s,%s]" % (bytes(said.projection), bytes(said.version))
    return {**{name: bytes(raw) for name, raw in made.items()}, "projection and version": header}


def _in_field(name: str, one: bytes, other: bytes, form: str | None, other_form: str | None) -> Found | None:
    """How two values of a field differ, as JSON; None where they are the same in other words."""
    try:
        left, right = _value(one), _value(other)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Found(UNREADABLE, name, _shown(one), _shown(other))
    if _canonical(left) == _canonical(right):
        return None
    a, b = _as_shown(left, form), _as_shown(right, other_form)
    kind = ORIGIN if _canonical(a) == _canonical(b) else _kind(a, b)
    return Found(kind, name, _shown(_canonical(a)), _shown(_canonical(b)))


def _as_shown(stored: Any, form: str | None) -> Any:
    """What a field shows, of what it stores: a choice keeps its order and its event beside the value."""
    if form in ("first_by", "last_by") and isinstance(stored, list) and len(stored) == 3:
        return stored[2]
    if form == "first_per_key" and isinstance(stored, list):
        return {key: text for _, _, texts in stored for key, text in texts.items()}
    return stored


def _kind(one: Any, other: Any) -> str:
    if isinstance(one, float) and isinstance(other, float):
        return ROUNDING if math.isclose(one, other, rel_tol=CLOSE) else VALUE
    if one is None or other is None or type(one) is type(other):
        return VALUE
    return KIND


def _shown(raw: bytes | None) -> str:
    if raw is None:
        return "not there"
    text = raw.decode(errors="replace")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


# ---------------------------------------------------------------------------- all of them

_SEEN, _EQUAL = "#seen", "#equal"

_SAMPLE = "struct<" + ",".join(f"{name}:string" for name in Sample._fields) + ">"
_COUNTED = f"kind string, field string, count bigint, samples array<{_SAMPLE}>"


class _Counting:
    """What each task does: counts by kind and field, and a few samples, however many rows it sees."""

    def __init__(self, samples: int, one_forms: Forms, other_forms: Forms) -> None:
        self._samples = samples
        self._forms = (dict(one_forms), dict(other_forms))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found: dict[tuple[str, str], Difference] = {}
        compared = equal = 0
        for batch in batches:
            compared += batch.num_rows
            for row in batch.to_pylist():
                if row["same"]:
                    equal += 1
                    continue
                tenant, kind, ident = (row[name] for name in KEY)
                for one in differences(_held(row, "one"), _held(row, "other"), *self._forms):
                    sample = Sample(tenant, kind, ident, one.one, one.other)
                    _add(found, one.kind, one.field, 1, [sample], self._samples)
        rows = [
            {"kind": _SEEN, "field": "", "count": compared, "samples": []},
            {"kind": _EQUAL, "field": "", "count": equal, "samples": []},
        ]
        for difference in found.values():
            samples = [one._asdict() for one in difference.samples]
            rows.append({**difference.as_value(), "field": difference.field, "samples": samples})
        of_samples = pa.list_(pa.struct([(name, pa.string()) for name in Sample._fields]))
        schema = pa.schema(
            [("kind", pa.string()), ("field", pa.string()), ("count", pa.int64()), ("samples", of_samples)]
        )
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _held(row: Mapping[str, Any], side: str) -> Held | None:
    if row[f"{side}_version"] is None:
        return None
    return Held(*(row[f"{side}_{name}"] for name in Held._fields))


def _sample(row: Any) -> Sample:
    return Sample(*(row[name] for name in Sample._fields))


def _add(
    found: dict[tuple[str, str], Difference],
    kind: str,
    name: str,
    count: int,
    samples: Iterable[Sample],
    most: int,
) -> None:
    its = found.setdefault((kind, name), Difference(kind, name))
    its.count += count
    # The smallest ones, so that the same are shown whoever found them first.
    its.samples = heapq.nsmallest(most, {*its.samples, *samples})


class Tally:
    """Counts differences that are found one aggregate after the other."""

    def __init__(self, side: Side, other: Side, samples: int = SAMPLES) -> None:
        self._sides = (side, other)
        self._forms = (forms_of(side.code), forms_of(other.code))
        self._samples = samples
        self._found: dict[tuple[str, str], Difference] = {}
        self.compared = self._equal = 0

    def compare(self, key: tuple[str, str, str], one: Held | None, other: Held | None) -> None:
        """One aggregate more."""
        self.compared += 1
        equal = True
        for found in differences(one, other, *self._forms):
            equal = False
            sample = Sample(*key, found.one, found.other)
            _add(self._found, found.kind, found.field, 1, [sample], self._samples)
        self._equal += equal

    def finished(self) -> Diff:
        """What was found."""
        return finished(*self._sides, self.compared, self._equal, self._found.values())


def finished(one: Side, other: Side, compared: int, equal: int, found: Iterable[Difference]) -> Diff:
    """The differences with their reasons, the most frequent first."""
    chosen = sorted(found, key=lambda its: (-its.count, its.kind, its.field))
    for its in chosen:
        its.reason = reason(its, one, other)
    return Diff(one, other, compared, equal, chosen)


# ---------------------------------------------------------------------------- why


def reason(found: Difference, one: Side, other: Side) -> str:
    """Why there is a difference of this kind, as far as that can be said."""
    if found.kind in (ONLY_ONE, ONLY_OTHER):
        lacks = other if found.kind == ONLY_ONE else one
        if one.filters == other.filters and lacks.cut is None:
            return f"{lacks.name} has no state of them: they were erased, or its processor began after them"
        if one.filters == other.filters and other.cut is None:
            return (
                f"{lacks.name} has none of their events, though they are from before its cut: the lake does "
                "not go back to them, or has lost them: `toril lake audit` says which"
            )
        if why := _scope(one, other):
            return f"{lacks.name} has no events of them: {why}"
        return f"{lacks.name} has none of their events, though it was made up to the same cut"
    if found.kind == VERSION:
        return _scope(one, other) or "made up to the same cut, and yet not of the same events: look at audit"
    if found.kind == FAILED:
        return "an event that the projection takes in the one and not in the other" + _code(one, other)
    if found.kind == UNREADABLE:
        return "a state that is no JSON of a projection: it was not written by Toril, or is damaged"
    if found.kind == WRITTEN:
        return "the same values in other bytes: one of the states was not written by Toril's encoder"
    if found.kind == MISSING:
        return f"only one of them has the field{_code(one, other)}"
    if found.kind == ROUNDING:
        return "floats that differ by rounding: their sum depends on the order in which they are added"
    declared = _declared(found.field, one.code, other.code)
    if declared:
        return declared
    if found.kind == ORIGIN:
        return "the same value, of another event" + _code(one, other)
    if found.kind == KIND:
        return "a value of another kind" + _code(one, other)
    return "other code: " + _codes(one, other) if _differs(one, other) else SAME_CODE


def _scope(one: Side, other: Side) -> str:
    """Whether they are of other events by intention."""
    if one.filters != other.filters:
        return f"{one.name} is of {one.filters}, {other.name} of {other.filters}"
    if one.cut is None or other.cut is None:
        return (
            "live has passed events that are not in its state, or the lake lacks events that are: "
            "`toril lake audit` looks for those"
        )
    later = [
        name
        for name in one.cut.keys() | other.cut.keys()
        if tuple(one.cut.get(name, (0, ""))) != tuple(other.cut.get(name, (0, "")))
    ]
    if later:
        of = f"{len(later)} of {len(one.cut.keys() | other.cut.keys())} partitions"
        return f"they were made up to different cuts (in {of})"
    return ""


def _differs(one: Side, other: Side) -> bool:
    return one.code.digest != other.code.digest


def _code(one: Side, other: Side) -> str:
    return f" (other code: {_codes(one, other)})" if _differs(one, other) else ""


def _codes(one: Side, other: Side) -> str:
    return f"{one.name} by {one.code}, {other.name} by {other.code}"


def _declared(name: str, one: Code, other: Code) -> str:
    """How the declarations of a field differ, in words; empty where they do not."""
    left, right = one.fields.get(name), other.fields.get(name)
    if left is None or right is None or left == right:
        return ""
    changed = [key for key in sorted(left.keys() | right.keys()) if left.get(key) != right.get(key)]
    parts = [f"{key} {_words(left.get(key))} → {_words(right.get(key))}" for key in changed]
    return f"the field is declared otherwise: {'; '.join(parts)}"


def _words(said: Any) -> str:
    """An expression as one would write it, where that is short; else as data."""
    if isinstance(said, dict) and said.get("expression") == "path":
        return ".".join(map(str, said["names"]))
    if isinstance(said, dict) and "expression" in said:
        inside = ", ".join(_words(value) for key, value in said.items() if key != "expression")
        text = f"{said['expression']}({inside})"
    elif isinstance(said, list):
        text = f"[{', '.join(map(_words, said))}]"
    else:
        text = "nothing" if said is None else str(said)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
