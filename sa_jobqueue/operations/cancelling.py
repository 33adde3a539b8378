"""Cancel chains, by the job of each that has not ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.operations.audit import check_by, record
from sa_jobqueue.operations.deletion import check_chain_ids, missing_chains
from sa_jobqueue.operations.jobs import _cancel
from sa_jobqueue.operations.results import BulkResult
from sa_jobqueue.operations.transactions import queue_connection
from sa_jobqueue.operations.unblocking import unblock_all
from sa_jobqueue.statements import chains, deletion, jobs
from sa_jobqueue.types import JobId, JobStatus


def cancel_chains(
    session: Session,
    chain_ids: Sequence[JobId],
    *,
    by: str | None = None,
    dry_run: bool = False,
    model: type[JobMixin[Any]] = Job,
) -> BulkResult[Any]:
    """Cancel chains that have not ended, each by its current job; return those that were cancelled, sorted.

    `chain_ids`: at most 1,000 per call. Completed jobs of the chains do not change, and no continuation is enqueued.
    Changes: as `cancel_jobs`.
    Locks: the roots of the chains in the order of their ids, then their current jobs in the order of their ids, until the
    transaction ends.
    Raises: ChainNotFoundError naming every unknown id; NotAChainError for the id of a continuation. Nothing is written
    then.
    """
    check_by(by)
    given = check_chain_ids(model, chain_ids)
    session.flush()
    if dry_run:
        belongs = {row.id: row.chain_id for row in session.execute(chains.chain_of(model), {"ids": given})}
        if missing := [chain_id for chain_id in given if belongs.get(chain_id) != chain_id]:
            raise missing_chains(session, missing, model)
        would = [row.chain_id for row in session.execute(deletion.current_jobs(model), {"ids": given})]
        return BulkResult(would, len(given))
    roots = {row.id: row for row in session.execute(chains.lock(model), {"ids": given}) if row.id == row.chain_id}
    missing = [chain_id for chain_id in given if chain_id not in roots]
    if missing:
        raise missing_chains(session, missing, model)
    current = session.execute(deletion.current_jobs(model), {"ids": given}).all()
    job_ids = [row.id for row in current]
    locked = {row.id: row.status for row in session.execute(jobs.lock(model, job_ids))}
    _cancel(session, job_ids, model, [job_id for job_id in job_ids if locked[job_id] is JobStatus.RUNNING])
    cancelled = [row.chain_id for row in current]
    unblock_all(queue_connection(session, model), model, [chain_id for chain_id in cancelled if roots[chain_id].has_waiters])
    record(session, "cancel_chains", by=by, ids=cancelled, matched=len(given), model=model, chains=given)
    return BulkResult(cancelled, len(given))
