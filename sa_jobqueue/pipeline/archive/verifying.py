"""Reading an archive's files back: whether they hold the rows of the database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sa_jobqueue.pipeline.archive.arrow import CHECKSUM, arrow_schema, checksums
from sa_jobqueue.pipeline.archive.errors import ArchiveCorruptError
from sa_jobqueue.pipeline.archive.locations import File, Location
from sa_jobqueue.pipeline.history import DATASETS, JOBS, Dataset

_BATCH_ROWS: Final = 20_000


@dataclass(slots=True)
class ChainRows:
    """Rows of one chain in the files."""

    jobs: int = 0
    rows: int = 0
    """Number of rows in all datasets."""
    checksum: int = 0
    """The sum of its rows' checksums."""


@dataclass(slots=True)
class Contents:
    """Contents of the files of a run, as read back."""

    chains: dict[str, ChainRows] = field(default_factory=dict)
    """By the chain's id as text."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DATASETS, 0))
    """Rows, by dataset."""


def verify(location: Location, files: Iterable[File], expected: Mapping[str, int]) -> Contents:
    """Read files in full and return what they have.

    Every row's checksum is computed again from the file and compared with the one that the database computed; every
    row of attempts, dead letters and blockers must belong to a job in the files, and no job may be there twice.
    `expected`: how many rows of each dataset there must be.
    Raises: ArchiveCorruptError, which names the file; OSError where one cannot be read.
    """
    contents = Contents()
    chain_of: dict[str, ChainRows] = {}
    in_order = sorted(files, key=lambda file: (file.dataset is not JOBS, file.path))
    for file in in_order:
        for batch in _read(location, file):
            sums = checksums(batch, file.dataset)
            stored = batch.column(CHECKSUM).to_pylist()
            if sums != stored:
                row = next(number for number, (one, other) in enumerate(zip(sums, stored, strict=True)) if one != other)
                key = ", ".join(str(batch.column(name)[row]) for name in file.dataset.key)
                raise ArchiveCorruptError(file.path, f"row {key} is not as the database had it")
            contents.counts[file.dataset.name] += batch.num_rows
            if file.dataset is JOBS:
                _add_jobs(contents, chain_of, batch, sums, file)
            else:
                _add_others(chain_of, batch, sums, file)
    if contents.counts != dict(expected):
        raise ArchiveCorruptError(location.name, f"has {contents.counts} rows of the run, there should be {dict(expected)}")
    return contents


def _add_jobs(contents: Contents, chain_of: dict[str, ChainRows], batch: Any, sums: list[int], file: File) -> None:
    ids, chain_ids = batch.column("id").to_pylist(), batch.column("chain_id").to_pylist()
    for job_id, chain_id, checksum in zip(ids, chain_ids, sums, strict=True):
        chain = contents.chains.get(chain_id)
        if chain is None:
            chain = contents.chains[chain_id] = ChainRows()
        if job_id in chain_of:
            raise ArchiveCorruptError(file.path, f"job {job_id} is there twice")
        chain_of[job_id] = chain
        chain.jobs += 1
        chain.rows += 1
        chain.checksum += checksum


def _add_others(chain_of: dict[str, ChainRows], batch: Any, sums: list[int], file: File) -> None:
    for job_id, checksum in zip(batch.column("job_id").to_pylist(), sums, strict=True):
        chain = chain_of.get(job_id)
        if chain is None:
            raise ArchiveCorruptError(file.path, f"has a row of job {job_id}, which is not in the run")
        chain.rows += 1
        chain.checksum += checksum


def _read(location: Location, file: File) -> Iterator[Any]:
    try:
        with open_file(location, file.path) as opened:
            check_columns(opened.schema_arrow, file.dataset, file.path)
            yield from opened.iter_batches(batch_size=_BATCH_ROWS)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, EOFError) as error:
        raise ArchiveCorruptError(file.path, f"cannot be read: {error}") from error
    except OSError as error:
        # Arrow's errors for a page whose checksum is wrong, or whose compressed bytes are.
        raise ArchiveCorruptError(file.path, f"cannot be read: {error}") from error


def open_file(location: Location, path: str) -> Any:
    """Open a Parquet file, its pages' checksums to be checked."""
    return pq.ParquetFile(path, filesystem=location.files, page_checksum_verification=True)


def check_columns(found: Any, dataset: Dataset, path: str) -> None:
    """Check the columns of a file, names, order and types. Raises: ArchiveCorruptError."""
    wanted = arrow_schema(dataset)
    if not found.equals(wanted, check_metadata=False):
        raise ArchiveCorruptError(path, f"has other columns than {dataset.name} of this version: {found.names}")
