"""``toril embedded up`` and ``down``: keep the embedded server, or stop it."""

from __future__ import annotations

from pathlib import Path

import click

from toril.cli.show import as_json, console
from toril.connection.embedded import Fsync, default_home, ensure_cluster, ensure_server, stop
from toril.connection.url import Address


def _url(address: Address, password: str) -> str:
    return f"unix://{address.path}" if address.path else f"redis://:{password}@{address}"


@click.group()
def embedded() -> None:
    """The Valkey that Toril starts where no URL is given."""


@embedded.command()
@click.option("--home", type=click.Path(path_type=Path), help="The data directory (TORIL_HOME).")
@click.option("--cluster", is_flag=True, help="A cluster of three masters, for development.")
@click.option(
    "--fsync",
    type=click.Choice(["always", "everysec"]),
    default="always",
    show_default=True,
    help="When writes go to disk.",
)
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def up(home: Path | None, cluster: bool, fsync: str, json_: bool) -> None:
    """Start the embedded server, and keep it until 'toril embedded down'.

    One that already runs for another process is kept too, when that process ends.
    """
    where = home or default_home()
    policy: Fsync = "everysec" if fsync == "everysec" else "always"
    running = (
        ensure_cluster(where, policy, kept=True) if cluster else [ensure_server(where, policy, kept=True)]
    )
    urls = [_url(server.address, server.password) for server in running]
    if json_:
        as_json({"home": str(where), "urls": urls, "pids": [server.pid for server in running]})
        return
    console.print(f"The embedded {'cluster' if cluster else 'server'} is up, with its data in {where}:")
    for server, url in zip(running, urls, strict=True):
        console.print(f"  {url}  [dim](process {server.pid})[/]", soft_wrap=True)
    console.print("It stays until [bold]toril embedded down[/].")


@embedded.command()
@click.option("--home", type=click.Path(path_type=Path), help="The data directory (TORIL_HOME).")
def down(home: Path | None) -> None:
    """Stop the embedded server. Its data stays."""
    where = home or default_home()
    stopped = stop(where)
    console.print(f"Stopped. The data stays in {where}." if stopped else f"Nothing was running in {where}.")
