"""The functions that applications call: archive, look before, and look into the ledger."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from sqlalchemy import URL, Row
from sqlalchemy import Engine as Database

from sa_jobqueue.archive import planning
from sa_jobqueue.archive.connection import instant, opened
from sa_jobqueue.archive.engines import Engine, PyArrowEngine
from sa_jobqueue.archive.locations import Location
from sa_jobqueue.archive.options import ArchiveOptions, ArchivePreview, ArchiveReport, Listener, check_before
from sa_jobqueue.archive.runs import Archiver
from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.statements import archiving

_EVERYTHING = 2**62


def archive(
    database: Database | URL | str,
    path: str | os.PathLike[str],
    *,
    before: timedelta | datetime,
    model: type[JobMixin[Any]] = Job,
    engine: Engine | None = None,
    options: ArchiveOptions | None = None,
    on_progress: Listener | None = None,
) -> ArchiveReport:
    """Move chains that ended before a time from the tables to Parquet files, each whole; return what was done.

    `before`: an age, counted back from the database's present, or an aware instant that is not in its future.
    `path`: a folder, or a URI of a file system that pyarrow has. One queue archives to one path.
    `engine`: who writes the files; this process with pyarrow unless given (`sa_jobqueue.spark.archive` gives Spark).
    `on_progress`: called after each step; an exception stops the archiver.
    A chain stays if a job of a chain that stays waits for it or waited; if it is awaited; and, unless
    `options.include_dead`, if it has an unresolved dead letter. Killed at any moment and called again with the same path, it
    goes on: no row is lost, and none is left both in the tables and in the archive.
    `database`: an Engine, or the URL of the database; it uses one connection, which does not stay in a pool. `options`:
    limits, timeouts and which chains are archived; by default those of `ArchiveOptions`.
    Changes: rows of `job`, `job_attempt`, `job_blocker` and `dead_letter` are deleted, `archive_run` records what became of
    them. Locks: an advisory lock on the queue's archive; rows for as long as a batch of `options.delete_batch_size` takes.
    Raises: InvalidOptionError, DatabaseUnavailableError and SchemaError before anything is done; ArchiveBusyError;
    ArchiveElsewhereError; ArchivePathError and ArchiveCorruptError, after which every row is where it was or in the archive.
    """
    check_before(before)
    location = Location.of(path)
    given = options or ArchiveOptions()
    with opened(database, model, given) as connection:
        archiver = Archiver(
            connection, model, location, engine=engine or PyArrowEngine(), options=given, listener=on_progress
        )
        return archiver.archive(instant(connection, before))


def preview(
    database: Database | URL | str,
    *,
    before: timedelta | datetime,
    model: type[JobMixin[Any]] = Job,
    options: ArchiveOptions | None = None,
) -> ArchivePreview:
    """Return what `archive` would take on now, by type and month, and what would be held back. Writes nothing.

    It takes for granted that `archive` runs to its end; memory and time are those of walking all jobs once.
    `database`, `before`, `options`: as in `archive`.
    Raises: InvalidOptionError, DatabaseUnavailableError, SchemaError.
    """
    check_before(before)
    begun = monotonic()
    given = options or ArchiveOptions()
    with opened(database, model, given, alone=False) as connection:
        cutoff = instant(connection, before)
        choice = planning.choose(connection, model, given, cutoff=cutoff, room=_EVERYTHING)
        found = planning.months(connection, model)
    return ArchivePreview(
        cutoff=cutoff,
        chains=choice.chains,
        jobs=sum(one.jobs for one in found),
        months=found,
        held=choice.held,
        held_by=choice.held_by,
        seconds=monotonic() - begun,
    )


def archive_runs(
    database: Database | URL | str, *, model: type[JobMixin[Any]] = Job, limit: int = 100
) -> Sequence[Row[Any]]:
    """Return the latest runs of the ledger, oldest first, each with the columns of `archive_run`.

    `database`: as in `archive`. `limit`: maximum number of runs.
    Raises: DatabaseUnavailableError, SchemaError.
    """
    with opened(database, model, ArchiveOptions(), alone=False) as connection, connection.begin():
        return connection.execute(archiving.runs(model, unfinished=False), {"limit": limit}).all()
