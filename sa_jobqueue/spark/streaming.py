"""Streams of history by transactions: what finished, which attempts failed, what died. Nothing in flight is skipped.

Every row carries the transaction that last changed it. A batch is a range `[start, end)` of transactions whose end is at
most the oldest one still open, so nothing can be added to a range that was delivered: a time, or the largest number
seen, would pass by what a slow transaction commits later. An open transaction that has written, anywhere in the cluster,
holds a stream back for as long as it is open: `stream_lag` shows which.

Attempts are only ever added: each is delivered once. A dead letter is delivered when it is made and again when it is
resolved; a job when it ends, and again should it be redriven and end again, in the state it is in when it is read: keep
the last by `id`. Rows that were changed again before they were read come in a later batch, with that change. Rows that
were deleted before they were read, by an archive say, are missed.
"""

# ruff: noqa: N802 - the names are those that Spark calls

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType
from sqlalchemy import Connection

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.history import BLOCKERS, JOBS
from sa_jobqueue.spark import lag
from sa_jobqueue.spark.connections import Queue, connect, find_queue, sanitised
from sa_jobqueue.spark.offsets import Offset, Standing, read_standing
from sa_jobqueue.spark.options import Options
from sa_jobqueue.spark.reading import Part, filters_of, read_part, shape_of
from sa_jobqueue.statements import watermarks
from sa_jobqueue.types import ENDED

EMPTY_WINDOW: Final = 10_000
"""Transactions without a row after which a stream moves on by a batch without rows: each trigger looks through those since
its last batch, which must not become ever more. More often would be a batch at every trigger."""
FIRST_WINDOW: Final = 256
"""Number of transactions of jobs searched first for the end of a limited batch. Their index is not in transaction order,
so the search sorts its result. Each further window is four times as wide."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Cuts history into batches on the driver, and reads them on the executors. Keeps nothing but the target of a run."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self.options = options
        self.shape = shape_of(schema, options)
        if self.shape.dataset is BLOCKERS:
            raise InvalidOptionError("dataset", "blockers carry no transaction to stream them by: read them as a batch")
        filters = filters_of(self.shape.dataset, options)
        if self.shape.dataset is JOBS:
            unended = sorted(set(filters.statuses) - ENDED)
            if unended:
                ended = ", ".join(sorted(ENDED))
                raise InvalidOptionError("status", f"a stream of jobs is of ended ones ({ended}), not {unended[0]}")
            filters = replace(filters, statuses=filters.statuses or tuple(sorted(ENDED)))
        self.filters = filters
        self._target: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint begins."""
        with self._planning() as (connection, queue, now):
            starting = self.options["startingXid"]
            xid = now.xid
            if starting == "earliest":
                # Not that of the first row alone: an older transaction may still be open.
                first = connection.execute(watermarks.first_xid(queue.model, self.shape.dataset, self.filters)).scalar()
                xid = now.xid if first is None else min(first, now.xid)
            elif starting != "latest":
                xid = int(starting)
        return Offset(now.system, xid).as_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next batch ends; `start` when there is no row for it, except every `EMPTY_WINDOW` transactions.

        Raises: OtherClusterError when the checkpoint is of another cluster, or of a time this one has not come to.
        """
        with self._planning() as (connection, queue, now):
            begin = Offset.of(start)
            now.check(begin)
            head = now.xid if self._target is None else min(now.xid, self._target)
            if head <= begin.xid:
                return start
            rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            end = self._end(connection, queue, begin.xid, head, rows)
        if end is None and head - begin.xid >= EMPTY_WINDOW:
            end = head
        return start if end is None else Offset(begin.system, end).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that `maxRowsPerTrigger` sets."""
        rows = self.options["maxRowsPerTrigger"]
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix where this run ends: what is finished now."""
        with self._planning() as (_, _, now):
            self._target = now.xid

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the watermark, its lag behind the newest transaction, and the process that holds it back."""
        with sanitised(self.options), connect(self.options, read_only=True) as connection:
            found = lag.read_lag(connection)
        told = Offset(found.system, found.xid).as_json() | {"transactions_behind": found.transactions_behind}
        if found.holder is not None:
            seconds = -1 if found.holder.open_for is None else int(found.holder.open_for.total_seconds())
            told["held_by"] = {"pid": found.holder.pid or 0, "seconds": seconds}
        return told

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the parts of a batch: ranges of its transactions, `numPartitions` of them, one without it."""
        low, high = Offset.of(start), Offset.of(end)
        if low.xid >= high.xid:
            return []
        with self._planning() as (_, queue, now):
            now.check(low)
            now.check(high, must_be_there=True)
        parts = min(self.options["numPartitions"] or 1, high.xid - low.xid)
        edges = [low.xid + (high.xid - low.xid) * number // parts for number in range(parts + 1)]
        return [
            Part(queue, replace(self.filters, xid_from=first, xid_before=beyond), high) for first, beyond in pairwise(edges)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part of a batch. The same rows each time, but for those that were changed again meanwhile."""
        return read_part(cast("Part", partition), self.shape, self.options)

    @contextmanager
    def _planning(self) -> Iterator[tuple[Connection, Queue, Standing]]:
        with sanitised(self.options), connect(self.options, read_only=True) as connection:
            yield connection, find_queue(connection, self.options), read_standing(connection)

    def _end(self, connection: Connection, queue: Queue, low: int, high: int, rows: int | None) -> int | None:
        """Return the end of a batch of about this many rows, or None if there is no row before `high`."""
        model, dataset = queue.model, self.shape.dataset
        width = FIRST_WINDOW if dataset is JOBS and rows is not None else high - low
        while True:
            beyond = min(high, low + width)
            filters = replace(self.filters, xid_from=low, xid_before=beyond)
            if rows is None:
                some = connection.execute(watermarks.first_xid(model, dataset, filters)).scalar()
                return None if some is None else high
            first, next_row = connection.execute(watermarks.bounds(model, dataset, filters, rows=rows)).one()
            if next_row is not None:
                # A transaction of more rows than the limit is delivered whole.
                return int(next_row) if next_row > first else int(first) + 1
            if beyond == high:
                return None if first is None else high
            width *= 4
