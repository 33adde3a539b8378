"""Reading an archive with pyarrow and pandas."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import dataset as arrow_dataset

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.pipeline.archive.arrow import DAY, arrow_schema
from sa_jobqueue.pipeline.archive.locations import Location
from sa_jobqueue.pipeline.history import DATASETS


def open_archive(path: str | os.PathLike[str], dataset: str = "jobs") -> Any:
    """Return one dataset of an archive as a `pyarrow.dataset.Dataset`, for reading a part of it or batch by batch.

    `path`: the archive's folder or URI, as in `archive`. `dataset`: `jobs`, `attempts`, `dead_letters` or `blockers`.
    Columns are those of the published schema, then `completed_date` (the day in UTC on which the chain ended) and `run`
    (`archive_run.id`): filters on these two read only the files they need.
    """
    if dataset not in DATASETS:
        raise InvalidOptionError("dataset", f"must be one of {', '.join(DATASETS)}, got {dataset!r}")
    location = Location.of(path)
    partitions = pa.schema([(DAY, pa.date32()), ("run", pa.string())])
    schema = pa.schema([*arrow_schema(DATASETS[dataset]), *partitions])
    with location.usable():
        paths = location.paths(DATASETS[dataset])
        if not paths:
            return arrow_dataset.dataset(schema.empty_table())
        return arrow_dataset.dataset(
            paths,
            schema=schema,
            filesystem=location.files,
            format="parquet",
            partitioning=arrow_dataset.partitioning(partitions, flavor="hive"),
        )


def read(
    path: str | os.PathLike[str], dataset: str = "jobs", *, columns: Sequence[str] | None = None, where: Any = None
) -> pa.Table:
    """Read one dataset of an archive into memory; return a `pyarrow.Table`, whose `to_pandas()` is a DataFrame.

    `columns`: all for None. `where`: a filter such as `pyarrow.compute.field("completed_date") >= date(2026, 1, 1)`.
    Otherwise as `open_archive`.
    """
    table: pa.Table = open_archive(path, dataset).to_table(columns=None if columns is None else list(columns), filter=where)
    return table
