"""Chains cancelled by whichever of their jobs it is that has not ended."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.errors import InvalidJobError, NotFoundError
from sa_jobqueue.ids import uuid7
from sa_jobqueue.operations import cancel_chains
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import write

pytestmark = both_servers


def grown(jobs: Jobs, status: JobStatus, **columns: Any) -> tuple[UUID, UUID]:
    """Write an open chain of three jobs, two of them completed; return its id and that of the last."""
    chain_id = jobs.add(JobStatus.COMPLETED, **columns)
    jobs.add(JobStatus.COMPLETED, chain_id=chain_id, chain_index=1)
    return chain_id, jobs.add(status, chain_id=chain_id, chain_index=2)


def reopen(engine: Engine) -> None:
    """Let roots be of chains that go on, as their continuations say."""
    write(engine, "UPDATE job SET chain_completed_at = NULL WHERE id IN (SELECT root_id FROM job)")


def test_cancel_chains_names_all_unknown_ids_and_changes_nothing(session: Session, jobs: Jobs, engine: Engine) -> None:
    (chain_id, last_id), unknown = grown(jobs, JobStatus.PENDING), [uuid7(), uuid7()]
    reopen(engine)
    with pytest.raises(NotFoundError) as caught:
        cancel_chains(session, [unknown[0], chain_id, last_id, unknown[1]])
    assert caught.value.ids == tuple(unknown)
    with pytest.raises(NotFoundError) as refused:
        cancel_chains(session, [chain_id, last_id])
    assert f"{last_id} belongs to chain {chain_id}" in str(refused.value)
    session.commit()
    assert jobs.status(last_id) is JobStatus.PENDING
    with pytest.raises(InvalidJobError, match="chain_ids: must be a list of ids"):
        cancel_chains(session, str(chain_id))
    assert cancel_chains(session, []).ids == []


def test_cancel_chains_refreshes_jobs_loaded_in_the_session(session: Session, jobs: Jobs) -> None:
    job = session.scalars(select(Job).where(Job.id == jobs.add())).one()
    cancel_chains(session, [job.id])
    assert job.status is JobStatus.CANCELLED
