"""Archives with Spark: tasks read the parts of a run, and Spark writes the Parquet files.

`sa_jobqueue.pipeline.archive` does everything else: it selects chains, verifies the files and deletes the rows. A task may
be killed and retried, and the driver may die: the files of a run that was not verified are discarded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from sa_jobqueue.db.copy import copy_text
from sa_jobqueue.db.urls import read_url
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.pipeline.archive import ArchiveError, ArchiveOptions, ArchiveReport, Task
from sa_jobqueue.pipeline.archive import archive as archive_with
from sa_jobqueue.pipeline.archive.arrow import DAY, VERSION_KEY, columns, copied
from sa_jobqueue.pipeline.archive.locations import Location
from sa_jobqueue.pipeline.archive.options import Listener
from sa_jobqueue.pipeline.history import DATASETS, JOBS, SCHEMA_VERSION, Dataset
from sa_jobqueue.pipeline.spark.connections import connect, sanitised, url_of
from sa_jobqueue.pipeline.spark.decoding import SPARK
from sa_jobqueue.pipeline.spark.errors import MissingExtraError
from sa_jobqueue.pipeline.spark.options import Options, Secret, Use
from sa_jobqueue.pipeline.statements import archived

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIMESTAMPS: Final = "spark.sql.parquet.outputTimestampType"


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
    """Move chains that ended before a time to Parquet files written by Spark; otherwise as `pipeline.archive.archive`.

    `spark`: the session that writes. `before`, `options`, `on_progress`: as in `pipeline.archive.archive`. `url`: the
    database URL; default: `SA_JOBQUEUE_URL` on the driver and on each executor. `password_file`: a file, present on all of
    them, that contains only the password. `tasks`: maximum number of concurrent readers, each with its own connection; also
    the number of files per day and dataset, 1 to 10,000. `path`: a folder that driver and executors share, or a URI that
    both pyarrow and Spark can open; `s3://` is passed to Spark as `s3a://`. Returns the same report.
    Raises: as `pipeline.archive.archive`; MissingExtraError without pandas; InvalidOptionError for `tasks` or `url`;
    ArchiveError with Spark's message.
    """
    if find_spec("pandas") is None:  # mapInArrow requires it, used or not
        raise MissingExtraError("pandas", "spark")
    if isinstance(tasks, bool) or not isinstance(tasks, int) or not 1 <= tasks <= 10_000:
        raise InvalidOptionError("tasks", f"must be a whole number from 1 to 10,000, got {tasks!r}")
    if url is not None:
        read_url(url)
    given = options or ArchiveOptions()
    reached = {"url": None if url is None else Secret(url), "passwordFile": password_file}
    database = Options(Use.READ, reached | {"statementTimeout": given.statement_timeout})
    engine = SparkEngine(spark, database, tasks)
    return archive_with(
        url_of(database), path, before=before, model=model, engine=engine, options=given, on_progress=on_progress
    )


class SparkEngine:
    """Writes the files of a run as DataFrames. Requires no SparkContext, so it works over Spark Connect, too.

    `spark`: the session that writes. `database`: options of the data source, which reads the jobs on the executors. `tasks`:
    maximum number of concurrent readers.
    """

    name: Final = "spark"

    def __init__(self, spark: SparkSession, database: Options, tasks: int) -> None:
        self._spark = spark
        self._database = database
        self._tasks = tasks

    def write(self, task: Task) -> dict[str, int]:
        """Write all files of a run; return the number of rows of each dataset, as counted by Spark.

        `task`: the run, and where its files go. Raises: ArchiveError with Spark's message.
        """
        written: dict[str, int] = {}
        for dataset in DATASETS.values():
            query, parameters = copy_text(archived.read(task.model, dataset, task.run_id, 0))
            read = PartReader(self._database, query, parameters, dataset.name)
            counted = Observation()
            frame = self._spark.range(0, task.parts, 1, min(task.parts, self._tasks)).mapInArrow(read, _schema(dataset))
            frame = frame.observe(counted, sf.count(sf.lit(1)).alias("rows"))
            folder = f"{task.location.hidden(task.run_id)}/{dataset.name}"
            try:
                with _microseconds(self._spark):
                    writer = frame.write.partitionBy(DAY).option("compression", "zstd")
                    writer.parquet(_uri(task.location, folder))
            except PySparkException as error:
                raise ArchiveError(f"Spark could not write {dataset.name}: {error}") from error
            written[dataset.name] = int(counted.get["rows"] or 0)
            task.on_progress(written[dataset.name] if dataset is JOBS else 0)
        return written


@dataclass(frozen=True, slots=True)
class PartReader:
    """Reads parts of a run in a task. Its repr contains neither the database URL nor row data."""

    database: Options
    query: bytes
    """Rendered on the driver, so that executors do not need the application's model."""
    parameters: dict[str, Any]
    dataset: str

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the parts whose numbers are in the batches."""
        dataset = DATASETS[self.dataset]
        for part in (part for batch in numbers for part in batch.column(0).to_pylist()):
            with sanitised(self.database), connect(self.database, read_only=True) as connection:
                for table in copied(connection, self.query, self.parameters | {"part": part}, dataset):
                    yield from table.rename_columns([DAY, *table.column_names[1:]]).to_batches()


def _schema(dataset: Dataset) -> StructType:
    """Return the columns as a Spark schema. The first data column's metadata carries the schema version into the files."""
    version = {VERSION_KEY: str(SCHEMA_VERSION)}
    fields = [StructField(DAY, StringType())]
    for number, column in enumerate(columns(dataset)):
        fields.append(StructField(column.name, SPARK[column.kind], metadata=version if number == 0 else {}))
    return StructType(fields)


@contextmanager
def _microseconds(spark: SparkSession) -> Iterator[None]:
    """Make Spark write timestamps in microseconds, which may not be its default; then restore the setting."""
    before = spark.conf.get(_TIMESTAMPS)
    spark.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(_TIMESTAMPS, before)


def _uri(location: Location, folder: str) -> str:
    if location.is_local:
        return f"file://{folder}"  # not percent-encoded: Hadoop reads the path literally
    scheme = location.name.partition("://")[0]
    return f"{'s3a' if scheme == 's3' else scheme}://{folder}"
