"""Analytics of the queue's history: functions that take a `History` and return DataFrames with documented columns.

A `History` contains the four datasets of `sa_jobqueue.pipeline.history`, from a live database, an archive, or both without
duplicate rows. Results have fixed columns, with durations in seconds. They are computed lazily, except by `workflows` and
`capacity`, whose last step is Python. Only the DataFrame API is used, so everything works over Spark Connect,
too.

Limits: a job has the times of its last attempt only, and `attempts` has a row for each unsuccessful attempt, so together
they record when each attempt ran. How long earlier attempts waited is not recorded. Of a job deleted on completion, only
the unsuccessful attempts remain.
"""

from __future__ import annotations

from sa_jobqueue.pipeline.spark.analytics.attempts import intervals, retry_rate, throughput
from sa_jobqueue.pipeline.spark.analytics.capacity import capacity, workers_needed
from sa_jobqueue.pipeline.spark.analytics.failures import dead_letter_ageing, error_groups
from sa_jobqueue.pipeline.spark.analytics.history import History, NoHistoryError
from sa_jobqueue.pipeline.spark.analytics.latency import latencies, latency_percentiles
from sa_jobqueue.pipeline.spark.analytics.workflows import critical_paths, workflows

__all__ = [
    "History",
    "NoHistoryError",
    "capacity",
    "critical_paths",
    "dead_letter_ageing",
    "error_groups",
    "intervals",
    "latencies",
    "latency_percentiles",
    "retry_rate",
    "throughput",
    "workers_needed",
    "workflows",
]
