"""The digest of a projection's code: another helper, constant, base or upcaster is other code."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toril.events import DeclaredProjection, FoldProjection, Sum
from toril.events.event import AnyEvent
from toril.events.upcasters import Upcasters
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


def digest(folder: Path, changes: dict[str, tuple[str, str]]) -> str:
    """Of the program with some changes, as a process has it that has just begun."""
    package = folder / "wares"
    package.mkdir(exist_ok=True)
    for name, text in PROGRAM.items():
        before, after = changes.get(name, ("", ""))
        assert before in text
        (package / name).write_text(text.replace(before, after) if before else text)
    for name in [name for name in sys.modules if name.partition(".")[0] == "wares"]:
        del sys.modules[name]
    importlib.invalidate_caches()
    importlib.import_module("wares.others")
    goods: Any = importlib.import_module("wares.goods")
    return code_of(goods.Goods()).digest


def test_all_that_a_projection_uses_is_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    first = digest(tmp_path, {})
    assert digest(tmp_path, {"others.py": ("return RATE", "return 0")}) == first, "it does not use that"
    others = [
        digest(tmp_path, {name: change})
        for name, change in {
            "goods.py": ("MOST = 100", "MOST = 101"),
            "sums.py": ("number * RATE", "number + RATE"),
            "rates.py": ("RATE = 3", "RATE = 4"),
            "bases.py": ("return 0", "return 1"),
        }.items()
    ]
    assert len({first, *others}) == 5
    assert digest(tmp_path, {"rates.py": ("'jug'", "'mug'")}) not in (first, *others)
    assert digest(tmp_path, {}) == first
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    for seed in ("1", "2"):
        made = subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**env, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert made.stdout.strip() == first


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


def test_what_was_given_to_a_projection_and_its_upcasters_is_its_code() -> None:
    assert code_of(Weighed(1)).digest == code_of(Weighed()).digest != code_of(Weighed(2)).digest
    assert code_of(Plain).digest == code_of(Plain()).digest != code_of(Rounded).digest

    def through(*steps: Any) -> str:
        upcasters = Upcasters()
        for version, step in enumerate(steps, 1):
            upcasters.register("test.sold", version, version + 1, step)
        return code_of(Plain, upcasters=upcasters).digest

    assert through() == code_of(Plain).digest
    assert through(times(2)) == through(times(2))
    made = {through(), through(times(2)), through(times(3)), through(times(2), times(3)), through(repr)}
    assert len(made) == 5
