"""The schema, step by step: each file is applied once, in the order of its number.

A file that was released is never changed. Statements end with ``;`` at the end of a line, must be safe to
repeat, and say ``{database}`` where the database's name belongs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from toril.events.errors import StoreError

TABLE = "schema_migrations"

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    number: int
    name: str
    text: str

    def statements(self, database: str) -> list[str]:
        """What is to be run, one after the other."""
        plain = re.sub(r"^--.*\n", "", self.text, flags=re.MULTILINE).replace("{database}", database)
        return [
            statement.strip() for statement in re.split(r";$", plain, flags=re.MULTILINE) if statement.strip()
        ]


@cache
def known() -> tuple[Migration, ...]:
    """The steps that this program knows, from the first."""
    found = [
        Migration(int(named[1]), named[2], file.read_text(encoding="utf-8"))
        for file in files(__name__).iterdir()
        if (named := _FILE.fullmatch(file.name))
    ]
    return tuple(sorted(found, key=lambda migration: migration.number))


def migrate(client: Any, database: str, steps: tuple[Migration, ...] | None = None) -> None:
    """Bring the database to what this program knows; refuse one that is further.

    No lock is needed between processes that start at once: they run the same statements, each of which
    changes nothing where another was first, and a step counts as applied when all of its statements were run.
    """
    steps = known() if steps is None else steps
    if not client.query(
        "SELECT 1 FROM system.databases WHERE name = {name:String}", {"name": database}
    ).row_count:
        client.command(f"CREATE DATABASE IF NOT EXISTS {database}")
    client.command(
        f"CREATE TABLE IF NOT EXISTS {database}.{TABLE} (Number UInt32, Name String,"
        " AppliedAt DateTime64(3, 'UTC') DEFAULT now64(3)) ENGINE = ReplacingMergeTree ORDER BY Number"
    )
    last = f"SELECT max(Number) FROM {database}.{TABLE}"  # noqa: S608 - the name was checked
    applied = client.query(last).result_rows[0][0]
    newest = steps[-1].number
    if applied > newest:
        raise StoreError(
            f"the ClickHouse database {database} has schema {applied}, and this program knows {newest}: "
            "use a newer version of the program",
            retryable=False,
        )
    for step in steps[applied:]:
        for statement in step.statements(database):
            client.command(statement)
        client.command(f"INSERT INTO {database}.{TABLE} (Number, Name) SELECT {step.number}, '{step.name}'")
