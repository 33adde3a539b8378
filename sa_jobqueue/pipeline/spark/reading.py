"""Batch reads: a table is partitioned by ranges of its key, and each partition is read with one short COPY.

Each partition is read by its own statement with its own snapshot, since a snapshot held during the whole read would slow
down claims. The key of a row never changes, so the row stays in the same partition. A row that exists from planning to the
end of the read is delivered exactly once, in one of its states; a row inserted or deleted meanwhile, at most once.
`beforeXid` or `upTo=watermark` reads a range that no longer changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from sqlalchemy import Connection

from sa_jobqueue.db.copy import blocks, copy_text
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.pipeline.arrow import csv_reader
from sa_jobqueue.pipeline.history import ATTEMPTS, BLOCKERS, DATASETS, JOBS, Dataset
from sa_jobqueue.pipeline.spark.connections import Queue, connect, find_queue, sanitised
from sa_jobqueue.pipeline.spark.decoding import check_names, check_types, spark_schema
from sa_jobqueue.pipeline.spark.offsets import Offset, read_standing
from sa_jobqueue.pipeline.spark.options import Options
from sa_jobqueue.pipeline.statements import history
from sa_jobqueue.pipeline.statements.history import Filters

PART_BYTES: Final = 256 * 1024 * 1024
"""Bytes of a table per partition if `numPartitions` is not set. A partition costs a connection and a plan, about 20 ms."""
MOST_PARTS: Final = 64
"""Maximum number of partitions chosen by size; each uses a connection while its task runs."""


class Part(InputPartition):
    """Range of rows that one task reads. Spark may log its repr, so it contains no secret."""

    def __init__(self, queue: Queue, filters: Filters, end: Offset | None = None) -> None:
        self.queue = queue
        self.filters = filters
        self.end = end  # of a stream's batch: the server that the task reads from must have reached it

    def __repr__(self) -> str:
        given = (field.name for field in fields(self.filters) if getattr(self.filters, field.name) not in {None, ()})
        return f"Part({', '.join(f'{name}={getattr(self.filters, name)!r}' for name in given)})"


@dataclass(frozen=True)
class Shape:
    """Dataset and columns that a read delivers."""

    dataset: Dataset
    schema: StructType


def dataset_of(options: Options) -> Dataset:
    """Return the dataset to read. Raises: InvalidOptionError if none is named."""
    if options["dataset"] is None:
        raise InvalidOptionError("dataset", f"is required; pass load({JOBS.name!r}), or one of {', '.join(DATASETS)}")
    return DATASETS[options["dataset"]]


def schema_of(options: Options) -> StructType:
    """Return the published schema, restricted by `columns` and `excludePrivate`. Raises: InvalidOptionError."""
    dataset = dataset_of(options)
    names: Sequence[str] = options["columns"] or dataset.names
    check_names(dataset, names, option="columns")
    if options["excludePrivate"]:
        private = [name for name in options["columns"] or () if dataset.column(name).private]
        if private:
            raise InvalidOptionError("columns", f"names {private[0]!r}, which excludePrivate leaves out")
        names = [name for name in names if not dataset.column(name).private]
    return spark_schema(dataset, names)


def shape_of(schema: StructType, options: Options) -> Shape:
    """Return the columns to deliver, from Spark's schema, which may be the user's. Raises: InvalidOptionError."""
    dataset = dataset_of(options)
    check_types(dataset, schema)
    if options.given & {"columns", "excludePrivate"} and schema.names != schema_of(options).names:
        raise InvalidOptionError("columns", "has other columns than schema(): set only one of the two")
    return Shape(dataset, schema)


def filters_of(dataset: Dataset, options: Options) -> Filters:
    """Return the row filters of the options. Raises: InvalidOptionError for one that the dataset does not support."""
    lacking = {
        ATTEMPTS.name: {"queue", "fairnessKey", "type", "status"},
        BLOCKERS.name: {"queue", "fairnessKey", "type", "status"}
        | {"createdAfter", "createdBefore", "completedAfter", "completedBefore"}
        | {"afterXid", "beforeXid", "upTo"},
    }.get(dataset.name, set() if dataset is JOBS else {"status"})
    for name in sorted(options.given & lacking):
        raise InvalidOptionError(name, f"{dataset.name} has nothing that it could select by")
    return Filters(
        queues=options["queue"],
        fairness_keys=options["fairnessKey"],
        types=options["type"],
        statuses=options["status"],
        created_from=options.get("createdAfter"),
        created_before=options.get("createdBefore"),
        completed_from=options.get("completedAfter"),
        completed_before=options.get("completedBefore"),
        xid_from=options.get("afterXid"),
        xid_before=options.get("beforeXid"),
    )


class Reader(DataSourceReader):
    """Plans the partitions of a read on the driver, and reads them on the executors."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self.options = options
        self.shape = shape_of(schema, options)
        self.filters = filters_of(self.shape.dataset, options)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions: ranges of the key that cover the whole table, with bounds from a sample of it.

        Raises: DatabaseUnavailableError, SchemaError, UnsupportedServerError, InvalidOptionError, ReadError.
        """
        with sanitised(self.options), connect(self.options, read_only=True) as connection:
            queue = find_queue(connection, self.options)
            filters = self.filters
            if self.options["upTo"] == "watermark":
                xid = read_standing(connection).xid
                filters = replace(filters, xid_before=xid if filters.xid_before is None else min(xid, filters.xid_before))
            cuts = _cuts(connection, queue, self.shape.dataset, self.options["numPartitions"])
        edges = [None, *cuts, None]
        return [Part(queue, replace(filters, key_from=low, key_before=high)) for low, high in pairwise(edges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition. Raises: ReadError, DatabaseUnavailableError; Spark then discards the rows delivered so far."""
        return read_part(cast("Part", partition), self.shape, self.options)


def read_part(part: Part, shape: Shape, options: Options) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one partition as they arrive, one block at a time."""
    schema = to_arrow_schema(shape.schema, timezone="UTC")
    decode = csv_reader(schema)
    with sanitised(options), connect(options, read_only=True) as connection:
        if part.end is not None:
            read_standing(connection).check(part.end, must_be_there=True)
        statement = history.rows(part.queue.model, shape.dataset, shape.schema.names, part.filters, redact=options["redact"])
        for block in blocks(connection, *copy_text(statement)):
            for batch in decode(block).to_batches():  # with the nullability that Spark expects
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _cuts(connection: Connection, queue: Queue, dataset: Dataset, wanted: int | None) -> list[Any]:
    """Return the keys that split a table into partitions of about equal size; empty for a single partition."""
    size_bytes, pages = connection.execute(history.size(queue.model, dataset)).one()
    parts = wanted or min(MOST_PARTS, 1 + size_bytes // PART_BYTES)
    if parts == 1 or not pages:
        return []
    keys = list(connection.execute(history.sample(queue.model, dataset, percent=_percent(parts, pages))).scalars())
    found = [keys[len(keys) * number // parts] for number in range(1, parts)] if keys else []
    return sorted(set(found) - {keys[0]}) if found else []


def _percent(parts: int, pages: int) -> float:
    """Return the percentage of a table to sample, so that sizes of partitions differ by a few percent only."""
    return min(100.0, 100.0 * max(100, 20 * parts) / pages)
