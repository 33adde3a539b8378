"""The input of analytics: the queue's four datasets, from a database, an archive or both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import reduce
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_type

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.pipeline.arrow import TYPES
from sa_jobqueue.pipeline.history import ATTEMPTS, BLOCKERS, DATASETS, DEAD_LETTERS, JOBS, Dataset
from sa_jobqueue.pipeline.spark.analytics._expressions import aware

_DAY: Final = "completed_date"
"""The archive's partition column, as `sa_jobqueue.pipeline.archive` writes it."""

_SPARK: Final = {kind: from_arrow_type(arrow_type).simpleString() for kind, arrow_type in TYPES.items()}

USED: Final = {
    JOBS.name: (
        *("id", "queue", "type_name", "priority", "chain_id", "chain_type_name", "chain_index", "status", "created_at"),
        *("scheduled_at", "started_at", "completed_at", "completed_by", "attempt"),
    ),
    ATTEMPTS.name: ("job_id", "attempt", "started_at", "ended_at", "outcome", "error", "error_fingerprint"),
    DEAD_LETTERS.name: ("id", "job_id", "queue", "type_name", "reason", "died_at", "resolution", "resolved_at"),
    BLOCKERS.name: ("job_id", "blocked_by_chain_id"),
}
"""Columns that analytics read. They include no payload, and errors of attempts only."""


class NoHistoryError(InvalidOptionError):
    """There is no history at the given path; nothing was read."""


@dataclass(frozen=True, slots=True)
class History:
    """Jobs, attempts, dead letters and blockers as DataFrames, with the columns of the published schema that measures use.

    You can pass your own frames. A missing column is read as null, unless it identifies a row. A measure sees the rows
    at the time it is computed; `cached` reads them once.
    Raises: InvalidOptionError if a frame lacks a column that identifies its rows.
    """

    jobs: DataFrame
    """Rows of the dataset `jobs`."""
    attempts: DataFrame
    """Rows of the dataset `attempts`."""
    dead_letters: DataFrame
    """Rows of the dataset `dead_letters`."""
    blockers: DataFrame
    """Rows of the dataset `blockers`."""

    def __post_init__(self) -> None:
        for name, dataset in DATASETS.items():
            object.__setattr__(self, name, _conformed(getattr(self, name), dataset))

    @classmethod
    def live(cls, spark: SparkSession, url: str, **options: str) -> History:
        """Return the history in a database, read through `spark.read.format("jobqueue")`, without payloads.

        `spark`: the session that reads. `url` and `options` are those of that source, and apply to all four datasets.
        """
        reader = spark.read.format("jobqueue").options(**options).option("url", url)
        frames = {name: reader.option("columns", ",".join(USED[name])).load(name) for name in DATASETS}
        return cls(**frames)

    @classmethod
    def archive(cls, spark: SparkSession, path: str, *, since: datetime | None = None) -> History:
        """Return the history in an archive: Parquet files in a folder for each dataset. A missing folder is read as empty.

        `spark`: the session that reads. `path`: the archive's folder or URI, as Spark opens it. `since`: leave out the
        folders of days before that of this aware instant, in UTC; for rows of an exact time, use `where` as well.
        Raises: NoHistoryError if the folder of jobs is missing; InvalidOptionError if `since` has no time zone.
        """
        if since is not None:
            aware("since", since)
        day = None if since is None else since.astimezone(UTC).date()
        return cls(**{name: _archived(spark, path, dataset, day) for name, dataset in DATASETS.items()})

    def union(self, history: History) -> History:
        """Return both histories as one, without duplicate rows: of a row in both, this one's version is used.

        `history`: the history to add. Put the live queue first: `live.union(archive)`.
        """
        frames = {}
        for name, dataset in DATASETS.items():
            mine, added_rows = getattr(self, name), getattr(history, name)
            added = added_rows.join(mine.select(*dataset.key), list(dataset.key), "left_anti")
            frames[name] = mine.unionByName(added.select(*mine.columns))
        return History(**frames)

    def where(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        queues: Sequence[str] = (),
        types: Sequence[str] = (),
    ) -> History:
        """Return the rows that ended at `since` or later and before `until`, of these `queues` and `types`; all by default.

        Instants are aware. A job that has not ended is selected by its enqueueing, an attempt by its end, a dead letter
        by the death, a blocker by the job that waits.
        Raises: InvalidOptionError if an instant has no time zone.
        """
        jobs, attempts, dead_letters, blockers = self.jobs, self.attempts, self.dead_letters, self.blockers
        for name, names in (("queue", list(queues)), ("type_name", list(types))):
            if names:
                jobs = jobs.where(sf.col(name).isin(names))
                dead_letters = dead_letters.where(sf.col(name).isin(names))
        if queues or types:
            attempts = attempts.join(jobs.select(sf.col("id").alias("job_id")), "job_id", "left_semi")
        jobs = jobs.where(_between(sf.coalesce("completed_at", "created_at"), since, until))
        attempts = attempts.where(_between(sf.col("ended_at"), since, until))
        dead_letters = dead_letters.where(_between(sf.col("died_at"), since, until))
        if queues or types or since or until:
            blockers = blockers.join(jobs.select(sf.col("id").alias("job_id")), "job_id", "left_semi")
        return History(jobs, attempts, dead_letters, blockers)

    @contextmanager
    def cached(self) -> Iterator[History]:
        """Return a context manager that reads each dataset once and caches it, on disk if memory is short.

        All measures computed inside use the same rows.
        """
        frames = [getattr(self, name).persist() for name in DATASETS]
        try:
            # Read everything now in one query, because each query costs more than reading a small dataset.
            reduce(DataFrame.unionAll, [frame.select(sf.lit(1)) for frame in frames]).count()
            yield History(*frames)
        finally:
            for frame in frames:
                frame.unpersist()


def _archived(spark: SparkSession, path: str, dataset: Dataset, since: date | None) -> DataFrame:
    schema = ", ".join(f"`{column.name}` {_SPARK[column.kind]}" for column in dataset.columns)
    folder = f"{path.rstrip('/')}/{dataset.name}"
    reader = spark.read.option("pathGlobFilter", "part-*.parquet")  # not other files that lie there
    try:
        if since is None:
            frame = reader.schema(schema).option("recursiveFileLookup", "true").parquet(folder)
        else:
            # A chain is archived under the UTC date on which it ended, so none of its rows ended later.
            day = sf.col(_DAY)
            frame = reader.schema(f"{schema}, {_DAY} date").parquet(folder).where(day.isNull() | (day >= sf.lit(since)))
        _ = frame.columns  # over Spark Connect, only this detects a missing path
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        if dataset is JOBS:
            reason = f"there is no archive at {path!r}: it would have a folder {JOBS.name!r}"
            raise NoHistoryError("path", reason) from error
        frame = spark.createDataFrame([], schema)
    return frame


def _conformed(frame: DataFrame, dataset: Dataset) -> DataFrame:
    existing = set(frame.columns)
    for name in dataset.key:
        if name not in existing:
            raise InvalidOptionError(dataset.name, f"must have the column {name!r}, which identifies its rows")
    columns: list[Column] = []
    for name in USED[dataset.name]:
        column = sf.col(name) if name in existing else sf.lit(None)
        columns.append(column.cast(_SPARK[dataset.column(name).kind]).alias(name))
    return frame.select(*columns)


def _between(instant: Column, since: datetime | None, until: datetime | None) -> Column:
    condition = sf.lit(True)
    if since is not None:
        condition &= instant >= aware("since", since)
    if until is not None:
        condition &= instant < aware("until", until)
    return condition
