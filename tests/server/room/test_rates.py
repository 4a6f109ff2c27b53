"""How often one may call, and who one is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from toril import Connection
from toril.errors import InvalidValue
from toril.keyspace import RateKeys
from toril.server.room.callers import Callers
from toril.server.room.rates import Rate, Rates


async def test_it_refills_exactly_however_often_it_is_asked(redis: Connection) -> None:
    """What was given and what is left is what the rate brought, by the server's clock, to the unit."""
    rates, limit, keys = Rates(redis), Rate(rate=37, burst=1000), RateKeys("t", "caller")
    assert (await rates.take("t", "caller", limit, limit.burst)).left == 0  # so it is never full again

    async def bucket() -> tuple[int, int]:
        units, at = await redis.command("HMGET", keys.bucket, "units", "at")
        return int(units), int(at)

    before, began = await bucket()
    allowed = 0
    while allowed < 10:
        allowed += (await rates.take("t", "caller", limit)).allowed
    units, at = await bucket()
    assert before + 37 * (at - began) == allowed * 1_000_000 + units


async def test_it_says_how_long_to_wait_and_means_it(redis: Connection) -> None:
    rates, limit = Rates(redis), Rate(rate=1, seconds=3600, burst=2)
    assert [(await rates.take("t", "a", limit)).left for _ in range(2)] == [1, 0]
    refused = await rates.take("t", "a", limit)
    assert not refused.allowed
    assert 3_590_000 < refused.wait_ms <= 3_600_000
    # An hour later, to the microsecond.
    keys = RateKeys("t", "a")
    at = int(await redis.command("HGET", keys.bucket, "at"))
    await redis.command("HSET", keys.bucket, "at", at - 3_600_000_000)
    assert (await rates.take("t", "a", limit)).allowed
    assert not (await rates.take("t", "a", limit)).allowed
    assert (await rates.take("t", "b", limit)).allowed, "callers do not share"
    assert (await rates.take("u", "a", limit)).allowed, "limits do not share"
    assert await redis.command("PTTL", keys.bucket) > 3_600_000


async def test_a_clock_that_is_set_back_neither_gives_nor_takes(redis: Connection) -> None:
    rates, limit = Rates(redis), Rate(rate=1, seconds=1, burst=10)
    keys = RateKeys("t", "a")
    await rates.take("t", "a", limit, 4)
    at = int(await redis.command("HGET", keys.bucket, "at"))
    await redis.command("HSET", keys.bucket, "at", at + 3_600_000_000)
    assert (await rates.take("t", "a", limit)).left == 5


async def test_many_at_once_get_no_more(redis: Connection) -> None:
    rates, limit = Rates(redis), Rate(rate=1, seconds=3600, burst=20)
    found = await asyncio.gather(*(rates.take("t", "a", limit) for _ in range(100)))
    assert sum(one.allowed for one in found) == 20


@pytest.mark.parametrize(
    "bad", [{"rate": 0}, {"rate": 1, "burst": 0}, {"rate": 1, "seconds": 10**9, "burst": 99}]
)
def test_bad_limits_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(InvalidValue, match="limit's"):
        Rate(**bad)


# ---------------------------------------------------------------------------- callers


def request(peer: str | None, *forwarded: str) -> Request:
    scope: dict[str, Any] = {
        "type": "http",
        "client": None if peer is None else (peer, 1),
        "headers": [(b"x-forwarded-for", one.encode()) for one in forwarded],
    }
    return Request(scope)


@pytest.mark.parametrize(
    ("trusted", "peer", "forwarded", "caller"),
    [
        ((), "9.9.9.9", ["1.2.3.4"], "9.9.9.9"),
        (("10.0.0.0/8",), "9.9.9.9", ["1.2.3.4"], "9.9.9.9"),
        (("10.0.0.0/8",), "10.0.0.1", ["1.2.3.4"], "1.2.3.4"),
        (("10.0.0.0/8",), "10.0.0.1", ["6.6.6.6, 1.2.3.4"], "1.2.3.4"),
        (("10.0.0.0/8",), "10.0.0.1", ["6.6.6.6, 1.2.3.4, 10.1.1.1"], "1.2.3.4"),
        (("10.0.0.0/8",), "10.0.0.1", ["6.6.6.6", "1.2.3.4"], "1.2.3.4"),
        (("10.0.0.0/8",), "10.0.0.1", ["1.2.3.4, nonsense"], "10.0.0.1"),
        (("10.0.0.0/8",), "10.0.0.1", [], "10.0.0.1"),
        (("10.0.0.0/8",), "::ffff:10.0.0.1", ["1.2.3.4"], "1.2.3.4"),
        ((), "2001:db8:1:2:3:4:5:6", [], "2001:db8:1:2::/64"),
        ((), None, ["1.2.3.4"], "unknown"),
    ],
)
def test_who_calls(trusted: tuple[str, ...], peer: str | None, forwarded: list[str], caller: str) -> None:
    assert Callers(trusted).of(request(peer, *forwarded)) == caller


def test_a_proxy_that_is_no_address_is_refused() -> None:
    with pytest.raises(InvalidValue, match="trusted proxy"):
        Callers(["proxy.example"])
