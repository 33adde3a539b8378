"""Task of a bulk write: validates and numbers rows, and copies them to the staging table.

Each batch is committed immediately. The commit of the write reads only rows of the tasks that it names, so the rows of a
killed task are ignored. No transaction is open while Spark computes the next rows, because it would hold back every stream.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
import pyarrow.csv
from pandas.util import hash_array
from pyspark.sql.datasource import WriterCommitMessage
from sqlalchemy import Connection

from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.models import JobClass
from sa_jobqueue.payloads import MAX_BYTES
from sa_jobqueue.pipeline.operations.bulk import MOST_HASHES
from sa_jobqueue.pipeline.spark.validation import Checked, Checker, Fault, check_inputs, readable
from sa_jobqueue.pipeline.statements import bulk

_CSV: Final = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
_EXCERPT: Final = 200
_ATTEMPT_BITS: Final = 32
_FINGERPRINTED: Final = (
    *("type_name", "deduplication_key", "input", "queue", "priority", "ordering_key", "fairness_key"),
    *("max_attempts", "input_version", "rate_cost", "on_failure"),
)


class BadRowError(JobQueueError):
    """A row of a bulk write cannot be a job; nothing of the write is enqueued.

    `partition` and `row`, both from 0, identify the row; `key` is its id or deduplication key, if any; `field` and `reason`
    state the fault; `excerpt` is the beginning of its input. With `mode=PERMISSIVE` such rows go to `job_bulk_reject`.
    """

    def __init__(self, fault: Fault, *, partition: int, row: int, key: str | None, excerpt: str) -> None:
        self.field = fault.field
        self.reason = fault.reason
        self.partition = partition
        self.row = row
        self.key = key
        self.excerpt = excerpt
        key_text = f" ({key})" if key else ""
        super().__init__(
            f"partition {partition}, row {row}{key_text}: {fault.field} {fault.reason}; its input begins: {excerpt};"
            " nothing is enqueued; mode=PERMISSIVE would leave such rows out and keep them with the reason"
        )


@dataclass
class Staged(WriterCommitMessage):
    """Rows of a write that an attempt of a task stages. Spark may log it, so it contains no secret."""

    write_id: str
    sequence: int
    task_id: int
    partition: int
    rows: int = 0
    fingerprint: int = 0
    """Sum of the hashes of all rows, modulo 2**64: the same in whatever order and batches they come."""
    row_hashes: bytes | None = b""
    """These hashes, eight bytes each; None if they are more than the ledger keeps."""

    def add(self, hashes: npt.NDArray[np.uint64]) -> None:
        """Count rows that are staged, by their hashes."""
        self.rows += len(hashes)
        self.fingerprint = (self.fingerprint + int(hashes.sum(dtype=np.uint64))) % 2**64
        if self.row_hashes is not None:
            self.row_hashes = self.row_hashes + hashes.tobytes() if self.rows <= MOST_HASHES else None


def new_writer_number() -> int:
    """Return a random number for a writer, which the ids of its tasks begin with.

    Spark's own ids restart with each application, so the staged rows of a driver that died would count for the driver that
    repeats the write.
    """
    return random.SystemRandom().getrandbits(63 - _ATTEMPT_BITS)


def task_id_of(writer: int, attempt: int) -> int:
    """Return the id of an attempt of a task. `attempt`: Spark's number of it, unique within the application."""
    return writer << _ATTEMPT_BITS | attempt % (1 << _ATTEMPT_BITS)


def task_ids_of(task_id: int) -> tuple[int, int]:
    """Return the first and last id that the tasks of the same writer can have."""
    first = task_id >> _ATTEMPT_BITS << _ATTEMPT_BITS
    return first, first + (1 << _ATTEMPT_BITS) - 1


def hashes_of(batch: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    """Return a hash of each row of a batch: of all but ids, blockers, times and traces.

    These may differ when the rows are computed again.
    """
    hashes = np.zeros(len(batch), np.uint64)
    for name in _FINGERPRINTED:
        place = batch.schema.get_field_index(name)
        hashes *= np.uint64(31)
        if place >= 0:
            texts = batch.column(place).cast(pa.string())
            of_column = hash_array(texts.to_numpy(zero_copy_only=False), categorize=False)
            of_column[texts.is_null().to_numpy(zero_copy_only=False)] = 0  # as in a frame without the column
            hashes += of_column
    return hash_array(hashes)


class Stager:
    """Stages the rows of one attempt, and counts them in `staged`.

    `is_permissive`: stage invalid rows as rejected instead of raising an error.
    """

    def __init__(
        self, connection: Connection, model: JobClass, staged: Staged, checker: Checker, *, is_permissive: bool
    ) -> None:
        self._connection = connection
        self._staged = staged
        self._copy = bulk.copy_staged(model)
        self._checker = checker
        self._is_permissive = is_permissive

    def stage(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Check and copy all batches. Raises: BadRowError; database errors that no row has caused."""
        for batch in batches:
            if len(batch):
                readable_batch, faults = readable(batch)
                self._stage(readable_batch, faults)
                self._staged.add(hashes_of(readable_batch))

    def _stage(self, batch: pa.RecordBatch, unreadable: dict[int, Fault]) -> None:
        checked = self._checker.check(batch)
        checked.faults |= unreadable
        self._refuse(batch, checked)
        table = self._table(checked, len(batch))
        good: Sequence[int] = range(len(batch))
        if checked.faults:
            good = [row for row in good if row not in checked.faults]
            table = table.take(pa.array(good, pa.int64()))
        if self._refusal(table) is not None:
            late = check_inputs(table.column("input").combine_chunks())
            checked.faults |= {good[row]: fault for row, fault in late.items()}
            self._refuse(batch, checked)
            rows_left = [row for row in range(len(good)) if row not in late]
            for row, fault in self._copy_parts(table, rows_left):
                checked.faults[good[row]] = fault
                self._refuse(batch, checked)
        self._reject(batch, checked.faults)

    def _copy_parts(self, table: pa.Table, rows: list[int]) -> Iterator[tuple[int, Fault]]:
        """Copy rows, some of which PostgreSQL may refuse; find these by bisection, yield them, and copy the others."""
        if not rows:
            return
        part = table.take(pa.array(rows, pa.int64()))
        error = self._refusal(part)
        if error is None:
            return
        if len(rows) == 1:
            yield rows[0], _fault_of(error)
            return
        middle = len(rows) // 2
        yield from self._copy_parts(table, rows[:middle])
        yield from self._copy_parts(table, rows[middle:])

    def _refusal(self, table: pa.Table) -> psycopg.Error | None:
        """Copy rows; return the error if PostgreSQL refuses one of them. Raises: errors that no row has caused."""
        try:
            self._send(table)
        except psycopg.Error as error:
            if not _is_of_a_row(error):
                raise
            return error
        return None

    def _send(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        text = pa.BufferOutputStream()
        pyarrow.csv.write_csv(table, text, _CSV)
        driver: Any = self._connection.connection.driver_connection
        with driver.cursor() as cursor, cursor.copy(self._copy) as copy:
            copy.write(memoryview(text.getvalue()))

    def _table(self, checked: Checked, count: int) -> pa.Table:
        staged = self._staged
        rows = pa.array(np.arange(staged.rows, staged.rows + count))
        values_by_name = checked.columns | {
            "write_id": pa.repeat(pa.scalar(staged.write_id), count),
            "sequence": pa.repeat(pa.scalar(staged.sequence, pa.int64()), count),
            "task_id": pa.repeat(pa.scalar(staged.task_id, pa.int64()), count),
            "row": rows,
        }
        nothing = pa.nulls(count, pa.string())
        return pa.table({name: values_by_name.get(name, nothing) for name in bulk.STAGED})

    def _reject(self, batch: pa.RecordBatch, faults: dict[int, Fault]) -> None:
        if not faults:
            return
        places = sorted(faults)
        table = self._table(
            Checked(
                {
                    "rejected_field": pa.array([_storable(faults[row].field) for row in places], pa.string()),
                    "rejected_reason": pa.array([_storable(faults[row].reason) for row in places], pa.string()),
                    "record": pa.array([_record(batch, row) for row in places], pa.string()),
                }
            ),
            len(places),
        )
        rows = pa.array([self._staged.rows + row for row in places], pa.int64())
        self._send(table.set_column(table.schema.get_field_index("row"), "row", rows))

    def _refuse(self, batch: pa.RecordBatch, checked: Checked) -> None:
        if self._is_permissive or not checked.faults:
            return
        place = min(checked.faults)
        row = _row(batch, place)
        key = row.get("id") or row.get("deduplication_key")
        raise BadRowError(
            checked.faults[place],
            partition=self._staged.partition,
            row=self._staged.rows + place,
            key=None if key is None else str(key)[:_EXCERPT],
            excerpt=str(row.get("input"))[:_EXCERPT],
        )


def _is_of_a_row(error: psycopg.Error) -> bool:
    """Return whether a row caused the error: a data exception (class 22) or an exceeded limit (class 54)."""
    return (error.sqlstate or "")[:2] in {"22", "54"}


def _fault_of(error: psycopg.Error) -> Fault:
    column = (error.diag.context or "").partition(", column ")[2].partition(":")[0].strip()
    detail = f": {error.diag.message_detail}" if error.diag.message_detail else ""
    return Fault(column if column in bulk.STAGED else "input", f"{error.diag.message_primary}{detail}"[:300])


def _row(batch: pa.RecordBatch, place: int) -> dict[str, Any]:
    """Return a row's values; one that Python cannot represent, such as a timestamp in the year 10000, becomes text."""
    row: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            row[name] = column[place].as_py()
        except (OverflowError, ValueError):
            row[name] = f"{column.type} {getattr(column[place], 'value', 'out of range')}"
    return row


def _record(batch: pa.RecordBatch, place: int) -> str:
    row = {name: value for name, value in _row(batch, place).items() if value is not None}
    text = json.dumps(row, default=str)
    if len(text) > MAX_BYTES:
        text = json.dumps({name: str(value)[:_EXCERPT] for name, value in row.items()})
    return text


def _storable(text: str) -> str:
    return text.replace("\x00", "\\x00")
