"""What all commands of ``toril log`` have in common."""

from __future__ import annotations

import re

import click
import pytest

from tests.cli.log.events import fill, register
from tests.cli.shell import Shell, on_terminal, widest
from tests.test_cli import run
from toril import Connection
from toril.cli.log import log as group
from toril.log import Log, Retention


@pytest.mark.parametrize("server", ["valkey-standalone"], indirect=True)
async def test_tables_fit_the_terminal(shell: Shell, log: Log) -> None:
    await fill(log, 40)
    await register(log, "a-reader-with-quite-a-long-name-that-needs-room")
    await log.choose_retention(Retention.archived_by("a-reader-with-quite-a-long-name-that-needs-room"))
    await log.resize(3)
    looks = (
        ("ls",),
        ("show", "shop"),
        ("show", "shop", "--partitions"),
        ("show", "shop", "--aggregate", "acme:order:1"),
        ("tail", "shop"),
        ("readers", "shop"),
    )
    for columns in (60, 100):
        for args in looks:
            code, screen = on_terminal(shell, *args, columns=columns)
            assert code == 0, screen
            plain = re.sub(r"\x1b\[[0-9;]*m", "", screen.replace("\r\n", "\n"))
            assert widest(plain) <= columns, f"{args}: {plain}"


async def test_a_look_does_not_make_a_log(shell: Shell, redis: Connection) -> None:
    for args in (("show",), ("tail",), ("readers",), ("trim",), ("keep",)):
        refused = shell.error(args[0], "nowhere")
        assert refused == f"there is no log 'nowhere' at {redis.url}: 'toril log ls' lists those there are"
    assert [key async for key in redis.scan()] == []


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("log", "ls", "--limit", "0"), "a whole number from 1 to 10,000"),
        (("log", "show", "a:b"), "log names are letters, digits"),
        (("log", "show", "x", "--aggregate", "acme:1", "--url", "redis://localhost:1"), "cannot be reached"),
        (("log", "tail", "x", "--from", "middle"), "first or tail"),
        (("log", "tail", "x", "-n", "some"), "a whole number from 0"),
        (("log", "trim", "x", "--keep-for", "7 days"), "like 90s, 15m, 2h or 7d"),
        (("log", "keep", "x", "--every", "0"), "at least 100ms"),
        (("log", "keep", "x", "--quiet", "soon"), "like 90s, 15m, 2h or 7d"),
        (("log", "resize", "x", "many"), "a whole number from 1 to 4,096"),
        (("tenant", "erase", "a:b", "--log", "x"), "it must not contain ':'"),
    ],
)
def test_errors_are_one_line_that_names_the_rule(args: tuple[str, ...], problem: str) -> None:
    done = run(*args)
    assert done.returncode == 1
    assert problem in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not done.stdout


async def test_wrong_values_are_named(shell: Shell, log: Log) -> None:
    await log.layout()
    for args, problem in (
        (("show", "shop", "--aggregate", "acme:1"), "it has three parts, tenant:type:id"),
        (("show", "shop", "--aggregate", "acme:a b:1"), "aggregate type"),
        (("show", "shop", "--aggregate", "acme:a:1", "--partitions"), "one of the two at a time"),
        (("tail", "shop", "--tenant", "a:b"), "it must not contain ':'"),
        (("tail", "shop", "--type", "a b"), "letters, digits"),
        (("trim", "shop", "--archived-by", "a b", "--yes"), "printable characters without blanks"),
        (("trim", "shop", "--keep-for", "0s", "--yes"), "a positive time"),
    ):
        assert problem in shell.error(*args)


def test_every_command_has_help_and_the_shared_options() -> None:
    assert len(group.commands) == 8
    for name, command in group.commands.items():
        told = command.get_help(click.Context(command))
        for option in ("--url", "--json"):
            assert option in told, f"{name} has no {option}"
    assert "--log" in run("tenant", "erase", "--help").stdout
