"""A data source that writes as ours does and fails on request: Spark's processes import it by its name."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from sqlalchemy.orm import Session

from sa_jobqueue.pipeline.operations import bulk
from sa_jobqueue.pipeline.spark import writing
from sa_jobqueue.pipeline.spark.connections import url_of
from sa_jobqueue.pipeline.spark.source import JobQueueSource
from sa_jobqueue.pipeline.spark.staging import Staged
from sa_jobqueue.pipeline.spark.writing import BatchWriter, StreamWriter


class InjectedError(Exception):
    """The requested fault."""


class FaultySource(JobQueueSource):
    """`format("faulty")`: as ours, with the options `fault` and `marks`, a directory with a mark for each past failure."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        plain_options = dict(options)
        self._fault = Fault(plain_options.pop("fault"), Path(plain_options.pop("marks")))
        super().__init__(plain_options)

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        batch_writer = super().writer(schema, overwrite)
        assert isinstance(batch_writer, BatchWriter)
        return FaultyBatch(batch_writer, self._fault)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        stream_writer = super().streamWriter(schema, overwrite)
        assert isinstance(stream_writer, StreamWriter)
        return FaultyStream(stream_writer, self._fault)


class Fault:
    """What fails, and where."""

    def __init__(self, name: str, marks: Path) -> None:
        self.name = name
        self.marks = marks

    def once(self, mark: str) -> bool:
        """Return whether this is asked for the first time, by whatever process."""
        try:
            (self.marks / mark).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def of_task(self, batches: Iterator[pa.RecordBatch], mark: str) -> Iterator[pa.RecordBatch]:
        """Hand on the batches of a task, two thirds of them or all."""
        task = TaskContext.get()
        assert task is not None
        listed = list(batches)
        yield from listed[: max(1, len(listed) * 2 // 3)]
        mark = f"{mark}-{task.partitionId()}"
        if (self.name == "raise" or (self.name == "raise by turns" and task.partitionId() == 0)) and self.once(mark):
            raise InjectedError("mid-way")
        if self.name == "kill" and task.partitionId() % 2 == 0 and self.once(mark):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.name == "kill in COPY" and task.partitionId() == 1 and self.once(mark):
            _die_in_copy()
        if self.name == "always" and task.partitionId() == 3:
            raise InjectedError("always")
        yield from listed[max(1, len(listed) * 2 // 3) :]

    def after_staging(self, mark: str) -> None:
        """Fail a task that has done all it had to do."""
        task = TaskContext.get()
        assert task is not None
        if self.name in {"raise after staging", "raise by turns"} and self.once(f"{mark}-{task.partitionId()}"):
            raise InjectedError("after staging")
        if self.name == "nothing":
            (self.marks / f"{os.getpid()}-{task.partitionId()}-{gc.get_freeze_count()}").touch()


def _die_in_copy() -> None:
    """Let the next COPY of this process be its last: some of its rows are sent, its end is not."""
    original = psycopg.Copy.write

    def die(self: psycopg.Copy, buffer: Any) -> None:
        data = bytes(buffer)
        original(self, data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    psycopg.Copy.write = die  # type: ignore[method-assign]


class FaultyBatch(BatchWriter):
    """Writes a DataFrame, and fails."""

    def __init__(self, batch_writer: BatchWriter, fault: Fault) -> None:
        super().__init__(batch_writer._options, batch_writer._queue)
        self.write_id = batch_writer.write_id
        self.fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        staged = super().write(self.fault.of_task(iterator, "task"))
        self.fault.after_staging("staged")
        return staged

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self.fault.name == "server crash":
            with psycopg.connect(
                url_of(self._options).set(drivername="postgresql").render_as_string(hide_password=False)
            ) as connection:
                connection.execute("TRUNCATE job_bulk_staging")
        super().commit(messages)
        if self.fault.name == "raise after commit":
            raise InjectedError("after the commit")


class FaultyStream(StreamWriter):
    """Writes a stream's batches, and fails."""

    def __init__(self, stream_writer: StreamWriter, fault: Fault) -> None:
        super().__init__(stream_writer._options, stream_writer._queue)
        self.fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        task = TaskContext.get()
        assert task is not None
        mark = f"batch-{task.getLocalProperty(writing.BATCH_ID)}"
        staged = super().write(self.fault.of_task(iterator, mark))
        self.fault.after_staging(mark)
        return staged

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        super().commit(messages, batchId)
        if self.fault.name == "raise after commit" and batchId == 1 and self.fault.once("commit-1"):
            raise InjectedError("after the commit of batch 1")


def write_and_die(batch_writer: BatchWriter, batches: list[list[pa.RecordBatch]], where: str) -> None:
    """Be a driver that dies: `before`, `in` or `after` its commit. Runs in a process of its own."""
    staged = [batch_writer.write(iter(batch)) for batch in batches]
    whole = bulk.commit_write

    def commit_and_die(session: Session, **options: Any) -> Any:
        result = whole(session, **options)
        if where == "in":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    vars(writing)["commit_write"] = commit_and_die
    if where == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    batch_writer.commit(list(staged))
    os.kill(os.getpid(), signal.SIGKILL)
