"""Delete chains, and the chains they wait for, so that no reference to a deleted job is left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.errors import (
    ChainBusyError,
    ChainNotFoundError,
    ChainReferencedError,
    InvalidJobError,
    NotAChainError,
)
from sa_jobqueue.errors.drivers import DEADLOCK, diagnose
from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.operations.audit import record
from sa_jobqueue.operations.errors import translated
from sa_jobqueue.operations.given_ids import check_ids
from sa_jobqueue.operations.results import BulkResult
from sa_jobqueue.operations.transactions import require_transaction
from sa_jobqueue.statements import chains, deletion, notifications
from sa_jobqueue.types import JobId, JobStatus

MAX_CHAINS: Final = 1000
_MAX_REFERENCES: Final = 1000
_TRIES: Final = 10


def delete_chains(
    session: Session,
    chain_ids: Sequence[JobId],
    *,
    cascade: bool = False,
    by: str = "",
    dry_run: bool = False,
    model: type[JobMixin[Any]] = Job,
) -> BulkResult[Any]:
    """Delete chains in any state, with all their jobs; return the deleted chains, sorted.

    `chain_ids`: at most 1,000 per call. `cascade`: also delete every chain that one of their jobs waits for or waited for,
    and so on. `by` is recorded in the dead letters too; the database user by default. `dry_run` does not check rows of the
    application that refer to the jobs. The worker of a running job is notified and stops it; later writes of the handler's
    session are rolled back. Callers that wait for one of the chains are notified. Unresolved dead letters of deleted jobs
    are dismissed.
    Changes: deletes rows of `job`, `job_blocker` and `job_attempt`.
    Locks: all jobs of the chains, the roots in the order of their ids, then the others in the order of theirs, until the
    transaction ends. It waits for other locks, and needs READ COMMITTED, PostgreSQL's default.
    Raises: ChainNotFoundError; NotAChainError for the id of a continuation; ChainReferencedError if a job of another chain
    waits or waited for one of the chains; ChainBusyError if concurrent transactions kept adding dependencies; ConflictError
    if a row of the application refers to a job. Nothing is written and no lock is kept then.
    """
    given = check_chain_ids(model, chain_ids)
    session.flush()
    if not given:
        return BulkResult([], 0)
    wanted = _connected(session, model, given) if cascade else set(given)
    if dry_run:
        roots, jobs = _jobs_of(session, model, wanted)
        _refuse_missing(session, model, given, roots)
        _refuse_references(session, model, roots, jobs)
        return BulkResult(roots, len(roots))
    require_transaction(session.connection(bind_arguments={"mapper": model}), "deleting chains")
    for _ in range(_TRIES):
        savepoint = session.begin_nested()
        try:
            with savepoint:
                deleted, wanted = _try(session, model, given, wanted, cascade=cascade, by=by)
                if deleted:
                    record(session, "delete_chains", by=by, ids=deleted, model=model, chains=given, cascade=cascade)
                    return BulkResult(deleted, len(deleted))
                # The locks go with the savepoint: a chain more would have to be locked out of its turn.
                savepoint.rollback()
        except DBAPIError as error:
            # Not of ours alone: a handler's session may hold chains in any order. What it did is undone; once more.
            if diagnose(error).sqlstate != DEADLOCK:
                raise
    raise ChainBusyError()


def _try(
    session: Session, model: type[JobMixin[Any]], given: list[JobId], wanted: set[Any], *, cascade: bool, by: str
) -> tuple[list[Any], set[Any]]:
    """Lock chains and delete them, unless by now others are connected with them; return what is gone, and all there are."""
    roots, jobs = _jobs_of(session, model, wanted, for_update=True)
    _refuse_missing(session, model, given, roots)
    # Again, in a later statement: what was added before the roots were locked is visible now, and nothing can be added
    # any more.
    found = _connected(session, model, given) if cascade else wanted
    if not found <= wanted:
        return [], found
    to_delete = [job_id for job_id, chain_id in jobs.items() if chain_id in found]
    _refuse_references(session, model, found, to_delete)
    delete_jobs(session, model, to_delete, by=by)
    return [chain_id for chain_id in roots if chain_id in found], found


def check_chain_ids(model: type[JobMixin[Any]], chain_ids: Sequence[JobId]) -> list[JobId]:
    """Return the ids without duplicates. Raises: InvalidJobError if they are not ids of this queue, or too many."""
    check_ids(model, chain_ids=chain_ids)
    given = list(dict.fromkeys(chain_ids))
    if len(given) > MAX_CHAINS:
        raise InvalidJobError(
            "chain_ids", f"must be at most {MAX_CHAINS:,} a call, got {len(given):,}; commit between calls"
        )
    return given


def missing_chains(
    session: Session, missing: Sequence[JobId], model: type[JobMixin[Any]]
) -> ChainNotFoundError | NotAChainError:
    """Return the error for ids that are not ids of chains: unknown ids, or ids of continuations."""
    belongs = {row.id: row.chain_id for row in session.execute(chains.chain_of(model), {"ids": list(missing)})}
    unknown = [chain_id for chain_id in missing if chain_id not in belongs]
    return ChainNotFoundError(unknown) if unknown else NotAChainError(belongs)


def _connected(session: Session, model: type[JobMixin[Any]], chain_ids: Iterable[JobId]) -> set[Any]:
    return set(session.scalars(deletion.connected(model), {"ids": list(chain_ids)}))


def _jobs_of(
    session: Session, model: type[JobMixin[Any]], chain_ids: Iterable[JobId], *, for_update: bool = False
) -> tuple[list[Any], dict[Any, Any]]:
    """Return the ids of the chains that exist, sorted, and the chain of each of their jobs; with `for_update`, lock them."""
    of_roots, of_others = (
        (deletion.lock_roots, deletion.lock_continuations) if for_update else (deletion.roots, deletion.continuations)
    )
    roots = list(session.scalars(of_roots(model), {"ids": list(chain_ids)}))
    jobs = {chain_id: chain_id for chain_id in roots}
    for row in session.execute(of_others(model), {"ids": roots}):
        jobs[row.id] = row.chain_id
    return roots, jobs


def _refuse_missing(session: Session, model: type[JobMixin[Any]], given: Sequence[JobId], roots: Iterable[JobId]) -> None:
    existing = set(roots)
    if missing := [chain_id for chain_id in given if chain_id not in existing]:
        raise missing_chains(session, missing, model)


def _refuse_references(
    session: Session, model: type[JobMixin[Any]], chain_ids: Iterable[JobId], job_ids: Iterable[JobId]
) -> None:
    given = {"ids": list(chain_ids), "job_ids": list(job_ids), "limit": _MAX_REFERENCES}
    found = session.execute(deletion.references(model), given).all()
    if found:
        raise ChainReferencedError([(row.chain_id, row.job_id) for row in found])


def delete_jobs(session: Session, model: type[JobMixin[Any]], job_ids: list[Any], *, by: str) -> None:
    """Delete jobs with their blockers and attempts, and notify workers and callers that wait.

    Obliges: the jobs are locked, and no other job refers to them.
    """
    given = {"job_ids": job_ids}
    # What the session holds of the rows deleted leaves it with them, and comes back if they do.
    fetch = {"synchronize_session": "fetch"}
    session.execute(deletion.delete_edges(model), given, execution_options=fetch)
    session.execute(deletion.delete_attempts(model), given, execution_options=fetch)
    session.execute(deletion.dismiss_dead_letters(model), given | {"by": by}, execution_options=fetch)
    with translated():
        deleted = session.execute(deletion.delete_jobs(model), given, execution_options=fetch).all()
    lost = [str(job_id) for job_id, status, _, _ in deleted if status is JobStatus.RUNNING]
    ended = [str(job_id) for job_id, _, chain_id, has_waiters in deleted if job_id == chain_id and has_waiters]
    if lost:
        session.execute(notifications.notify_each(model, "lost"), {"ids": lost})
    if ended:
        session.execute(notifications.notify_each(model, "ended"), {"ids": ended})
