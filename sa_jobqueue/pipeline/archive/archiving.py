"""The functions that applications call: archive, look before, and look into the ledger."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from time import monotonic
from typing import Any
from uuid import UUID

from sqlalchemy import URL, Row
from sqlalchemy import Engine as Database

from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.pipeline.archive.connection import check_columns, instant, opened
from sa_jobqueue.pipeline.archive.engines import HERE, Engine
from sa_jobqueue.pipeline.archive.errors import ArchiveError
from sa_jobqueue.pipeline.archive.locations import Location
from sa_jobqueue.pipeline.archive.options import ArchiveOptions, ArchivePreview, ArchiveReport, Listener, Month, check_before
from sa_jobqueue.pipeline.archive.runs import Archiver, choose, forget_run
from sa_jobqueue.pipeline.statements import archiving
from sa_jobqueue.types import ArchiveState

_EVERYTHING = 2**62


def archive(
    database: Database | URL | str,
    path: str | os.PathLike[str],
    *,
    before: timedelta | datetime,
    model: JobClass = Job,
    options: ArchiveOptions | None = None,
    on_progress: Listener | None = None,
) -> ArchiveReport:
    """Move chains that ended before a time from the tables to Parquet files; return the result.

    A chain stays if a job of a chain that stays waits or waited for it, and, unless `options.include_dead`, if it has
    an unresolved dead letter. If the archiver is killed, the next call with the same path continues.

    `database`: an Engine, or the URL of the database; it uses one connection.
    `path`: a folder, or a URI of a file system that pyarrow has. One set of tables archives to one path.
    `before`: an age, or an aware instant that is not in the future, by the database's clock.
    `options`: those of `ArchiveOptions`.
    `on_progress`: called after each step; an exception stops the archiver.
    Changes: deletes rows of `job`, `job_attempt`, `job_blocker` and `dead_letter`.
    Locks: an advisory lock; rows for as long as a batch of `options.delete_batch_size` takes.
    Raises: DatabaseUnavailableError, SchemaError and UnarchivedColumnsError before anything is done; ArchiveBusyError;
    ArchiveElsewhereError; ArchivePathError and ArchiveCorruptError, after which every row is where it was or in the
    archive.
    """
    archive_options = options or ArchiveOptions()
    return archive_with(HERE, database, path, before=before, model=model, options=archive_options, on_progress=on_progress)


def archive_with(
    engine: Engine,
    database: Database | URL | str,
    path: str | os.PathLike[str],
    *,
    before: timedelta | datetime,
    model: JobClass,
    options: ArchiveOptions,
    on_progress: Listener | None,
) -> ArchiveReport:
    """Archive as `archive`, the files written by an engine."""
    check_before(before)
    location = Location.of(path)
    with opened(database, model, options) as connection:
        with connection.begin():
            check_columns(connection, model)
        archiver = Archiver(connection, model, location, engine=engine, options=options, listener=on_progress)
        return archiver.archive(instant(connection, before))


def preview(
    database: Database | URL | str,
    *,
    before: timedelta | datetime,
    model: JobClass = Job,
    options: ArchiveOptions | None = None,
) -> ArchivePreview:
    """Return what `archive` would move now, by type and month, and what would be held back. Writes nothing.

    `database`, `before`, `options`: as in `archive`.
    Cost: walks all jobs once.
    Raises: InvalidOptionError, DatabaseUnavailableError, SchemaError, UnarchivedColumnsError.
    """
    check_before(before)
    begun = monotonic()
    archive_options = options or ArchiveOptions()
    with opened(database, model, archive_options, alone=False) as connection:
        with connection.begin():
            check_columns(connection, model)
        cutoff = instant(connection, before)
        choice = choose(connection, model, archive_options, cutoff=cutoff, room=_EVERYTHING)
        with connection.begin():
            months = tuple(Month(*row) for row in connection.execute(archiving.months(model)))
            attempts, dead_letters, blockers, steps = connection.execute(archiving.dependents(model)).one()
    return ArchivePreview(
        cutoff=cutoff,
        chains=choice.chains,
        jobs=sum(month.jobs for month in months),
        attempts=attempts,
        dead_letters=dead_letters,
        blockers=blockers,
        steps=steps,
        months=months,
        held_chains=choice.held_chains,
        held_by=choice.held_by,
        seconds=monotonic() - begun,
    )


def archive_runs(database: Database | URL | str, *, model: JobClass = Job, limit: int = 100) -> Sequence[Row[Any]]:
    """Return the latest runs of the ledger, oldest first, each with the columns of `archive_run`.

    `database`: as in `archive`. `limit`: maximum number of runs.
    Raises: DatabaseUnavailableError, SchemaError.
    """
    with opened(database, model, ArchiveOptions(), alone=False) as connection, connection.begin():
        return connection.execute(archiving.runs(model, unfinished=False), {"limit": limit}).all()


def abandon_run(database: Database | URL | str, run_id: UUID, *, model: JobClass = Job) -> None:
    """Give up an archive run that has deleted nothing, such as one whose files were lost, or cannot be read any more.

    All its chains stay in the tables.
    `database`: as in `archive`.
    `run_id`: as `archive_runs` lists it.
    Changes: deletes the run, and its files if their location can still be used.
    Locks: the advisory lock of the archive.
    Raises: ArchiveError if there is no such run, or if it has begun to delete rows; ArchiveBusyError;
    DatabaseUnavailableError, SchemaError.
    """
    with opened(database, model, ArchiveOptions()) as connection:
        with connection.begin():
            unfinished = connection.execute(archiving.runs(model, unfinished=True), {"limit": 100}).all()
        row = next((row for row in unfinished if row.id == run_id), None)
        if row is None:
            raise ArchiveError(f"no unfinished run has the id {run_id}; nothing was changed")
        if row.state not in {ArchiveState.PLANNED, ArchiveState.WRITTEN}:
            raise ArchiveError(
                f"run {run_id} is {row.state}, and rows may be in its files alone: archive to {row.path} to finish it; "
                "nothing was changed"
            )
        with suppress(OSError):  # an ArchivePathError is one
            location = Location.of(row.path)
            with location.usable():
                location.discard(run_id)
                for file in location.shown_files(run_id):
                    location.files.delete_file(file.path)
        forget_run(connection, model, run_id)
