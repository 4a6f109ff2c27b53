"""Texts in statements of Spark's."""

from __future__ import annotations


def quoted(text: str) -> str:
    """A text as SQL writes it."""
    plain = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + "".join(one if one >= " " else f"\\u{ord(one):04x}" for one in plain) + "'"
