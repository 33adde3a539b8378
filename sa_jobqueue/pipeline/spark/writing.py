"""Writers for `df.write` and `df.writeStream`, which enqueue rows exactly once.

A task checks its rows and copies them to the staging table; it may run twice, or die. The commit, on the driver, moves the
staged rows of the tasks named by Spark into the queue in one transaction, which first inserts the write's row into the
ledger. If the ledger has that row already, the commit creates no jobs. The key is the write's id, given by the caller or
random, or the stream's query and batch, which Spark repeats after any failure. Staged rows of a task or driver that died
are deleted by the next commit of that write, and by any commit a day later.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from socket import gethostname
from time import monotonic, sleep
from typing import Any, Final, Literal, TypeVar
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.errors import DatabaseUnavailableError
from sa_jobqueue.pipeline.operations.bulk import (
    MOST_HASHES,
    RepeatedWriteError,
    WriteResult,
    clear_write,
    commit_write,
    find_write,
)
from sa_jobqueue.pipeline.spark.columns import check_columns
from sa_jobqueue.pipeline.spark.connections import Queue, connect, find_queue, sanitised
from sa_jobqueue.pipeline.spark.errors import WriteError
from sa_jobqueue.pipeline.spark.options import Options, Use, refuse
from sa_jobqueue.pipeline.spark.staging import Staged, Stager, new_writer_number, task_id_of, task_ids_of
from sa_jobqueue.pipeline.spark.validation import Checker

T = TypeVar("T")
_log = logging.getLogger("sa_jobqueue.pipeline.spark")

PATIENCE: Final = 120.0
"""Seconds during which a commit is tried again while the database cannot be reached, or ends its connection."""
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 10.0
"""Seconds before the first repetition of a commit, and before the later ones: each pause is twice the one before."""
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


class _Writing:
    """Behaviour that batch and streaming writes share."""

    def __init__(self, options: Options, queue: Queue) -> None:
        self._options = options
        self._queue = queue
        self._writer = new_writer_number()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._options!r}>"

    def _stage(self, batches: Iterator[pa.RecordBatch], write_id: str, sequence: int) -> Staged:
        task = TaskContext.get()
        partition = task.partitionId() if task is not None else 0
        attempt = task.taskAttemptId() if task is not None else random.getrandbits(31)
        staged = Staged(write_id, sequence, task_id_of(self._writer, attempt), partition)
        first = next((batch for batch in batches if len(batch)), None)
        if first is None:  # a shuffle leaves many partitions empty, and a connection for each would be costly
            return staged
        is_permissive = self._options["mode"] == "PERMISSIVE"
        with sanitised(self._options), connect(self._options) as connection:
            stager = Stager(connection, self._queue.model, staged, self._checker(), is_permissive=is_permissive)
            stager.stage(chain([first], batches))
        return staged

    def _checker(self) -> Checker:
        model = self._queue.model
        factory: Any = model.__id_factory__
        is_ours = str(factory.__module__).partition(".")[0] == "sa_jobqueue"
        return Checker(
            id_type=self._queue.layout.id_type,
            id_factory=None if is_ours else factory,
            type_name=self._options["type"],
            registry=self._queue.registry,
        )

    def _commit(
        self,
        write_id: str,
        sequence: int,
        messages: Sequence[Staged],
        *,
        on_repeat: Literal["skip", "check"],
    ) -> WriteResult:
        options = self._options
        rows = sum(message.rows for message in messages)
        result = self._in_transaction(
            patience=PATIENCE,
            act=lambda session: commit_write(
                session,
                write_id=write_id,
                sequence=sequence,
                tasks={message.task_id: message.rows for message in messages},
                fingerprint=_signed(sum(message.fingerprint for message in messages)),
                row_hashes=_joined(messages) if rows <= MOST_HASHES else None,
                on_duplicate=options["onDuplicate"],
                on_repeat=on_repeat,
                on_taken_id="reject" if options["mode"] == "PERMISSIVE" else "fail",
                written_by=options["writtenBy"] or gethostname(),
                model=self._queue.model,
            ),
        )
        if result.repeated and rows != result.staged:
            fact = "is repeated with %d rows of the %d that it has committed; nothing is enqueued"
            _log.warning(f"write %s, batch %d, {fact}", write_id, sequence, rows, result.staged)
        return result

    def _clear(self, write_id: str, sequence: int, task_id: int) -> None:
        """Delete the rows that the writer of a task has staged."""
        task_ids, model = task_ids_of(task_id), self._queue.model
        # Without patience: the next commit deletes what this leaves.
        self._in_transaction(
            lambda session: clear_write(session, write_id=write_id, sequence=sequence, task_ids=task_ids, model=model)
        )

    def _in_transaction(self, act: Callable[[Session], T], *, patience: float = 1.0) -> T:
        def attempt() -> T:
            with connect(self._options) as connection:
                # Required by `commit_write`, whatever the default of the user or the database is.
                connection = connection.execution_options(isolation_level="READ COMMITTED")  # noqa: PLW2901
                with Session(connection) as session, session.begin():
                    return act(session)

        with sanitised(self._options):
            return retried(attempt, patience=patience)


def retried(
    attempt: Callable[[], T],
    *,
    patience: float,
    clock: Callable[[], float] = monotonic,
    sleep: Callable[[float], object] = sleep,
) -> T:
    """Call a function until it succeeds, for `patience` seconds, while others end its connection or cause a deadlock.

    The ledger makes it safe to repeat a commit, even if the transaction committed before the connection was lost.
    """
    deadline = clock() + patience
    pause = FIRST_PAUSE
    while True:
        try:
            return attempt()
        except (DatabaseUnavailableError, DBAPIError) as error:
            if clock() + pause > deadline or not _is_passing(error):
                raise
            _log.warning("the commit of a write is repeated in %.1f s: %s", pause, type(error).__name__)
        sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


class BatchWriter(_Writing, DataSourceArrowWriter):
    """Writes one DataFrame. Spark passes this object, pickled, to every task and to the commit."""

    def __init__(self, options: Options, queue: Queue) -> None:
        super().__init__(options, queue)
        self.write_id: str = options["writeId"] or str(uuid4())
        self.committed = self._find_write() if options["writeId"] else None
        """Result of an earlier write with this id."""
        self.is_repeated = self.committed is not None and options["onRepeat"] == "skip"
        if self.committed is not None and self.is_repeated:
            rows = self.committed.staged
            _log.warning("write %s has committed %d rows before; nothing is read or written", self.write_id, rows)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a partition, or read no row if the write has committed. Raises: BadRowError, WriteError."""
        return self._stage(iter(()) if self.is_repeated else iterator, self.write_id, 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Enqueue the rows that the tasks staged. Raises: as `commit_write`, WriteError."""
        if not self.is_repeated:
            self._commit(self.write_id, 0, _staged(messages), on_repeat=self._options["onRepeat"] or "check")

    def _find_write(self) -> WriteResult | None:
        with sanitised(self._options), connect(self._options) as connection, Session(connection) as session:
            return find_write(session, self.write_id, model=self._queue.model)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the rows that this writer staged. Jobs are kept, because the commit may have succeeded."""
        self._clear(self.write_id, 0, task_id_of(self._writer, 0))


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Writes a stream's batches. Spark creates it again for each commit, so it knows a batch only from the messages."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a partition of a batch. Raises: BadRowError, WriteError."""
        task = TaskContext.get()
        query_id = task.getLocalProperty(QUERY_ID) if task is not None else None
        batch_id = task.getLocalProperty(BATCH_ID) if task is not None else None
        if query_id is None or batch_id is None:
            raise WriteError("Spark did not provide the query and batch; enqueue in foreachBatch with a writeId")
        return self._stage(iterator, query_id, int(batch_id))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Enqueue the staged rows of a batch, unless it has committed before. Raises: as `commit_write`, WriteError.

        A stream whose checkpoint was restored plans a batch again with other rows, which must not be dropped.
        """
        staged = _staged(messages)
        if not staged:  # a batch without partitions has no rows
            return
        try:
            self._commit(staged[0].write_id, batchId, staged, on_repeat=self._options["onRepeat"] or "check")
        except RepeatedWriteError as error:
            raise RepeatedWriteError(error.write_id, batchId, error.committed, error.staged, is_stream=True) from None

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Delete the staged rows if the query is known; the next commit deletes the rest."""
        staged = _staged(messages)
        if staged:
            self._clear(staged[0].write_id, batchId, staged[0].task_id)


def batch_writer(schema: StructType, options: Options, *, overwrite: bool) -> BatchWriter:
    """Return a writer for a DataFrame of `schema`, checked against the queue. Raises: as `_prepare`."""
    return BatchWriter(options, _prepare(schema, options, overwrite=overwrite))


def stream_writer(schema: StructType, options: Options, *, overwrite: bool) -> StreamWriter:
    """Return a writer for the batches of a stream, checked against the queue. Raises: as `_prepare`."""
    return StreamWriter(options, _prepare(schema, options, overwrite=overwrite))


def _prepare(schema: StructType, options: Options, *, overwrite: bool) -> Queue:
    """Check the schema, the options and the tables before Spark computes a row.

    Raises: InvalidOptionError, InvalidColumnError, SchemaError, DatabaseUnavailableError; UnknownJobTypeError for the
    option `type`.
    """
    if overwrite and options.use is Use.STREAM_WRITE:
        refuse("outputMode", 'a queue is not overwritten: .outputMode("append")')
    if overwrite:
        refuse("mode", 'a queue is not overwritten: df.write.format("jobqueue").mode("append")')
    check_columns(schema, has_type=options["type"] is not None)
    with sanitised(options), connect(options) as connection:
        queue = find_queue(connection, options)
    if queue.registry is not None and options["type"] is not None:
        queue.registry.get(options["type"])
    if queue.app:
        _check_own_columns(queue)
    return queue


def _check_own_columns(queue: Queue) -> None:
    table: Any = queue.model.__table__
    ours = {column.name for column in Queue(queue.layout).model.__table__.columns}
    for column in table.columns:
        if column.name not in ours and not column.nullable and column.server_default is None and column.computed is None:
            refuse("app", f"the column {column.name!r} of its model must have a value: give it a server_default")


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    # A failed task has no message.
    return [message for message in messages if isinstance(message, Staged)]


def _joined(messages: Sequence[Staged]) -> bytes | None:
    parts = [message.row_hashes for message in messages if message.row_hashes is not None]
    return b"".join(parts) if len(parts) == len(messages) else None


def _signed(number: int) -> int:
    """Return a number modulo 2**64 as PostgreSQL's bigint."""
    return (number + 2**63) % 2**64 - 2**63


def _is_passing(error: DatabaseUnavailableError | DBAPIError) -> bool:
    """Return whether a repetition may succeed: the server is away, starts, or is a standby that is promoted; a deadlock."""
    if isinstance(error, DatabaseUnavailableError):
        return True
    return error.connection_invalidated or getattr(error.orig, "sqlstate", None) in {"40P01", "40001", "25006"}
