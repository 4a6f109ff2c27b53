"""Texts and places in statements of Spark's.

Before it reads a statement or an expression, Spark replaces ``${name}`` in it, wherever that stands: by a
setting, a variable of the environment, or nothing.
"""

from __future__ import annotations

from toril.errors import InvalidValue


def quoted(text: str) -> str:
    """A text as SQL writes it: all of it, whatever is in it."""
    plain = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + "".join(f"\\u{ord(one):04x}" if one < " " or one == "$" else one for one in plain) + "'"


def table_at(place: str) -> str:
    """What SQL calls the table at a place."""
    if "${" in place:  # names have no escapes
        raise InvalidValue("place of a table", place, "it has no '${': Spark would put something else there")
    return f"delta.`{place.replace('`', '``')}`"
