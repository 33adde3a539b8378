"""Streams of history by transaction: ended jobs, unsuccessful attempts, dead letters. No open transaction is skipped.

Every row has the id of the transaction that last changed it. A batch is a range `[start, end)` of transactions whose end is
at most the oldest open one, so no row can be added to a delivered range. A timestamp, or the largest id seen, would skip
rows that a slow transaction commits later. An open transaction that has written, anywhere in the cluster, holds a stream
back until it ends: `stream_lag` shows which.

Attempts are only inserted: each is delivered once. A dead letter is delivered when it is created and again when it is
resolved; a job when it ends, and again if it is redriven and ends again, in its state at the time of reading: keep the last
row of each `id`. Rows that are changed again before they are read come in a later batch, with that change. Rows that are
deleted before they are read, for example by an archive, are missed.
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
from sa_jobqueue.pipeline.history import BLOCKERS, JOBS
from sa_jobqueue.pipeline.spark.connections import Queue, connect, find_queue, sanitised
from sa_jobqueue.pipeline.spark.offsets import Offset, StreamLag, check_restored, read_lag
from sa_jobqueue.pipeline.spark.options import Options
from sa_jobqueue.pipeline.spark.reading import Part, check_schema, dataset_of, filters_of, read_part
from sa_jobqueue.pipeline.statements import watermarks
from sa_jobqueue.types import ENDED

EMPTY_WINDOW: Final = 10_000
"""Number of transactions without a row after which a stream advances by an empty batch: each trigger searches all
transactions since the last batch, so their number must be limited. A low limit would cause an empty batch per trigger."""
FIRST_WINDOW: Final = 256
"""Number of transactions of jobs searched first for the end of a limited batch. Their index is not in transaction order,
so the search sorts its result. Each further window is four times as wide."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver, and reads them on the executors. Its only state is the target of a run."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.dataset = dataset_of(options)
        check_schema(schema, options)
        if self.dataset is BLOCKERS:
            raise InvalidOptionError("dataset", "blockers carry no transaction to stream them by: read them as a batch")
        filters = filters_of(self.dataset, options)
        if self.dataset is JOBS:
            unended = sorted(set(filters.statuses) - ENDED)
            if unended:
                ended = ", ".join(sorted(ENDED))
                raise InvalidOptionError("status", f"a stream of jobs is of ended ones ({ended}), not {unended[0]}")
            filters = replace(filters, statuses=filters.statuses or tuple(sorted(ENDED)))
        self.filters = filters
        self._target: int | None = None
        self._is_checked = False

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which a query without a checkpoint begins."""
        with self._planning() as (connection, queue, now):
            starting = self.options["startingXid"]
            xid = now.xid
            if starting == "earliest":
                # Not only the first row's: an older transaction may still be open.
                first = connection.execute(watermarks.first_xid(queue.model, self.dataset, self.filters)).scalar()
                xid = now.xid if first is None else min(first, now.xid)
            elif starting != "latest":
                xid = int(starting)
                if xid > now.xid and not now.is_replica:
                    raise InvalidOptionError(
                        "startingXid", f"must be at most {now.xid}, below which all transactions of this cluster have ended"
                    )
        return Offset(now.system, xid).as_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; `start` if there is no row for it, except after `EMPTY_WINDOW` transactions.

        Raises: OtherClusterError if the checkpoint is of another cluster, or ahead of this one.
        """
        with self._planning() as (connection, queue, now):
            begin = Offset.of(start)
            begin.check(now)
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
        """Set the end of this run to the current watermark."""
        with self._planning() as (_, _, now):
            self._target = now.xid

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the watermark, its lag behind the newest transaction, and the process that holds it back."""
        with sanitised(self.options), connect(self.options, read_only=True) as connection:
            lag = read_lag(connection, with_holder=True)
        offset = Offset(lag.system, lag.xid).as_json() | {"transactions_behind": lag.transactions_behind}
        if lag.holder is not None:
            seconds = -1 if lag.holder.open_for is None else int(lag.holder.open_for.total_seconds())
            offset["held_by"] = {"pid": lag.holder.pid or 0, "seconds": seconds}
        return offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch: `numPartitions` ranges of its transactions; default: one."""
        low, high = Offset.of(start), Offset.of(end)
        if low.xid >= high.xid:
            return []
        with self._planning() as (_, queue, now):
            low.check(now)
            high.check(now, must_be_there=True)
        parts = min(self.options["numPartitions"] or 1, high.xid - low.xid)
        edges = [low.xid + (high.xid - low.xid) * number // parts for number in range(parts + 1)]
        return [
            Part(queue, replace(self.filters, xid_from=first, xid_before=beyond), high) for first, beyond in pairwise(edges)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition of a batch. Repeated reads return the same rows, except those changed in the meantime."""
        return read_part(cast("Part", partition), self.options)

    @contextmanager
    def _planning(self) -> Iterator[tuple[Connection, Queue, StreamLag]]:
        with sanitised(self.options), connect(self.options, read_only=True) as connection:
            queue, now = find_queue(connection, self.options), read_lag(connection)
            if not self._is_checked:  # once a query: a running one does not outlive a restore
                check_restored(connection, queue.model, self.dataset, now)
                self._is_checked = True
            yield connection, queue, now

    def _end(self, connection: Connection, queue: Queue, low: int, high: int, rows: int | None) -> int | None:
        """Return the end of a batch of about this many rows, or None if there is no row before `high`."""
        model, dataset = queue.model, self.dataset
        width = FIRST_WINDOW if dataset is JOBS and rows is not None else high - low
        while True:
            beyond = min(high, low + width)
            filters = replace(self.filters, xid_from=low, xid_before=beyond)
            if rows is None:
                some = connection.execute(watermarks.first_xid(model, dataset, filters)).scalar()
                return None if some is None else high
            first, next_row = connection.execute(watermarks.bounds(model, dataset, filters, rows=rows)).one()
            if next_row is not None:
                # A transaction with more rows than the limit is not split.
                return int(next_row) if next_row > first else int(first) + 1
            if beyond == high:
                return None if first is None else high
            width *= 4
