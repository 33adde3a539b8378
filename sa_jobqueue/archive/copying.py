"""COPY from the database as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyarrow import csv
from sqlalchemy import Connection

from sa_jobqueue.archive.arrow import arrow_schema
from sa_jobqueue.db.copy import blocks
from sa_jobqueue.history import Dataset

_ROW_GROUP_BYTES: Final = 8 * 1024 * 1024
"""How much CSV becomes one row group of a file: small ones compress badly and are slow to read."""


def copied(connection: Connection, query: bytes, parameters: Mapping[str, Any], dataset: Dataset) -> Iterator[pa.Table]:
    """Run the COPY of a `statements.archived.read`, as `copy_text` gives it, and yield its rows.

    They have `completed_on`, as text, and the columns of the dataset's files. The connection is busy until the last block
    was taken.
    """
    fields = [pa.field("completed_on", pa.string()), *arrow_schema(dataset)]
    convert, parse = _conversion(fields), csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
    for block in blocks(connection, query, parameters, size_bytes=_ROW_GROUP_BYTES):
        read = csv.ReadOptions(column_names=[field.name for field in fields], block_size=len(block) + 1)
        yield csv.read_csv(pa.py_buffer(block), read, parse, convert)


def _conversion(fields: Sequence[Any]) -> csv.ConvertOptions:
    return csv.ConvertOptions(
        column_types={field.name: field.type for field in fields},
        # As COPY writes them: null is an empty field, the empty text a quoted one.
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
        true_values=["t"],
        false_values=["f"],
        timestamp_parsers=[csv.ISO8601],
    )
