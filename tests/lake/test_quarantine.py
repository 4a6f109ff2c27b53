"""Quarantine: what could not be read becomes spans after a fix, once, wherever a process was killed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame

from tests.lake.span_events import a_span, archive, body_of
from toril.cli.main import cli
from toril.cli.show import errors
from toril.errors import InvalidValue
from toril.events import Upcasters
from toril.lake import quarantine
from toril.lake.engine import SPANS_TYPED
from toril.lake.errors import LakeError
from toril.lake.lake import Lake, Record
from toril.lake.quarantine import requeue, waiting
from toril.lake.replay import typing_for
from toril.lake.rollups import RollupsStep, rollups_of
from toril.lake.spans import SpansStep
from toril.lake.subjects import TRACE_SUMMARY
from toril.lake.tables import QUARANTINE, ROLLUPS, SPANS, Table
from toril.pipelines.spans.recording import SPAN_RECORDED


@pytest.fixture
def fixed() -> Upcasters:
    """What the program learned meanwhile: events of schema version 2, and how those of 1 become such."""
    made = Upcasters()
    made.register(SPAN_RECORDED, 1, 2, dict)
    return made


class Interrupting(Lake):
    """A lake where another process is always first, once: it adds a batch before ours is written."""

    others: list[Any]

    def append(self, rows: DataFrame, table: Table, record: Record) -> None:
        if table is SPANS and self.others:
            self.others.pop()()
        super().append(rows, table, record)


def test_once_per_span_when_requeue_is_cut_off_and_others_write(
    lake: Lake, fixed: Upcasters, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = [body_of(a_span(number), schema_version=2) for number in (4, 5, 6)]
    archive(lake, [a_span(1), *newer, b"nonsense"])
    to_spans, to_rollups = SpansStep(), RollupsStep()
    for step in (to_spans, to_rollups):
        step.prepare(lake)
        step.once(lake)
    archive(lake, [a_span(7), a_span(8)])

    tried = requeue(lake, upcasters=fixed, dry_run=True)
    assert (tried.tried, tried.read, tried.reasons) == (4, 3, {"body: it must be JSON in UTF-8": 1})
    assert requeue(lake, reason="body").read == 0  # not fixed, and now it was tried twice
    assert lake.last(SPANS).batch == 1

    # Another process adds the second batch of events to spans just before, and then ours is killed.
    interrupting = Interrupting(lake.spark, lake.path)
    interrupting.others = [lambda: to_spans.once(lake)]
    with monkeypatch.context() as killed:
        killed.setattr(quarantine, "_mark", _killed)
        with pytest.raises(KeyboardInterrupt):
            requeue(interrupting, reason="schema_version", upcasters=fixed)
    assert not interrupting.others
    assert [lake.last(SPANS).batch, lake.last(SPANS).source] == [3, 2]
    assert waiting(lake).count() == 4

    again = requeue(lake, upcasters=fixed)
    assert (again.tried, again.read, again.refused) == (4, 3, 1)
    assert lake.last(SPANS).batch == 3
    assert requeue(lake, reason="schema_version", upcasters=fixed).tried == 0

    spans = lake.read(SPANS).orderBy("ordinal").select("ordinal", "batch").collect()
    assert [tuple(row) for row in spans] == [(1, 1), (2, 3), (3, 3), (4, 3), (6, 2), (7, 2)]
    rows = lake.read(QUARANTINE).orderBy("ordinal").collect()
    assert [(row["ordinal"], row["attempts"], row["requeued_at"] is None) for row in rows] == [
        (2, 2, False),
        (3, 2, False),
        (4, 2, False),
        (5, 3, True),
    ]
    assert rows[0]["reason"] == "schema_version: it is newer than this program knows"

    # By upcasters, too; but what was in quarantine is known from there.
    assert lake.last(SPANS).upcast is False
    assert typing_for(lake, TRACE_SUMMARY) is SPANS_TYPED

    # The tables after it find them as one more batch; and the next events go on as ever.
    assert to_rollups.once(lake) is not None
    archive(lake, [a_span(9)])
    assert SpansStep(fixed).once(lake) is not None
    assert to_rollups.once(lake) is not None
    there = lake.read(ROLLUPS).drop("batch").orderBy("tenant", "model", "grain", "start").collect()
    assert there == rollups_of(lake.read(SPANS)).orderBy("tenant", "model", "grain", "start").collect()
    assert sum(row["spans"] for row in there if row["grain"] == "day") == 7


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_some_of_what_waits_can_be_chosen(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    SpansStep().prepare(lake)
    archive(lake, [b"nonsense", body_of(a_span(1), schema_version=2), body_of(a_span(2, kind=7))])
    SpansStep().once(lake)
    assert [row["ordinal"] for row in waiting(lake, event_type="").collect()] == [1]
    assert waiting(lake, event_type=SPAN_RECORDED, tenant="acme").count() == 2
    assert [row["ordinal"] for row in waiting(lake, reason="data.kind").collect()] == [3]
    assert waiting(lake, tenant="other").count() == 0

    at = ["lake", "requeue", "--lake", lake.path]
    said = CliRunner().invoke(cli, [*at, "--dry-run", "--json"], catch_exceptions=False)
    reasons = {
        "body: it must be JSON in UTF-8": 1,
        "data.kind: 0 to 5": 1,
        "schema_version: it is newer than this program knows": 1,
    }
    made = {"tried": 3, "read": 0, "refused": 3, "reasons": reasons, "dry_run": True}
    assert msgspec.json.decode(said.stdout.splitlines()[-1]) == made
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(errors, "is_interactive", True)  # it was made without a terminal
    told = CliRunner().invoke(cli, [*at, "--tenant", "other"], catch_exceptions=False)
    assert "Nothing of that kind is in quarantine." in told.stdout
    assert "reading" in told.stderr
    refused = CliRunner().invoke(cli, ["lake", "requeue", "--lake", f"{lake.path}/none"])
    assert isinstance(refused.exception, LakeError)
    assert "there is no table quarantine" in str(refused.exception)

    with pytest.raises(InvalidValue, match="reason"):
        waiting(lake, reason=" ")
    with pytest.raises(InvalidValue, match="tenant"):
        waiting(lake, tenant="a:b")
