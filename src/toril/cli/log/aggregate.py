"""``toril log show --aggregate``: one aggregate, and its events."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from toril.aggregate import Aggregate
from toril.cli.log.bodies import as_value
from toril.cli.log.target import Target
from toril.cli.looks import aside, pretty, section, size, unwrapped
from toril.cli.show import as_json, one_line, safe, say
from toril.cli.times import local
from toril.errors import InvalidValue, TorilError
from toril.log import HistoryTrimmed

MOST = 10_000
"""How many events are shown at most."""


class NoSuchAggregate(TorilError):
    """There is no such aggregate."""


def parse_key(key: str) -> Aggregate:
    """The aggregate that is meant."""
    if key.count(":") < 2:
        raise InvalidValue("--aggregate", key, "it has three parts, tenant:type:id")
    return Aggregate.parse(key)


async def show_aggregate(at: Target, aggregate: Aggregate, limit: int, most: int | None) -> None:
    """Show an aggregate, and its last events; of a body, ``most`` lines."""
    store = at.log.store(at.layout.current.of(aggregate))
    version = await at.log.version(aggregate)
    if version == 0:
        perhaps = ""
        if await store.read_aggregate(aggregate, 1, 1) is None:
            perhaps = "; perhaps it is in the cold store, which this command does not know"
        raise NoSuchAggregate(f"log {at.name!r} has no aggregate {aggregate.key!r} in Redis{perhaps}")
    first, gone = max(1, version - limit + 1), 0
    try:
        found = await at.log.read(aggregate, first)
    except HistoryTrimmed as problem:
        gone = problem.first - 1
        found = await at.log.read(aggregate, problem.first) if problem.first <= version else []
    key = store.keys.aggregate(aggregate.key)
    taken = await at.redis.command("MEMORY", "USAGE", key, repeatable=True)
    value = {
        "log": at.name,
        "aggregate": aggregate.key,
        "epoch": store.partition.epoch,
        "partition": store.partition.number,
        "version": version,
        "bytes": taken,
        "trimmed": gone,
        "events": [as_value(entry) for entry in found],
    }
    if at.json:
        as_json(value)
    else:
        _show_aggregate(value, most)


def _show_aggregate(value: dict[str, Any], most: int | None) -> None:
    title = Text.assemble((one_line(value["aggregate"]), "bold"), f"  version {value['version']:,}")
    about = f"partition {value['partition']:02d} of {one_line(value['log'])}"
    if value["bytes"]:
        about += f" · {size(value['bytes'])} beside its events"
    say(title, Text(about, "dim"))
    for event in value["events"]:
        head = Text.assemble(
            (f"{event['version']:,}", "bold"),
            "  ",
            (one_line(event["type"] or "(no type)"), "bold" if event["type"] else "dim"),
            (f"  {local(event['recorded_at'] // 1_000_000)}  {size(event['size'])}", "dim"),
        )
        body = event["body"]
        section(unwrapped(head), Text(safe(body)) if isinstance(body, str) else pretty(body), most)
    shown = len(value["events"])
    if value["trimmed"]:
        say("")
        aside(f"Events 1 to {value['trimmed']:,} are no longer in the log.")
    elif shown < value["version"]:
        say("")
        ever = value["version"]
        aside(f"The last {shown:,} of {ever:,} events. More: --limit {min(ever, MOST)}")
