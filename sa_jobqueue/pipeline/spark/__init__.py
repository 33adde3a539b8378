"""The queue as a data source and sink of Apache Spark, through PySpark.

`spark.read.format("jobqueue").option("url", ...).load("jobs")` works wherever this package is installed on the driver and
the executors: Spark finds the module `pyspark_sa_jobqueue` by its name. No snapshot is held for a whole read, and a
Python worker keeps one connection between its tasks. No SparkContext is required, so everything works over Spark
Connect, too.
"""

from __future__ import annotations

from importlib.util import find_spec

from sa_jobqueue.errors import MissingExtraError
from sa_jobqueue.pipeline.spark.errors import JavaNotFoundError, OtherClusterError, ReadError, RestoredRowsError, WriteError
from sa_jobqueue.pipeline.spark.java import java_home

if _missing := next((library for library in ("pyspark", "pyarrow", "pandas") if find_spec(library) is None), None):
    raise MissingExtraError(_missing, "spark")

from sa_jobqueue.pipeline.spark.archiving import archive
from sa_jobqueue.pipeline.spark.enqueueing import document, enqueue, enqueue_stream, written
from sa_jobqueue.pipeline.spark.offsets import Holder, StreamLag, stream_lag
from sa_jobqueue.pipeline.spark.options import REDACTION
from sa_jobqueue.pipeline.spark.progress import WorkersReport
from sa_jobqueue.pipeline.spark.redacting import redacted
from sa_jobqueue.pipeline.spark.source import register
from sa_jobqueue.pipeline.spark.workers import WorkerSet, run_workers

__all__ = [
    "REDACTION",
    "Holder",
    "JavaNotFoundError",
    "OtherClusterError",
    "ReadError",
    "RestoredRowsError",
    "StreamLag",
    "WorkerSet",
    "WorkersReport",
    "WriteError",
    "archive",
    "document",
    "enqueue",
    "enqueue_stream",
    "java_home",
    "redacted",
    "register",
    "run_workers",
    "stream_lag",
    "written",
]
