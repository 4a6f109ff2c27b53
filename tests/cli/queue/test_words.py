"""What ``toril queue`` reads and prints, without a server: options, times, JSON, tables."""

from __future__ import annotations

import re

import click
import pytest

from tests.cli.queue.jobs import HOUR
from tests.test_cli import run
from toril.cli.queue import queue as group
from toril.cli.queue.add import read_json
from toril.cli.show import Column, _fit, safe
from toril.cli.times import ago, local, parse_duration, span
from toril.errors import InvalidValue


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("clean", "q", "--state", "failed", "--older-than", "5"), "like 90s, 15m, 2h or 7d"),
        (("clean", "q", "--state", "failed", "--older-than", "5 weeks"), "like 90s, 15m, 2h or 7d"),
        (("clean", "q", "--state", "failed", "--older-than", "99999999d"), "at most 36500d"),
        (("clean", "q", "--state", "lost", "--older-than", "5m"), "one of active, waiting"),
        (("jobs", "q", "--state", "lost"), "one of active, waiting"),
        (("jobs", "q", "--limit", "0"), "a whole number from 1 to 10,000"),
        (("ls", "--limit", "many"), "a whole number from 1 to 10,000"),
        (("delay", "q", "1", "soon"), "a number alone is milliseconds"),
        (("add", "q", "n", "--delay", "-5"), "a number alone is milliseconds"),
        (("priority", "q", "1", "2097153"), "a whole number from 0 to 2,097,152"),
        (("show", "q", "--url", "redis://localhost:1"), "cannot be reached"),
        (("show", "q", "--url", "ftp://x"), "the scheme must be one of"),
    ],
)
def test_errors_are_one_line_that_names_the_rule(args: tuple[str, ...], problem: str) -> None:
    done = run("queue", *args)
    assert done.returncode == 1
    assert problem in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_every_command_has_help_and_the_shared_options() -> None:
    assert "obliterate" in run("queue", "--help").stdout
    assert len(group.commands) == 16
    for name, command in group.commands.items():
        told = command.get_help(click.Context(command))
        for option in ("--url", "--prefix", "--json"):
            assert option in told, f"{name} has no {option}"


@pytest.mark.parametrize(
    ("raw", "where"),
    [
        ('{"a": NaN}', "column 7: NaN is not JSON"),
        ('{"NaN": -Infinity}', "column 9: -Infinity is not JSON"),
        ("[1,\n 1e999]", "line 2, column 2: 1e999 is too large"),
        ("", "column 1"),
        ("{'a': 1}", "column 2"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_json_that_is_none_says_where(raw: str, where: str) -> None:
    with pytest.raises(InvalidValue, match=re.escape(where)):
        read_json(raw)


def test_times_read_and_written() -> None:
    assert [parse_duration("t", text) for text in ("90s", "15m", "2h", "7d", "5ms")] == [
        *(90_000, 900_000, 2 * HOUR, 168 * HOUR, 5)
    ]
    assert parse_duration("t", "250", plain=True) == 250
    assert [span(ms) for ms in (5, 1500, 119_000, 121_000, 3 * HOUR, 72 * HOUR)] == [
        *("5 ms", "2 s", "119 s", "2 min", "3 h", "3 d")
    ]
    assert (ago(1000, 61_000), ago(61_000, 1000), ago(5, 6)) == ("60 s ago", "in 60 s", "now")
    assert local(10**17) == "beyond the calendar"


def test_a_table_gives_up_columns_before_it_cuts_what_matters() -> None:
    columns = [Column("name", least=10), Column("count", right=True), Column("more", leave=1)]
    assert _fit(columns, [20, 5, 20], 100) == ({0: 20, 1: 5, 2: 20}, [])
    assert _fit(columns, [20, 5, 20], 45) == ({0: 12, 1: 5, 2: 20}, [])
    assert _fit(columns, [20, 5, 20], 40) == ({0: 20, 1: 5}, ["more"])
    assert _fit(columns, [20, 5, 20], 20) == ({0: 9, 1: 5}, ["more"])


def test_data_cannot_steer_the_terminal() -> None:
    assert safe("a\x1b[2Jb\x07\u202e\x9b\tc\n") == "a\\x1b[2Jb\\x07\\u202e\\x9b\tc\n"
