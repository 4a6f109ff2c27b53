"""``toril slots``: where names land on a cluster."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import click
from rich.text import Text

from toril.cli.show import as_json, console, table
from toril.connection import Connection, connect
from toril.errors import InvalidValue
from toril.keyspace import QueueKeys, SlotPlan, SlotRange, plan_slots, split_slots, tag_of


@dataclass(frozen=True, slots=True)
class _Found:
    """What a look at a running server adds to the plan."""

    plan: SlotPlan
    keys: dict[str, int]
    """How many keys each queue has there."""


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--shards", default=3, show_default=True, help="Plan for a fresh cluster of this many masters.")
@click.option(
    "--url", help="Ask this server or cluster instead: its shards, and how many keys each queue has."
)
@click.option("--prefix", default="bull", show_default=True, help="BullMQ's key prefix.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def slots(names: tuple[str, ...], shards: int, url: str | None, prefix: str, json_: bool) -> None:
    """Show which slot and which shard queues land on, and how even that is.

    A NAME without a hash tag is shown as the tagged name to use: collector as {collector}.
    """
    queues = [QueueKeys(_tagged(name, prefix), prefix) for name in dict.fromkeys(names)]
    if url is None:
        fresh = {f"shard {index + 1}": [part] for index, part in enumerate(split_slots(shards))}
        plan, counts = plan_slots(_slots(queues), fresh), None
    else:
        found = asyncio.run(_look(queues, url))
        plan, counts = found.plan, found.keys
    if json_:
        as_json(_as_value(plan, counts))
    else:
        _show(plan, counts)


def _tagged(name: str, prefix: str) -> str:
    return QueueKeys(name, prefix).cluster_safe_name


def _slots(queues: list[QueueKeys]) -> dict[str, int]:
    made = {}
    for queue in queues:
        if queue.slot is None:
            raise InvalidValue("queue name", queue.name, "it carries no hash tag")
        made[queue.name] = queue.slot
    return made


async def _look(queues: list[QueueKeys], url: str) -> _Found:
    async with connect(url) as redis:
        shards: dict[str, list[SlotRange]] = {
            str(shard.primary): list(shard.slots) for shard in await redis.shards()
        }
        keys = {queue.name: await _count_keys(redis, queue) for queue in queues}
        return _Found(plan_slots(_slots(queues), shards), keys)


async def _count_keys(redis: Connection, queue: QueueKeys) -> int:
    """SCAN in small steps: it takes its time, and no server has to stop for it."""
    quoted = "".join(f"\\{char}" if char in "*?[]\\" else char for char in queue.base)
    return len({key async for key in redis.scan(f"{quoted}*")})


def _as_value(plan: SlotPlan, counts: dict[str, int] | None) -> dict[str, object]:
    rows = [
        {"name": p.name, "tag": (tag_of(p.name) or b"").decode(), "slot": p.slot, "shard": p.shard}
        | ({"keys": counts[p.name]} if counts is not None else {})
        for p in plan.placements
    ]
    return {"names": rows, "per_shard": plan.per_shard(), "imbalance": round(plan.imbalance, 3)}


def _show(plan: SlotPlan, counts: dict[str, int] | None) -> None:
    columns = ["queue name", ">slot", "shard"] + ([">keys"] if counts is not None else [])
    rows = [
        [p.name, str(p.slot), p.shard] + ([f"{counts[p.name]:,}"] if counts is not None else [])
        for p in plan.placements
    ]
    table("Where the queues are" if counts is not None else "Where the queues land", columns, rows)
    share: list[list[str | Text]] = [
        [shard, str(count), Text("█" * count, style="green")] for shard, count in plan.per_shard().items()
    ]
    table("Per shard", ["shard", ">queues", ""], share)
    console.print(f"The busiest shard has {plan.imbalance:.2f} times its fair share (1.00 is even).")
