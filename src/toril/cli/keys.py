"""``toril keys …``: the API keys with which tenants send to a server."""

from __future__ import annotations

import time

import click
from rich.text import Text

from toril.aggregate import check_tenant
from toril.cli.careful import make_sure, yes_option
from toril.cli.looks import InOrder
from toril.cli.place import Place, on_server
from toril.cli.show import Column, as_json, fitted_table, note, one_line, say
from toril.cli.times import ago
from toril.server.keys import ApiKey, ApiKeys


@click.group(cls=InOrder)
def keys() -> None:
    """The API keys with which tenants send to a server."""


@keys.command()
@click.argument("tenant")
@click.option("--name", default="", help="What it is for.")
@on_server
async def add(at: Place, tenant: str, name: str) -> None:
    """Make a key for a tenant, and print it: once, and never again."""
    secret, key = await ApiKeys(at.redis).add(tenant, name=name)
    if at.json:
        as_json({"key": secret} | _value(key))
        return
    click.echo(secret)
    note(f"the key is shown only now; 'toril keys revoke {key.prefix}' revokes it")


@keys.command()
@click.option("--tenant", help="Only those of this tenant.")
@on_server
async def ls(at: Place, tenant: str | None) -> None:
    """List keys, the oldest first."""
    found = await ApiKeys(at.redis).list(None if tenant is None else check_tenant(tenant))
    if at.json:
        as_json([_value(key) for key in found])
        return
    if not found:
        say(Text("There are no keys: 'toril keys add TENANT' makes one."))
        return
    now = time.time_ns() // 1_000_000
    columns = [
        Column("key"),
        Column("tenant", least=12),
        Column("name", least=8, leave=1),
        Column("made", right=True, leave=2),
        Column("last used", right=True),
    ]
    fitted_table(
        columns,
        [
            [
                f"{key.prefix}…",
                one_line(key.tenant),
                one_line(key.name),
                ago(key.created, now),
                Text("never", "dim") if key.used is None else ago(key.used, now),
            ]
            for key in found
        ],
    )


@keys.command()
@click.argument("key", metavar="KEY")
@yes_option
@on_server
async def revoke(at: Place, key: str, yes: bool) -> None:
    """Revoke the key that begins with KEY.

    Servers that have just seen it refuse it a few seconds later.
    """
    known = ApiKeys(at.redis)
    await make_sure("revoke", f"Revoke the key that begins with {key[:12]}, for good?", yes)
    revoked = await known.revoke(key)
    if at.json:
        as_json(_value(revoked) | {"revoked": True})
        return
    say(Text(f"{revoked.prefix}… is revoked. Within {known.fresh:g} seconds, every server refuses it."))


def _value(key: ApiKey) -> dict[str, object]:
    return {
        "prefix": key.prefix,
        "tenant": key.tenant,
        "name": key.name,
        "created": key.created,
        "used": key.used,
    }
