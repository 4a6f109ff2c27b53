"""The code that something is made of, as text: where that is another one, it may make other states.

It is the text of the modules that define it, and of those that define what it uses: base classes, helpers,
constants. What does not belong to the program is not looked into: of Toril and of other packages the version
counts, of Python nothing.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import toril

OURS = "toril"
BASES = "toril.events"
"""Where the base classes of projections are."""

INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of packages that do not belong to the program, unless it is one of them itself."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_DEFINED = (type, FunctionType)


def text_of(*things: Any) -> str:
    """All that classes, functions or instances are made of: the same in each process that has this code."""
    reading = _Reading(one if isinstance(one, _DEFINED) else type(one) for one in things)
    for one in things:
        reading.take(one)
    return "\n".join(reading.lines)


class _Reading:
    """Follows what code uses, in an order that is always the same."""

    def __init__(self, given: Iterable[Any]) -> None:
        self.lines = [f"{OURS} {toril.__version__}"]
        self._seen: dict[int, object] = {}
        kinds = [kind for one in given for kind in (one.__mro__ if isinstance(one, type) else (one,))]
        self._given = {kind.__module__ for kind in kinds if not _is_in(kind.__module__, BASES)}
        self._tops = {_top(name) for name in self._given} - {OURS}

    def take(self, thing: Any) -> None:
        """Take what defines something, and what that uses."""
        thing = inspect.unwrap(getattr(thing, "__func__", thing))
        if id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing
        if isinstance(thing, partial):
            self.take(thing.func)
            self._values("partial", {"": thing.args, **thing.keywords})
        elif isinstance(thing, type):
            for base in thing.__mro__[1:]:
                self.take(base)
            self._define(thing)
        elif isinstance(thing, FunctionType):
            self._define(thing)
            self._values(thing.__qualname__, _closure_of(thing))
        elif isinstance(thing, BuiltinFunctionType):
            self.lines.append(f"{thing.__module__} {thing.__qualname__}")
        else:
            self.take(type(thing))
            if self._is_own(type(thing).__module__):
                self._values(type(thing).__qualname__, getattr(thing, "__dict__", {}))

    # ------------------------------------------------------------------ text

    def _define(self, thing: Any) -> None:
        module = sys.modules.get(thing.__module__)
        if module is None or not self._is_own(thing.__module__):
            self.lines.append(f"{thing.__module__} {thing.__qualname__}")
            self._note_package(thing.__module__)
            return
        # Which one of the module it is; of functions without a name several may be in one line.
        own = _source(thing)
        self.lines.append(f"{thing.__module__} {thing.__qualname__}\n{own}")
        if not self._take_module(module) or own is None or thing.__name__ == "<lambda>":
            for code in _codes_in(thing):
                consts = tuple(one for one in code.co_consts if not isinstance(one, CodeType))
                self.lines.append(f"{code.co_code.hex()} {self._said(consts)}")
        self._use(module, _used_by(thing))

    def _take_module(self, module: ModuleType) -> bool:
        """Take the text of a module, and what its own statements use; False where there is no text."""
        source = _source(module)
        if source is None or id(module) in self._seen:
            return source is not None
        self._seen[id(module)] = module
        self.lines.append(f"{module.__name__}\n{source}")
        definitions = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        statements = [one for one in ast.parse(source).body if not isinstance(one, definitions)]
        self._use(module, _names_in(statements))
        return True

    def _note_package(self, module: str) -> None:
        top = _top(module)
        if top not in sys.stdlib_module_names and top != OURS:
            said = f"{top} {getattr(sys.modules.get(top), '__version__', '')}"
            if said not in self.lines:
                self.lines.append(said)

    def _is_own(self, module: str) -> bool:
        """Whether a module belongs to the program."""
        top = _top(module)
        if top in sys.stdlib_module_names:
            return False
        if module in self._given or top in self._tops:
            return True
        file = getattr(sys.modules.get(module), "__file__", None)
        return top != OURS and file is not None and not INSTALLED & set(Path(file).parts)

    # ------------------------------------------------------------------ what is used

    def _use(self, module: ModuleType, names: set[str], within: tuple[ModuleType, ...] = ()) -> None:
        """Take what names stand for in a module, and in modules that they stand for."""
        for name in sorted(names & vars(module).keys()):
            value = vars(module)[name]
            if not isinstance(value, ModuleType):
                self._take_from(module, name)
            elif not self._is_own(value.__name__):
                self._note_package(value.__name__)
            elif self._take_module(value) and value not in within:
                self._use(value, names, (*within, module, value))

    def _take_from(self, module: ModuleType, name: str) -> None:
        """Take what a name stands for: a definition, or a value, with the module where that is made."""
        value = vars(module).get(name)
        if isinstance(value, (*_DEFINED, partial)):
            self.take(value)
            return
        if not isinstance(value, _PLAIN):
            self.take(type(value))
        home, there = _imports_of(module).get(name, ("", ""))
        found = sys.modules.get(home)
        if found is not None and found is not module and self._is_own(home):
            self._take_module(found)
            self._take_from(found, there)

    def _values(self, of: str, values: Mapping[str, object]) -> None:
        """What was given to something when it was made."""
        self.lines += [f"{of} {name} = {self._said(values[name])}" for name in sorted(values)]

    def _said(self, value: object) -> str:
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, Mapping):
            pairs = sorted(f"{self._said(key)}: {self._said(one)}" for key, one in value.items())
            return f"{{{', '.join(pairs)}}}"
        if isinstance(value, (tuple, list)):
            return f"[{', '.join(map(self._said, value))}]"
        if isinstance(value, (set, frozenset)):
            return f"{{{', '.join(sorted(map(self._said, value)))}}}"
        named: Any = value if isinstance(value, _DEFINED) else type(value)
        self.take(named)
        return f"{named.__module__}.{named.__qualname__}"


def _top(module: str) -> str:
    return module.partition(".")[0]


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _source(thing: Any) -> str | None:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):  # it was typed in, or is not of Python
        return None


def _closure_of(function: FunctionType) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # it is not set yet
            continue
    return found


def _used_by(thing: Any) -> set[str]:
    """The names that a class or function uses."""
    if isinstance(thing, type) and (source := _source(thing)) is not None:
        return _names_in([ast.parse(textwrap.dedent(source))])
    return {name for code in _codes_in(thing) for name in code.co_names}


def _names_in(nodes: Iterable[ast.AST]) -> set[str]:
    found: set[str] = set()
    for one in (each for node in nodes for each in ast.walk(node)):
        if isinstance(one, ast.Name):
            found.add(one.id)
        elif isinstance(one, ast.Attribute):
            found.add(one.attr)
    return found


def _codes_in(thing: Any) -> Iterator[CodeType]:
    """What a function, or the methods of a class, are compiled to; with the functions in these."""
    if isinstance(thing, type):
        for name in sorted(vars(thing)):
            made = vars(thing)[name]
            made = getattr(made, "__func__", getattr(made, "fget", made))
            if isinstance(made, FunctionType):
                yield from _codes_in(made)
        return
    code = thing if isinstance(thing, CodeType) else thing.__code__
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes_in(one)


def _imports_of(module: ModuleType) -> dict[str, tuple[str, str]]:
    """By name, the module from which a module has it, and what it is called there."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(ast.parse(_source(module) or "")):
        if isinstance(node, ast.ImportFrom):
            said = "." * node.level + (node.module or "")
            home = importlib.util.resolve_name(said, module.__package__) if node.level else said
            found |= {one.asname or one.name: (home, one.name) for one in node.names}
    return found
