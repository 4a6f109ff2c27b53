from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.stores.places import PLACES, Places, places


@pytest.fixture(scope="package", autouse=True)
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """One embedded engine for all tests here: a process can have only one."""
    import chdb

    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPIPE])  # the import blocks it in its thread
    with places(tmp_path_factory.mktemp("clickhouse")) as made:
        kept_open = chdb.connect(str(made.directory))  # type: ignore[no-untyped-call]
        yield made
        kept_open.close()


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    """Every place in turn where ClickHouse can be."""
    return str(request.param)
