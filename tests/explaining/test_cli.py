"""`sa-jobqueue explain`: one sentence for the person on call, one document for programs."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from click.testing import CliRunner
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.cli import main
from tests.fixtures.jobs import Jobs

pytestmark = pytest.mark.slow


def test_a_blocked_job_is_explained_down_to_the_dead_one(database_url: str, session: Session, jobs: Jobs) -> None:
    error = {"type": "ValueError", "message": "\x1b[31mno such page"}
    dead = jobs.add(JobStatus.DEAD, type_name="fetch", last_error=error)
    middle = Job("index", blockers=[dead])
    top = Job("publish", blockers=[middle])
    session.add_all([middle, top])
    session.commit()

    def run(*arguments: str, status: int = 0) -> str:
        result = CliRunner().invoke(main, ["explain", *arguments], env={"SA_JOBQUEUE_URL": database_url})
        assert result.exit_code == status, result.output
        return result.output

    printed = run(str(top.id))
    assert printed.startswith(f"It waits for 1 chain; the root cause is fetch {dead}. It died ")
    assert "ValueError: \\x1b[31mno such page" in printed
    assert "redrive it" in printed
    assert printed.index(f"index {middle.id}: blocked") < printed.index(f"fetch {dead}: dead")
    document = json.loads(run(str(top.id), "--json"))
    assert document["cause"] == "blocked"
    assert document["blockers"][0]["blockers"][0]["evidence"]["reason"] == "exhausted"
    assert "no such job" in run(str(uuid4()), status=1)
    assert "is not a UUID" in run("nonsense", status=2)
