"""Jobs in two-phase sessions: PostgreSQL refuses to prepare a transaction that notifies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue
from sa_jobqueue.operations import enqueue_many, enqueue_payloads

JOBS = JobQueue()


@JOBS.handler("prepared")
def prepared(number: int) -> None: ...


WRITERS: dict[str, Callable[[Session], Any]] = {
    "add": lambda session: session.add(Job("prepared", 1)),
    "handler.enqueue": lambda session: prepared.enqueue(session, 1),
    "enqueue_many": lambda session: enqueue_many(session, [prepared.job(1)]),
    "enqueue_payloads": lambda session: enqueue_payloads(session, prepared, [1]),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_job_in_a_two_phase_session_sends_no_notification(engine: Engine, writer: str) -> None:
    sent: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    with Session(engine, twophase=True) as session:
        WRITERS[writer](session)
        session.flush()
        session.rollback()
    assert not [statement for statement in sent if "notify" in statement]
