"""The expressions of a declared projection as expressions of Spark, by the same rules.

:mod:`toril.events.expressions` and :mod:`toril.events.computed` have the rules. What Spark cannot compute
exactly as they say is :class:`NotNative`, and what an event could make an error of is noted in ``wrong``:
whoever has such an event is folded by the class itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import ceil, floor, isfinite
from typing import Any

from toril.lake.engine import sql
from toril.lake.engine.errors import NotNative
from toril.lake.engine.typing import Typed, Typing
from toril.lake.quoting import quoted

Described = dict[str, Any]
"""An expression, as ``describe()`` shows it."""

_LET = re.compile(r"\b_(\d+)_\d+\b")
_CONDITIONS = {"comparison", "exists", "all", "any", "not"}

SMALLEST, LARGEST = -(2**63), 2**63 - 1
"""What a bigint holds."""


class Lifting:
    """Expressions over the columns of one table. What is used often becomes a column of its own first."""

    def __init__(self, typing: Typing) -> None:
        self.typing = typing
        self.wrong: list[str] = []
        """What is true of a row that may be an error live."""
        self.lets: list[dict[str, str]] = []
        """Columns that are made first, each from those before it. By their expression, their name."""

    def let(self, expression: str) -> str:
        """A column for an expression, made after those that it is made of."""
        level = min(1 + max(map(int, _LET.findall(expression)), default=-1), len(self.lets))
        if level == len(self.lets):
            self.lets.append({})
        names = self.lets[level]
        return names.setdefault(expression, f"_{level}_{len(names)}")

    # ------------------------------------------------------------------ values

    def value(self, described: Described) -> Typed:
        """A value; null where it is missing."""
        if described["expression"] in _CONDITIONS:
            return Typed("bool", self.condition(described))
        make: Callable[[Described], Typed] | None = getattr(self, f"_{described['expression']}", None)
        if make is None:
            raise NotNative(f"there is no native {described['expression']}")
        return make(described)

    def _path(self, described: Described) -> Typed:
        found = self.typing.resolve(tuple(described["names"]))
        return found if found.sql.startswith("`") else Typed(found.kind, self.let(found.sql))

    def _literal(self, described: Described) -> Typed:
        value = described["value"]
        if isinstance(value, bool):
            return Typed("bool", "true" if value else "false")
        if isinstance(value, str):
            return Typed("str", quoted(value))
        if isinstance(value, int) and SMALLEST <= value <= LARGEST:
            return Typed("int", f"CAST('{value}' AS BIGINT)")
        raise NotNative(f"the literal {value!r:.50} has no native form")

    def _difference(self, described: Described) -> Typed:
        left, right = self.value(described["left"]), self.value(described["right"])
        both = f"{left.sql} IS NOT NULL AND {right.sql} IS NOT NULL"
        if "json" in (left.kind, right.kind):
            raise NotNative("a difference of JSON values")
        if (left.kind, right.kind) != ("int", "int"):
            self.wrong.append(both)
            return Typed("int", "CAST(NULL AS BIGINT)")
        made = f"try_subtract({left.sql}, {right.sql})"
        self.wrong.append(f"{both} AND {made} IS NULL")
        return Typed("int", made)

    def _first_of(self, described: Described) -> Typed:
        values = [self.value(one) for one in described["values"]]
        if len({value.kind for value in values}) > 1:
            raise NotNative("the first of values of different kinds")
        return Typed(values[0].kind, f"coalesce({', '.join(value.sql for value in values)})")

    def _text(self, described: Described) -> Typed:
        return Typed("str", self.text(described["value"], described["most"]))

    def _size(self, described: Described) -> Typed:
        whole = self.let(self._whole_text(described["value"]))
        return Typed("int", self.let(f"CAST(octet_length({whole}) AS BIGINT)"))

    def text(self, described: Described, most: int | None) -> str:
        """The text of a value, cut."""
        return self.let(sql.cut(self.let(self._whole_text(described)), most))

    def _whole_text(self, described: Described) -> str:
        if described["expression"] == "first_of":  # the text of the first is the first of the texts
            return f"coalesce({', '.join(map(self._whole_text, described['values']))})"
        value = self.value(described)
        if value.kind == "float":
            raise NotNative("the text of a fraction")
        return sql.as_text(value)

    def members(self, described: Described) -> tuple[list[Typed], list[Typed]]:
        """Several values at once: those that are single, and those that are lists. Their texts are cut."""
        values = [self.value(one) for one in described["values"]]
        if any(value.kind == "json" for value in values):
            raise NotNative("members of a JSON value")
        most = described["most"]
        single, lists = [], []
        for value in values:
            if value.kind == "list":
                members = f"transform({value.sql}, m -> {sql.cut('m', most)})" if most else value.sql
                lists.append(Typed("list", self.let(members)))
            else:
                cut = self.let(sql.cut(value.sql, most)) if value.kind == "str" else value.sql
                single.append(Typed(value.kind, cut))
        return single, lists

    # ------------------------------------------------------------------ conditions

    def condition(self, described: Described) -> str:
        """A condition: true or false, and never null."""
        name = described["expression"]
        if name == "all" or name == "any":
            word, empty = (" AND ", "true") if name == "all" else (" OR ", "false")
            return f"({word.join(map(self.condition, described['conditions'])) or empty})"
        if name == "not":
            return f"(NOT {self.condition(described['condition'])})"
        if name == "exists":
            value = described["value"]
            if value["expression"] == "first_of":
                return f"({' OR '.join(self.condition({**described, 'value': v}) for v in value['values'])})"
            if value["expression"] == "text" or value["expression"] == "size":
                return self.condition({**described, "value": value["value"]})
            if value["expression"] == "members":
                return "true"
            return f"({self.value(value).sql} IS NOT NULL)"
        if name == "comparison":
            return self._comparison(described)
        raise NotNative(f"there is no native {name}")

    def _comparison(self, described: Described) -> str:
        operator, left, right = described["operator"], described["left"], described["right"]
        if left["expression"] == "literal" and right["expression"] != "literal":
            operator, left, right = _TURNED.get(operator, operator), right, left
        if "members" in (left["expression"], right["expression"]):
            raise NotNative("a comparison of several values at once")
        one = self.value(left)
        if right["expression"] == "literal" and one.kind == "int":
            return _with_number(operator, one.sql, right["value"])
        return compared(operator, one, self.value(right))


_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def compared(operator: str, one: Typed, other: Typed) -> str:
    """Two values compared: false where one is missing, and of different kinds only ``!=`` is true."""
    kinds = {one.kind, other.kind}
    there = f"{one.sql} IS NOT NULL AND {other.sql} IS NOT NULL"
    unlike = f"({there})" if operator == "!=" else "false"
    if "list" in kinds:
        return unlike
    if kinds == {"json"} or ("json" in kinds and kinds & {"int", "float"}):
        raise NotNative("a comparison of a JSON value with one that may be a number")
    if "json" in kinds:
        plain, kind = _of_kind(one, other.kind), other.kind
        if one.kind != "json":
            other, plain = Typed(kind, _of_kind(other, one.kind)), one.sql
        same = f"coalesce({plain} {_sql(operator)} {other.sql}, false)"
        if operator != "!=":
            return same
        # A value of another kind has no plain form, and differs.
        return f"({there} AND coalesce({plain} <> {other.sql}, true))"
    if len(kinds) == 1:
        return f"coalesce({one.sql} {_sql(operator)} {other.sql}, false)"
    if kinds == {"int", "float"}:
        raise NotNative("a comparison of whole numbers with fractions")
    return unlike


def _of_kind(value: Typed, kind: str) -> str:
    """What a JSON value is, if it is of a kind; else null."""
    if kind == "bool":
        return f"(CASE {value.sql} WHEN 'true' THEN true WHEN 'false' THEN false END)"
    return f"(CASE WHEN startswith({value.sql}, '\"') THEN {sql.json_text(value.sql)} END)"


def _with_number(operator: str, column: str, literal: Any) -> str:
    """A whole number compared with a literal: exactly, also with fractions and with what is too large."""
    there = f"({column} IS NOT NULL)"
    if isinstance(literal, bool) or not isinstance(literal, int | float):
        return there if operator == "!=" else "false"
    if not isfinite(literal):
        raise NotNative(f"a comparison with {literal}")
    if literal != floor(literal):
        if operator in ("==", "!="):
            return there if operator == "!=" else "false"
        operator, literal = ("<=", floor(literal)) if operator in ("<", "<=") else (">=", ceil(literal))
    number = int(literal)
    if SMALLEST <= number <= LARGEST:
        return f"coalesce({column} {_sql(operator)} CAST('{number}' AS BIGINT), false)"
    is_less = number > LARGEST
    return there if operator == "!=" or operator in (("<", "<=") if is_less else (">", ">=")) else "false"


def _sql(operator: str) -> str:
    return {"==": "=", "!=": "<>"}.get(operator, operator)
