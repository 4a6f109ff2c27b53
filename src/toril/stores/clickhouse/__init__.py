"""Stores in ClickHouse: a server by URL, or an engine inside of the process. Needs ``toril[clickhouse]``.

The driver is loaded when a database is opened, so that this can be imported without it.
"""

from toril.stores.clickhouse.batcher import Batcher, Limits
from toril.stores.clickhouse.cold import ClickHouseColdStore
from toril.stores.clickhouse.database import Database
from toril.stores.clickhouse.history import ClickHouseHistory
from toril.stores.clickhouse.table import MOMENT, Row, Table, moment, whole

__all__ = [
    "MOMENT",
    "Batcher",
    "ClickHouseColdStore",
    "ClickHouseHistory",
    "Database",
    "Limits",
    "Row",
    "Table",
    "moment",
    "whole",
]
