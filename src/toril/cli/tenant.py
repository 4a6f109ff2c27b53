"""``toril tenant …``: what concerns one tenant."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict

import click

from toril.aggregate import check_tenant
from toril.cli.careful import INTERRUPTED, Told, make_sure_by_name, with_progress, yes_option
from toril.cli.log.target import Target, at_log, cold_option, require_cold, shared_options
from toril.cli.looks import number
from toril.cli.show import Column, as_json, fitted_table, note
from toril.log.erase import Erased


@click.group()
def tenant() -> None:
    """What concerns one tenant."""


@tenant.command()
@click.argument("name", metavar="TENANT")
@click.option("--log", "where", required=True, metavar="LOG", help="The event log to erase it from.")
@cold_option
@yes_option
@shared_options
def erase(name: str, where: str, cold: str | None, yes: bool, url: str | None, json_: bool) -> None:
    """Erase a tenant from an event log, for good.

    Its events, versions, idempotency keys and states, in Redis and in the cold store. In the place of its
    events stand empty ones, so that no reader loses its place. Meanwhile, its appends are refused. What was
    cut off is finished by another run. Events that an archive has copied are not touched.
    """
    check_tenant(name)
    asyncio.run(at_log(_erase, where, url, json_, cold=cold, tenant_name=name, yes=yes))


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
