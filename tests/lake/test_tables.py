"""The tables of a lake: every column has a comment, and stands on the page about them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from toril.errors import InvalidValue
from toril.lake.erasures import ERASURES
from toril.lake.generations import FOLDER, Plan, table_of
from toril.lake.quoting import table_at
from toril.lake.rewind import LOST
from toril.lake.runs import RUNS
from toril.lake.subjects import Code
from toril.lake.summaries import TRACE_SUMMARIES
from toril.lake.tables import EVENTS, NAMES, QUARANTINE, ROLLUPS, SPANS, Table

PAGE = Path(__file__).parents[2] / "docs" / "lake-tables.md"


TABLES = [EVENTS, SPANS, QUARANTINE, TRACE_SUMMARIES, ROLLUPS, RUNS, ERASURES, LOST]


def test_each_has_a_place_that_is_kept_for_it() -> None:
    assert sorted(table.name for table in TABLES) == sorted(NAMES)


PLAN = Plan(projection="orders/total", number=2, cut={}, engine="fold", code=Code())
GENERATION = replace(table_of(PLAN), name=FOLDER)


@pytest.mark.parametrize("table", [*TABLES, GENERATION], ids=lambda table: table.name)
def test_the_page_has_every_column_of(table: Table) -> None:
    section = PAGE.read_text().split(f"## `{table.name}`\n")[1].split("\n## ")[0]
    shown = [line for line in section.splitlines() if line.startswith("| `")]
    assert len(shown) == len(table.columns)
    for column, line in zip(table.columns, shown, strict=True):
        kind = column.type.lower().replace(", ", ",")
        kind = "struct" if kind.startswith("struct") else kind
        assert column.comment
        assert line == f"| `{column.name}` | `{kind}` | {column.comment} |"


def test_a_place_that_spark_would_change_is_refused() -> None:
    assert table_at("/data/it`s $5/{x}/events") == "delta.`/data/it``s $5/{x}/events`"
    with pytest.raises(
        InvalidValue, match=r"place of a table '/data/\$\{x\}/events' is not valid: it has no"
    ):
        table_at("/data/${x}/events")
