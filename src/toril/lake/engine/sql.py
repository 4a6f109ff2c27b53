"""The rules of values as Spark's expressions: texts, JSON, cuts and quotients, exact as they are live."""

from __future__ import annotations

from toril.lake.engine.typing import Typed
from toril.lake.quoting import quoted

EXACT = "DECIMAL(38, 0)"
"""Whole numbers larger than 64 bits. What is larger still is an error."""

_CONTROLS = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r"}
_BACKSLASH = quoted("\\")


def cut(sql: str, most: int | None) -> str:
    """A text in at most so many bytes of UTF-8, up to a whole character."""
    if most is None:
        return sql
    raw = f"CAST({sql} AS BINARY)"

    def inside(byte: int) -> str:
        return f"substring({raw}, {byte}, 1) BETWEEN X'80' AND X'BF'"

    def upto(byte: int) -> str:
        return f"CAST(substring({raw}, 1, {byte}) AS STRING)"

    # A character has four bytes at most: one of these is where one begins.
    cuts = [f"WHEN NOT ({inside(most + 1 - back)}) THEN {upto(most - back)}" for back in range(min(3, most))]
    return (
        f"CASE WHEN octet_length({sql}) <= {most} THEN {sql} {' '.join(cuts)} "
        f"ELSE {upto(max(most - 3, 0))} END"
    )


def json_text(sql: str) -> str:
    """The text of a value that is JSON: a text itself, anything else as its JSON."""
    return (
        f"CASE WHEN {sql} IS NULL OR NOT startswith({sql}, '\"') THEN {sql} "
        f"WHEN instr({sql}, {_BACKSLASH}) = 0 THEN substring({sql}, 2, length({sql}) - 2) "
        f"ELSE coalesce(get_json_object(concat('[', {sql}, ']'), '$[0]'), "
        f"raise_error('a text in a JSON column cannot be read')) END"
    )


def as_json(value: Typed) -> str:
    """A value as canonical JSON."""
    if value.kind == "json":
        return value.sql
    if value.kind == "str":
        return f"concat('\"', {_escaped(value.sql)}, '\"')"
    if value.kind == "list":
        members = f"array_join(transform({value.sql}, m -> {_escaped('m')}), '\",\"')"
        return (
            f"CASE WHEN size({value.sql}) = 0 THEN '[]' "
            f"WHEN {value.sql} IS NOT NULL THEN concat('[\"', {members}, '\"]') END"
        )
    return f"CAST({value.sql} AS STRING)"


def as_text(value: Typed) -> str:
    """A value as text: a text itself, anything else as its JSON."""
    if value.kind == "str":
        return value.sql
    return json_text(value.sql) if value.kind == "json" else as_json(value)


def _escaped(sql: str) -> str:
    made = f"replace(replace({sql}, {_BACKSLASH}, {quoted(chr(92) * 2)}), '\"', {quoted(chr(92) + chr(34))})"
    for code in range(32):
        written = f"\\{_CONTROLS[code]}" if code in _CONTROLS else f"\\u{code:04x}"
        made = f"replace({made}, chr({code}), {quoted(written)})" if code else made
    made = f"replace({made}, {quoted(chr(0))}, {quoted(chr(92) + 'u0000')})"
    special = quoted('[\\x00-\\x1f"\\\\]')
    return f"CASE WHEN {sql} RLIKE {special} THEN {made} ELSE {sql} END"


def quotient(left: str, right: str, times: int) -> str:
    """``left`` · ``times`` / ``right`` to the nearest, a half upwards: (2·l·t + r) // (2·r), exactly."""
    given = f"array(named_struct('l', CAST({left} AS {EXACT}), 'r', CAST({right} AS {EXACT})))"
    left, right = "q.l", "q.r"
    sum_of = f"2BD * {left} * CAST('{times}' AS {EXACT}) + {right}"
    above = f"CAST(CASE WHEN {right} < 0 THEN -({sum_of}) ELSE {sum_of} END AS {EXACT})"
    below = f"CAST(2BD * abs({right}) AS {EXACT})"
    # What is left over is taken away first: then the division comes out even, whatever its precision.
    whole = f"CAST(({above} - pmod({above}, {below})) / {below} AS {EXACT})"
    made = f"CASE WHEN {right} <> 0 AND {left} IS NOT NULL THEN {checked(whole, 'a quotient')} END"
    return f"transform({given}, q -> {made})[0]"  # so that what is given stands there once


def difference(left: str, right: str) -> str:
    """One exact number less another."""
    return f"CAST(CAST({left} AS {EXACT}) - CAST({right} AS {EXACT}) AS {EXACT})"


def checked(sql: str, what: str) -> str:
    """A number that is there; an error where it is too large."""
    return f"coalesce({sql}, raise_error('{what} has more than 38 digits'))"
