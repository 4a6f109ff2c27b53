"""The modules that code uses: the files of the program's own, and the versions of what it is built on.

Whole files count, and every module that a file imports anywhere, used or not: a file too many costs a replay
its beginning, one too few would mix the states of two codes. Nothing is imported to find that out, so it is
the same before and after a module was loaded.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import FunctionType, ModuleType

NEVER_THE_SAME = secrets.token_hex(16)
"""Stands for what cannot be told: another one in each process."""

BENEATH = ("toril", "pyspark", "py4j")
"""What runs the program, wherever it lies: its version counts."""

INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of packages that do not belong to the program, unless it is one of them itself."""

PYTHON = Path(os.__file__).parent


class Modules:
    """All that some modules import, and what that imports. ``own``: packages that count as the program's."""

    def __init__(self, own: Iterable[str]) -> None:
        self._own = {_top(name) for name in own}.difference(BENEATH)
        self._wanted = ["toril"]
        self._specs: dict[str, ModuleSpec | None] = {}
        self._lines: dict[str, str] = {}

    def use(self, name: str) -> None:
        """Take a module, with the packages that it is in."""
        parts = name.split(".")
        self._wanted += (".".join(parts[:count]) for count in range(1, len(parts) + 1))

    def lines(self) -> list[str]:
        """Each of them, and what is in it: in an order that is always the same."""
        seen: set[str] = set()
        while self._wanted:
            name = self._wanted.pop()
            if name not in seen:
                seen.add(name)
                self._read(name)
        return [f"{name} {self._lines[name]}" for name in sorted(self._lines)]

    def has_text(self, name: str) -> bool:
        """Whether what a module defines is known by its name: it is in a file, or has a version."""
        spec = self._spec(name)
        return spec is not None and (spec.has_location or self._version(name) is not None)

    # ------------------------------------------------------------------ reading

    def _read(self, name: str) -> None:
        spec = self._spec(name)
        if spec is None:  # it is no module, or there is none: where it comes to be, it counts
            return
        told = self._version(name)
        if told is not None:
            self._lines |= {_top(name): told} if told else {}
            return
        if spec.has_location:
            data = _data(spec)
            self._lines[name] = NEVER_THE_SAME if data is None else hashlib.sha256(data).hexdigest()
            for one in _imports(data or b"", spec.parent or ""):
                self.use(one)
        elif spec.submodule_search_locations is None:  # and not a folder of modules either
            self._lines[name] = NEVER_THE_SAME
        for one in _homes(sys.modules.get(name)):
            if self._is_own(one) and self.has_text(one):
                self.use(one)

    def _is_own(self, name: str) -> bool:
        return self._spec(name) is not None and self._version(name) is None

    def _version(self, name: str) -> str | None:
        """Of what does not belong to the program; empty for Python itself, None for what belongs to it."""
        top = _top(name)
        if top in BENEATH:
            return str(getattr(sys.modules.get(top), "__version__", ""))
        spec = self._spec(name)
        if spec is None or not spec.has_location:
            return "" if top in sys.stdlib_module_names else None
        file = Path(spec.origin or "")
        if not INSTALLED.intersection(file.parts):
            return "" if file.is_relative_to(PYTHON) else None
        packages = () if top in self._own else sorted(set(_packages(tuple(sys.path)).get(top, ())))
        return ", ".join(f"{one} {version(one)}" for one in packages) or None

    def _spec(self, name: str) -> ModuleSpec | None:
        if name not in self._specs:
            self._specs[name] = self._find(name)
        return self._specs[name]

    def _find(self, name: str) -> ModuleSpec | None:
        loaded = sys.modules.get(name)
        if loaded is not None:
            spec: ModuleSpec | None = getattr(loaded, "__spec__", None)
            file = getattr(loaded, "__file__", None)
            if spec is None and file is not None:  # a script
                spec = importlib.util.spec_from_file_location(name, file)
            return spec or ModuleSpec(name, None)
        path = None
        if above := name.rpartition(".")[0]:
            package = self._spec(above)
            path = None if package is None else package.submodule_search_locations
            if path is None:
                return None
        for finder in sys.meta_path:
            if (found := finder.find_spec(name, path)) is not None:
                return found
        return None


def _top(name: str) -> str:
    return name.partition(".")[0]


@cache
def _packages(_path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """By module, the packages that it is of; it takes a moment, so once for where modules are looked for."""
    return packages_distributions()


def _data(spec: ModuleSpec) -> bytes | None:
    file = spec.origin or ""
    try:
        return Path(file).read_bytes()
    except OSError:
        pass
    try:
        data: bytes | None = spec.loader.get_data(file)  # type: ignore[union-attr]  # of an archive
    except (AttributeError, OSError):
        return None
    return data


def _imports(data: bytes, package: str) -> Iterator[str]:
    """What a file imports, at its top or anywhere in it."""
    try:
        nodes = list(ast.walk(ast.parse(data)))
    except (SyntaxError, ValueError):  # it is compiled
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = node.module or ""
            if node.level:
                try:
                    home = importlib.util.resolve_name("." * node.level + home, package)
                except ImportError:
                    continue
            # A name may be that of a module, too.
            yield from (f"{home}.{one.name}" for one in node.names)


def _homes(module: ModuleType | None) -> Iterator[str]:
    """Where the values of a module come from: some were imported by no statement."""
    if module is None:
        return
    for name, value in list(vars(module).items()):
        # By their types: what stands for something else may do anything when it is asked.
        kind = type(value)
        home: object = kind.__module__
        if issubclass(kind, ModuleType):
            home = value.__name__
        elif issubclass(kind, type) or kind is FunctionType:
            home = value.__module__
        # A package has its modules once anybody has loaded them.
        if isinstance(home, str) and home != f"{module.__name__}.{name}":
            yield home
