"""Declared projections by Spark's own expressions, over the typed columns of a table.

Each field is three things: what rows accumulate (:meth:`Native.gather`), how what parts have accumulated
becomes one (:meth:`Native.merge`, of many rows, and :meth:`Native.join`, of two columns), and what is shown
of it (:meth:`Native.show`). What is accumulated is what the live state accumulates, to the byte:
:func:`encoded` makes the live form of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from inspect import getattr_static
from itertools import groupby, islice
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from toril.events.declared import DeclaredProjection
from toril.events.projection import wrap_state
from toril.lake.engine import sql
from toril.lake.engine.errors import NotNative
from toril.lake.engine.expressions import Described, Lifting
from toril.lake.engine.fields import NativeField, native_field
from toril.lake.engine.typing import Typing
from toril.lake.errors import NotWhole

Declared = type[DeclaredProjection]

IS_WHOLE = "first_version = 1 AND events = version AND versions = version * (version + 1) DIV 2"
"""What is true where the rows of an aggregate are of versions 1, 2, 3 …, none missing and none twice.

Where one is missing and another is twice, only the sum tells.
"""

_METHODS = ("__init__", "initial", "apply", "merge", "encode", "decode", "describe")
"""What a declaration stands for. A class that has one of them otherwise is more than it declares."""


class Native:
    """A declared projection, compiled for the rows of one table."""

    def __init__(self, projection: Declared, typing: Typing) -> None:
        for method in _METHODS:
            if getattr_static(projection, method) is not vars(DeclaredProjection)[method]:
                raise NotNative(f"its {method} is its own")
        described = projection.describe()
        self.projection = projection
        self.typing = typing
        self._lifting = lifting = Lifting(typing)
        types = described["event_types"]
        looked_at = [field["event_types"] or types for field in described["fields"]]
        if any(one is None or set(one) - {typing.event_type} for one in looked_at):
            raise NotNative(f"it takes other events than {typing.event_type}")
        self.fields: list[NativeField] = []
        for field in described["fields"]:
            if not field["compilable"]:
                raise NotNative(f"{field['name']} has Python in it")
            try:
                self.fields.append(native_field(lifting, field))
            except NotNative as problem:
                raise NotNative(f"{field['name']}: {problem}") from None
        # Spark's names have no case, and those of the keys are taken. No field's name begins like these.
        self.columns = {field.name: f"`_{place}_{field.name}`" for place, field in enumerate(self.fields)}
        """By field, the column with what it accumulates."""
        self.derived = {one["name"]: one for one in described["derived"]}

    @property
    def wrong(self) -> str:
        """What is true of a row that may be an error live; empty where no row can be one."""
        return " OR ".join(f"({one})" for one in dict.fromkeys(self._lifting.wrong))

    # ------------------------------------------------------------------ the three things

    def gather(self, rows: DataFrame) -> DataFrame:
        """What the rows of each aggregate accumulate: its key, ``version``, and :attr:`columns`.

        ``version`` is the last of those that are among the rows, ``first_version`` the first, ``versions``
        their sum, and ``events`` how many there are; see :data:`IS_WHOLE`.
        """
        raw: dict[str, str] = {}
        for field in self.fields:  # fields that gather the same do it once
            for one in field.gather:
                raw.setdefault(one, f"_{len(raw)}")
        made = (
            self._with_lets(rows)
            .groupBy(*self._grouped_by)
            .agg(
                *map(expr, ("max(version) AS version", "count(1) AS events")),
                *map(expr, ("min(version) AS first_version", "sum(version) AS versions")),
                *(expr(f"{one} AS {name}") for one, name in raw.items()),
            )
        )
        return made.selectExpr(
            *self._about,
            *(
                f"{field.gathered.format(*(raw[one] for one in field.gather))} AS {self.columns[field.name]}"
                for field in self.fields
            ),
        )

    def merge(self, parts: DataFrame) -> DataFrame:
        """What all parts of each aggregate have accumulated."""
        columns = list(zip(self.fields, self.columns.values(), strict=True))
        made = parts.groupBy(*self._grouped_by).agg(
            *map(expr, ("max(version) AS version", "sum(events) AS events")),
            *map(expr, ("min(first_version) AS first_version", "sum(versions) AS versions")),
            *(expr(f"{field.merge.format(column)} AS {column}") for field, column in columns),
        )
        return made.selectExpr(
            *self._about, *(f"{field.merged.format(column)} AS {column}" for field, column in columns)
        )

    @property
    def _grouped_by(self) -> tuple[str, ...]:
        # Rows are sorted by them, and mostly by the first eight bytes: of ids these tell rows apart.
        return (self.typing.aggregate_id, "tenant")

    @property
    def _about(self) -> tuple[str, ...]:
        return (*self.typing.keys, "version", "events", "first_version", "versions")

    def join(self, one: str, other: str) -> dict[str, str]:
        """By field, what two structs of :attr:`columns` have accumulated together."""
        pairs = zip(self.fields, self.columns.values(), strict=True)
        return {field.name: field.join.format(f"{one}.{at}", f"{other}.{at}") for field, at in pairs}

    def show(self, prefix: str = "") -> dict[str, str]:
        """By name, what is shown of columns with what was accumulated; derived values too."""
        return self.show_of({name: f"{prefix}{column}" for name, column in self.columns.items()})

    def show_of(self, accumulated: Mapping[str, str]) -> dict[str, str]:
        """By name, what is shown of what was accumulated, by field."""
        shown = {field.name: field.shown.format(accumulated[field.name]) for field in self.fields}
        types = {field.name: field.shown_type for field in self.fields}
        return shown | {name: _derived(one, shown, types)[0] for name, one in self.derived.items()}

    def shown_types(self) -> dict[str, str]:
        """By name, the types of what is shown."""
        types = {field.name: field.shown_type for field in self.fields}
        shown = {field.name: field.name for field in self.fields}
        return types | {name: _derived(one, shown, types)[1] for name, one in self.derived.items()}

    # ------------------------------------------------------------------ going on from what was shown

    def rest_type(self) -> str:
        """The type of a column that has what must be kept beside what is shown."""
        return f"STRUCT<{', '.join(f'`{f.name}`: {f.rest_type}' for f in self.fields if f.rest)}>"

    def rest(self, prefix: str = "") -> str:
        """What must be kept beside what is shown, of columns with what was accumulated."""
        return self.rest_of({name: f"{prefix}{column}" for name, column in self.columns.items()})

    def rest_of(self, accumulated: Mapping[str, str]) -> str:
        """What must be kept beside what is shown, of what was accumulated, by field."""
        parts = [f"'{f.name}', {f.rest.format(accumulated[f.name])}" for f in self.fields if f.rest]
        return f"named_struct({', '.join(parts)})"

    def restored(self, shown: str, rest: str) -> dict[str, str]:
        """By field, what was accumulated, of columns with what is shown, and the rest."""
        return {f.name: f.restored.format(f"{shown}`{f.name}`", f"{rest}.`{f.name}`") for f in self.fields}

    # ------------------------------------------------------------------ parts

    def _with_lets(self, rows: DataFrame) -> DataFrame:
        for level in self._lifting.lets:
            rows = rows.selectExpr("*", *(f"{made} AS {name}" for made, name in level.items()))
        return rows

    def wrong_rows(self, rows: DataFrame) -> DataFrame:
        """The rows that may be an error live."""
        return self._with_lets(rows).where(self.wrong or "false")


def compiled(projection: Declared, typing: Typing) -> Native:
    """A declared projection for the rows of a table; :class:`NotNative` where it cannot be."""
    return Native(projection, typing)


def _derived(described: Described, shown: dict[str, str], types: dict[str, str]) -> tuple[str, str]:
    """A derived value, and its type."""
    if not described["compilable"]:
        raise NotNative(f"{described['name']} is derived by Python")
    made, kind = _shown_value(described["value"], shown, types)
    wanted = {"int": (sql.EXACT, "BIGINT"), "str": ("STRING",), "bool": ("BOOLEAN",), "float": ("DOUBLE",)}
    if kind not in wanted.get(described["kind"], ()):
        raise NotNative(f"{described['name']}: a derived {described['kind']}, of {kind}")
    return made, kind


def _shown_value(described: Described, shown: dict[str, str], types: dict[str, str]) -> tuple[str, str]:
    """A value over the fields of a state, and its type."""
    what = described["expression"]
    if what == "path":
        if len(described["names"]) != 1:
            raise NotNative("a derived value of a part of a field")
        (name,) = described["names"]
        return shown[name], types[name]
    if what == "literal" and type(described["value"]) is int:
        return f"CAST('{described['value']}' AS {sql.EXACT})", sql.EXACT
    if what == "first_of":
        made = [_shown_value(one, shown, types) for one in described["values"]]
        if len({kind for _, kind in made}) > 1:
            raise NotNative("the first of values of different kinds")
        return f"coalesce({', '.join(one for one, _ in made)})", made[0][1]
    if what in ("difference", "quotient"):
        left, of_left = _shown_value(described["left"], shown, types)
        right, of_right = _shown_value(described["right"], shown, types)
        if {of_left, of_right} - {sql.EXACT, "BIGINT"}:
            raise NotNative(f"a {what} of what is no whole number")
        if what == "quotient":
            return sql.quotient(left, right, described["times"]), sql.EXACT
        if (of_left, of_right) == ("BIGINT", "BIGINT"):
            too_large = "raise_error('a difference has more than 64 bits')"
            there = f"({left}) IS NOT NULL AND ({right}) IS NOT NULL"
            made_here = f"coalesce(try_subtract({left}, {right}), {too_large})"
            return f"CASE WHEN {there} THEN {made_here} END", "BIGINT"
        return sql.difference(left, right), sql.EXACT
    raise NotNative(f"there is no native {what} of a state")


# ---------------------------------------------------------------------------- the live form


def encoded(native: Native, accumulated: DataFrame, *, whole: bool = False) -> DataFrame:
    """Of what aggregates have accumulated, their states as they are stored live.

    Columns: ``tenant``, ``aggregate_type``, ``aggregate_id``, ``version``, ``state``. ``whole``: an aggregate
    that has not accumulated its events from the first on, each once, is refused.
    """
    typing, projection = native.typing, native.projection
    described = projection.describe()["fields"]
    name, version, kind = projection.name, projection.version, typing.aggregate_type
    places = {one["name"]: isinstance(one.get("order_kind"), list) for one in described}
    fields = [(one["name"], one["field"], one.get("kind"), places[one["name"]]) for one in described]

    def encode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = [field for field, *_ in fields]
        for batch in batches:
            if whole:
                _refuse_parts(typing, batch)
            columns = [_stored(batch.column(3 + at), *how) for at, (_, *how) in enumerate(fields)]
            states = [
                wrap_state(name, version, dict(zip(names, row, strict=True)))
                for row in zip(*columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(
                [
                    batch.column("tenant"),
                    pa.array([kind] * batch.num_rows, pa.string()),
                    batch.column("aggregate_id"),
                    batch.column("version"),
                    pa.array(states, pa.binary()),
                ],
                names=list(STATE_COLUMNS),
            )

    keyed = accumulated.withColumnRenamed(typing.aggregate_id, "aggregate_id")
    asked = [f"{IS_WHOLE} AS is_whole"] if whole else []
    chosen = keyed.selectExpr("tenant", "aggregate_id", "version", *native.columns.values(), *asked)
    return chosen.mapInArrow(encode, STATES)


def _refuse_parts(typing: Typing, batch: pa.RecordBatch) -> None:
    """Aggregates of which a row is missing, or there twice."""
    at = pc.index(batch.column("is_whole"), False).as_py()
    if at >= 0:
        ident = batch.column("aggregate_id")[at].as_py()
        raise NotWhole(
            f"the versions that {typing.table} has of {typing.aggregate_type} {ident!r} are not 1, 2, 3 … "
            "once each: the lake does not go back to the first event, or rows were lost or written twice; "
            f"`toril lake audit` says which. If only {typing.table} is wrong, remove that table, and the "
            "next run makes it anew"
        )


STATE_COLUMNS = ("tenant", "aggregate_type", "aggregate_id", "version", "state")
STATES = "tenant string, aggregate_type string, aggregate_id string, version bigint, state binary"


def _stored(column: pa.Array, what: str, kind: str | None, several: bool) -> list[Any]:
    """What a field stores, of each value of its column. Structs are taken apart first: it is much quicker."""
    if what == "sum":
        try:
            return column.cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]
        except pa.ArrowInvalid:  # some have more than 64 bits
            return [None if one is None else int(one) for one in column.to_pylist()]
    if what in ("first_by", "last_by"):
        return list(_stored_by(column, kind == "json", several))
    if what == "first_per_key":
        return list(_stored_per_key(column, several))
    return column.to_pylist()  # type: ignore[no-any-return]


def _stored_by(column: pa.Array, is_json: bool, several: bool) -> Iterator[Any]:
    *places, idents, values = (part.to_pylist() for part in column.flatten())
    there = column.is_valid().to_pylist()
    if is_json:
        values = [value and msgspec.Raw(value.encode()) for value in values]
    ordered = zip(*places, strict=True) if several else places[0]
    for one in zip(there, ordered, idents, values, strict=True):
        yield one[1:] if one[0] else None


def _stored_per_key(column: pa.Array, several: bool) -> Iterator[Any]:
    keys, *places, idents, texts = (part.to_pylist() for part in column.flatten().flatten())
    ordered = zip(*places, strict=True) if several else places[0]
    entries = zip(ordered, idents, keys, texts, strict=True)
    for count in column.value_lengths().to_pylist():
        if count is None:
            yield None
            continue
        grouped = groupby(sorted(islice(entries, count)), lambda part: part[:2])
        yield [(*key, {name: text for _, _, name, text in group}) for key, group in grouped]
