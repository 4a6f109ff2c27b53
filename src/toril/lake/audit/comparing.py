"""Two tables that should say the same: which rows and columns differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr
from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

from toril.lake.audit.found import SAMPLES, Check


def compare(
    check: Check,
    have: DataFrame,
    want: DataFrame,
    keys: Sequence[str],
    only_have: tuple[str, str] | None,
    only_want: tuple[str, str] | None,
    kind: str,
    reason: str,
) -> int:
    """Note in which rows and columns two tables differ; how many rows were compared. None: not noted."""
    names = [name for name in want.columns if name not in keys]
    both = _texts(have, keys, "have").join(_texts(want, keys, "want"), list(keys), "full_outer").cache()
    try:
        differs = {name: f"NOT (have.`{name}` <=> want.`{name}`)" for name in names}
        present = "have IS NOT NULL AND want IS NOT NULL"
        (row,) = both.agg(
            expr("count(1) AS rows"),
            expr("count_if(want IS NULL) AS only_have"),
            expr("count_if(have IS NULL) AS only_want"),
            *(expr(f"count_if({present} AND {how}) AS `field {name}`") for name, how in differs.items()),
        ).collect()
        for said, side, condition in (
            (only_have, "only_have", "want IS NULL"),
            (only_want, "only_want", "have IS NULL"),
        ):
            if said is not None:
                check.add(
                    said[0],
                    row[side],
                    said[1],
                    some(both.where(condition).select(*keys)) if row[side] else (),
                )
        for name, how in differs.items():
            if count := row[f"field {name}"]:
                chosen = both.where(f"{present} AND {how}").select(
                    *keys, expr(f"have.`{name}` AS is"), expr(f"want.`{name}` AS should_be")
                )
                check.add(kind.format(name), count, reason, some(chosen))
        compared: int = row["rows"]
        return compared
    finally:
        both.unpersist()


def _texts(rows: DataFrame, keys: Sequence[str], name: str) -> DataFrame:
    """Keys, and all other columns as text that is the same for the same value."""
    made = []
    for each in rows.schema:
        if each.name in keys:
            continue
        quoted = f"`{each.name}`"
        if isinstance(each.dataType, MapType):
            text = f"to_json(array_sort(map_entries({quoted})))"
        elif isinstance(each.dataType, (ArrayType, StructType)):
            text = f"to_json({quoted})"
        elif isinstance(each.dataType, BinaryType):
            # Bytes that are no text are compared all the same.
            text = f"coalesce(try_validate_utf8(CAST({quoted} AS STRING)), hex({quoted}))"
        else:
            text = f"CAST({quoted} AS STRING)"
        made.append(f"'{each.name}', {text}")
    return rows.select(*keys, expr(f"named_struct({', '.join(made)}) AS {name}"))


def note_kinds(
    check: Check, rows: DataFrame, kinds: Iterable[tuple[str, str, str]], *others: str, shown: Sequence[str]
) -> list[int]:
    """Note how many rows are of each kind, and some of them: kinds are name, condition and reason.

    Returns of how many rows each of the ``others`` is true. All are counted at once.
    """
    known = list(kinds)
    asked = [*(condition for _, condition, _ in known), *others]
    (found,) = rows.agg(*(expr(f"count_if({one}) AS `{place}`") for place, one in enumerate(asked))).collect()
    for (kind, condition, reason), count in zip(known, found, strict=False):
        if count:
            check.add(kind, count, reason, some(rows.where(condition).select(*shown)))
    return list(found[len(known) :])


def some(rows: DataFrame) -> list[dict[str, Any]]:
    """A few of the rows, as samples."""
    return [row.asDict(recursive=True) for row in rows.limit(SAMPLES).collect()]
