"""COPY from the database as Arrow batches: a block at a time, whatever is to come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyarrow import csv
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.sql.elements import ClauseElement

from sa_jobqueue.archive.schema import arrow_schema
from sa_jobqueue.history import Dataset

BLOCK_BYTES: Final = 8 * 1024 * 1024
"""How much CSV is kept before it is decoded; a row larger than that is a block by itself."""

_DIALECT: Final = PGDialect_psycopg()  # type: ignore[no-untyped-call]


def copied(connection: Connection, query: bytes, parameters: Mapping[str, Any], dataset: Dataset) -> Iterator[pa.Table]:
    """Run the COPY of a `statements.archived.read`, as `copy_text` gives it, and yield its rows.

    They have `completed_on`, as text, and the columns of the dataset's files. The connection is busy until the last block
    was taken.
    """
    fields = [pa.field("completed_on", pa.string()), *arrow_schema(dataset)]
    convert, parse = _conversion(fields), csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
    driver: Any = connection.connection
    with driver.cursor() as cursor, cursor.copy(query, parameters) as copy:
        for block in _blocks(copy):
            read = csv.ReadOptions(column_names=[field.name for field in fields], block_size=len(block) + 1)
            yield csv.read_csv(pa.py_buffer(block), read, parse, convert)


def _blocks(copy: Any) -> Iterator[bytes]:
    lines: list[Any] = []
    size = 0
    for line in copy:  # each is one row: the protocol's way of COPY TO
        lines.append(bytes(line))
        size += len(line)
        if size >= BLOCK_BYTES:
            yield b"".join(lines)
            lines, size = [], 0
    if lines:
        yield b"".join(lines)


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


def copy_text(statement: ClauseElement) -> tuple[bytes, dict[str, Any]]:
    """Return the COPY of a SELECT, and its parameters for the driver to write in: the protocol has none for COPY."""
    compiled: Any = statement.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
    processors = compiled._bind_processors
    parameters = {name: processors.get(name, lambda given: given)(given) for name, given in compiled.params.items()}
    return f"COPY ({compiled.string}) TO STDOUT (FORMAT csv)".encode(), parameters
