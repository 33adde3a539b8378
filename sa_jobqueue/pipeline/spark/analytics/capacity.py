"""Utilization of workers, and the number of workers that keeps queueing time below a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.errors.bounds import check_duration
from sa_jobqueue.pipeline.spark.analytics._expressions import (
    GROUPS,
    HOUR,
    check_groups,
    instant_or_now,
    percentiles,
    seconds,
    width_of,
)
from sa_jobqueue.pipeline.spark.analytics.attempts import intervals_of
from sa_jobqueue.pipeline.spark.analytics.history import History


def workers_needed(load: float, run_seconds: float, *, target_wait: timedelta, quantile: float = 0.95) -> int:
    """Return the fewest workers with which the share `quantile` of jobs waits no longer than `target_wait`.

    Assumes Poisson arrivals at a steady rate and exponentially distributed run times; jobs in a burst wait longer.

    `load`: offered load in erlangs, the average number of busy workers: arrivals per second times `run_seconds`, the mean
    run time of an attempt.
    `quantile`: above 0 and below 1.
    Raises: InvalidOptionError if a number is out of bounds.
    Source: A. K. Erlang's delay formula for M/M/c (1917); C from the recursion of B, as in Gross and others, Fundamentals
    of Queueing Theory (2008), 2.3 and 2.4.
    """
    _check_target(target_wait, quantile)
    if not (math.isfinite(load) and load >= 0 and math.isfinite(run_seconds) and run_seconds >= 0):
        raise InvalidOptionError(
            "load", f"and run_seconds must be numbers, not below zero, got {load!r} and {run_seconds!r}"
        )
    if load == 0 or run_seconds == 0:
        return 0 if load == 0 else 1
    blocked, workers = 1.0, 0  # Erlang B for zero workers
    while True:
        workers += 1
        blocked = load * blocked / (workers + load * blocked)
        if workers <= load:
            continue
        delayed = workers * blocked / (workers - load * (1 - blocked))
        late = delayed * math.exp(-(workers - load) * target_wait.total_seconds() / run_seconds)
        if late <= 1 - quantile:
            return workers


def capacity(
    history: History,
    *,
    by: Sequence[str] = ("type_name",),
    every: timedelta = HOUR,
    target_wait: timedelta = timedelta(seconds=1),
    quantile: float = 0.95,
    slots: int | None = None,
    as_of: datetime | None = None,
) -> DataFrame:
    """Return for each time bucket how many workers were busy, and how many are needed for a target wait.

    A worker is a slot that runs one job at a time. Each attempt counts, whatever its outcome.

    `by`: any of `type_name`, `queue`, `priority` and `chain_type_name`.
    `every`: width of a bucket.
    `target_wait`, `quantile`: as for `workers_needed`.
    `slots`: how many jobs your workers can run at a time, for `utilisation`.
    `as_of`: time up to which running jobs are counted; default: Spark's clock.
    Shape: `bucket_start`, the columns of `by`, `started` (attempts), `arrivals_per_second`, `mean_run_seconds` (of attempts
    that ended), `busy_workers` (run time inside the bucket divided by its width: Little's L), `utilisation` (of `slots`;
    null without), `p95_wait_seconds` (of jobs whose last attempt started in it), `workers_needed` (for the larger of
    `busy_workers` and arrivals times mean run time; null without that mean). Empty buckets have no row.
    Source: Little, A Proof for the Queuing Formula L = lambda * W (1961).
    """
    names = check_groups(by, GROUPS)
    width = width_of(every)
    _check_target(target_wait, quantile)
    if slots is not None and slots < 1:
        raise InvalidOptionError("slots", f"must be at least 1, or None, got {slots!r}")
    ran = intervals_of(history, [*names, "scheduled_at", "last_attempt"]).where("started_at IS NOT NULL")
    begin = sf.unix_micros("started_at")
    end = sf.greatest(begin, sf.unix_micros(sf.coalesce("ended_at", instant_or_now(as_of))))
    is_last = (sf.col("attempt") == sf.col("last_attempt")) & (sf.col("started_at") >= sf.col("scheduled_at"))
    timed = ran.select(
        *names,
        begin.alias("begin"),
        end.alias("end"),
        seconds("started_at", "ended_at").alias("run_seconds"),
        sf.when(is_last, seconds("scheduled_at", "started_at")).alias("wait_seconds"),
    )
    # An attempt has a row for each bucket that it ran in, and counts as started in the first.
    first, last = (sf.col(name) - sf.pmod(sf.col(name), sf.lit(width)) for name in ("begin", "end"))
    in_buckets = timed.withColumn("bucket", sf.explode(sf.sequence(first, last, sf.lit(width)))).withColumn(
        "is_start", sf.col("begin") >= sf.col("bucket")
    )
    inside = sf.least("end", sf.col("bucket") + width) - sf.greatest("begin", "bucket")
    summed = (
        in_buckets.groupBy("bucket", *names)
        .agg(
            sf.count_if("is_start").alias("started"),
            sf.sum(inside).alias("busy"),
            sf.avg(sf.when(sf.col("is_start"), sf.col("run_seconds"))).alias("mean_run_seconds"),
            percentiles(sf.when(sf.col("is_start"), sf.col("wait_seconds")), (0.95,))[0].alias("p95_wait_seconds"),
        )
        .where("started > 0 OR busy > 0")
    )
    arrivals, busy = sf.col("started") / sf.lit(width / 1e6), sf.col("busy") / sf.lit(width)

    load = sf.greatest(busy, arrivals * sf.col("mean_run_seconds"))
    measured = summed.select(
        sf.timestamp_micros("bucket").alias("bucket_start"),
        *names,
        "started",
        arrivals.alias("arrivals_per_second"),
        "mean_run_seconds",
        busy.alias("busy_workers"),
        (busy / sf.lit(slots)).cast("double").alias("utilisation"),
        "p95_wait_seconds",
        load.alias("load"),
    ).toArrow()
    # Here, because there are few rows, and for these numbers alone Spark would start Python.
    means, loads = (measured[name].to_pylist() for name in ("mean_run_seconds", "load"))
    needed = [
        None if mean is None else workers_needed(load, mean, target_wait=target_wait, quantile=quantile)
        for mean, load in zip(means, loads, strict=True)
    ]
    table = measured.drop_columns(["load"]).append_column("workers_needed", pa.array(needed, pa.int32()))
    return summed.sparkSession.createDataFrame(table)


def _check_target(target_wait: timedelta, quantile: float) -> None:
    check_duration("target_wait", target_wait, or_zero=True)
    if not 0 < quantile < 1:
        raise InvalidOptionError("quantile", f"must be above 0 and below 1, got {quantile!r}")
