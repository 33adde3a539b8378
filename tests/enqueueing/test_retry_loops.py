"""Retry loops that enqueue the same job objects again after a rollback."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from sa_jobqueue import Job
from sa_jobqueue.operations import enqueue_many


@pytest.mark.parametrize("first", ["add_all", "enqueue_many"])
@pytest.mark.parametrize("second", ["add_all", "enqueue_many"])
def test_the_same_jobs_are_enqueued_after_a_rollback(engine: Engine, first: str, second: str) -> None:
    def write(session: Session, how: str, jobs: list[Any]) -> None:
        if how == "add_all":
            session.add_all(jobs)
            session.flush()
            assert jobs[0].root_id is None  # loads what the database made
        else:
            enqueue_many(session, jobs)

    jobs = [Job("test"), Job("test")]
    with Session(engine) as session:
        write(session, first, jobs)
        session.rollback()
        write(session, second, jobs)
        session.commit()
        assert session.scalar(select(func.count()).select_from(Job)) == 2
