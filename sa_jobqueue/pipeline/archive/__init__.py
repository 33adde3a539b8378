"""The archive: finished chains in partitioned Parquet files, out of the tables once they are safely there.

Chains move whole, with their jobs, attempts, dead letters and edges, in runs of bounded size. The ledger `archive_run` has a
row for each, and its state says from where a run goes on after a crash:

- planned: its chains are in `archive_chain`. Files are written into a folder that readers pass over, listed, and
  read back: each row's checksum, which the database computed when the row was read, is computed again. After a crash the
  files and the plan are thrown away.
- written: the files are complete, and on the disk. They are moved to where readers see them. Then batches of chains are
  locked and compared with the rows read back: as many rows, the same sum of checksums over every published column, the end
  of the chain where it was, and no edge from a chain that stays. What fits is deleted, and struck off `archive_chain` in
  the same commit. After a crash, files that are still hidden are moved, and all are read again first.
- deleted: chains left in `archive_chain` changed meanwhile, or is referred to. It stays in the tables, and its rows are
  taken out of the files: a new file takes the old one's place.
- done.

So a row is always in the tables or in the archive, for some time in both, and when a run is done in one of the two. The
database decides which chains are finished, by its clock; two archivers of one queue exclude each other by an advisory lock.
"""

from __future__ import annotations

from importlib.util import find_spec

from sa_jobqueue.errors import MissingExtraError
from sa_jobqueue.pipeline.archive.errors import (
    ArchiveBusyError,
    ArchiveCorruptError,
    ArchiveElsewhereError,
    ArchiveError,
    ArchivePathError,
    UnarchivedColumnsError,
)

if find_spec("pyarrow") is None:
    raise MissingExtraError("pyarrow", "archive")

from sa_jobqueue.pipeline.archive.archiving import abandon_run, archive, archive_runs, preview
from sa_jobqueue.pipeline.archive.erasing import ErasedChains, erase
from sa_jobqueue.pipeline.archive.options import (
    ArchiveOptions,
    ArchivePreview,
    ArchiveReport,
    Held,
    Month,
    Progress,
    Step,
)
from sa_jobqueue.pipeline.archive.reading import open_archive, read

__all__ = [
    "ArchiveBusyError",
    "ArchiveCorruptError",
    "ArchiveElsewhereError",
    "ArchiveError",
    "ArchiveOptions",
    "ArchivePathError",
    "ArchivePreview",
    "ArchiveReport",
    "ErasedChains",
    "Held",
    "Month",
    "Progress",
    "Step",
    "UnarchivedColumnsError",
    "abandon_run",
    "archive",
    "archive_runs",
    "erase",
    "open_archive",
    "preview",
    "read",
]
