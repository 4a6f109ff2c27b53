"""``toril room key``: the keys that sign admission tokens."""

from __future__ import annotations

from pathlib import Path

import click
from rich.text import Text

from toril.cli.show import note, say
from toril.room.tokens import KEPT, rotate


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--hmac", is_flag=True, help="HMAC-SHA256 in place of Ed25519: who checks tokens can make some."
)
@click.option("--keep", default=KEPT, show_default=True, help="How many keys stay in the file.")
def key(file: Path, hmac: bool, keep: int) -> None:
    """Put a new signing key into FILE. Tokens of the keys before it stay good while those are in it."""
    made = rotate(file, "HS256" if hmac else "EdDSA", keep=keep)
    say(Text(f"{file}: tokens are signed with {made.kid} ({made.algorithm}) from now on."))
    note("servers read the file when they start; all of them need the same")
