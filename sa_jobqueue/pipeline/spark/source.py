"""`format("jobqueue")`: the data source from which Spark creates readers and writers."""

# ruff: noqa: N802 - the names are those that Spark calls

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from sa_jobqueue.pipeline.spark import reading, streaming, writing
from sa_jobqueue.pipeline.spark.options import Options, Secret, Use, read_options, refuse_table


class JobQueueSource(DataSource):
    """Spark data source that reads jobs, attempts, dead letters and blockers, and enqueues rows.

    Created in each process that plans, and pickled to the others. Options are checked here, without network access.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        texts_by_name = dict(options)
        refuse_table(texts_by_name)
        self._options = Secret(texts_by_name)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "jobqueue"

    def schema(self) -> StructType:
        """Return the published schema of the dataset, limited to `columns`."""
        return reading.schema_of(self.use(Use.READ, Use.STREAM))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        return reading.Reader(self.use(Use.READ), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        return streaming.StreamReader(self.use(Use.STREAM), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch."""
        refuse_table(self._options.value, is_write=True)
        return writing.batch_writer(schema, self.use(Use.WRITE), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream's batches."""
        return writing.stream_writer(schema, self.use(Use.STREAM_WRITE), overwrite=overwrite)

    def use(self, *uses: Use) -> Options:
        """Return the options validated for a use, or for several."""
        return read_options(self._options.value, *uses)


def register(spark: SparkSession) -> None:
    """Register `format("jobqueue")` with a session that does not find it: installed later, or in an archive (`--py-files`).

    `spark`: the session.
    """
    spark.dataSource.register(JobQueueSource)
