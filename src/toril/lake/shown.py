"""What a declared projection shows, as a typed column beside the states: for people who ask tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

from toril.events.declared import DeclaredProjection
from toril.events.projection import AnyProjection
from toril.lake.tables import Column

_LARGEST, _DIGITS = 2**63 - 1, 10**38 - 1

COMMENT = "What the state shows. Null where it does not fit its column, or cannot be shown: the state has it."


class _Kind(NamedTuple):
    """How values of a kind are put into a column."""

    sql: str
    arrow: pa.DataType
    put: Callable[[Any], Any]


def _fits(value: Any) -> int | None:
    return value if type(value) is int and -_LARGEST - 1 <= value <= _LARGEST else None


def _exact(value: Any) -> Decimal | None:
    return Decimal(value) if type(value) is int and abs(value) <= _DIGITS else None


def _json(value: Any) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


def _same(value: Any) -> Any:
    return value


_WHOLE = _Kind("BIGINT", pa.int64(), _fits)
_EXACT = _Kind("DECIMAL(38,0)", pa.decimal128(38, 0), _exact)
_FLAG = _Kind("BOOLEAN", pa.bool_(), _same)
_TEXTS = _Kind("MAP<STRING,STRING>", pa.map_(pa.string(), pa.string()), lambda value: list(value.items()))
_JSON = _Kind("STRING", pa.string(), _json)
_KINDS = {
    "int": _WHOLE,
    "float": _Kind("DOUBLE", pa.float64(), float),
    "str": _Kind("STRING", pa.string(), _same),
    "bool": _FLAG,
}


def _kinds(projection: type[DeclaredProjection]) -> dict[str, _Kind]:
    """By name, what is shown."""
    said = projection.describe()
    made: dict[str, _Kind] = {}
    for field in said["fields"]:
        kind = _KINDS.get(field.get("kind"), _JSON)
        match field["field"]:
            case "count":
                kind = _WHOLE
            case "sum":
                kind = _EXACT
            case "flag":
                kind = _FLAG
            case "first_per_key":
                kind = _TEXTS
            case "set":
                kind = _several(kind)
        made[field["name"]] = kind
    made |= {one["name"]: _KINDS.get(one["kind"], _JSON) for one in said["derived"]}
    # Names in a table have no case: of two that differ by it alone, nobody could ask for one.
    same = Counter(name.lower() for name in made)
    return {name: kind for name, kind in made.items() if same[name.lower()] == 1}


def _several(kind: _Kind) -> _Kind:
    return _Kind(
        f"ARRAY<{kind.sql}>", pa.list_(kind.arrow), lambda values: [kind.put(one) for one in sorted(values)]
    )


def _declared(projection: AnyProjection) -> type[DeclaredProjection] | None:
    found = projection if isinstance(projection, type) else None
    return found if found is not None and issubclass(found, DeclaredProjection) and _kinds(found) else None


def shown_columns(projection: AnyProjection) -> tuple[Column, ...]:
    """The column with all that a projection shows; none where it is not declared."""
    declared = _declared(projection)
    if declared is None:
        return ()
    inside = ", ".join(f"`{name}`: {kind.sql}" for name, kind in _kinds(declared).items())
    return (Column("shown", f"STRUCT<{inside}>", COMMENT),)


def with_shown(states: DataFrame, projection: AnyProjection) -> DataFrame:
    """States as a generation has them, with the column ``shown`` where the projection is declared."""
    declared = _declared(projection)
    if declared is None:
        return states
    columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in states.schema)
    place = states.columns.index("state")

    def show(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kinds = _kinds(declared)
        struct = pa.struct([(name, kind.arrow) for name, kind in kinds.items()])
        for batch in batches:
            rows = [_shown(declared, kinds, state) for state in batch.column(place).to_pylist()]
            arrays = [*batch.columns, pa.array(rows, struct)]
            yield pa.RecordBatch.from_arrays(arrays, names=[*batch.schema.names, "shown"])

    (column,) = shown_columns(projection)
    return states.mapInArrow(show, f"{columns}, `shown` {column.type}")


def _shown(
    projection: type[DeclaredProjection], kinds: dict[str, _Kind], state: bytes | None
) -> dict[str, Any] | None:
    if state is None:
        return None
    made: dict[str, Any] = {}
    try:
        its = projection.decode(state)
        for name, kind in kinds.items():
            value = getattr(its, name)
            made[name] = None if value is None else kind.put(value)
    except Exception:  # noqa: BLE001 - a value that cannot be shown holds up no replay
        return None
    return made
