"""Analytics over the queue's history: DataFrames in, documented DataFrames out.

A `History` holds the four datasets of `sa_jobqueue.history`, from a live database, an archive, or both without double
rows; every function takes one and returns a DataFrame of fixed columns, times that last in seconds. Nothing is computed
before the result is asked for, except by `workflows`, which first finds out what hangs together. All of it is DataFrame API:
it runs over Spark Connect as well.

What the columns can tell, and what not: a job keeps the times of its last attempt, and `attempts` has a row for each
unsuccessful one, so all attempts together are a complete record of who ran when. How long earlier attempts had waited
is not kept. A job deleted on completion leaves no trace but its unsuccessful attempts.
"""

from __future__ import annotations

from sa_jobqueue.spark.analytics.attempts import intervals, retry_rate, throughput
from sa_jobqueue.spark.analytics.capacity import capacity, workers_needed
from sa_jobqueue.spark.analytics.components import chain_components
from sa_jobqueue.spark.analytics.failures import dead_letter_ageing, error_groups
from sa_jobqueue.spark.analytics.history import History, NoHistoryError
from sa_jobqueue.spark.analytics.latency import latencies, latency_percentiles
from sa_jobqueue.spark.analytics.workflows import critical_paths, workflows

__all__ = [
    "History",
    "NoHistoryError",
    "capacity",
    "chain_components",
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
