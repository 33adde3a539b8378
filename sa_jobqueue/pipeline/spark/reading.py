"""Batch reads: a table is partitioned by ranges of its key, and each partition is read with one short COPY.

Each partition is read by its own statement with its own snapshot, since a snapshot held during the whole read would slow
down claims. The key of a row never changes, so the row stays in the same partition. A row that exists from planning to the
end of the read is delivered exactly once, in one of its states; a row inserted or deleted meanwhile, at most once.
`upTo=watermark` reads a range that no longer changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructField, StructType
from sqlalchemy import Connection

from sa_jobqueue.db.copy import blocks, copy_text
from sa_jobqueue.pipeline.arrow import TYPES, csv_reader
from sa_jobqueue.pipeline.history import ATTEMPTS, BLOCKERS, DATASETS, JOBS, Dataset
from sa_jobqueue.pipeline.spark.connections import Queue, connect, find_queue, sanitised
from sa_jobqueue.pipeline.spark.offsets import Offset, check_restored, read_lag
from sa_jobqueue.pipeline.spark.options import Options, refuse, suggestion
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
        filter_names = (field.name for field in fields(self.filters) if getattr(self.filters, field.name) not in {None, ()})
        return f"Part({', '.join(f'{name}={getattr(self.filters, name)!r}' for name in filter_names)})"


def dataset_of(options: Options) -> Dataset:
    """Return the dataset to read. Raises: InvalidOptionError if none is named."""
    if options["dataset"] is None:
        refuse("dataset", f"is required; pass load({JOBS.name!r}), or one of {', '.join(DATASETS)}")
    return DATASETS[options["dataset"]]


def schema_of(options: Options) -> StructType:
    """Return the published schema, restricted by `columns` and `excludePrivate`. Raises: InvalidOptionError."""
    dataset = dataset_of(options)
    names: Sequence[str] = options["columns"] or dataset.names
    for place, name in enumerate(names):
        if name not in dataset.names:
            refuse("columns", f"{dataset.name} has no column {name!r}{suggestion(name, dataset.names)}")
        if name in names[:place]:
            refuse("columns", f"names column {name!r} twice")
    if options["excludePrivate"]:
        private = [name for name in names if dataset.column(name).private]
        if private and options["columns"]:
            refuse("columns", f"names {private[0]!r}, which excludePrivate leaves out")
        names = [name for name in names if name not in private]
    columns = [dataset.column(name) for name in names]
    return StructType(
        [
            StructField(column.name, from_arrow_type(TYPES[column.kind]), metadata={"comment": column.doc})
            for column in columns
        ]
    )


def check_schema(schema: StructType, options: Options) -> None:
    """Check that Spark wants the published schema: types are fixed, and `columns` selects. Raises: InvalidOptionError."""
    published = schema_of(options)
    if [(field.name, field.dataType) for field in schema.fields] != [
        (field.name, field.dataType) for field in published.fields
    ]:
        refuse("schema()", 'cannot be set: choose columns with option columns, such as "id,status", and cast after load()')


def filters_of(dataset: Dataset, options: Options) -> Filters:
    """Return the row filters of the options. Raises: InvalidOptionError for one that the dataset does not support."""
    lacking = {
        ATTEMPTS.name: {"queue", "type", "status"},
        BLOCKERS.name: {"queue", "type", "status", "upTo"}
        | {"createdAfter", "createdBefore", "completedAfter", "completedBefore"},
    }.get(dataset.name, set() if dataset is JOBS else {"status"})
    for name in sorted(options.set_names & lacking):
        refuse(name, f"{dataset.name} has nothing that it could select by")
    return Filters(
        queues=options["queue"],
        types=options["type"],
        statuses=options["status"],
        created_from=options.get("createdAfter"),
        created_before=options.get("createdBefore"),
        completed_from=options.get("completedAfter"),
        completed_before=options.get("completedBefore"),
    )


class Reader(DataSourceReader):
    """Plans the partitions of a read on the driver, and reads them on the executors."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        check_schema(schema, options)
        self.dataset = dataset_of(options)
        self.filters = filters_of(self.dataset, options)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions: ranges of the key that cover the whole table, with bounds from a sample of it.

        Raises: DatabaseUnavailableError, SchemaError, UnsupportedServerError, InvalidOptionError, ReadError.
        """
        with sanitised(self.options), connect(self.options, read_only=True) as connection:
            queue = find_queue(connection, self.options)
            filters = self.filters
            if self.options["upTo"] == "watermark":
                now = read_lag(connection)
                check_restored(connection, queue.model, self.dataset, now)
                filters = replace(filters, xid_before=now.xid)
            cuts = _cuts(connection, queue, self.dataset, self.options["numPartitions"])
        edges = [None, *cuts, None]
        return [Part(queue, replace(filters, key_from=low, key_before=high)) for low, high in pairwise(edges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition. Raises: ReadError, DatabaseUnavailableError; Spark then discards the rows delivered so far."""
        return read_part(cast("Part", partition), self.options)


def read_part(part: Part, options: Options) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one partition as they arrive, one block at a time."""
    dataset, schema = dataset_of(options), to_arrow_schema(schema_of(options), timezone="UTC")
    decode = csv_reader(schema)
    with sanitised(options), connect(options, read_only=True) as connection:
        if part.end is not None:
            part.end.check(read_lag(connection), must_be_there=True)
        statement = history.rows(part.queue.model, dataset, schema.names, part.filters, redact=options["redact"])
        for block in blocks(connection, *copy_text(statement)):
            for batch in decode(block).to_batches():  # with the nullability that Spark expects
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _cuts(connection: Connection, queue: Queue, dataset: Dataset, partition_count: int | None) -> list[Any]:
    """Return the keys that split a table into partitions of about equal size; empty for a single partition."""
    size_bytes, pages = connection.execute(history.size(queue.model, dataset)).one()
    parts = partition_count or min(MOST_PARTS, 1 + size_bytes // PART_BYTES)
    if parts == 1 or not pages:
        return []
    keys = list(connection.execute(history.sample(queue.model, dataset, percent=_percent(parts, pages))).scalars())
    cuts = [keys[len(keys) * number // parts] for number in range(1, parts)] if keys else []
    return sorted(set(cuts) - {keys[0]}) if cuts else []


def _percent(parts: int, pages: int) -> float:
    """Return the percentage of a table to sample, so that sizes of partitions differ by a few percent only."""
    return min(100.0, 100.0 * max(100, 20 * parts) / pages)
