"""A room whose clock stands still until a test moves it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import toril
from tests.room.clock import GIVEN
from toril.room.store import Scripts


@pytest.fixture(scope="session")
def clocked(tmp_path_factory: pytest.TempPathFactory) -> Scripts:
    """The scripts as they are, but for the one file that reads the clock."""
    folder = tmp_path_factory.mktemp("clocked")
    shutil.copytree(Path(toril.__file__).parent / "lua" / "room", folder / "room")
    (folder / "room" / "_clock.lua").write_text(GIVEN)
    return Scripts(folder)
