"""What Spark does with a dataset to read, at once or as a stream, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from sqlalchemy import make_url

from sa_jobqueue.pipeline.spark.reading import Reader
from sa_jobqueue.pipeline.spark.source import JobQueueSource
from sa_jobqueue.pipeline.spark.streaming import StreamReader


def reader(url: str, dataset: str, options: dict[str, Any] | None = None, **types: str) -> Reader:
    """Make a reader as Spark does. `types`: a user's schema, each column's type by name."""
    plain_options = {name.lower(): str(value) for name, value in (options or {}).items()}
    source = JobQueueSource({"url": url, "path": dataset} | plain_options)
    schema = StructType()
    for name, kind in types.items():
        schema.add(name, kind)
    new_reader = source.reader(schema if types else source.schema())
    assert isinstance(new_reader, Reader)
    return new_reader


def read(url: str, dataset: str, **options: object) -> list[dict[str, Any]]:
    """Read a dataset as Spark's tasks do, one part after the other."""
    dataset_reader = reader(url, dataset, options)
    return [row for part in dataset_reader.partitions() for batch in dataset_reader.read(part) for row in batch.to_pylist()]


ATTEMPT = (
    "INSERT INTO job_attempt (job_id, attempt, outcome)"
    " SELECT job_uuid7(), n, 'failed' FROM generate_series(%s::int, %s::int) AS n"
)
ALL = ReadAllAvailable()


def stream(url: str, dataset: str = "attempts", **options: object) -> StreamReader:
    """Make a stream's reader as Spark does."""
    plain_options = {name.lower(): str(value) for name, value in options.items()}
    source = JobQueueSource({"url": url, "path": dataset} | plain_options)
    stream_reader = source.streamReader(source.schema())
    assert isinstance(stream_reader, StreamReader)
    return stream_reader


def batches(
    stream_reader: StreamReader, start: dict[str, Any] | None = None
) -> Iterator[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Deliver a stream's batches until there is no more, each with the offset it ends at, as Spark does."""
    begin = stream_reader.initialOffset() if start is None else start
    while (end := stream_reader.latestOffset(begin, stream_reader.getDefaultReadLimit())) != begin:
        parts = stream_reader.partitions(begin, end)
        yield [row for part in parts for batch in stream_reader.read(part) for row in batch.to_pylist()], end
        begin = end


def write(url: str, first: int, last: int) -> None:
    """Write attempts with these numbers, in a transaction of their own."""
    with connected(url) as connection:
        connection.execute(ATTEMPT, (first, last))


@contextmanager
def connected(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)) as connection:
        yield connection


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["attempt"] for row in rows)
