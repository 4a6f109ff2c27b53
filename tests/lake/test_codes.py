"""The digest of a projection's code: another helper, constant, base or upcaster is other code."""

from __future__ import annotations

import enum
import importlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from functools import lru_cache, partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toril.events import DeclaredProjection, FoldProjection, Sum
from toril.events.event import AnyEvent
from toril.events.upcasters import Upcasters
from toril.lake.codes import text_of
from toril.lake.subjects import code_of

PROGRAM = {
    "__init__.py": "",
    "rates.py": "RATE = 3\nNAMES = {'tea', 'cup', 'pot', 'jug'}\n",
    "sums.py": "from .rates import RATE\n\n\ndef times(number):\n    return number * RATE\n",
    "bases.py": (
        "from toril.events import FoldProjection\n\n\n"
        "class Base(FoldProjection[int]):\n"
        "    state_type = int\n\n"
        "    def initial(self):\n        return 0\n"
    ),
    "goods.py": (
        "from . import rates, sums\nfrom .bases import Base\n\nMOST = 100\n\n\n"
        "class Goods(Base):\n"
        "    name = 'goods'\n\n"
        "    def apply(self, state, event):\n"
        "        return min(MOST, state + sums.times(len(rates.NAMES)))\n"
    ),
    "others.py": "from .rates import RATE\n\n\ndef other():\n    return RATE\n",
}
DIGEST = (
    "from toril.lake.subjects import code_of; from wares.goods import Goods; print(code_of(Goods()).digest)"
)


def write(folder: Path, program: dict[str, str]) -> None:
    """A program, of which nothing is loaded."""
    for name, text in program.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name in [name for name in sys.modules if name.partition(".")[0] == "wares"]:
        del sys.modules[name]
    importlib.invalidate_caches()


def digest(folder: Path, changes: dict[str, tuple[str, str]]) -> str:
    """Of the program with some changes, as a process has it that has just begun."""
    changed = dict(PROGRAM)
    for name, (before, after) in changes.items():
        assert before in changed[name]
        changed[name] = changed[name].replace(before, after)
    write(folder / "wares", changed)
    importlib.import_module("wares.others")
    goods: Any = importlib.import_module("wares.goods")
    return code_of(goods.Goods()).digest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where modules are looked for."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


def test_all_that_a_projection_uses_is_its_code(folder: Path) -> None:
    first = digest(folder, {})
    assert digest(folder, {"others.py": ("return RATE", "return 0")}) == first, "it does not use that"
    others = [
        digest(folder, {name: change})
        for name, change in {
            "goods.py": ("MOST = 100", "MOST = 101"),
            "sums.py": ("number * RATE", "number + RATE"),
            "rates.py": ("RATE = 3", "RATE = 4"),
            "bases.py": ("return 0", "return 1"),
        }.items()
    ]
    assert len({first, *others}) == 5
    assert digest(folder, {"rates.py": ("'jug'", "'mug'")}) not in (first, *others)
    assert digest(folder, {}) == first
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    for seed in ("1", "2"):
        made = subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**env, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert made.stdout.strip() == first


HELPED = "from .helps import times"
WAYS = {
    "a helper that is cached": (
        HELPED,
        "from functools import cache\nfrom .rates import RATE\n\n\n@cache\ndef times(_):\n    return RATE\n",
    ),
    "a helper's decorator": (
        HELPED,
        "from .rates import rated\n\n\n@rated\ndef times(number):\n    return number\n",
    ),
    "a helper's default": (
        HELPED,
        "from .rates import RATE\n\n\ndef times(number, rate=RATE):\n    return number * rate\n",
    ),
    "imported when it is called": (
        "def times(number):\n    from .rates import RATE\n    return number * RATE",
    ),
    "all names of a module": ("from .rates import *\n\n\ndef times(number):\n    return number * RATE",),
    "a module in a folder": (
        "import wares.deep.rates\n\n\ndef times(number):\n    return number * wares.deep.rates.RATE",
    ),
    "by its name": ("from importlib import import_module\n\ntimes = import_module('wares.rates').times",),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_module_counts_however_it_is_used(folder: Path, way: str) -> None:
    head, *helps = WAYS[way]

    def made(rate: int, *, load: bool = False) -> str:
        rates = (
            f"from functools import wraps\n\nRATE = {rate}\n\n\n"
            "def times(number):\n    return number * RATE\n\n\n"
            f"def rated(function):\n    return wraps(function)(lambda number: {rate})\n"
        )
        program = {
            "__init__.py": "",
            "bases.py": PROGRAM["bases.py"],
            "rates.py": rates,
            "deep/rates.py": rates,
            "helps.py": "".join(helps),
            "goods.py": f"from .bases import Base\n{head}\n\n\nclass Goods(Base):\n    name = 'goods'\n\n"
            "    def apply(self, state, event):\n        return times(state)\n",
        }
        write(folder / "wares", program)
        goods: Any = importlib.import_module("wares.goods")
        if load:
            assert goods.Goods().apply(1, None) == rate
        return code_of(goods.Goods()).digest

    assert made(3) == made(3, load=True) != made(4), "and it is the same, used or not"


class Weighed(FoldProjection[int]):
    name = "weighed"
    state_type = int

    def __init__(self, weight: int = 1) -> None:
        self.weight = weight

    def initial(self) -> int:
        return 0

    def apply(self, state: int, event: AnyEvent) -> int:
        return state + self.weight * int(event.data)


class Plain(DeclaredProjection):
    name = "plain"
    total = Sum("data.price")


class Rounded(Plain):
    name = "plain"

    @classmethod
    def apply(cls, state: Any, event: AnyEvent) -> Any:
        return super().apply(state, event)


def times(number: int) -> Any:
    return lambda data: data * number


def capped(most: int) -> Any:
    class Capped(Sum[int]):
        def combine(self, one: int, other: int) -> int:
            return min(one + other, most)

    return type("Plain", (DeclaredProjection,), {"name": "plain", "total": Capped("data.price")})


def test_what_was_given_to_a_projection_and_its_upcasters_is_its_code() -> None:
    assert code_of(Weighed(1)).digest == code_of(Weighed()).digest != code_of(Weighed(2)).digest
    assert code_of(Plain).digest == code_of(Plain()).digest != code_of(Rounded).digest
    assert code_of(Rounded).digest == code_of(Rounded()).digest
    digests = {code_of(one).digest for one in (Plain, capped(3), capped(3), capped(4))}
    assert len(digests) == 3, "a field of a class of its own is what its code does"

    def through(*steps: Any) -> str:
        upcasters = Upcasters()
        for version, step in enumerate(steps, 1):
            upcasters.register("test.sold", version, version + 1, step)
        return code_of(Plain, upcasters=upcasters).digest

    assert through() == code_of(Plain).digest
    assert through(times(2)) == through(times(2))
    made = {through(), through(times(2)), through(times(3)), through(times(2), times(3)), through(repr)}
    assert len(made) == 5


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


@dataclass(frozen=True, slots=True)
class Rate:
    of: object


class Slotted:
    __slots__ = ("rate",)

    def __init__(self, rate: object) -> None:
        self.rate = rate


class SlottedToo(Slotted):
    __slots__ = ("more",)

    def __init__(self, rate: object) -> None:
        super().__init__(rate)
        self.more = 1


class Rounding(int):
    pass


class Node:
    def __init__(self, name: str) -> None:
        self.name = name
        self.itself = self


def rated(rate: object) -> Callable[[Any], Any]:
    @wraps(times)
    def inner(number: Any) -> Any:
        return times(number)(rate)

    return inner


VALUES: dict[str, Callable[[int], object]] = {
    "decimal": Decimal,
    "timedelta": lambda n: timedelta(days=n),
    "date": lambda n: date(2024, 1, n),
    "enum": Size,
    "dataclass": Rate,
    "in a dataclass": lambda n: Rate([{"rate": Decimal(n)}]),
    "partial": lambda n: partial(times, number=n),
    "pattern": lambda n: re.compile("a" * n),
    "range": range,
    "slots": Slotted,
    "slots of a base": SlottedToo,
    "a kind of int": Rounding,
    "a cycle": lambda n: Node("n" * n),
    "order": lambda n: {"a": 1, "b": 2} if n == 1 else {"b": 2, "a": 1},
    "a namespace": lambda n: SimpleNamespace(rate=n),
    "a method": lambda n: times(n).__call__,
    "a wrapper": rated,
    "a cached closure": lambda n: lru_cache(times(n)),
    "a class that was made": lambda n: type("Made", (), {"rate": n}),
    "two in one line": lambda n: [lambda one: one.left, lambda one: one.right][n - 1],
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_of_any_kind_counts(kind: str) -> None:
    made = VALUES[kind]
    digests = [code_of(Weighed(made(n))).digest for n in (1, 1, 2)]  # type: ignore[arg-type]
    assert digests[0] == digests[1] != digests[2]


def test_what_cannot_be_told_is_never_the_same() -> None:
    assert text_of(Weighed(threading.Lock())) != text_of(Weighed(threading.Lock()))  # type: ignore[arg-type]


def typed(text: str) -> Any:
    """What somebody has typed in, who has no file."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(text, space)
    return space["apply"]


TYPED = (
    "RATE = 3\nclass Kind:\n    def of(self, one):\n        return one.left\n"
    "def helper(one):\n    return Kind().of(one) * RATE\n"
    "def apply(one):\n    from wares.rates import RATE\n    return helper(one) * RATE\n"
)


def test_code_that_was_typed_in_is_told_by_what_it_is_compiled_to(folder: Path) -> None:
    write(folder / "wares", PROGRAM)
    first = text_of(typed(TYPED))
    assert text_of(typed(TYPED)) == first
    changes = [("left", "right"), ("RATE = 3", "RATE = 4"), ("Kind().of(one) *", "Kind().of(one) +")]
    assert len({first, *(text_of(typed(TYPED.replace(*change))) for change in changes)}) == 4
    write(folder / "wares", {"rates.py": "RATE = 5"})
    assert text_of(typed(TYPED)) != first


def test_any_text_and_any_number_of_helpers_can_be_read() -> None:
    class Quoted(Weighed):
        text = """
of more than one line
"""

    assert code_of(Quoted()).digest == code_of(Quoted()).digest != code_of(Weighed()).digest
    chain = "".join(f"def f{n}(one):\n    return f{n + 1}(one)\n" for n in range(2000))
    assert text_of(typed(f"{chain}apply = f0")) != text_of(typed(f"{chain}f2000 = len\napply = f0"))


def test_of_an_installed_package_the_version_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the projection itself is in one: whoever changes it may not change its version."""
    installed = folder / "site-packages"
    monkeypatch.syspath_prepend(str(installed))

    def made(version: str, body: str, *, base: bool = False) -> str:
        write(installed, {"wares/__init__.py": "", "wares/bases.py": f"{PROGRAM['bases.py']}{body}\n"})
        about = {"METADATA": f"Name: wares\nVersion: {version}\n", "top_level.txt": "wares\n"}
        write(installed / "wares.dist-info", about)
        write(folder, {"sold.py": "from wares.bases import Base\n\n\nclass Sold(Base):\n    name = 'sold'\n"})
        sys.modules.pop("sold", None)
        module: Any = importlib.import_module("wares.bases" if base else "sold")
        return text_of(module.Base if base else module.Sold)

    first = made("1.0", "A = 1")
    assert "wares wares 1.0" in first.splitlines()
    assert made("1.0", "A = 2") == first != made("1.1", "A = 2")
    assert made("1.0", "A = 1", base=True) != made("1.0", "A = 2", base=True)
