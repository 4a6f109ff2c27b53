"""Documentation is part of the product: its code runs, its links lead somewhere, the API is described."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_origin

import click
import pytest

import toril
import toril.connection
import toril.events
import toril.stores
import toril.testing
from tests.command import toril as command
from toril.cli.main import cli
from toril.connection.embedded import stop
from toril.errors import TorilError
from toril.lake import jars

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ELSEWHERE = re.compile(r"^```py\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""Programs that run in other places (a scheduler, say): they compile here."""
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
IN_TEXT = re.compile(r"`toril ([^`]+)`")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TORIL_JARS", str(jars.folder()))  # which are set up once, and not for each test
    monkeypatch.setenv("TORIL_HOME", str(tmp_path))
    monkeypatch.delenv("TORIL_REDIS_URL", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    yield tmp_path
    stop(tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_code_block_runs(page: Path, home: Path) -> None:  # noqa: ARG001 - the blocks use it
    """Python blocks of a page share their names; of console blocks, the ``$ toril …`` lines run."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for kind, text in BLOCK.findall(page.read_text()):
            if kind == "python":
                compiled = compile(text, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                made = eval(compiled, names)
                if inspect.iscoroutine(made):
                    runner.run(made)
            else:
                _run_console(text, page)


def _run_console(text: str, page: Path) -> None:
    for line in text.splitlines():
        if not line.startswith("$ toril "):
            continue
        done = command(*shlex.split(line)[2:])
        assert done.returncode == 0, f"{page.name}: {line}\n{done.stdout}{done.stderr}"
        shown = [row.strip() for row in done.stdout.splitlines() if row.strip()]
        for row in _expected_after(text, line):
            assert row in shown, f"{page.name}: {line} does not print {row!r} but\n{done.stdout}"


def _expected_after(text: str, command: str) -> list[str]:
    """What a page says a command prints: the lines up to the next command; ``…`` stands for anything."""
    after = text.split(command, 1)[1].split("\n$ ")[0].splitlines()
    return [row.strip() for row in after if row.strip() and "…" not in row and set(row.strip()) != {"─"}]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_program_for_elsewhere_compiles(page: Path) -> None:
    for text in ELSEWHERE.findall(page.read_text()):
        compile(text, str(page), "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_is_one_that_toril_knows(page: Path) -> None:
    for text in SHELL.findall(page.read_text()):
        for line in text.replace("\\\n", " ").splitlines():
            if line.startswith("toril "):
                _parse(shlex.split(line, comments=True)[1:], line)


def _parse(words: list[str], line: str) -> None:
    """Have click read a command, with its options, and not run it."""
    words = [word for word in words if word != "&"]
    command: click.Command = cli
    parent: click.Context | None = None
    try:
        while isinstance(command, click.Group):
            parent = command.make_context("toril", words, parent=parent)
            _, found, words = command.resolve_command(parent, [*parent._protected_args, *parent.args])
            assert found is not None
            command = found
        command.make_context(command.name, words, parent=parent)
    except (click.ClickException, TorilError) as problem:
        raise AssertionError(f"{line}: {problem}") from None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_in_the_text_is_there_with_its_options(page: Path) -> None:
    for said in IN_TEXT.findall(FENCED.sub("", page.read_text())):
        _look_up(said.split(), f"toril {said}")


def _look_up(words: list[str], said: str) -> None:
    """A sentence may leave arguments out, and name several commands (``failed|retry``), or any (``…``)."""
    commands: list[click.Command] = [cli]
    while words and isinstance(group := commands[0], click.Group):
        context = click.Context(group)
        names = group.list_commands(context) if words[0] == "…" else words[0].split("|")
        found = [made for name in names if (made := group.get_command(context, name)) is not None]
        if not found and words[0].startswith("-"):
            break
        assert len(found) == len(names), f"{said}: there is no {words[0]}"
        commands, words = found, words[1:]
    known = {
        name for one in commands for option in one.params for name in (*option.opts, *option.secondary_opts)
    }
    # Of `toril migrate --migrate` that is the verb.
    free = any(one.context_settings.get("ignore_unknown_options") for one in commands)
    for word in words:
        if word.startswith("-") and not free:
            assert word.partition("=")[0] in {*known, "--help"}, f"{said}: there is no {word}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    for page in PAGES[1:]:
        name = str(page.relative_to(ROOT / "docs"))
        assert name == "README.md" or name in index, f"docs/README.md does not mention {name}"


@pytest.mark.parametrize(
    "module",
    [toril, toril.connection, toril.events, toril.stores, toril.testing],
    ids=lambda module: module.__name__,
)
def test_the_public_api_is_described(module: Any) -> None:
    for name in module.__all__:
        thing = getattr(module, name)
        if not callable(thing) or get_origin(thing):  # an alias is described where it is made
            continue
        assert inspect.getdoc(thing), f"{module.__name__}.{name} has no docstring"
        for member, made in inspect.getmembers(thing) if inspect.isclass(thing) else ():
            if not member.startswith("_") and inspect.isfunction(made):
                assert inspect.getdoc(made), f"{module.__name__}.{name}.{member} has no docstring"
