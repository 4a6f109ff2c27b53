"""A program that copies a log into a Delta table as a stream, until it is killed: ``url folder``."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from toril.lake.session import session


def copy(spark: SparkSession, url: str, folder: str) -> StreamingQuery:
    """Start a query that ends when all that is there now is in the table, 300 events at a time."""
    log = spark.readStream.format("toril_log").option("url", url).option("max_events", 300).load()
    stream = log.writeStream.format("delta").option("checkpointLocation", f"{folder}/checkpoint")
    return stream.trigger(availableNow=True).start(f"{folder}/table")


if __name__ == "__main__":
    here = session("local[2]", conf={"spark.ui.enabled": "false", "spark.driver.memory": "1g"})
    copy(here, *sys.argv[1:3]).awaitTermination()
