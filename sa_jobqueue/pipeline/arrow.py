"""The published columns as Arrow types, and rows that COPY sends as Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import pyarrow as pa
from pyarrow import csv

from sa_jobqueue.pipeline.history import Kind

TYPES: Final = {
    Kind.TEXT: pa.string(),
    Kind.JSON: pa.string(),
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.DOUBLE: pa.float64(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}


def csv_reader(fields: Iterable[Any], *, use_threads: bool = False) -> Callable[[bytearray], pa.Table]:
    """Return a function that converts a block of COPY's CSV, whole lines, to a table with these columns."""
    types = {field.name: field.type for field in fields}
    convert = csv.ConvertOptions(
        column_types=types,
        # As COPY writes them: null is an empty field, the empty text a quoted one.
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
        true_values=["t"],
        false_values=["f"],
        timestamp_parsers=[csv.ISO8601],
    )
    # In a single column, a null is an empty line.
    parse = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)

    def read(block: bytearray) -> pa.Table:
        # A single block of Arrow, because a row may have any length.
        options = csv.ReadOptions(column_names=list(types), use_threads=use_threads, block_size=len(block) + 1)
        return csv.read_csv(pa.py_buffer(block), options, parse, convert)

    return read
