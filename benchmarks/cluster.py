"""A program that works off a database's jobs with workers on the executors of a small standalone cluster of Spark.

`python -m benchmarks.cluster EXECUTORS`, with the database in `SA_JOBQUEUE_URL`. Each executor is a process with one core.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

_MEGABYTES: Final = 1024


def main() -> None:
    """Run workers, one an executor, until they find no job."""
    import pyspark
    from pyspark.sql import SparkSession

    from sa_jobqueue.pipeline.spark import java_home, run_workers

    executors = int(sys.argv[1])
    here = str(Path(__file__).parent.parent)
    os.environ |= {
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
    }
    builder = SparkSession.builder.master(f"local-cluster[{executors},1,{_MEGABYTES}]").appName("executors")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": f"{_MEGABYTES // 2}m",
        "spark.executorEnv.PYTHONPATH": here,
        "spark.executorEnv.SA_JOBQUEUE_URL": os.environ["SA_JOBQUEUE_URL"],
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(name, value)
    with builder.getOrCreate() as spark:
        run_workers(spark, "benchmarks.spark_app:jobs", slots=executors, idle_exit=timedelta(seconds=1))


if __name__ == "__main__":
    main()
