"""Archives with Spark: tasks read the parts of a run and write their files.

`sa_jobqueue.pipeline.archive` does everything else: it selects chains, verifies the files and deletes the rows. A task may
be killed and retried, and the driver may die: only files that successful tasks name to the driver are ever shown.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema
from sqlalchemy import Connection

from sa_jobqueue.errors.bounds import check_number
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.pipeline.archive import ArchiveError, ArchiveOptions, ArchiveReport
from sa_jobqueue.pipeline.archive.archiving import archive_with
from sa_jobqueue.pipeline.archive.engines import Count, Engine, Parts, Written
from sa_jobqueue.pipeline.archive.options import Listener
from sa_jobqueue.pipeline.history import JOBS
from sa_jobqueue.pipeline.spark.connections import connect, sanitised, url_of
from sa_jobqueue.pipeline.spark.options import Options, Use, read_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WRITTEN: Final = pa.schema([("dataset", pa.string()), ("path", pa.string()), ("rows", pa.int64())])


def archive(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    before: timedelta | datetime,
    url: str | None = None,
    password_file: str | None = None,
    model: JobClass = Job,
    tasks: int = 8,
    options: ArchiveOptions | None = None,
    on_progress: Listener | None = None,
) -> ArchiveReport:
    """Move chains that ended before a time to Parquet files written by tasks; otherwise as `pipeline.archive.archive`.

    `spark`: the session that writes. `before`, `options`, `on_progress`: as in `pipeline.archive.archive`. `url`: the
    database URL; default: `SA_JOBQUEUE_URL` on the driver and on each executor. `password_file`: a file, present on all of
    them, that contains only the password. `tasks`: maximum number of concurrent readers, each with its own connection; also
    the number of files per day and dataset, 1 to 10,000. `path`: a folder that driver and executors share, or a URI that
    pyarrow opens on both. Returns the same report.
    Raises: as `pipeline.archive.archive`; InvalidOptionError for `tasks` or `url`; ArchiveError with Spark's message.
    """
    check_number("tasks", tasks, 1, 10_000)
    archive_options = options or ArchiveOptions()
    timeout = str(archive_options.statement_timeout.total_seconds())
    database = read_options({"url": url, "passwordFile": password_file, "statementTimeout": timeout}, Use.READ)

    def write(_: Connection, parts: Parts, count: Count) -> list[Written]:
        numbers = spark.range(0, parts.number, 1, min(parts.number, tasks))
        try:
            rows = numbers.mapInArrow(PartWriter(database, parts), from_arrow_schema(_WRITTEN)).collect()
        except PySparkException as error:
            raise ArchiveError(f"Spark could not write the files: {error}") from error
        files = [Written(*row) for row in rows]
        count(sum(file.rows for file in files if file.dataset == JOBS.name))
        return files

    return archive_with(
        Engine("spark", write),
        url_of(database),
        path,
        before=before,
        model=model,
        options=archive_options,
        on_progress=on_progress,
    )


@dataclass(frozen=True, slots=True)
class PartWriter:
    """Writes parts of a run in a task. Its repr contains neither the database URL nor row data."""

    database: Options
    parts: Parts

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the files with the rows of the parts whose numbers are in the batches."""
        part_numbers = [number for batch in numbers for number in batch.column(0).to_pylist()]
        with sanitised(self.database), connect(self.database, read_only=True) as connection:
            files = self.parts.write(connection, part_numbers, lambda _: None)
        yield pa.RecordBatch.from_pylist([file._asdict() for file in files], schema=_WRITTEN)
