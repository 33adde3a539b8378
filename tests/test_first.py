"""The program of the first page: `session.add(Job("mail", payload))` is the job that the handler of "mail" declares."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, inspect, select
from sqlalchemy.orm import Session

from sa_jobqueue import Blockers, Job, JobQueue, JobStatus
from sa_jobqueue.errors import InvalidJobError, InvalidPayloadError
from sa_jobqueue.operations import enqueue_many
from tests.fixtures.workers import Start, until

OF_EACH_JOB = {"id", "chain_id", "created_at", "scheduled_at", "changed_xid"}


@dataclass
class Mail:
    to: str
    subject: str = "Hello"


@pytest.fixture
def declared() -> JobQueue[Job]:
    jobs = JobQueue()

    @jobs.handler(
        "mail",
        queue="mails",
        priority=3,
        max_attempts=8,
        timeout=timedelta(minutes=2),
        version=2,
        rate_cost=5,
        fairness_by="to",
    )
    def mail(payload: Mail) -> str:
        return payload.subject

    return jobs


def _row(engine: Engine, job_id: Any) -> dict[str, Any]:
    with Session(engine) as session:
        job = session.get_one(Job, job_id)
        return {
            attribute.key: getattr(job, attribute.key)
            for attribute in inspect(Job).column_attrs
            if attribute.key not in OF_EACH_JOB
        }


async def test_a_job_added_to_a_session_runs_in_the_queue_of_its_handler(
    engine: Engine, declared: JobQueue[Job], start: Start
) -> None:
    with Session(engine) as session, session.begin():
        session.add(job := Job("mail", {"to": "ada@example.org"}))
        job_id = job.id

    def is_completed() -> bool:
        with Session(engine) as session:
            return session.scalar(select(Job.status).where(Job.id == job_id)) is JobStatus.COMPLETED

    async with start(declared, queues=["mails"]):
        await until(is_completed)
    assert _row(engine, job_id)["output"] == "Hello"


@pytest.mark.parametrize("writer", ["add", "enqueue_many"])
def test_a_job_made_by_its_class_equals_that_of_its_handler(engine: Engine, declared: JobQueue[Job], writer: str) -> None:
    job_pairs = [
        Job("mail", {"to": "ada@example.org"}),
        Job("mail", Mail("ada@example.org")),
        declared["mail"].job(Mail("ada@example.org")),
    ]
    with Session(engine) as session, session.begin():
        if writer == "add":
            session.add_all(job_pairs)
        else:
            enqueue_many(session, job_pairs)
    first, second, third = (_row(engine, job.id) for job in job_pairs)
    assert first == second == third
    assert (first["queue"], first["priority"], first["input_version"], first["rate_cost"]) == ("mails", 3, 2, 5)
    assert first["fairness_key"] == "ada@example.org"
    assert first["input"] == {"to": "ada@example.org", "subject": "Hello"}


def test_options_that_are_given_win_over_those_of_the_handler(declared: JobQueue[Job]) -> None:
    options: dict[str, Any] = {
        "queue": "default",
        "priority": 0,
        "max_attempts": 20,
        "timeout": timedelta(1),
        "rate_cost": 1,
    }
    job = Job("mail", Mail("a"), fairness_key="b", **options)
    assert {name: getattr(job, name) for name in options} == options
    assert job.fairness_key == "b"


def test_the_payload_is_checked_when_the_job_is_made(declared: JobQueue[Job]) -> None:
    with pytest.raises(InvalidPayloadError, match=r"input\.to: Field required"):
        Job("mail", {"subject": "Hello"})


def test_the_payload_of_another_version_is_checked_when_it_runs(declared: JobQueue[Job]) -> None:
    job = Job("mail", {"recipient": "a"}, input_version=1)
    assert (job.input, job.input_version, job.queue) == ({"recipient": "a"}, 1, "mails")


def test_blockers_are_checked_when_the_job_is_made() -> None:
    jobs = JobQueue()

    @jobs.handler("sum")
    def add_up(parts: Blockers[tuple[int, int]]) -> int:
        return 0

    with pytest.raises(InvalidJobError):
        Job("sum")


def test_the_settings_of_a_type_without_a_handler_in_the_process_are_the_database_s() -> None:
    job = Job("unknown", {"any": "thing"})
    decided: list[object] = [job.queue, job.priority, job.max_attempts, job.timeout, job.input_version]
    assert decided == [None] * 5


def test_the_last_registry_that_declares_a_type_counts(declared: JobQueue[Job]) -> None:
    later = JobQueue()

    @later.handler("mail", queue="other")
    def mail(payload: Any) -> None: ...

    assert Job("mail", 7).queue == "other"
