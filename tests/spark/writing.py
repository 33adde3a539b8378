"""What Spark does with a batch of rows to write, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DayTimeIntervalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import Session

from sa_jobqueue import Job
from sa_jobqueue.pipeline.operations.bulk import WriteResult, find_write
from sa_jobqueue.pipeline.spark.source import JobQueueSource
from sa_jobqueue.pipeline.spark.writing import BatchWriter
from tests.fixtures.transactions import call

TEXT, INT, LONG, TIME, SECONDS = StringType(), IntegerType(), LongType(), TimestampType(), DoubleType()
KINDS: dict[str, DataType] = {
    "type_name": TEXT,
    "input": TEXT,
    "queue": TEXT,
    "fairness_key": TEXT,
    "priority": INT,
    "scheduled_at": TIME,
    "delay": SECONDS,
    "max_attempts": INT,
    "timeout": DayTimeIntervalType(),
    "deduplication_key": TEXT,
    "id": TEXT,
    "blockers": ArrayType(TEXT),
    "on_failure": TEXT,
    "input_version": LONG,
    "trace_context": TEXT,
    "rate_cost": INT,
    "expires_at": TIME,
    "ordering_key": TEXT,
    "deadline": TIME,
}
ARROW: dict[str, pa.DataType] = {
    "priority": pa.int32(),
    "max_attempts": pa.int32(),
    "rate_cost": pa.int32(),
    "input_version": pa.int64(),
    "scheduled_at": pa.timestamp("us", tz="UTC"),
    "expires_at": pa.timestamp("us", tz="UTC"),
    "deadline": pa.timestamp("us", tz="UTC"),
    "delay": pa.float64(),
    "timeout": pa.duration("us"),
    "blockers": pa.list_(pa.string()),
}
Row = dict[str, Any]


def writer(url: str, names: Iterable[str], **options: str) -> BatchWriter:
    """Make a writer as Spark's planner does, for columns of the usual types."""
    schema = StructType([StructField(name, KINDS[name]) for name in names])
    batch_writer = JobQueueSource({"url": url, **options}).writer(schema, False)
    assert isinstance(batch_writer, BatchWriter)
    return batch_writer


def batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Make a batch as Spark hands it to a task."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [pa.array([row.get(name) for row in rows], ARROW.get(name, pa.string())) for name in names]
    return pa.RecordBatch.from_arrays(columns, names=names)


def write(url: str, *tasks: Sequence[Row], **options: str) -> WriteResult:
    """Write rows as Spark does, each task's one after the other, and return the account."""
    names = list(dict.fromkeys(name for task in tasks for row in task for name in row))
    batch_writer = writer(url, names or ["type_name"], **options)
    batch_writer.commit([batch_writer.write(iter([batch(rows)] if rows else [])) for rows in tasks])
    return account(url, batch_writer.write_id)


def account(url: str, write_id: str) -> WriteResult:
    """Return a write's account."""
    engine = create_engine(url)
    bulk_write = call(engine, find_write, write_id)
    engine.dispose()
    assert bulk_write is not None
    return bulk_write


def count(session: Session, model: Any = Job) -> int:
    """Count rows."""
    return session.scalars(select(func.count()).select_from(model)).one()
