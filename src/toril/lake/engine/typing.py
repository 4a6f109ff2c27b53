"""Where a table has what the paths of a projection lead to: paths into an event, as typed columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from toril.lake.engine.errors import NotNative
from toril.lake.quoting import quoted
from toril.pipelines.spans.recording import SPAN_RECORDED
from toril.pipelines.spans.summary import SPAN_AGGREGATE

Kind = Literal["int", "float", "str", "bool", "json", "list"]
"""What a column holds: ``json`` is canonical JSON text of any value, ``list`` a list of texts."""


class Typed(NamedTuple):
    """A value as Spark computes it: null where it is missing."""

    kind: Kind
    sql: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Typing:
    """What the rows of a table are, as events: each row is an event of one type.

    ``columns`` are paths and the columns that hold them; ``objects`` are paths to objects, and the columns
    that hold their entries as a map from names to canonical JSON texts.
    """

    table: str
    """What the table is called."""
    event_type: str
    aggregate_type: str
    aggregate_id: str
    """The column with the aggregate's id."""
    columns: Mapping[str, Typed]
    objects: Mapping[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[str, str]:
        """The columns that say whose event a row is."""
        return ("tenant", self.aggregate_id)

    def resolve(self, names: tuple[str, ...]) -> Typed:
        """The column of a path; :class:`NotNative` where there is none."""
        whole = ".".join(names)
        if (found := self.columns.get(whole)) is not None and len(names) == whole.count(".") + 1:
            return found
        for place, column in self.objects.items():
            if tuple(place.split(".")) == names[:-1]:
                return Typed("json", f"nullif(try_element_at({column}, {quoted(names[-1])}), 'null')")
        raise NotNative(f"no column holds {whole}")

    def entries(self, names: tuple[str, ...]) -> str:
        """The map of the entries of an object."""
        if (found := self.objects.get(".".join(names))) is not None:
            return found
        raise NotNative(f"no column holds the entries of {'.'.join(names)}")


def _span_columns() -> dict[str, Typed]:
    """A span's event as the columns of the table ``spans``.

    What a span leaves out where it has nothing to say is empty there, and missing in the event; where the
    event has it all the same, ``said_empty`` names it.
    """
    made = {
        "id": Typed("str", "event_id"),
        "aggregate_type": Typed("str", quoted(SPAN_AGGREGATE)),
        "aggregate_id": Typed("str", "trace_id"),
        "version": Typed("int", "version"),
        "type": Typed("str", quoted(SPAN_RECORDED)),
        "occurred_at": Typed("int", "occurred_at"),
        "recorded_at": Typed("int", "recorded_at"),
    }
    kinds: dict[Kind, str] = {
        "str": "trace_id span_id parent_span_id name",
        "int": "kind start end status",
    }
    for kind, names in kinds.items():
        made |= {f"data.{name}": Typed(kind, f"`{name}`") for name in names.split()}
    made["data.kind"] = Typed("int", "CAST(`kind` AS BIGINT)")
    made["data.status"] = Typed("int", "CAST(`status` AS BIGINT)")
    left_out: dict[str, tuple[Kind, str]] = {
        "status_message": ("str", "status_message"),
        "scope.name": ("str", "scope_name"),
        "scope.version": ("str", "scope_version"),
        "ai.labels": ("list", "labels"),
        "rules": ("list", "rules"),
    }
    for name, (kind, column) in left_out.items():
        there = f"`{column}` <> ''" if kind == "str" else f"size(`{column}`) > 0"
        said = f"array_contains(`said_empty`, '{name}')"
        made[f"data.{name}"] = Typed(kind, f"CASE WHEN {there} OR {said} THEN `{column}` END")
    of_ai: dict[Kind, str] = {
        "str": "operation provider request_model response_model tool agent conversation user customer "
        "cost_from",
        "int": "input_tokens output_tokens cache_read_tokens cache_write_tokens reasoning_tokens first_token "
        "last_token cost",
        "bool": "tokens_estimated",
        "json": "input output",
    }
    for kind, names in of_ai.items():
        made |= {f"data.ai.{name}": Typed(kind, f"`{name}`") for name in names.split()}
    made["data.ai.kind"] = Typed("str", "`ai_kind`")
    return made


SPANS_TYPED = Typing(
    table="spans",
    event_type=SPAN_RECORDED,
    aggregate_type=SPAN_AGGREGATE,
    aggregate_id="trace_id",
    columns=_span_columns(),
    objects={"data.attributes": "`attributes`", "data.resource.attributes": "`resource`"},
)
"""The table ``spans``: each row is a span that was recorded."""
