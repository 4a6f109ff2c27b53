"""The fields of a declared projection as aggregates of Spark: what each accumulates, and what it shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toril.lake.engine import sql
from toril.lake.engine.errors import NotNative
from toril.lake.engine.expressions import Described, Lifting
from toril.lake.engine.typing import Typed
from toril.lake.quoting import quoted

TYPES = {"int": "BIGINT", "float": "DOUBLE", "str": "STRING", "bool": "BOOLEAN", "json": "STRING"}
"""The column of each kind of value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeField:
    """One field as Spark computes it: templates of expressions."""

    name: str
    type: str
    """The type of what is accumulated; null is nothing."""
    gather: tuple[str, ...]
    """Aggregates of rows of the table."""
    merge: str
    """The aggregate of a column ``{0}`` with what parts have accumulated."""
    gathered: str = "{0}"
    """What is accumulated, of the aggregates of rows, ``{0}``, ``{1}`` …"""
    merged: str = "{0}"
    """What is accumulated, of the aggregate of parts, ``{0}``."""
    join: str
    """Of two columns ``{0}`` and ``{1}``, what both have: an expression."""
    shown_type: str
    shown: str
    """What is shown of ``{0}``."""
    rest: str = ""
    """What must be kept of ``{0}`` beside what is shown, to go on from it; nothing where that is enough."""
    rest_type: str = ""
    restored: str = "{0}"
    """From what is shown, ``{0}``, and the rest, ``{1}``, what was accumulated."""


def native_field(lifting: Lifting, described: Described) -> NativeField:
    """A field, compiled."""
    kind = described["field"]
    types = described["event_types"]
    if types is not None and lifting.typing.event_type not in types:
        where = "false"
    elif described["where"] is None:
        where = "true"
    else:
        where = lifting.condition(described["where"])
    before = len(lifting.wrong)
    made: NativeField = {
        "sum": _sum,
        "count": _count,
        "flag": _flag,
        "minimum": _extreme,
        "maximum": _extreme,
        "set": _set,
        "first_by": _by,
        "last_by": _by,
        "first_per_key": _per_key,
    }[kind](lifting, described, where)
    # Only of events that the field looks at anything can be wrong.
    lifting.wrong[before:] = [f"{where} AND {wrong}" for wrong in lifting.wrong[before:]]
    return made


# ---------------------------------------------------------------------------- numbers and flags


def _count(_: Lifting, described: Described, where: str) -> NativeField:
    return NativeField(
        name=described["name"],
        type="BIGINT",
        gather=(f"count({_if(where, '1')})",),
        gathered="nullif({0}, 0)",
        merge="sum({0})",
        join="coalesce({0} + {1}, {0}, {1})",
        shown_type="BIGINT",
        shown="coalesce({0}, 0)",
        restored="nullif({0}, 0)",
    )


def _flag(_: Lifting, described: Described, where: str) -> NativeField:
    return NativeField(
        name=described["name"],
        type="BOOLEAN",
        gather=(f"max({_if(where, 'true')})",),
        merge="max({0})",
        join="coalesce({0}, {1})",
        shown_type="BOOLEAN",
        shown="coalesce({0}, false)",
        restored="nullif({0}, false)",
    )


def _sum(lifting: Lifting, described: Described, where: str) -> NativeField:
    if described["value"]["expression"] == "members":
        single, lists = lifting.members(described["value"])
        values = [_checked(lifting, value, "int") for value in single]
        if lists:
            lifting.wrong += [f"size({value.sql}) > 0" for value in lists]
        if len(values) != 1:
            raise NotNative("a sum of several values of an event")
        value = values[0]
    else:
        value = _checked(lifting, lifting.value(described["value"]), "int")
    lifted = _if(where, value)
    # Two sums of halves are exact without numbers of more than 64 bits.
    high, low = f"sum(shiftright({lifted}, 32))", f"sum(({lifted}) & 4294967295)"
    plus = f"CAST({{0}} + {{1}} AS {sql.EXACT})"
    exactly = f"CAST(CAST({{0}} AS {sql.EXACT}) * 4294967296BD + {{1}} AS {sql.EXACT})"
    # Nearly always that fits into 64 bits, and is much quicker there.
    is_small = f"{{0}} BETWEEN -{2**30} AND {2**30} AND {{1}} < {2**62}"
    quickly = f"CAST(shiftleft({{0}}, 32) + {{1}} AS {sql.EXACT})"
    return _with_default(
        described,
        type=sql.EXACT,
        gather=(high, low),
        gathered=f"CASE WHEN {is_small} THEN {quickly} ELSE {exactly} END",
        merge=f"CASE WHEN count({{0}}) > 0 THEN {sql.checked('sum({0})', 'a sum')} END",
        join=f"CASE WHEN {{0}} IS NOT NULL AND {{1}} IS NOT NULL THEN {sql.checked(plus, 'a sum')} "
        "ELSE coalesce({0}, {1}) END",
        shown_type=sql.EXACT,
    )


def _extreme(lifting: Lifting, described: Described, where: str) -> NativeField:
    kind, smallest = described["kind"], described["field"] == "minimum"
    function, of_row = ("min", "least") if smallest else ("max", "greatest")
    if described["value"]["expression"] == "members":
        single, lists = lifting.members(described["value"])
        values = [_checked(lifting, value, kind) for value in single]
        values += [f"array_{function}({_members_of(lifting, value, kind)})" for value in lists]
        lifted = values[0] if len(values) == 1 else f"{of_row}({', '.join(values)})"
    else:
        lifted = _checked(lifting, lifting.value(described["value"]), kind)
    return _with_default(
        described,
        type=TYPES[kind],
        gather=(f"{function}({_if(where, lifted)})",),
        merge=f"{function}({{0}})",
        join=f"{of_row}({{0}}, {{1}})",
        shown_type=TYPES[kind],
    )


def _with_default(described: Described, **parts: Any) -> NativeField:
    """A field that shows something else where it has nothing."""
    name, default = described["name"], described["default"]
    if default is None:
        return NativeField(name=name, shown="{0}", **parts)
    shown = f"coalesce({{0}}, CAST({_braced(_literal(default))} AS {parts['shown_type']}))"
    return NativeField(
        name=name,
        shown=shown,
        rest="({0} IS NOT NULL)",
        rest_type="BOOLEAN",
        restored="CASE WHEN {1} THEN {0} END",
        **parts,
    )


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return quoted(value if isinstance(value, str) else repr(value))


# ---------------------------------------------------------------------------- sets


def _set(lifting: Lifting, described: Described, where: str) -> NativeField:
    kind, limit = described["kind"], described["limit"]
    if described["value"]["expression"] == "members":
        single, lists = lifting.members(described["value"])
        values = [_checked(lifting, value, kind) for value in single]
        parts = [f"array_compact(array({', '.join(values)}))"] if values else []
        parts += [f"coalesce({_members_of(lifting, value, kind)}, array())" for value in lists]
        several = parts[0] if len(parts) == 1 else f"concat({', '.join(parts)})"
        collected, gathered = f"collect_set({_if(where, several)})", "array_distinct(flatten({0}))"
    else:
        lifted = _checked(lifting, lifting.value(described["value"]), kind)
        collected = f"collect_set({_if(where, lifted)})"
        gathered = "array_distinct({0})" if kind == "float" else "{0}"  # of which 0.0 and -0.0 are one

    def limited(values: str) -> str:
        ordered = f"sort_array({values})"
        kept = ordered if limit is None else f"slice({ordered}, 1, {limit})"
        return f"CASE WHEN size({values}) > 0 THEN {kept} END"

    both = "array_union(coalesce({0}, array()), coalesce({1}, array()))"
    return NativeField(
        name=described["name"],
        type=f"ARRAY<{TYPES[kind]}>",
        gather=(collected,),
        gathered=limited(gathered),
        merge="collect_list({0})",
        merged=limited("array_distinct(flatten({0}))"),
        join=limited(both),
        shown_type=f"ARRAY<{TYPES[kind]}>",
        shown="coalesce({0}, array())",
        restored="CASE WHEN size({0}) > 0 THEN {0} END",
    )


# ---------------------------------------------------------------------------- orders


def _place(lifting: Lifting, described: Described) -> tuple[list[str], list[str]]:
    """The parts of an event's place in an order, and their types."""
    parts, kinds = described["order"], described["order_kind"]
    if not isinstance(kinds, list):
        parts, kinds = [parts], [kinds]
    made = []
    for part, kind in zip(parts, kinds, strict=True):
        if part["expression"] == "members":
            raise NotNative("an order of several values at once")
        made.append(_checked(lifting, lifting.value(part), kind))
    return made, [TYPES[kind] for kind in kinds]


def _by(lifting: Lifting, described: Described, where: str) -> NativeField:
    value = lifting.value(described["value"])
    kind = described["kind"]
    if kind == "json":
        if value.kind == "float":
            raise NotNative("a fraction as JSON")
        lifted = lifting.let(sql.as_json(value))
    else:
        lifted = _checked(lifting, value, kind)
    places, types = _place(lifting, described)
    there = [f"{one} IS NOT NULL" for one in (lifted, *places)]
    parts = [f"'p{number}', {place}" for number, place in enumerate(places)]
    lifted = f"named_struct({', '.join(parts)}, 'id', {_event_id(lifting)}, 'value', {lifted})"
    function, of_two = ("min", "least") if described["field"] == "first_by" else ("max", "greatest")
    fields = [f"p{number}: {one}" for number, one in enumerate(types)]
    places_again = ", ".join(f"'p{number}', {{1}}.p{number}" for number in range(len(types)))
    default = described["default"]
    if default is not None and kind == "json":
        raise NotNative("a default that is JSON")
    shown = "{0}.value"
    if default is not None:
        shown = f"coalesce({shown}, CAST({_braced(_literal(default))} AS {TYPES[kind]}))"
    kept = ", ".join(f"'p{number}', e.p{number}" for number in range(len(types)))
    return NativeField(
        name=described["name"],
        type=f"STRUCT<{', '.join(fields)}, id: STRING, value: {TYPES[kind]}>",
        gather=(f"{function}({_if(_and(where, *there), lifted)})",),
        merge=f"{function}({{0}})",
        join=f"{of_two}({{0}}, {{1}})",
        shown_type=TYPES[kind],
        shown=shown,
        rest=f"transform(array({{0}}), e -> CASE WHEN e IS NOT NULL "
        f"THEN named_struct({kept}, 'id', e.id) END)[0]",
        rest_type=f"STRUCT<{', '.join(fields)}, id: STRING>",
        restored="CASE WHEN {1} IS NOT NULL THEN "
        f"named_struct({places_again}, 'id', {{1}}.id, 'value', {{0}}) END",
    )


def _per_key(lifting: Lifting, described: Described, where: str) -> NativeField:
    """Texts by key. Named keys are each a first of their own; only those by prefix are collected."""
    limit, most = described["limit"], described["most"]
    places, types = _place(lifting, described)
    there = [f"{place} IS NOT NULL" for place in places]
    parts = "".join(f"'p{number}', {place}, " for number, place in enumerate(places))
    ident = _event_id(lifting)
    fields = "".join(f"p{number}: {one}, " for number, one in enumerate(types))
    entry_type = f"STRUCT<key: STRING, {fields}id: STRING, text: STRING>"

    singles, lists = [], []
    for key, source in described["named"].items():
        text = lifting.text(source, most)
        value = f"named_struct({parts}'id', {ident}, 'value', {text})"
        singles.append((key, f"min({_if(_and(where, f'{text} IS NOT NULL', *there), value)})"))
    named = ", ".join(map(quoted, described["named"]))
    sources = list(described["prefixes"].items())
    for number, (prefix, source) in enumerate(sources):
        for other, other_source in sources[:number]:
            if source != other_source and (prefix.startswith(other) or other.startswith(prefix)):
                raise NotNative("prefixes of two objects that may share a key")
        if source["expression"] != "path":
            raise NotNative("entries by prefix of what is no path")
        entries = lifting.typing.entries(tuple(source["names"]))
        fits = f"startswith(k, {quoted(prefix)}) AND octet_length(k) <= {described['longest_key']}"
        fits += f" AND v <> 'null' AND v IS NOT NULL{f' AND k NOT IN ({named})' if named else ''}"
        found = lifting.let(f"map_filter({entries}, (k, v) -> {fits})")
        text = sql.cut(sql.json_text("e.value"), most)
        entry = f"named_struct('key', e.key, {parts}'id', {ident}, 'text', {text})"
        made = f"transform(map_entries({found}), e -> {entry})"
        of_event = _if(_and(where, *there, f"size({found}) > 0"), f"slice(sort_array({made}), 1, {limit})")
        lists.append(f"collect_list({of_event})")
    arrays = [f"flatten({{{len(singles) + number}}})" for number in range(len(lists))]
    if singles:
        named_ones = [
            f"CASE WHEN {{{number}}} IS NOT NULL THEN "
            f"named_struct('key', {_braced(quoted(key))}, "
            + "".join(f"'p{part}', {{{number}}}.p{part}, " for part in range(len(types)))
            + f"'id', {{{number}}}.id, 'text', {{{number}}}.value) END"
            for number, (key, _) in enumerate(singles)
        ]
        arrays.insert(0, f"array_compact(array({', '.join(named_ones)}))")
    whole = arrays[0] if len(arrays) == 1 else f"concat({', '.join(arrays)})"

    def first_of_each(entries: str) -> str:
        # In order of key and place, the first of each key is the one that counts.
        is_first = "i = 0 OR element_at(a, i).key <> e.key"
        kept = f"slice(filter(a, (e, i) -> {is_first}), 1, {limit})"
        return f"transform(array(sort_array({entries})), a -> CASE WHEN size(a) > 0 THEN {kept} END)[0]"

    kept = ", ".join(f"'p{number}', e.p{number}" for number in range(len(types)))
    again = ", ".join(f"'p{number}', e.p{number}" for number in range(len(types)))
    rest_type = f"ARRAY<STRUCT<key: STRING, {fields}id: STRING>>"
    return NativeField(
        name=described["name"],
        type=f"ARRAY<{entry_type}>",
        gather=(*(one for _, one in singles), *lists),
        gathered=first_of_each(whole),
        merge="collect_list({0})",
        merged=first_of_each("flatten({0})"),
        join=first_of_each("concat(coalesce({0}, array()), coalesce({1}, array()))"),
        shown_type="MAP<STRING, STRING>",
        shown="coalesce(map_from_entries(transform({0}, e -> struct(e.key, e.text))), "
        "CAST(map() AS MAP<STRING, STRING>))",
        rest=f"transform({{0}}, e -> named_struct('key', e.key, {kept}, 'id', e.id))",
        rest_type=rest_type,
        restored=f"transform({{1}}, e -> named_struct('key', e.key, {again}, 'id', e.id, "
        "'text', element_at({0}, e.key)))",
    )


# ---------------------------------------------------------------------------- parts


def _event_id(lifting: Lifting) -> str:
    return lifting.value({"expression": "path", "names": ["id"]}).sql


def _checked(lifting: Lifting, value: Typed, kind: str) -> str:
    """A value as one of a kind; one of another kind is an error live, and null here."""
    if value.kind == kind and kind != "json":
        return value.sql
    if kind == "float" and value.kind == "int":
        return f"(CAST({value.sql} AS DOUBLE) + 0.0D)"
    if value.kind == "json":
        if kind == "str":
            lifting.wrong.append(f"{value.sql} IS NOT NULL AND NOT startswith({value.sql}, '\"')")
            return f"CASE WHEN startswith({value.sql}, '\"') THEN {sql.json_text(value.sql)} END"
        if kind == "bool":
            lifting.wrong.append(f"{value.sql} IS NOT NULL AND {value.sql} NOT IN ('true', 'false')")
            return f"(CASE {value.sql} WHEN 'true' THEN true WHEN 'false' THEN false END)"
        raise NotNative("a number out of a JSON value")
    lifting.wrong.append(f"{value.sql} IS NOT NULL")
    return f"CAST(NULL AS {TYPES[kind]})"


def _members_of(lifting: Lifting, value: Typed, kind: str) -> str:
    """The members of a list of texts, as values of a kind."""
    if kind == "str":
        return value.sql
    lifting.wrong.append(f"size({value.sql}) > 0")
    return f"CAST(array() AS ARRAY<{TYPES[kind]}>)"


def _if(where: str, value: str) -> str:
    return value if where == "true" else f"CASE WHEN {where} THEN {value} END"


def _braced(text: str) -> str:
    """A text as part of a template."""
    return text.replace("{", "{{").replace("}", "}}")


def _and(*conditions: str) -> str:
    return " AND ".join(one for one in conditions if one != "true") or "true"
