"""A program that copies a log into a Delta table as a stream, until it is killed: ``url folder``."""

from __future__ import annotations

import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from toril.lake.sessions import session


def copy(spark: SparkSession, url: str, folder: str) -> StreamingQuery:
    """Start a query that ends when all that is there now is in the table, 300 events at a time."""
    log = spark.readStream.format("toril_log").option("url", url).option("max_events", 300).load()
    stream = log.writeStream.format("delta").option("checkpointLocation", f"{folder}/checkpoint")
    return stream.trigger(availableNow=True).start(f"{folder}/table")


def finish(spark: SparkSession, url: str, folder: str) -> StreamingQuery:
    """Run it to its end. Spark waits ten seconds for the process of a source: on a busy machine, again."""
    while True:
        query = copy(spark, url, folder)
        try:
            query.awaitTermination()
        except StreamingQueryException as problem:
            if "failed to connect back" not in str(problem):
                raise
        else:
            return query


if __name__ == "__main__":
    here = session("local[2]", conf={"spark.ui.enabled": "false", "spark.driver.memory": "1g"})
    finish(here, *sys.argv[1:3])
