"""Measures of attempts: intervals of time, counts, and the share of jobs that needed a retry."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sa_jobqueue.pipeline.spark.analytics._expressions import (
    FAILURES,
    GROUPS,
    HOUR,
    bucket,
    check_groups,
    width_of,
    with_jobs,
)
from sa_jobqueue.pipeline.spark.analytics.history import History
from sa_jobqueue.types import AttemptOutcome, JobStatus

COMPLETED: Final = "completed"
RUNNING: Final = "running"
_OUTCOMES: Final = tuple(outcome.value for outcome in AttemptOutcome)


def intervals(history: History) -> DataFrame:
    """Return all attempts of a `history`, including running ones.

    Shape: `job_id`, `attempt`, `outcome` (`completed`, `running` or the outcome of an unsuccessful attempt), `started_at`,
    `ended_at` (null while it runs). Of a deleted job, only unsuccessful attempts are included, because the history
    contains no others.
    """
    return intervals_of(history, [])


def intervals_of(history: History, names: Sequence[str]) -> DataFrame:
    """Return the same with columns of the jobs, among them `last_attempt`; null if the job is not in the history."""
    jobs = history.jobs.withColumn("last_attempt", sf.col("attempt"))
    of_job = jobs.select(sf.col("id").alias("job_id"), *names)
    by_worker = (sf.col("status") == JobStatus.COMPLETED.value) & sf.col("completed_by").isNotNull()
    is_running = sf.col("status") == JobStatus.RUNNING.value
    last = jobs.where(by_worker | is_running).select(
        sf.col("id").alias("job_id"),
        sf.col("attempt"),
        sf.when(is_running, sf.lit(RUNNING)).otherwise(sf.lit(COMPLETED)).alias("outcome"),
        "started_at",
        sf.when(by_worker, sf.col("completed_at")).alias("ended_at"),
        *names,
    )
    unsuccessful = history.attempts.select("job_id", "attempt", "outcome", "started_at", "ended_at")
    # Successful attempts, by far the most, are already rows of jobs, so only the others need a join.
    return (unsuccessful.join(of_job, "job_id", "left") if names else unsuccessful).unionAll(last)


def throughput(history: History, *, every: timedelta = HOUR, by: Sequence[str] = ()) -> DataFrame:
    """Count enqueued, completed and cancelled jobs, failed attempts and dead letters per time bucket.

    `by`: any of `type_name` and `queue`. `every`: width of a bucket; buckets are aligned to 1970-01-01 in UTC.
    Shape: `bucket_start`, the columns of `by`, and the numbers `enqueued` (jobs), `completed`, `cancelled` (jobs that
    ended with that status), `failed` (attempts that failed, timed out or were lost), `dead` (dead letters). Empty buckets
    have no row. A redriven job counts in `dead` for each of its deaths.
    Raises: InvalidOptionError if `by` or `every` is invalid.
    """
    names = check_groups(by, ("type_name", "queue"))
    width_of(every)
    jobs = history.jobs

    failed = history.attempts.where(sf.col("outcome").isin(list(FAILURES)))
    happened = {
        "enqueued": (jobs, "created_at"),
        "completed": (jobs.where(sf.col("status") == JobStatus.COMPLETED.value), "completed_at"),
        "cancelled": (jobs.where(sf.col("status") == JobStatus.CANCELLED.value), "completed_at"),
        "failed": (with_jobs(failed, jobs, names) if names else failed, "ended_at"),
        "dead": (history.dead_letters, "died_at"),
    }
    events = reduce(
        DataFrame.unionByName,
        (rows.select(sf.col(at).alias("at"), sf.lit(kind).alias("what"), *names) for kind, (rows, at) in happened.items()),
    )
    return (
        events.where("at IS NOT NULL")
        .groupBy(bucket("at", every).alias("bucket_start"), *names)
        .agg(*(sf.count_if(sf.col("what") == kind).alias(kind) for kind in happened))
    )


def retry_rate(history: History, by: Sequence[str] = ("type_name",)) -> DataFrame:
    """Return the share of jobs that needed a retry, and of attempts that failed.

    `by`: any of `type_name`, `queue`, `priority` and `chain_type_name`. Only claimed jobs in the history are counted.
    Shape: the columns of `by`, `jobs`, `attempts` (that ended), `completed` and one number for each outcome of
    unsuccessful attempts (`failed`, `timed_out`, `lost`, `snoozed`, `released`, `cancelled`, `superseded`),
    `retried_jobs` (claimed again after one of the first three), `retry_rate` (their share of the jobs, 0 to 1),
    `failure_rate` (share of the first three in all attempts, 0 to 1; null without an attempt that ended).
    Raises: InvalidOptionError if `by` is invalid.
    """
    names = check_groups(by, GROUPS)
    by_worker = (sf.col("status") == JobStatus.COMPLETED.value) & sf.col("completed_by").isNotNull()
    jobs = history.jobs.where("attempt > 0").select("id", *names, "attempt", sf.when(by_worker, 1).alias(COMPLETED))
    wrong = sf.col("outcome").isin(list(FAILURES))
    unsuccessful = history.attempts.groupBy(sf.col("job_id").alias("id")).agg(
        *(sf.count_if(sf.col("outcome") == outcome).alias(outcome) for outcome in _OUTCOMES),
        sf.min(sf.when(wrong, sf.col("attempt"))).alias("first_wrong"),
    )
    summed = (
        jobs.join(unsuccessful, "id", "left")
        .groupBy(*names)
        .agg(
            sf.count("*").alias("jobs"),
            *(sf.coalesce(sf.sum(outcome), sf.lit(0)).alias(outcome) for outcome in (COMPLETED, *_OUTCOMES)),
            sf.count_if(sf.col("first_wrong") < sf.col("attempt")).alias("retried_jobs"),
        )
        .where("jobs > 0")
    )
    ended = sum((sf.col(outcome) for outcome in (COMPLETED, *_OUTCOMES)), sf.lit(0))
    summed = summed.select(*names, "jobs", ended.alias("attempts"), COMPLETED, *_OUTCOMES, "retried_jobs")
    failures = sum((sf.col(outcome) for outcome in FAILURES), sf.lit(0))
    return summed.withColumn("retry_rate", sf.col("retried_jobs") / sf.col("jobs")).withColumn(
        "failure_rate", sf.try_divide(failures, sf.col("attempts"))
    )
