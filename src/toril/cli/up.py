"""``toril up`` and ``toril server``: collect spans, process them, and answer over HTTP, until a signal."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import click

from toril.cli.loading import load
from toril.cli.place import CLICKHOUSE_VARIABLE
from toril.cli.show import console
from toril.cli.signals import Signals
from toril.connection import Durability
from toril.connection.durability import Level
from toril.connection.embedded import default_home
from toril.connection.open import URL_VARIABLE
from toril.connection.url import hide_password
from toril.errors import InvalidValue
from toril.pipelines.spans.prices import PriceTable
from toril.pipelines.spans.redaction import Redactor, RedactRules, no_redaction
from toril.pipelines.webhook import Webhook
from toril.server.access import is_loopback
from toril.server.running import HOST, PORT
from toril.server.setup import Settings, Setup, collect_garbage_seldom

ADMIN_VARIABLE = "TORIL_ADMIN_SECRET"
SECRET_VARIABLE = "TORIL_WEBHOOK_SECRET"  # noqa: S105 - the name of one

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--home", type=click.Path(path_type=Path), help="The data directory (TORIL_HOME)."),
    click.option("--url", help=f"Redis; without it, {URL_VARIABLE}, else the embedded server."),
    click.option("--clickhouse", help=f"ClickHouse; without it, {CLICKHOUSE_VARIABLE}, else embedded."),
    click.option("--host", default=HOST, show_default=True),
    click.option("--port", default=PORT, show_default=True, help="0 takes any that is free."),
    click.option("--open", "open_tenant", metavar="TENANT", help="Let this machine in without a key."),
    click.option("--redact", default="none", show_default=True, help="none, rules, or MODULE:NAME."),
    click.option("--prices", type=click.Path(path_type=Path), help="Prices that go before list prices."),
    click.option("--webhook", help=f"Post settled summaries to this URL, signed by {SECRET_VARIABLE}."),
    click.option(
        "--durability",
        type=click.Choice(["memory", "fsync", "replicated"]),
        help="How safe accepted spans are; without it, as safe as the server can make them.",
    ),
    click.option(
        "--quiet",
        type=click.FloatRange(0.1),
        default=3600.0,
        show_default=True,
        help="Seconds after which a trace leaves Redis. The same in all processes.",
    ),
    click.option(
        "--most-entries",
        type=click.IntRange(1),
        help="In a partition of the log, before senders are told to come again. The same in all processes.",
    ),
    click.option(
        "--new-rooms/--no-new-rooms",
        default=None,
        help="Make a waiting room when somebody joins an unknown event (default: where only this machine "
        "can reach the server).",
    ),
    click.option(
        "--room-keys",
        type=click.Path(path_type=Path),
        help="The keys that sign admission tokens (default: room-keys.json in the data directory).",
    ),
    click.option(
        "--room-durability",
        type=click.Choice(["memory", "fsync", "replicated"]),
        default="memory",
        show_default=True,
        help="How safe a join, an admission, or a hold of seats is when it is answered.",
    ),
    click.option(
        "--trusted-proxy",
        "trusted_proxies",
        metavar="NETWORK",
        multiple=True,
        help="A proxy whose X-Forwarded-For is believed; several times for several.",
    ),
)


def _options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@_options
@click.option("--no-server", is_flag=True, help="Only process what others collect.")
def up(no_server: bool, **options: Any) -> None:
    """Collect spans, process them, and answer over HTTP, in one process.

    Without URLs everything is embedded: a Valkey and a ClickHouse in the data directory, which then belongs
    to this process. With URLs, any number of processes share the work: 'toril server' only collects, 'toril
    up --no-server' only processes.
    """
    _start(options, serve=not no_server, work=True)


@click.command()
@_options
def server(**options: Any) -> None:
    """Collect spans and answer over HTTP; other processes ('toril up --no-server') process them."""
    _start(options, serve=True, work=False)


def _start(options: dict[str, Any], *, serve: bool, work: bool) -> None:
    host, port = options.pop("host"), options.pop("port")
    if options["new_rooms"] is None:
        options["new_rooms"] = is_loopback(host)
    asyncio.run(_run(_settings(**options), host, port, serve=serve, work=work))


def _settings(
    *,
    home: Path | None,
    url: str | None,
    clickhouse: str | None,
    open_tenant: str | None,
    redact: str,
    prices: Path | None,
    webhook: str | None,
    durability: Any,
    quiet: float,
    most_entries: int | None,
    new_rooms: bool,
    room_keys: Path | None,
    room_durability: Any,
    trusted_proxies: tuple[str, ...],
) -> Settings:
    return Settings(
        redis=url or os.environ.get(URL_VARIABLE),
        clickhouse=clickhouse or os.environ.get(CLICKHOUSE_VARIABLE),
        home=home or default_home(),
        open_tenant=open_tenant,
        redactor=_redactor(redact),
        prices=None if prices is None else PriceTable.load(prices),
        on_settled={} if webhook is None else {"webhook": _webhook(webhook)},
        durability=durability,
        quiet=timedelta(seconds=quiet),
        most_entries=most_entries,
        admin=os.environ.get(ADMIN_VARIABLE),
        new_rooms=new_rooms,
        room_keys=room_keys,
        room_durability=room_durability,
        trusted_proxies=trusted_proxies,
    )


def _redactor(said: str) -> Redactor:
    if said == "none":
        return no_redaction
    if said == "rules":
        return RedactRules()
    rule = "none, rules, or MODULE:NAME of a function of a tenant and a span"
    found = load("--redact", said, rule)
    if not callable(found):
        raise InvalidValue("--redact", said, rule)
    return found


def _webhook(url: str) -> Webhook:
    secret = os.environ.get(SECRET_VARIABLE, "")
    if not secret:
        raise InvalidValue(SECRET_VARIABLE, "", "the secret that signs what is posted must be in it")
    return Webhook(url, secret=secret)


async def _run(settings: Settings, host: str, port: int, *, serve: bool, work: bool) -> None:
    signals = Signals()
    async with AsyncExitStack() as stack:
        for handler in settings.on_settled.values():
            if isinstance(handler, Webhook):
                await stack.enter_async_context(handler)
        setup = await stack.enter_async_context(Setup.open(settings))
        collect_garbage_seldom()
        console.print(f"data in     {_data(settings)}", soft_wrap=True)
        waiting = []
        if work:
            worker = await stack.enter_async_context(setup.worker())
            waiting.append(worker.wait())
            console.print("processing  " + ", ".join(f"[bold]{name}[/]" for name in setup.sourcing.pipelines))
        if serve:
            running = await stack.enter_async_context(setup.server(host, port))
            waiting.append(running.wait())
            console.print(f"collecting  [bold]{running.url}/v1/traces[/]", soft_wrap=True)
            console.print(f"            accepted: {_accepted(setup.ingestion.durability or 'memory')}")
            if settings.open_tenant is None:
                console.print("            with an API key: [bold]toril keys add TENANT[/] makes one")
            else:
                console.print(f"            without a key, as tenant [bold]{settings.open_tenant}[/]")
            console.print(f"waiting     [bold]{running.url}/queue/EVENT[/]", soft_wrap=True)
        received = await signals.first(*waiting)
        console.print(f"{received.name}: finishing what is under way; once more to end at once")
        signals.end_at_the_next("ended; others take over when the leases have run out")
    console.print("closed")


def _data(settings: Settings) -> str:
    places = [hide_password(url) for url in (settings.redis, settings.clickhouse) if url]
    return " and ".join(places + ([] if len(places) == 2 else [str(settings.home)]))


def _accepted(durability: Durability | Level) -> str:
    return {
        "memory": "in the memory of the server",
        "fsync": "on its disk",
        "replicated": "in the memory of a replica, too",
    }[Durability.of(durability).level]
