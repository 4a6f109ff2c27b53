"""Keys of aggregates that rows are joined with: sent to every task where they are few.

They go through the memory of the driver, and of every executor: where they are many, Spark brings rows and
keys together by itself.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast

SENT_ROUND = 100_000
"""Keys that are sent to every task, at most."""


def sent_round(keys: DataFrame, count: int) -> DataFrame:
    """Keys, of which there are so many, to be joined with."""
    return broadcast(keys) if count <= SENT_ROUND else keys
