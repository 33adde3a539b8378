"""Files of a run after they were written: whether they hold the rows of the database, and without chains that stay there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sa_jobqueue.pipeline.archive.arrow import CHECKSUM, arrow_schema, checksums
from sa_jobqueue.pipeline.archive.engines import parquet_writer
from sa_jobqueue.pipeline.archive.errors import ArchiveCorruptError
from sa_jobqueue.pipeline.archive.locations import File, Location
from sa_jobqueue.pipeline.history import DATASETS, JOBS

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
                row = next(
                    number
                    for number, (computed, expected_sum) in enumerate(zip(sums, stored, strict=True))
                    if computed != expected_sum
                )
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
        with _open(location, file.path) as opened:
            if not opened.schema_arrow.equals(arrow_schema(file.dataset), check_metadata=False):
                names = opened.schema_arrow.names
                raise ArchiveCorruptError(file.path, f"has other columns than {file.dataset.name} of this version: {names}")
            yield from opened.iter_batches(batch_size=_BATCH_ROWS)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, EOFError, OSError) as error:
        # OSError: Arrow's for a page whose checksum is wrong, or whose compressed bytes are.
        raise ArchiveCorruptError(file.path, f"cannot be read: {error}") from error


def _open(location: Location, path: str) -> Any:
    """Open a Parquet file, its pages' checksums to be checked."""
    return pq.ParquetFile(path, filesystem=location.files, page_checksum_verification=True)


def remove_chains(
    location: Location, files: Iterable[File], chain_ids: Iterable[str], on_progress: Callable[[], None]
) -> None:
    """Rewrite the files that have rows of chains, without those; done twice, it changes nothing the second time.

    Each new file is written beside the old one, then replaces it. Jobs go last: they determine which of the other
    rows belong to a chain, even after a crash between two files.
    """
    for file, column, values in rows_of_chains(location, files, chain_ids):
        _rewrite(location, file, column, values, on_progress)


def rows_of_chains(location: Location, files: Iterable[File], chain_ids: Iterable[str]) -> list[tuple[File, str, Any]]:
    """Return each file with the column, and its values, by which the rows of chains are known; files of jobs are last."""
    chains = pa.array(sorted(chain_ids), pa.string())
    if not len(chains):
        return []
    every = list(files)
    ids: list[Any] = []
    for file in every:
        for keys in read_batches(location, file, ["id", "chain_id"]) if file.dataset is JOBS else ():
            ids += pc.filter(keys["id"], pc.is_in(keys["chain_id"], chains)).to_pylist()
    job_ids = pa.array(ids, pa.string())
    files_of_jobs = [(file, "chain_id", chains) for file in every if file.dataset is JOBS]
    other_files = [(file, "job_id", job_ids) for file in every if file.dataset is not JOBS]
    return [*other_files, *files_of_jobs]


def read_batches(location: Location, file: File, columns: list[str]) -> Iterator[Any]:
    """Yield some columns of a file, a batch of rows at a time."""
    with _open(location, file.path) as opened:
        yield from opened.iter_batches(batch_size=_BATCH_ROWS, columns=columns)


def count(location: Location, files: Iterable[File]) -> tuple[dict[str, int], int]:
    """Return the number of rows of each dataset and the number of chains in files."""
    counts = dict.fromkeys(DATASETS, 0)
    chains = 0
    for file in files:
        with _open(location, file.path) as opened:
            counts[file.dataset.name] += opened.metadata.num_rows
            if file.dataset is JOBS:
                indexes = opened.read(columns=["chain_index"])["chain_index"]
                chains += pc.sum(pc.equal(indexes, 0)).as_py() or 0
    return counts, chains


def _rewrite(location: Location, file: File, column: str, values: Any, on_progress: Callable[[], None]) -> None:
    with _open(location, file.path) as opened:
        has_values = pc.any(pc.is_in(opened.read(columns=[column])[column], values)).as_py()
    if not has_values:
        return
    folder, _, name = file.path.rpartition("/")
    beside = f"{folder}/_rewriting-{name}"
    rows_kept = 0
    with _open(location, file.path) as opened, parquet_writer(location, beside, opened.schema_arrow) as writer:
        for group in range(opened.num_row_groups):
            rows = opened.read_row_group(group)
            stay = rows.filter(pc.invert(pc.is_in(rows[column], values)))
            rows_kept += stay.num_rows
            if stay.num_rows:
                writer.write_table(stay)
    if rows_kept:
        location.sync(beside)
        location.files.move(beside, file.path)
    else:
        location.files.delete_file(file.path)
        location.files.delete_file(beside)
    location.sync_folders(folder)
    on_progress()
