"""``toril tenant …``: what concerns one tenant."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from toril.aggregate import check_tenant
from toril.cli.careful import INTERRUPTED, Told, make_sure_by_name, with_progress, yes_option
from toril.cli.log.target import Target, at_log, cold_option, require_cold
from toril.cli.looks import number
from toril.cli.place import json_option, url_option
from toril.cli.show import Column, as_json, fitted_table, note
from toril.connection.embedded import default_home
from toril.connection.open import URL_VARIABLE
from toril.log.erase import Erased


@click.group()
def tenant() -> None:
    """What concerns one tenant."""


@tenant.command()
@click.argument("name", metavar="TENANT")
@click.option("--log", "where", metavar="LOG", help="Only from this event log of an application of yours.")
@cold_option
@click.option("--home", type=click.Path(path_type=Path), help="The data directory (TORIL_HOME).")
@click.option("--clickhouse", envvar="TORIL_CLICKHOUSE_URL", help="ClickHouse (TORIL_CLICKHOUSE_URL).")
@yes_option
@url_option
@json_option
def erase(
    name: str,
    where: str | None,
    cold: str | None,
    home: Path | None,
    clickhouse: str | None,
    yes: bool,
    url: str | None,
    json_: bool,
) -> None:
    """Erase a tenant, for good.

    Of what 'toril up' has collected: its API keys, spans, traces, events and states, in Redis and in
    ClickHouse. A server that has the data directory does it itself.

    With --log, of an event log of an application of yours: events, versions, idempotency keys and states, in
    Redis and in the cold store. Events that an archive has copied are not touched.

    In the place of events stand empty ones, so that no reader loses its place. Meanwhile, the tenant's
    appends are refused. What was cut off is finished by another run.

    What a lake has archived is erased from it by 'toril lake erase', when this is done.
    """
    check_tenant(name)
    at_home = home or default_home()
    if where is not None:
        asyncio.run(at_log(_erase, where, url, json_, cold=cold, tenant_name=name, yes=yes))
    else:
        asyncio.run(_erase_everywhere(name, at_home, url, clickhouse, yes, json_))
    if (lake := _lake(at_home)) is not None:
        note(
            f"the lake {lake} may have more of it: toril lake erase {shlex.quote(name)} "
            f"--lake {shlex.quote(lake)}"
        )


def _lake(home: Path) -> str | None:
    """The lake that is known here, if there is one. It takes Spark to look into it."""
    if said := os.environ.get("TORIL_LAKE"):
        return said
    folder = home / "lake"
    return str(folder) if folder.is_dir() else None


async def _erase_everywhere(
    name: str, home: Path, url: str | None, clickhouse: str | None, yes: bool, json_: bool
) -> None:
    # Only here: it needs the extras of the server.
    from toril.client import Client
    from toril.server.operator import find_running
    from toril.server.setup import Settings, Setup

    warning = f"This removes all API keys, spans, traces, events and states of tenant {name}, for good."
    await make_sure_by_name("erase", warning, name, yes)
    running = None if clickhouse else find_running(home)
    if running is not None:
        async with Client(running.url, running.secret) as client:
            erased = await client.erase(name)
    else:
        redis = url or os.environ.get(URL_VARIABLE)
        async with Setup.open(Settings(redis=redis, clickhouse=clickhouse, home=home)) as setup:

            async def work(told: Told) -> dict[str, Any]:
                return asdict(await setup.erase_tenant(name, told))

            done = await with_progress("Looking through partitions", work, quiet=json_)
        if done is None:
            note("stopped; the tenant's appends are refused until it is run again to the end")
            sys.exit(INTERRUPTED)
        erased = done
    if json_:
        as_json({"tenant": name} | erased)
        return
    rows = {"API keys": erased["keys"], "commands": erased["jobs"], "events in the log": erased["events"]}
    rows |= {"aggregates": erased["aggregates"]}
    rows |= {f"{table} in ClickHouse": count for table, count in erased["rows"].items()}
    fitted_table(
        [Column("removed"), Column("", right=True)], [[what, number(count)] for what, count in rows.items()]
    )


async def _erase(at: Target, tenant_name: str, yes: bool) -> None:
    standings = await at.log.standings()
    require_cold(at, standings, "the tenant's may be among them", "erase_tenant(…)")
    warning = (
        f"This removes all events, versions, idempotency keys and states of tenant {tenant_name} "
        f"from log {at.name}, for good."
    )
    await make_sure_by_name("erase", warning, tenant_name, yes)
    if at.log.cold is None:
        note("where the application has a cold store, give --cold, or call Log(…, cold=…).erase_tenant(…)")

    async def work(told: Told) -> Erased:
        return await at.log.erase_tenant(tenant_name, progress=told)

    erased = await with_progress("Looking through partitions", work, quiet=at.json)
    if erased is None:
        note("stopped; the tenant's appends are refused until it is run again to the end")
        sys.exit(INTERRUPTED)
    if at.json:
        as_json({"tenant": tenant_name, "log": at.name} | asdict(erased))
        return
    fitted_table(
        [Column("removed"), Column("", right=True)],
        [
            ["events", number(erased.events)],
            ["aggregates in Redis", number(erased.aggregates)],
            ["aggregates in the cold store", number(erased.cold) if at.log.cold is not None else "not asked"],
            ["partitions rewritten", number(erased.partitions)],
        ],
    )
