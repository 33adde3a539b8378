"""The queue as a data source and sink of Apache Spark, through PySpark.

`spark.read.format("jobqueue").option("url", ...).load("jobs")` works wherever this package is installed on the driver and
the executors: Spark finds the module `pyspark_sa_jobqueue` by its name. No snapshot is held for a whole read, and a
Python worker keeps one connection between its tasks. No SparkContext is required, so everything works over Spark
Connect, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sa_jobqueue.pipeline.spark.errors import (
    JavaNotFoundError,
    MissingExtraError,
    OtherClusterError,
    ReadError,
    UnknownOptionError,
)
from sa_jobqueue.pipeline.spark.java import java_home

for _library in ("pyspark", "pyarrow"):
    try:
        import_module(_library)
    except ModuleNotFoundError as _missing:
        if _missing.name != _library:
            raise
        raise MissingExtraError(_library, "spark") from None

if TYPE_CHECKING:
    from sa_jobqueue.pipeline.spark.archiving import SparkEngine, archive
    from sa_jobqueue.pipeline.spark.enqueueing import enqueue, written
    from sa_jobqueue.pipeline.spark.lag import Holder, StreamLag, stream_lag
    from sa_jobqueue.pipeline.spark.options import REDACTION
    from sa_jobqueue.pipeline.spark.progress import WorkersReport
    from sa_jobqueue.pipeline.spark.redacting import redacted
    from sa_jobqueue.pipeline.spark.source import JobQueueSource, register
    from sa_jobqueue.pipeline.spark.workers import WorkerSet, run_workers

# Imported on first use: a process that only looks for Java, or runs one task, needs few of these modules.
_HOMES: Final = {
    "Holder": "lag",
    "JobQueueSource": "source",
    "REDACTION": "options",
    "SparkEngine": "archiving",
    "StreamLag": "lag",
    "WorkerSet": "workers",
    "WorkersReport": "progress",
    "archive": "archiving",
    "enqueue": "enqueueing",
    "redacted": "redacting",
    "register": "source",
    "run_workers": "workers",
    "stream_lag": "lag",
    "written": "enqueueing",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Holder",
    "JavaNotFoundError",
    "JobQueueSource",
    "MissingExtraError",
    "OtherClusterError",
    "REDACTION",
    "ReadError",
    "SparkEngine",
    "StreamLag",
    "UnknownOptionError",
    "WorkerSet",
    "WorkersReport",
    "archive",
    "enqueue",
    "java_home",
    "redacted",
    "register",
    "run_workers",
    "stream_lag",
    "written",
]
