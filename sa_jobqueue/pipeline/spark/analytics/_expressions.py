"""Expressions shared by several measures: durations, time buckets, and grouping columns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.errors.bounds import check_duration, check_instant
from sa_jobqueue.types import AttemptOutcome

GROUPS: Final = ("type_name", "queue", "priority", "chain_type_name")
"""Columns of a job by which measures can be grouped."""

FAILURES: Final = (AttemptOutcome.FAILED.value, AttemptOutcome.TIMED_OUT.value, AttemptOutcome.LOST.value)
"""Outcomes of failed attempts; the others were snoozed, released, cancelled or superseded."""

HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)

# Percentiles of fewer values than this are exact, not approximated.
_ACCURACY: Final = 10_000


def micros(since: str | Column, until: str | Column) -> Column:
    """Return the whole microseconds between two instants; null if either is null."""
    return sf.unix_micros(until) - sf.unix_micros(since)


def seconds(since: str | Column, until: str | Column) -> Column:
    """Return the seconds between two instants, at least zero; null if either is null."""
    between = micros(since, until)
    return sf.when(between < 0, sf.lit(0.0)).otherwise(between / sf.lit(1e6))


def bucket(instant: str | Column, every: timedelta) -> Column:
    """Return the start of the time bucket that contains an instant; buckets are aligned to 1970-01-01 in UTC.

    Computed from numbers, because `date_trunc` uses the time zone of the session.
    """
    number = sf.unix_micros(instant)
    return sf.timestamp_micros(number - sf.pmod(number, sf.lit(width_of(every))))


def width_of(every: timedelta) -> int:
    """Return the width of a bucket in microseconds. Raises: InvalidOptionError if it is not above zero."""
    check_duration("every", every)
    return every // timedelta(microseconds=1)


def percentiles(value: str | Column, points: Sequence[float]) -> Column:
    """Return an array of percentiles, one for each point between 0 and 1. Each is an existing value, not interpolated.

    Exact up to 10,000 values per group; above that, the error in rank is at most a ten-thousandth of the group's size.
    Source: `percentile_approx` of Spark, an implementation of Greenwald and Khanna, Space-Efficient Online Computation of
    Quantile Summaries (2001).
    """
    return sf.percentile_approx(value, list(points), _ACCURACY)


def check_groups(by: Sequence[str], allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the names to group by. Raises: InvalidOptionError naming the allowed ones."""
    names = tuple(by)
    wrong = [name for name in names if name not in allowed]
    if isinstance(by, str) or wrong or len(set(names)) < len(names):
        raise InvalidOptionError("by", f"must be different names out of {', '.join(allowed)}, got {by!r}")
    return names


def instant_or_now(as_of: datetime | None) -> Column:
    """Return an instant as a column; default: the time at which Spark evaluates the query.

    Raises: InvalidOptionError if it has no time zone.
    """
    if as_of is None:
        return sf.current_timestamp()
    return aware("as_of", as_of)


def aware(option: str, moment: datetime) -> Column:
    """Return an instant as a column. Raises: InvalidOptionError if it has no time zone."""
    check_instant(option, moment)
    # As a number, because a datetime literal would be converted through this machine's time zone.
    return sf.timestamp_micros(sf.lit(round(moment.timestamp() * 1_000_000)))


def with_jobs(rows: DataFrame, jobs: DataFrame, names: Sequence[str | Column]) -> DataFrame:
    """Add columns of the job to rows with a `job_id`; null if the job is not in the history."""
    of_job = jobs.select(sf.col("id").alias("job_id"), *names)
    return rows.join(of_job, "job_id", "left")
