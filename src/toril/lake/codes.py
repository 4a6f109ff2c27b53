"""The code that something is made of, as text: where that is another one, it may make other states.

It is the modules that define it, with all that they import (see :mod:`toril.lake.modules`), and what was
given to it when it was made: values as pickle would take them apart, since that is what Spark's workers get.
A function or class is told by its name where a file has it under that name; else by what it is compiled to.
What cannot be told is never the same.
"""

from __future__ import annotations

import copyreg
import dis
import hashlib
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

from toril.lake.modules import NEVER_THE_SAME, Modules

_PLAIN = (bool, int, float, complex, str, type(None))

_NOT_SAID = {"__module__", "__doc__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__"}
"""Of a class: what each one has, and where its text is."""
_FILLED = {"_abc_impl", "__slotnames__", "_plans"}
"""Of a class: what fills while it is used."""

_HEAP = 1 << 9
"""The flag of classes that were made while the program ran."""


def text_of(*things: Any) -> str:
    """All that classes, functions or instances are made of: the same in each process that has this code."""
    reading = _Reading(things)
    try:
        said = [*map(reading.say, things), *reading.definitions()]
    except RecursionError:  # values in values in values
        said = [NEVER_THE_SAME]
    return "\n".join((*said, *reading.modules.lines()))


class _Reading:
    """Says what values are; with each definition that they lead to once, in an order that is the same."""

    def __init__(self, things: Iterable[Any]) -> None:
        self.modules = Modules(filter(None, map(_home, things)))
        self._defined: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._within: list[int] = []
        """The values that are just being said: one may have itself in it."""

    def definitions(self) -> Iterator[str]:
        """Of what no file has under its name: what it is compiled to."""
        for number, thing in enumerate(self._defined):  # which grows meanwhile
            said = self._class(thing) if isinstance(thing, type) else self._function(thing)
            yield f"#{number} = {said}"

    def say(self, value: Any) -> str:
        """What a value is."""
        kind = type(value)
        if kind in _PLAIN:
            return repr(value)
        if kind is bytes:
            return f"bytes {hashlib.sha256(value).hexdigest()}"
        if kind is CodeType:
            return self._code(value)
        if kind is FunctionType or issubclass(kind, type):
            return self._named(value)
        if issubclass(kind, ModuleType):
            self.modules.use(value.__name__)
            return f"module {value.__name__}"
        if id(value) in self._within:
            return f"^{len(self._within) - self._within.index(id(value))}"
        self._within.append(id(value))
        try:
            return self._parts(kind, value)
        finally:
            self._within.pop()

    def _say_all(self, values: Iterable[Any]) -> str:
        return f"({', '.join(map(self.say, values))})"

    def _parts(self, kind: type, value: Any) -> str:
        """Of what a value is made up."""
        if kind in (tuple, list):
            return f"{kind.__name__}{self._say_all(value)}"
        if kind in (set, frozenset):
            return f"{kind.__name__}({', '.join(sorted(map(self.say, value)))})"
        if kind in (dict, MappingProxyType):
            return f"{kind.__name__}{self._say_all(value.items())}"
        if kind in (MethodType, classmethod, staticmethod):
            return f"{kind.__name__}{self._say_all((value.__func__, getattr(value, '__self__', None)))}"
        if kind is property:
            return f"{kind.__name__}{self._say_all((value.fget, value.fset, value.fdel))}"
        return f"{self.say(kind)} {self._reduced(kind, value)}"

    def _reduced(self, kind: type, value: Any) -> str:
        """What pickle makes of it."""
        reduce = copyreg.dispatch_table.get(kind)
        try:
            made = value.__reduce_ex__(4) if reduce is None else reduce(value)
            parts = made if isinstance(made, str) else [*made[:3], *(list(each or ()) for each in made[3:5])]
        except Exception:  # noqa: BLE001 - whatever it says: it is not to be taken apart
            return f"{NEVER_THE_SAME} {id(value)}"
        if not isinstance(parts, str):
            return self._say_all((*parts, *made[5:]))
        # It is what has this name in its module; of a cache, with the function that is behind it.
        home = str(getattr(value, "__module__", ""))
        self.modules.use(home)
        return f"{home}.{parts} {self.say(getattr(value, '__wrapped__', None))}"

    # ------------------------------------------------------------------ what is defined

    def _named(self, thing: Any) -> str:
        """A class or function: its name, and where no file has it under that, the number of its text."""
        home = str(thing.__module__)
        name = f"{home}.{thing.__qualname__}"
        has_text = self.modules.has_text(home)
        if has_text:
            self.modules.use(home)
        is_built_in = isinstance(thing, type) and not thing.__flags__ & _HEAP
        if is_built_in or (has_text and _at(home, thing.__qualname__) is thing):
            return name
        return f"{name} {self._number(thing)}"

    def _number(self, thing: Any) -> str:
        if id(thing) not in self._numbers:
            self._numbers[id(thing)] = len(self._defined)
            self._defined.append(thing)
        return f"#{self._numbers[id(thing)]}"

    def _class(self, kind: type) -> str:
        own = {name: vars(kind)[name] for name in sorted(vars(kind).keys() - _NOT_SAID - _FILLED)}
        return self._say_all((type(kind), kind.__bases__, own))

    def _function(self, function: FunctionType) -> str:
        closure = [_content(cell) for cell in function.__closure__ or ()]
        given = (function.__defaults__, function.__kwdefaults__, vars(function), closure)
        said = self._code(function.__code__) + self._say_all(given)
        space = function.__globals__
        home = str(space.get("__name__"))
        if getattr(sys.modules.get(home), "__dict__", None) is space and self.modules.has_text(home):
            self.modules.use(home)
            return said
        # No file has what it uses: it is looked at itself.
        codes = list(_codes_in(function.__code__))
        for name in (name for code in codes for name in _imports(code)):
            self.modules.use(name)
        names = {name for code in codes for name in code.co_names}
        return said + self.say({name: space[name] for name in sorted(names & space.keys())})

    def _code(self, code: CodeType) -> str:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        return self._say_all((code.co_code, code.co_exceptiontable, counts, names, code.co_consts))


def _home(thing: Any) -> str | None:
    """The module of something that is given."""
    while isinstance(thing, partial):
        thing = thing.func
    home = getattr(thing, "__module__", None)
    return home if isinstance(home, str) else None


def _at(module: str, path: str) -> object:
    """What a module has under a name."""
    found: object = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _content(cell: Any) -> tuple[object, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # it is not set yet
        return ()


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """What a function is compiled to; with the functions in it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes_in(one)


def _imports(code: CodeType) -> Iterator[str]:
    home = ""
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            home = step.argval
            yield home
        elif step.opname == "IMPORT_FROM":
            yield f"{home}.{step.argval}"
