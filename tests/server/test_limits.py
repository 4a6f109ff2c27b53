"""What a server takes at most: bodies that are inflated as they come, and what is in flight."""

from __future__ import annotations

import gzip
import random
import zlib
from contextlib import ExitStack
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toril import InvalidValue
from toril.server.bodies import STEP, Inflating
from toril.server.flight import EACH, Flight, TooMuchInFlight
from toril.server.limits import Limits
from toril.server.refusals import Refused


def inflate(raw: bytes, cuts: list[int]) -> bytes:
    inflating = Inflating()
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    made = b""
    for first, end in pairwise(edges):
        for part in inflating.steps(raw[first:end]):
            assert len(part) <= STEP
            made += part
    inflating.end()
    return made


@given(
    parts=st.lists(st.binary(max_size=200), max_size=4),
    times=st.integers(1, 3000),
    cuts=st.lists(st.integers(0, 10**6), max_size=6),
)
def test_gzip_is_inflated_however_it_is_cut(parts: list[bytes], times: int, cuts: list[int]) -> None:
    raw = b"".join(gzip.compress(part * times) for part in parts)
    assert inflate(raw, cuts) == b"".join(part * times for part in parts)


@given(body=st.binary(min_size=1, max_size=300), cut=st.integers(1, 10**6))
def test_gzip_that_is_cut_off_is_refused(body: bytes, cut: int) -> None:
    raw = gzip.compress(body)
    with pytest.raises(Refused, match="gzip"):
        inflate(raw[: 1 + cut % (len(raw) - 1)], [])


@pytest.mark.parametrize("raw", [b"x", b"no gzip at all", zlib.compress(b"zlib, not gzip")])
def test_what_is_no_gzip_is_refused(raw: bytes) -> None:
    with pytest.raises(Refused, match="not valid gzip") as caught:
        inflate(raw, [])
    assert caught.value.status == 400


def test_a_tenant_cannot_keep_others_out(rng: random.Random) -> None:
    """Whatever some tenants hold, one that comes gets half of what is left; and all is given back."""
    flight = Flight(1000 * EACH)
    with ExitStack() as stack:
        for tenant in range(6):
            before = flight.requests
            with pytest.raises(TooMuchInFlight) as caught:  # noqa: PT012 - one of many is the one
                while True:
                    hold = stack.enter_context(flight.hold(f"greedy {tenant}"))
                    hold.grow_to(rng.randrange(EACH, 4 * EACH))
            assert flight.requests > before
            assert caught.value.status == 429
            assert caught.value.headers["Retry-After"] == "1"
            assert flight.bytes < flight.most
            with flight.hold("another") as small:
                small.grow_to((flight.most - flight.bytes) // 4)
    assert (flight.bytes, flight.requests) == (0, 0)
    assert flight._held == {}


def test_one_alone_gets_half_and_the_server_is_full_for_one_who_holds_nothing() -> None:
    flight = Flight(100 * EACH)
    with flight.hold("a") as first:
        first.grow_to(50 * EACH)
        with pytest.raises(TooMuchInFlight) as caught:
            first.grow_to(51 * EACH)
        assert caught.value.status == 503  # none of its own is in the way
        with flight.hold("b") as second:
            second.grow_to(25 * EACH)
            with pytest.raises(TooMuchInFlight) as full, flight.hold("c") as third:
                third.grow_to(20 * EACH)
            assert full.value.status == 503
            with pytest.raises(TooMuchInFlight) as own, flight.hold("a"):
                raise AssertionError
            assert own.value.status == 429
    assert flight.bytes == 0


def test_limits_that_cannot_work_are_refused() -> None:
    with pytest.raises(InvalidValue, match="limit body"):
        Limits(body=0)
    with pytest.raises(InvalidValue, match="limit body"):
        Limits(body=11, inflated=10)
    with pytest.raises(InvalidValue, match="limit in_flight"):
        Limits(in_flight=19, inflated=10, body=10)
    limits = Limits(in_flight=20 * EACH, inflated=10 * EACH, body=EACH)
    with Flight(limits.in_flight).hold("a") as hold:
        hold.grow_to(limits.inflated)  # the largest request fits
