"""`sa-jobqueue chains cancel` and `chains delete`: what they change, ask and print."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from tests.fixtures.commands import Run
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs

pytestmark = both_servers


@pytest.fixture
def pair(engine: Engine) -> tuple[Any, Any]:
    """Give two chains, the second of which waits for the first."""
    with Session(engine) as session, session.begin():
        blocker = Job("test")
        waiting = Job("test", blockers=[blocker])
        session.add(waiting)
        return blocker.id, waiting.id


def test_chains_cancel_cancels_open_chains_and_lists_them(run: Run, jobs: Jobs) -> None:
    pending, ended = jobs.add(), jobs.add(JobStatus.COMPLETED)
    assert "1 chain would be cancelled" in run("chains", "cancel", "--dry-run", pending, ended).stdout
    assert jobs.status(pending) is JobStatus.PENDING
    assert json.loads(run("chains", "cancel", "--json", pending, ended).stdout) == {"cancelled": [str(pending)]}
    assert jobs.status(pending) is JobStatus.CANCELLED
    assert "no such chain" in run("chains", "cancel", uuid4(), status=1).output


def test_chains_delete_asks_first_and_deletes_nothing_on_no(run: Run, jobs: Jobs, pair: tuple[Any, Any]) -> None:
    result = run("chains", "delete", "--cascade", pair[1], input="n\n", status=1)
    assert "Delete 2 chains, 1 of them through --cascade?" in result.output
    assert jobs.count() == 2
    assert "2 chains deleted" in run("chains", "delete", "--cascade", pair[1], input="y\n").output
    assert jobs.count() == 0


def test_chains_delete_dry_run_lists_the_cascade_and_deletes_nothing(run: Run, jobs: Jobs, pair: tuple[Any, Any]) -> None:
    preview = json.loads(run("chains", "delete", "--dry-run", "--cascade", "--json", pair[1]).stdout)
    assert preview == {"would_be_deleted": sorted(map(str, pair))}
    assert jobs.count() == 2


def test_chains_delete_refuses_a_referenced_chain_and_names_the_job(run: Run, jobs: Jobs, pair: tuple[Any, Any]) -> None:
    result = run("chains", "delete", "--yes", pair[0], status=1)
    assert f"job {pair[1]} refers to chain {pair[0]}" in result.output
    assert jobs.count() == 2
    assert json.loads(run("chains", "delete", "--yes", "--json", *pair).stdout) == {"deleted": sorted(map(str, pair))}
