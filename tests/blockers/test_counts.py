"""A set of chains and how far it has come, counted for the job that waits for all of them."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.cli import main
from sa_jobqueue.errors import NotFoundError
from sa_jobqueue.operations import BlockerCounts, count_blockers
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs

pytestmark = both_servers


def test_blockers_are_counted_by_the_state_of_their_chains(
    sessions: sessionmaker[Session], jobs: Jobs, database_url: str
) -> None:
    statuses = [JobStatus.PENDING, JobStatus.RUNNING, JobStatus.COMPLETED, JobStatus.COMPLETED, JobStatus.DEAD]
    ids: list[Any] = [jobs.add(status) for status in statuses]
    with sessions.begin() as session:
        waiting = Job(type_name="test", blockers=ids)
        alone = Job(type_name="test")
        session.add_all([waiting, alone])
        job_id, alone_id = waiting.id, alone.id
    with sessions() as session:
        assert count_blockers(session, job_id) == (found := BlockerCounts(open=2, completed=2, dead=1, cancelled=0))
        assert (found.total, found.ended) == (5, 3)
        assert count_blockers(session, alone_id) == BlockerCounts(0, 0, 0, 0)
        with pytest.raises(NotFoundError):
            count_blockers(session, uuid.uuid4())
    with sessions.begin() as session:
        session.execute(text("UPDATE job_queue SET status = 'cancelled' WHERE id = :id"), {"id": ids[0]})
    with sessions() as session:
        assert count_blockers(session, job_id) == BlockerCounts(open=1, completed=2, dead=1, cancelled=1)
    environment = {"SA_JOBQUEUE_URL": database_url}
    result = CliRunner().invoke(main, ["chains", "progress", str(job_id), "--json"], env=environment)
    assert json.loads(result.stdout) == {"open": 1, "completed": 2, "dead": 1, "cancelled": 1, "total": 5}
    assert "4 of 5 chains ended" in CliRunner().invoke(main, ["chains", "progress", str(job_id)], env=environment).stdout
