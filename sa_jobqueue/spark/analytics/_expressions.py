"""Expressions that several measures share: durations, buckets of time, and the columns to group by."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.types import AttemptOutcome

GROUPS: Final = ("type_name", "queue", "priority", "chain_type_name")
"""Columns of a job by which measures can be grouped."""

FAILURES: Final = (AttemptOutcome.FAILED.value, AttemptOutcome.TIMED_OUT.value, AttemptOutcome.LOST.value)
"""Outcomes of attempts that went wrong; the others were given back or stopped on purpose."""

HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)

# The smallest of Spark's guarantees that is exact here: a sample of fewer values than this is not approximated at all.
_ACCURACY: Final = 10_000


def micros(since: str | Column, until: str | Column) -> Column:
    """Return the whole microseconds between two instants; null where one of them is."""
    return sf.unix_micros(until) - sf.unix_micros(since)


def seconds(since: str | Column, until: str | Column) -> Column:
    """Return the seconds between two instants, never below zero; null where one of them is."""
    between = micros(since, until)
    return sf.when(between < 0, sf.lit(0.0)).otherwise(between / sf.lit(1e6))


def bucket(instant: str | Column, every: timedelta) -> Column:
    """Return when the bucket of time begins that an instant is in; buckets are counted from 1970, in UTC.

    Computed on numbers, and not by `date_trunc`: that one cuts by the time zone of the session.
    """
    number = sf.unix_micros(instant)
    return sf.timestamp_micros(number - sf.pmod(number, sf.lit(width_of(every))))


def width_of(every: timedelta) -> int:
    """Return the microseconds of a bucket. Raises: InvalidOptionError when it is no longer than nothing."""
    if not isinstance(every, timedelta) or every <= timedelta(0):
        raise InvalidOptionError("every", f"must be a timedelta above zero, such as timedelta(hours=1), got {every!r}")
    return every // timedelta(microseconds=1)


def percentiles(value: str | Column, points: Sequence[float]) -> Column:
    """Return an array of percentiles, one for each point between 0 and 1. Each is an existing value, not interpolated.

    Exact up to 10,000 values per group; above that, the error in rank is at most a ten-thousandth of the group's size.
    Source: `percentile_approx` of Spark, an implementation of Greenwald and Khanna, Space-Efficient Online Computation of
    Quantile Summaries (2001).
    """
    return sf.percentile_approx(value, list(points), _ACCURACY)


def check_groups(by: Sequence[str], allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the names to group by. Raises: InvalidOptionError naming those that there are."""
    names = tuple(by)
    wrong = [name for name in names if name not in allowed]
    if isinstance(by, str) or wrong or len(set(names)) < len(names):
        raise InvalidOptionError("by", f"must be different names out of {', '.join(allowed)}, got {by!r}")
    return names


def instant_or_now(as_of: datetime | None) -> Column:
    """Return an instant as a column; without one, when Spark evaluates it.

    Raises: InvalidOptionError when it has no time zone.
    """
    if as_of is None:
        return sf.current_timestamp()
    return aware("as_of", as_of)


def aware(option: str, given: datetime) -> Column:
    """Return an instant as a column. Raises: InvalidOptionError when it has no time zone."""
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise InvalidOptionError(option, f"must be a datetime with a time zone, got {given!r}")
    # A number, and not the datetime itself: a literal would go through the time zone of this machine.
    return sf.timestamp_micros(sf.lit(round(given.timestamp() * 1_000_000)))


def with_jobs(rows: DataFrame, jobs: DataFrame, names: Sequence[str | Column]) -> DataFrame:
    """Add columns of the job that rows with a `job_id` are about; null where the job is not in the history."""
    of_job = jobs.select(sf.col("id").alias("job_id"), *names)
    return rows.join(of_job, "job_id", "left")
