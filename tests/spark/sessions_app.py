"""An application whose handlers use Spark themselves."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from sa_jobqueue import JobQueue

jobs: JobQueue[Any] = JobQueue()


@jobs.handler("count_up_to")
def count_up_to(payload: int, spark: SparkSession) -> int:
    """Count with Spark."""
    return spark.range(payload).count()
