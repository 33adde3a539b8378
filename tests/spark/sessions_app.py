"""An application whose handlers use Spark themselves."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sa_jobqueue import AttemptContext, JobQueue

jobs: JobQueue[Any] = JobQueue()


def slow(spark: SparkSession, *, milliseconds: int) -> DataFrame:
    """Return a frame that takes so long to compute, on one core and without working it."""
    naps = spark.range(0, milliseconds, 1, 1).selectExpr("java_method('java.lang.Thread', 'sleep', id * 0 + 1L) AS nap")
    return naps.selectExpr("max(nap)")


@jobs.handler("count_up_to")
def count_up_to(payload: int, spark: SparkSession) -> int:
    """Count with Spark."""
    return spark.range(payload).count()


@jobs.handler("looks")
def list_views(payload: str, spark: SparkSession, ctx: AttemptContext) -> dict[str, Any]:
    """Return the properties of the session."""
    spark.range(1).createOrReplaceTempView(payload)
    return {
        "views": sorted(table.name for table in spark.catalog.listTables()),
        "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
        "tags": sorted(spark.getTags()),
        "description": spark.sparkContext.getLocalProperty("spark.job.description"),
    }


@jobs.handler("slow", max_attempts=1)
def run_slow(payload: int, spark: SparkSession) -> int:
    """Compute for so many milliseconds."""
    return len(slow(spark, milliseconds=payload).collect())


@jobs.handler("slow_async", timeout=timedelta(minutes=5))
async def run_slow_async(payload: int, spark: SparkSession) -> int:
    """Do the same from a thread beside the loop."""
    return len(await asyncio.to_thread(slow(spark, milliseconds=payload).collect))
