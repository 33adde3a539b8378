"""Cancelling chains: whichever of their jobs it is that has not ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.operations.deletion import check_chain_ids, missing_chains
from sa_jobqueue.operations.jobs import _change
from sa_jobqueue.statements import deletion, jobs
from sa_jobqueue.types import JobId, JobStatus


def cancel_chains(session: Session, chain_ids: Sequence[JobId], *, model: type[JobMixin[Any]] = Job) -> list[Any]:
    """Cancel chains that have not ended, each by its current job; return the ids of those it cancelled, sorted.

    `chain_ids`: at most 1,000 a call. Jobs of the chain that have completed stay as they are. A running job's worker is
    told and stops it; whatever it still does through its session is not kept, and no continuation follows.
    Changes: blocked, pending, running -> cancelled; the chain has ended; a `job_attempt` row for each that ran. Chains
    that have ended stay.
    Locks: the chains' roots in the order of their ids, then their current jobs in that of theirs, until the transaction
    ends.
    Raises: ChainNotFoundError naming every id that is no chain; NotAChainError for the id of a continuation. Nothing is
    written then.
    """
    given = check_chain_ids(chain_ids)
    session.flush()
    found = set(session.scalars(deletion.lock_roots(model, against_all=False), {"ids": given}))
    missing = [chain_id for chain_id in given if chain_id not in found]
    if missing:
        raise missing_chains(session, missing, model)
    current = session.execute(deletion.current_jobs(model), {"ids": given}).all()
    job_ids = [row.id for row in current]
    session.execute(jobs.lock(model, job_ids))
    _change(session, job_ids, model, status=JobStatus.CANCELLED)
    return [row.chain_id for row in current]
