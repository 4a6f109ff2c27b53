"""``toril …``: the command line."""

from toril.cli.main import main

__all__ = ["main"]
