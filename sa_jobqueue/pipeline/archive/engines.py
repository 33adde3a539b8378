"""Engines that write the files of a run: the protocol, and the engine that needs no JVM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from sqlalchemy import Connection

from sa_jobqueue.db.copy import copy_text
from sa_jobqueue.models import JobClass
from sa_jobqueue.pipeline.archive.arrow import arrow_schema, copied
from sa_jobqueue.pipeline.archive.locations import Location
from sa_jobqueue.pipeline.history import DATASETS, Dataset
from sa_jobqueue.pipeline.statements import archived

ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
"""Bytes of Arrow data that are buffered before a write, which bounds a writer's memory."""


@dataclass(frozen=True, slots=True)
class Task:
    """Input of an engine: all parts of a run, to be written to the run's hidden folders."""

    run_id: UUID
    """Id of the run, which is `archive_run.id`."""
    parts: int
    """Number of parts of the run, numbered from 0."""
    model: JobClass
    location: Location
    """Folder or file system of the archive."""
    connection: Connection
    """The archiver's own connection; an engine leaves it without a transaction."""
    on_progress: Callable[[int], None]
    """Called with the number of jobs each time some were written."""


class Engine(Protocol):
    """Writes the rows of `statements.archived.read` as Parquet files; the archiver reads them back."""

    @property
    def name(self) -> str:
        """Path as stored in the ledger."""
        ...

    def write(self, task: Task) -> dict[str, int]:
        """Write all files of a run; return how many rows of each dataset were read for it.

        Each file lies in `Location.hidden_folder` of its dataset and day, with the columns of `arrow.arrow_schema`. `task`:
        the run, and where its files go.
        """
        ...


class PyArrowEngine:
    """Writes in this process: COPY, a block at a time, into one file for each day and dataset."""

    name: Final = "pyarrow"

    def write(self, task: Task) -> dict[str, int]:
        """Write all files of a run; return the number of rows of each dataset, as `Engine.write`."""
        return {dataset.name: _write(task, dataset) for dataset in DATASETS.values()}


def _write(task: Task, dataset: Dataset) -> int:
    rows = 0
    with _Days(task, dataset) as days:
        for part in range(task.parts):
            read = 0
            with task.connection.begin():
                query, parameters = copy_text(archived.read(task.model, dataset, task.run_id, part))
                for table in copied(task.connection, query, parameters, dataset):
                    days.add(table)
                    read += table.num_rows
            rows += read
            task.on_progress(read if dataset.name == "jobs" else 0)
    return rows


class _Days:
    """Puts rows, which come day by day, into a file for each day."""

    def __init__(self, task: Task, dataset: Dataset) -> None:
        self._task = task
        self._dataset = dataset
        self._schema = arrow_schema(dataset)
        self._day = ""
        self._waiting: list[Any] = []
        self._file: Any = None
        self._path = ""

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
            if sum(one.nbytes for one in self._waiting) >= ROW_GROUP_BYTES:
                self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        location = self._task.location
        if self._file is None:
            folder = location.hidden_folder(self._task.run_id, self._dataset, self._day)
            location.files.create_dir(folder, recursive=True)
            self._path = f"{folder}/part-00000.parquet"
            self._file = parquet_writer(location, self._path, self._schema)
        self._file.write_table(pa.concat_tables(self._waiting).combine_chunks())
        self._waiting = []

    def _end(self) -> None:
        self._flush()
        if self._file is not None:
            self._file.close()
            self._file = None


def parquet_writer(location: Location, path: str, schema: Any) -> Any:
    """Open a file for rows of a dataset. Each page has a checksum."""
    return pq.ParquetWriter(path, schema, filesystem=location.files, compression="zstd", write_page_checksum=True)
