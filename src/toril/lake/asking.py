"""A process that asks ClickHouse, inside of itself, about tables of a lake, and ends.

It is started by :mod:`toril.lake.serving` with a question on its standard input, as JSON. A process may have
one such engine, and this one reads files only below the folder it stands in: so it is a process of its own,
which stands in the root.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """The answer: what ClickHouse says in JSON, or what is wrong."""
    from chdb import session

    open_engine: Any = session.Session
    engine = open_engine(":memory:")
    try:
        for statement in question["before"]:
            engine.query(statement)
        said = engine.query(question["statement"], "JSONCompact").bytes()
        return {"answer": json.loads(said) if said else None}
    except Exception as problem:  # noqa: BLE001 - whatever it is, it is the answer
        return {"problem": str(problem)}
    finally:
        engine.close()


if __name__ == "__main__":
    json.dump(answer(json.load(sys.stdin)), sys.stdout)
