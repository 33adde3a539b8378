"""Percentiles of the time that jobs wait and run, grouped by properties of the jobs and by time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sa_jobqueue.pipeline.spark.analytics._expressions import DAY, GROUPS, HOUR, bucket, check_groups, percentiles, seconds
from sa_jobqueue.pipeline.spark.analytics.history import History
from sa_jobqueue.types import JobStatus

POINTS: Final = (0.5, 0.9, 0.95, 0.99)
"""Percentiles of the columns `p50_seconds` to `p99_seconds`."""

MEASURES: Final = ("wait", "run", "total")


def latencies(history: History) -> DataFrame:
    """Return the wait time, run time and total time of each job of a `history`, in seconds.

    Shape: `id`, `type_name`, `queue`, `priority`, `chain_type_name`, `status`, `hour` and `day` (in UTC, when the last
    attempt started or, without one, the job was completed), and
    `wait_seconds`, from when the last attempt was due (`scheduled_at`, which every retry and the end of the last blocker
    change) until it was claimed; null if no worker has claimed it since;
    `run_seconds`, from that claim to completion, of jobs that a worker completed; `intervals` has earlier attempts;
    `total_seconds`, from enqueueing to completion, of all completed jobs.
    """
    completed = sf.col("status") == JobStatus.COMPLETED.value
    by_worker = completed & sf.col("completed_by").isNotNull()
    # A retry makes the job due after its last start, so an older start belongs to a previous attempt.
    claimed = sf.col("started_at") >= sf.col("scheduled_at")
    began = sf.coalesce(sf.when(claimed, sf.col("started_at")), sf.when(completed, sf.col("completed_at")))
    return history.jobs.select(
        "id",
        *GROUPS,
        "status",
        bucket(began, HOUR).alias("hour"),
        bucket(began, DAY).alias("day"),
        sf.when(claimed, seconds("scheduled_at", "started_at")).alias("wait_seconds"),
        sf.when(by_worker & claimed, seconds("started_at", "completed_at")).alias("run_seconds"),
        sf.when(completed, seconds("created_at", "completed_at")).alias("total_seconds"),
    )


def latency_percentiles(history: History, by: Sequence[str] = ("type_name",)) -> DataFrame:
    """Summarise the times of `latencies`, in seconds, for each group and measure.

    `by`: any of `type_name`, `queue`, `priority`, `chain_type_name`, `hour` and `day`; empty: one group.
    Shape: the columns of `by`, `measure` (`wait`, `run` or `total`), `count`, `mean_seconds`, `p50_seconds`,
    `p90_seconds`, `p95_seconds`, `p99_seconds`, `max_seconds`; a row for each measure of which a group has values.
    Units: seconds. Percentiles are existing values, exact up to 10,000 jobs per group.
    Raises: InvalidOptionError if `by` is invalid.
    """
    names = check_groups(by, (*GROUPS, "hour", "day"))
    summaries = []
    for measure in MEASURES:
        value = sf.col(f"{measure}_seconds")
        summary = sf.struct(
            sf.lit(measure).alias("measure"),
            sf.count(value).alias("count"),
            sf.avg(value).alias("mean_seconds"),
            percentiles(value, POINTS).alias("points"),
            sf.max(value).alias("max_seconds"),
        )
        summaries.append(summary.alias(measure))
    grouped = latencies(history).groupBy(*names).agg(*summaries)
    summary = sf.explode(sf.array(*MEASURES)).alias("summary")
    return (
        grouped.select(*names, summary)
        .where("summary.count > 0")
        .select(
            *names,
            "summary.measure",
            "summary.count",
            "summary.mean_seconds",
            *(sf.col("summary.points")[n].alias(f"p{point * 100:.0f}_seconds") for n, point in enumerate(POINTS)),
            "summary.max_seconds",
        )
    )
