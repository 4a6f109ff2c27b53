"""What a user has in a module of their own: ``shop.jobs:worker``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from toril.errors import InvalidValue


def load(option: str, said: str, rule: str) -> object:
    """The thing that ``MODULE:NAME`` names, seen from the current directory; None where it has none."""
    module, colon, name = said.partition(":")
    if not colon or not module or not name:
        raise InvalidValue(option, said, rule)
    sys.path.insert(0, str(Path.cwd()))
    try:
        made = importlib.import_module(module)
    except ModuleNotFoundError as problem:
        if problem.name is None or not module.startswith(problem.name):
            raise  # the module is there, and something that it imports is not
        raise InvalidValue(option, said, f"there is no module {problem.name!r} here") from None
    return getattr(made, name, None)
