"""`sa-jobqueue explain`: one sentence for the person on call, one document for programs."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from tests.fixtures.commands import Run
from tests.fixtures.jobs import Jobs

pytestmark = pytest.mark.slow


def test_a_blocked_job_is_explained_down_to_the_dead_one(run: Run, session: Session, jobs: Jobs) -> None:
    error = {"type": "ValueError", "message": "\x1b[31mno such page"}
    dead = jobs.add(JobStatus.DEAD, type_name="fetch", last_error=error)
    middle = Job("index", blockers=[dead])
    top = Job("publish", blockers=[middle])
    session.add_all([middle, top])
    session.commit()

    printed = run("explain", top.id).stdout
    assert printed.startswith(f"It waits for 1 chain; the root cause is fetch {dead}. It died ")
    assert "ValueError: \\x1b[31mno such page" in printed
    assert "redrive it" in printed
    assert printed.index(f"index {middle.id}: blocked") < printed.index(f"fetch {dead}: dead")
    document = json.loads(run("explain", top.id, "--json").stdout)
    assert document["cause"] == "blocked"
    assert document["blockers"][0]["blockers"][0]["evidence"]["reason"] == "exhausted"
    assert "no such job" in run("explain", uuid4(), status=1).stderr
    assert "is not a UUID" in run("explain", "nonsense", status=2).stderr
