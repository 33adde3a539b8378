"""Measures of failures: attempts grouped by the fingerprint of their error, and the age of dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sa_jobqueue.pipeline.spark.analytics._expressions import (
    DAY,
    bucket,
    check_groups,
    instant_or_now,
    percentiles,
    seconds,
    width_of,
    with_jobs,
)
from sa_jobqueue.pipeline.spark.analytics.history import History
from sa_jobqueue.types import Resolution

AGES: Final = {
    "unresolved_under_1h": timedelta(hours=1),
    "unresolved_1h_to_1d": timedelta(days=1),
    "unresolved_1d_to_7d": timedelta(days=7),
    "unresolved_7d_to_30d": timedelta(days=30),
}
"""Upper age limit of the unresolved dead letters in each column; older ones are in `unresolved_over_30d`."""


def error_groups(history: History, *, every: timedelta = DAY) -> DataFrame:
    """Group unsuccessful attempts by the fingerprint of their error, as stored when they failed.

    `every`: width of a bucket of the trend; buckets are aligned to 1970-01-01 in UTC.
    Shape: `fingerprint`, `error_type`, `count` (attempts), `jobs`, `type_names` (sorted, of jobs in the history),
    `share` (of all attempts with a fingerprint, 0 to 1), `first_seen`, `last_seen`, `example_job_id`, `example_message`,
    `example_traceback` (of the last one; null if the archive was written without errors), `trend` (an array of
    `bucket_start` and `count`, in order of time, without empty buckets), `example_type_name` (null if its job is not in
    the history).
    Raises: InvalidOptionError if `every` is not above zero.
    """
    width_of(every)
    failed = history.attempts.where("error_fingerprint IS NOT NULL").withColumnRenamed("error_fingerprint", "fingerprint")
    # The greatest job id breaks ties, so that the example is deterministic.
    latest = sf.struct("ended_at", "job_id", "attempt")
    example = sf.max_by(sf.struct("job_id", "error", "type_name"), latest)
    grouped = (
        with_jobs(failed, history.jobs, ["type_name"])
        .groupBy("fingerprint")
        .agg(
            sf.count("*").alias("count"),
            sf.count_distinct("job_id").alias("jobs"),
            sf.array_sort(sf.collect_set("type_name")).alias("type_names"),
            sf.min("ended_at").alias("first_seen"),
            sf.max("ended_at").alias("last_seen"),
            example.alias("example"),
        )
    )
    buckets = failed.groupBy("fingerprint", bucket("ended_at", every).alias("bucket_start")).agg(
        sf.count("*").alias("count")
    )
    trend = buckets.groupBy("fingerprint").agg(
        sf.array_sort(sf.collect_list(sf.struct("bucket_start", "count"))).alias("trend")
    )
    everything = failed.agg(sf.count("*").alias("everything"))
    error = sf.col("example.error")
    return (
        grouped.join(trend, "fingerprint")
        .crossJoin(everything)
        .select(
            "fingerprint",
            sf.get_json_object(error, "$.type").alias("error_type"),
            "count",
            "jobs",
            "type_names",
            (sf.col("count") / sf.col("everything")).alias("share"),
            "first_seen",
            "last_seen",
            sf.col("example.job_id").alias("example_job_id"),
            sf.get_json_object(error, "$.message").alias("example_message"),
            sf.get_json_object(error, "$.traceback").alias("example_traceback"),
            "trend",
            sf.col("example.type_name").alias("example_type_name"),
        )
    )


def dead_letter_ageing(
    history: History, by: Sequence[str] = ("type_name", "reason"), *, as_of: datetime | None = None
) -> DataFrame:
    """Count unresolved dead letters by age, and measure the time to resolution of the others.

    `by`: any of `type_name`, `queue` and `reason`. `as_of`: time at which ages are computed; default: Spark's clock.
    Shape: the columns of `by`, `dead_letters`, `unresolved`, `redriven`, `dismissed`, `unresolved_under_1h`,
    `unresolved_1h_to_1d`, `unresolved_1d_to_7d`, `unresolved_7d_to_30d`, `unresolved_over_30d`,
    `oldest_unresolved_seconds`, and, from death to resolution, `resolution_p50_seconds` and `resolution_p95_seconds`; these
    three are null without such dead letters.
    Raises: InvalidOptionError if `by` is invalid or `as_of` has no time zone.
    """
    names = check_groups(by, ("type_name", "queue", "reason"))
    is_unresolved = sf.col("resolution").isNull()
    age = sf.when(is_unresolved, seconds("died_at", instant_or_now(as_of)))
    dead_letters = history.dead_letters.withColumn("age_seconds", age)
    ages, younger = [], 0.0
    for name, limit in AGES.items():
        is_within = (sf.col("age_seconds") >= younger) & (sf.col("age_seconds") < limit.total_seconds())
        ages.append(sf.count_if(is_within).alias(name))
        younger = limit.total_seconds()
    resolution_seconds = percentiles(sf.when(~is_unresolved, seconds("died_at", "resolved_at")), (0.5, 0.95))
    return (
        dead_letters.groupBy(*names)
        .agg(
            sf.count("*").alias("dead_letters"),
            sf.count_if(is_unresolved).alias("unresolved"),
            *(sf.count_if(sf.col("resolution") == resolution.value).alias(resolution.value) for resolution in Resolution),
            *ages,
            sf.count_if(sf.col("age_seconds") >= younger).alias("unresolved_over_30d"),
            sf.max("age_seconds").alias("oldest_unresolved_seconds"),
            resolution_seconds.alias("taken"),
        )
        .where("dead_letters > 0")
        .withColumn("resolution_p50_seconds", sf.col("taken")[0])
        .withColumn("resolution_p95_seconds", sf.col("taken")[1])
        .drop("taken")
    )
