"""The files of a run: written by this process, or by several that share the parts of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from sqlalchemy import Connection

from sa_jobqueue.pipeline.archive.arrow import arrow_schema, copied
from sa_jobqueue.pipeline.archive.locations import Location
from sa_jobqueue.pipeline.history import DATASETS, JOBS, Dataset

ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
"""Bytes of Arrow data that are buffered before a write, which bounds a writer's memory."""
Count: TypeAlias = Callable[[int], None]
"""Called with the number of jobs each time some were written."""


class Written(NamedTuple):
    """A file that was written and closed."""

    dataset: str
    path: str
    rows: int


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a run, as a process writes them. Its repr contains no row data."""

    run_id: UUID
    """Id of the run, which is `archive_run.id`."""
    number: int
    """Number of parts of the run, numbered from 0."""
    location: Location
    queries: dict[str, tuple[bytes, dict[str, Any]]]
    """The COPY of each dataset and its parameters, so that other processes do not need the application's model."""

    def write(self, connection: Connection, numbers: Iterable[int], count: Count) -> list[Written]:
        """Write the rows of some parts into a file for each day and dataset, by COPY, a block at a time.

        A process that fails leaves files that are never read: the archive shows those that are returned.
        """
        files: list[Written] = []
        numbers = list(numbers)
        for name, (query, parameters) in self.queries.items():
            with _Days(self, DATASETS[name], files) as days:
                for number in numbers:
                    read = 0
                    with connection.begin():
                        for table in copied(connection, query, parameters | {"part": number}, DATASETS[name]):
                            days.add(table)
                            read += table.num_rows
                    count(read if name == JOBS.name else 0)
        return files


class Engine(NamedTuple):
    """Function that writes all files of a run, and its name."""

    name: str
    """Name in the ledger."""
    write: Callable[[Connection, Parts, Count], list[Written]]
    """Gets the archiver's own connection, which it leaves without a transaction."""


HERE: Final = Engine("pyarrow", lambda connection, parts, count: parts.write(connection, range(parts.number), count))
"""Writes in this process."""


class _Days:
    """Puts rows, which come day by day, into a file for each day."""

    def __init__(self, parts: Parts, dataset: Dataset, files: list[Written]) -> None:
        self._parts = parts
        self._dataset = dataset
        self._files = files
        self._schema = arrow_schema(dataset)
        self._day = ""
        self._waiting: list[Any] = []
        self._file: Any = None
        self._path = ""
        self._rows = 0

    def __enter__(self) -> _Days:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._end()
        elif self._file is not None:
            self._file.close()

    def add(self, table: Any) -> None:
        """Add rows, which must not be of an earlier day than the rows before."""
        of_day = table.column("completed_on")
        rows = table.drop_columns(["completed_on"]).cast(self._schema)
        for day in pc.unique(of_day).to_pylist():
            if day != self._day:
                self._end()
                self._day = day
            self._waiting.append(rows.filter(pc.equal(of_day, day)))
            if sum(batch.nbytes for batch in self._waiting) >= ROW_GROUP_BYTES:
                self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        location = self._parts.location
        if self._file is None:
            folder = location.hidden_folder(self._parts.run_id, self._dataset, self._day)
            location.files.create_dir(folder, recursive=True)
            self._path = f"{folder}/part-{uuid4()}.parquet"
            self._file = parquet_writer(location, self._path, self._schema)
        table = pa.concat_tables(self._waiting).combine_chunks()
        self._file.write_table(table)
        self._rows += table.num_rows
        self._waiting = []

    def _end(self) -> None:
        self._flush()
        if self._file is not None:
            self._file.close()
            self._files.append(Written(self._dataset.name, self._path, self._rows))
            self._file, self._rows = None, 0


def parquet_writer(location: Location, path: str, schema: Any) -> Any:
    """Open a file for rows of a dataset. Each page has a checksum."""
    return pq.ParquetWriter(path, schema, filesystem=location.files, compression="zstd", write_page_checksum=True)
