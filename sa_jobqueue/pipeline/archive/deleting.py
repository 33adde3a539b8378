"""Deletion of archived chains, if the rows in the tables are exactly those in the archive's files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection

from sa_jobqueue.db.splitting import sqlstate, summary
from sa_jobqueue.models import JobClass
from sa_jobqueue.operations.pruning import delete_in_parts, unreferenced
from sa_jobqueue.pipeline.archive.connection import check_columns
from sa_jobqueue.pipeline.archive.verifying import Contents
from sa_jobqueue.pipeline.statements import archived
from sa_jobqueue.statements import deletion, quarantine
from sa_jobqueue.types import RefusedWrite

_LISTED_FOR: Final = timedelta(days=1)
"""Time for which a chain that could not be deleted is listed. The next archiver run tries again."""


def delete_archived(
    connection: Connection,
    model: JobClass,
    run_id: UUID,
    contents: Contents,
    *,
    delete_batch_size: int,
    on_progress: Callable[[int], None],
) -> int:
    """Delete the chains of a run that are as its files have them, a batch a transaction; return how many went.

    Younger chains first: they mostly wait for older ones. A chain that is still referred to, or locked elsewhere, is
    tried again until no more can be deleted.
    `on_progress`: called after each commit, with the number of jobs that are gone.
    Locks: in each transaction the chains' jobs and dead letters, roots first, each kind by id.
    """
    remaining = connection.scalars(archived.remaining(model), {"run_id": run_id}).all()
    connection.rollback()
    chains_left = [chain_id for chain_id in remaining if str(chain_id) in contents.chains]
    deleted = 0
    while chains_left:
        stay: list[Any] = []
        for batch in _batches(chains_left, contents, delete_batch_size):
            removed = _delete_batch(connection, model, run_id, batch, contents)
            stay += [chain_id for chain_id in batch if chain_id not in removed]
            deleted += len(removed)
            on_progress(sum(contents.chains[str(chain_id)].jobs for chain_id in removed))
        if len(stay) == len(chains_left):
            break
        chains_left = stay
    return deleted


def _batches(chain_ids: Sequence[Any], contents: Contents, delete_batch_size: int) -> Iterator[list[Any]]:
    batch: list[Any] = []
    jobs = 0
    for chain_id in chain_ids:
        length = contents.chains[str(chain_id)].jobs
        if batch and jobs + length > delete_batch_size:
            yield batch
            batch, jobs = [], 0
        batch.append(chain_id)
        jobs += length
    if batch:
        yield batch


def _delete_batch(
    connection: Connection, model: JobClass, run_id: UUID, chain_ids: list[Any], contents: Contents
) -> set[Any]:
    """Delete what of a batch may go; a chain that cannot be deleted, or that an application's table refers to, stays."""

    def delete(part: Sequence[Any]) -> set[Any]:
        with connection.begin():
            return _delete_unchanged(connection, model, run_id, part, contents)

    deleted, refused = delete_in_parts(chain_ids, delete)
    for chain_id, error in refused.items():
        _record(connection, model, chain_id, error)
    return set().union(*deleted)


def _delete_unchanged(
    connection: Connection, model: JobClass, run_id: UUID, chain_ids: Sequence[Any], contents: Contents
) -> set[Any]:
    jobs: dict[Any, list[Any]] = {}
    for root_id in connection.scalars(archived.lock_ended_roots(model), {"ids": list(chain_ids)}):
        jobs[root_id] = [root_id]
    # In statements of their own, later than the locks: each sees all that was committed before the locks were had, and
    # nothing can be added to these chains any more.
    for row in connection.execute(deletion.continuations(model, lock=True, skip_locked=True), {"ids": list(jobs)}):
        jobs[row.chain_id].append(row.id)
    unchanged = {chain_id: ids for chain_id, ids in jobs.items() if len(ids) == contents.chains[str(chain_id)].jobs}
    connection.execute(archived.lock_dead_letters(model), {"job_ids": _all(unchanged.values())})
    as_archived = []
    for row in connection.execute(archived.fingerprints(model), {"ids": list(unchanged)}):
        in_files = contents.chains[str(row.chain_id)]
        if (row.rows, int(row.checksum)) == (in_files.rows, in_files.checksum):
            as_archived.append(row.chain_id)
    check_columns(connection, model)  # one that was added meanwhile; the locks of these tables now keep others from it
    to_delete = set(unreferenced(connection, model, as_archived))
    if not to_delete:
        return to_delete
    parameters = {"job_ids": _all(unchanged[chain_id] for chain_id in to_delete)}
    connection.execute(deletion.delete_edges(model), parameters)
    connection.execute(deletion.delete_attempts(model), parameters)
    connection.execute(archived.delete_dead_letters(model), parameters)
    connection.execute(deletion.delete_jobs(model), parameters)
    connection.execute(archived.forget(model), {"run_id": run_id, "ids": list(to_delete)})
    quarantined = {"statement": RefusedWrite.ARCHIVE.value, "subjects": [str(chain_id) for chain_id in to_delete]}
    connection.execute(quarantine.drop(model), quarantined)
    return to_delete


def _record(connection: Connection, model: JobClass, chain_id: Any, error: Exception) -> None:
    parameters = {"subject": str(chain_id), "statement": RefusedWrite.ARCHIVE.value, "sqlstate": sqlstate(error)}
    with connection.begin():
        connection.execute(
            quarantine.put(model), parameters | {"error": summary(error), "worker_id": None, "pause": _LISTED_FOR}
        )


def _all(lists: Any) -> list[Any]:
    return [row_id for ids in lists for row_id in ids]
