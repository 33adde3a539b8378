"""COPY from the database to here: its CSV, a block at a time, whatever is to come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.sql.elements import ClauseElement

BLOCK_BYTES: Final = 1024 * 1024
"""How much CSV is kept before it is decoded: with what it becomes, all that a reader needs of memory. A row that is larger
is a block by itself. Of 8 MiB, which no cache holds, decoding takes a quarter longer."""

_DIALECT: Final = PGDialect_psycopg()  # type: ignore[no-untyped-call]


def copy_text(statement: ClauseElement) -> tuple[bytes, dict[str, Any]]:
    """Return the COPY of a SELECT, and its parameters for the driver to write in: the protocol has none for COPY."""
    compiled: Any = statement.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
    processors = compiled._bind_processors
    parameters = {name: processors.get(name, lambda given: given)(given) for name, given in compiled.params.items()}
    return f"COPY ({compiled.string}) TO STDOUT (FORMAT csv)".encode(), parameters


def blocks(
    connection: Connection, query: bytes, parameters: Mapping[str, Any], *, size_bytes: int | None = None
) -> Iterator[bytes]:
    """Run a COPY, as `copy_text` gives it, and yield its CSV, whole lines, in blocks of about `size_bytes`.

    Locks: none. The connection is busy until the last block was taken, or the iterator is closed.
    """
    driver: Any = connection.connection  # not its `driver_connection`: one that is detached from its pool has none
    most = size_bytes or BLOCK_BYTES
    with driver.cursor() as cursor, cursor.copy(query, parameters) as copy:
        block: list[Any] = []
        size = 0
        for line in copy:  # one row each: the protocol's promise for COPY TO
            block.append(line)
            size += len(line)
            if size >= most:
                yield b"".join(block)
                block, size = [], 0
        if block:
            yield b"".join(block)
