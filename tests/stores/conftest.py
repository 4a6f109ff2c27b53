from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stores.places import Places, places


@pytest.fixture(scope="package", autouse=True)
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """One embedded engine for all tests here: a process can have only one."""
    import chdb

    with places(tmp_path_factory.mktemp("clickhouse")) as made:
        kept_open = chdb.connect(str(made.directory))  # type: ignore[no-untyped-call]
        yield made
        kept_open.close()
