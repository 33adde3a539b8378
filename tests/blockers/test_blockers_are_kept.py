"""Ways of the ORM to write a job with blockers: it is blocked, or refused, and never runs before its blockers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, event, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, make_transient

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.operations import enqueue_many


def _waiting(session: Session) -> Job:
    session.add(first := Job("charge_card"))
    session.flush()
    return Job("ship", blockers=[first.id])


def _again(session: Session, job: Job) -> None:
    with session.begin_nested() as savepoint:
        session.add(job)
        session.flush()
        savepoint.rollback()
    session.add(job)


def _transient(session: Session, job: Job) -> None:
    session.add(job)
    session.expunge(job)
    make_transient(job)
    session.add(job)


def _in_event(session: Session, job: Job) -> None:
    event.listen(session, "before_flush", lambda *_: session.add(job), once=True)
    session.add(Job("other"))


BLOCKED: dict[str, Callable[[Session, Job], Any]] = {
    "add": lambda session, job: session.add(job),
    "add again after a rollback": _again,
    "make_transient": _transient,
    "pickle": lambda session, job: session.add(pickle.loads(pickle.dumps(job))),
    "enqueue_many": lambda session, job: enqueue_many(session, [job]),
}
REFUSED: dict[str, tuple[Callable[[Session, Job], Any], type[Exception]]] = {
    "merge": (lambda session, job: session.merge(job), InvalidJobError),
    "add in before_flush": (_in_event, InvalidJobError),
    "bulk_save_objects": (lambda session, job: session.bulk_save_objects([job]), DBAPIError),
}


@pytest.mark.parametrize("way", BLOCKED)
def test_a_job_with_blockers_is_written_as_blocked(engine: Engine, way: str) -> None:
    with Session(engine) as session, session.begin():
        BLOCKED[way](session, _waiting(session))
        session.flush()
        assert session.scalar(select(Job.status).where(Job.type_name == "ship")) is JobStatus.BLOCKED
        assert len(session.scalars(select(Job.Blocker)).all()) == 1


@pytest.mark.parametrize("way", REFUSED)
def test_a_writer_that_leaves_out_the_blockers_is_refused(engine: Engine, way: str) -> None:
    write, error = REFUSED[way]
    with Session(engine) as session:
        job = _waiting(session)
        with pytest.raises(error, match="were not written"):  # noqa: PT012
            write(session, job)
            session.flush()
        session.rollback()
        assert session.scalar(select(Job.id).where(Job.type_name == "ship")) is None
