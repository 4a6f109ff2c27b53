"""Which servers a test runs on.

Each test that is written for all servers runs on two of the four: one standalone, one cluster, one of
Valkey, one of Redis. ``make storm`` runs its tests on all four, and so does ``TORIL_TEST_SERVERS=all``.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from zlib import crc32

import pytest

SCALE = float(os.environ.get("TORIL_TEST_SCALE", "1"))
"""How much longer and larger the promise tests run: 1 for ``make test``, more for ``make storm``."""

REDIS_7 = shutil.which("redis-server")
BINARIES = {"valkey": None} | ({"redis": Path(REDIS_7)} if REDIS_7 else {})
PRODUCTS = sorted(BINARIES, reverse=True)
SHAPES = ["standalone", "cluster"]
MATRIX = [f"{product}-{shape}" for product in PRODUCTS for shape in SHAPES]
COLOURS = {place: number % 2 for number, place in enumerate([*PRODUCTS, *MATRIX[:2], *MATRIX[:1:-1]])}
"""Which diagonal of the matrix a server is on; and, where only the product is chosen, which product."""
EVERY_SERVER = SCALE > 1 or os.environ.get("TORIL_TEST_SERVERS") == "all"


def left_out(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The cases of tests whose turn it is not.

    The two diagonals of the matrix take turns: from one test to the next, and among the other parameters of
    one test. So do the products for a test that starts servers of its own (fixture ``binary``), where it has
    other parameters, or carries a promise, which ``make storm`` tests with both.
    """
    if EVERY_SERVER or len(PRODUCTS) == 1:
        return []
    tests: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            tests[item.nodeid.split("[")[0]].append(item)
    return [case for name, cases in tests.items() for case in _left_out(name, cases)]


def _left_out(name: str, cases: list[pytest.Function]) -> Iterator[pytest.Function]:
    chosen = _server_parameter(cases)
    if chosen is None:
        return
    places = {case: str(case.callspec.params[chosen]) for case in cases}
    others = {case: case.callspec.id.replace(place, "", 1) for case, place in places.items()}
    turns = {other: turn for turn, other in enumerate(dict.fromkeys(others.values()), crc32(name.encode()))}
    if chosen == "binary" and len(turns) == 1 and not cases[0].get_closest_marker("promise"):
        return
    for case, place in places.items():
        if place in COLOURS and (COLOURS[place] + turns[others[case]]) % 2:
            yield case


def _server_parameter(cases: list[pytest.Function]) -> str | None:
    """The parameter of a test that has every kind of server in turn."""
    for name in cases[0].callspec.params:
        values = [case.callspec.params.get(name) for case in cases]
        if name == "binary" or all(place in values for place in MATRIX):
            return name
    return None
