"""Taking chains that stay in the tables out of a run's files, so that no row is in both places."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sa_jobqueue.pipeline.archive.engines import parquet_writer
from sa_jobqueue.pipeline.archive.locations import File, Location
from sa_jobqueue.pipeline.archive.verifying import open_file
from sa_jobqueue.pipeline.history import DATASETS, JOBS


def remove_chains(
    location: Location, files: Iterable[File], chain_ids: Iterable[str], on_progress: Callable[[], None]
) -> None:
    """Rewrite the files that have rows of chains, without those; done twice, it changes nothing the second time.

    Each new file is written beside the old one, then replaces it. Jobs go last: they determine which of the other
    rows belong to a chain, even after a crash between two files.
    """
    staying = pa.array(sorted(chain_ids), pa.string())
    if not len(staying):
        return
    every = list(files)
    jobs = [file for file in every if file.dataset is JOBS]
    ids: list[Any] = []
    for file in jobs:
        with open_file(location, file.path) as opened:
            keys = opened.read(columns=["id", "chain_id"])
        ids += keys.filter(pc.is_in(keys["chain_id"], staying))["id"].to_pylist()
    job_ids = pa.array(ids, pa.string())
    for file in (file for file in every if file.dataset is not JOBS):
        _rewrite(location, file, "job_id", job_ids, on_progress)
    for file in jobs:
        _rewrite(location, file, "chain_id", staying, on_progress)


def count(location: Location, files: Iterable[File]) -> tuple[dict[str, int], int]:
    """Return the number of rows of each dataset and the number of chains in files."""
    counts = dict.fromkeys(DATASETS, 0)
    chains = 0
    for file in files:
        with open_file(location, file.path) as opened:
            counts[file.dataset.name] += opened.metadata.num_rows
            if file.dataset is JOBS:
                indexes = opened.read(columns=["chain_index"])["chain_index"]
                chains += pc.sum(pc.equal(indexes, 0)).as_py() or 0
    return counts, chains


def _rewrite(location: Location, file: File, column: str, values: Any, on_progress: Callable[[], None]) -> None:
    with open_file(location, file.path) as opened:
        found = pc.any(pc.is_in(opened.read(columns=[column])[column], values)).as_py()
    if not found:
        return
    folder, _, name = file.path.rpartition("/")
    beside = f"{folder}/_rewriting-{name}"
    rows_kept = 0
    with open_file(location, file.path) as opened, parquet_writer(location, beside, opened.schema_arrow) as writer:
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
