"""The archive's columns as Arrow types, rows read by COPY as Arrow tables, and the checksum of a row.

A file has the columns of its dataset (`sa_jobqueue.pipeline.history`) and `checksum`, which the database computed when
the row was read.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection

from sa_jobqueue.db.copy import blocks
from sa_jobqueue.pipeline.arrow import TYPES, csv_reader
from sa_jobqueue.pipeline.history import SCHEMA_VERSION, Column, Dataset, Kind
from sa_jobqueue.pipeline.statements.archived import NULL, SEPARATOR

_ROW_GROUP_BYTES: Final = 8 * 1024 * 1024
"""Bytes of CSV per row group of a file: small row groups compress badly and are slow to read."""
VERSION_KEY: Final = "sa_jobqueue.schema_version"
"""In the metadata of every file: the version of its schema."""

CHECKSUM: Final = "checksum"
DAY: Final = "completed_date"
"""The partition: the day, in UTC, on which the chain ended."""


def columns(dataset: Dataset) -> tuple[Column, ...]:
    """Return the columns of a dataset's files, in order."""
    return (*dataset.columns, Column(CHECKSUM, Kind.LONG, "Of the row as the database had it: 64 bits of a SHA-256"))


def arrow_schema(dataset: Dataset) -> pa.Schema:
    """Return the schema of a dataset's files."""
    fields = [pa.field(column.name, TYPES[column.kind]) for column in columns(dataset)]
    return pa.schema(fields, metadata={VERSION_KEY: str(SCHEMA_VERSION), "sa_jobqueue.dataset": dataset.name})


def checksums(rows: Any, dataset: Dataset) -> list[int]:
    """Compute the checksum of each row of a table or batch, from its other columns."""
    texts = [_text(rows.column(column.name), column) for column in columns(dataset) if column.name != CHECKSUM]
    if not rows.num_rows:
        return []
    joined = pc.binary_join_element_wise(*texts, SEPARATOR, null_handling="replace", null_replacement=NULL)
    digests = [hashlib.sha256(text.encode()).digest()[:8] for text in joined.to_pylist()]
    return list(struct.unpack(f">{len(digests)}q", b"".join(digests)))


def _text(values: Any, column: Column) -> Any:
    match column.kind:
        case Kind.TEXT | Kind.JSON:
            return values.cast(pa.string())
        case Kind.TIMESTAMP:
            return values.cast(TYPES[Kind.TIMESTAMP]).cast(pa.int64()).cast(pa.string())
        case Kind.DOUBLE:
            return pc.round(pc.multiply(values, 1_000_000.0)).cast(pa.int64()).cast(pa.string())
        case _:
            return values.cast(pa.string())


def copied(connection: Connection, query: bytes, parameters: Mapping[str, Any], dataset: Dataset) -> Iterator[pa.Table]:
    """Run the COPY of a `statements.archived.read`, as `copy_text` gives it, and yield its rows.

    They have `completed_on`, as text, and the columns of the dataset's files. The connection is busy until the last block
    was taken.
    """
    read = csv_reader([pa.field("completed_on", pa.string()), *arrow_schema(dataset)], use_threads=True)
    yield from map(read, blocks(connection, query, parameters, size_bytes=_ROW_GROUP_BYTES))
