"""The test suite's own Lua scripts."""

from __future__ import annotations

from pathlib import Path

from toril.connection import Script, load_script

FOLDER = Path(__file__).parent.parent / "lua"


def script(name: str) -> Script:
    return load_script(f"jobs/{name}", FOLDER)


ADD, TAKE, MOVE, COUNT, ONCE, TRESPASS, REFUSE = map(
    script, ("add", "take", "move", "count", "once", "trespass", "refuse")
)
