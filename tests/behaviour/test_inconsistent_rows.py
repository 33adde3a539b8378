"""Rows that a documented role may write by hand strand no other job: it is refused with a sentence, or made whole."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Discard, Job, JobQueue, JobStatus, Worker
from sa_jobqueue.events import ComponentFailed
from sa_jobqueue.layout import Layout
from sa_jobqueue.migrations.grants import grant_statements
from sa_jobqueue.models import WaitFor
from sa_jobqueue.models.base import verbatim
from sa_jobqueue.operations.blockers import unblock
from tests.fixtures.chains import Chains
from tests.fixtures.database import both_servers
from tests.fixtures.inconsistent_rows import CASES, ONLY_REFUSED, Case, force, set_up, write
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.workers import PATIENCE, EventLog, quick

pytestmark = both_servers


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_inconsistent_row_is_refused_with_a_message_or_corrected(engine: Engine, case: Case) -> None:
    roles = f"t{secrets.token_hex(5)}"
    with engine.connect() as connection:
        prepared = set_up(connection, case)
        connection.commit()
        for statement in grant_statements(Layout(), roles=roles):  # rolled back with the rest
            connection.execute(verbatim(statement))
        connection.execute(text(f"SET LOCAL ROLE {roles}_{case.role}"))
        if not case.refused:
            write(connection, case, prepared)
            return
        with pytest.raises(DBAPIError) as caught:
            write(connection, case, prepared)
        diagnosis: Any = getattr(caught.value.orig, "diag", None)
        assert case.refused in {diagnosis.sqlstate, diagnosis.constraint_name}
        assert len(diagnosis.message_primary) > 20


@pytest.mark.slow
@pytest.mark.parametrize("forced", [False, True], ids=["as-roles-write-it", "from-before-the-checks"])
async def test_inconsistent_rows_do_not_delay_other_jobs(engine: Engine, jobs: Jobs, forced: bool) -> None:
    """Jobs that wait for the same chains, ran on the same lost worker, or die in the same statement, all end."""
    queue = JobQueue()
    roots: set[Any] = set()

    @queue.handler("test")
    async def test(ctx: AttemptContext) -> None:
        if ctx.job.id not in roots:
            raise Discard("it was written by hand")

    @queue.handler("good")
    async def good() -> None: ...

    @queue.handler("bad", max_attempts=1)
    async def bad() -> None:
        raise ValueError("it fails")

    chosen = [case for case in CASES if case.name not in ONLY_REFUSED and not case.table and bool(case.refused) is forced]
    assert len(chosen) >= 6
    waiting: list[Any] = []
    for n, case in enumerate(chosen):
        with engine.begin() as connection:
            prepared = set_up(connection, case, queue=f"q{n}")
        roots |= {prepared["root"], prepared["root2"]}
        if case.scene in {"waiting", "a root and another job"}:
            with Session(engine) as session, session.begin():
                neighbour = good.job(blockers=[WaitFor(prepared["root"], on_failure="continue")])
                waiting.append(neighbour.id)
                session.add(neighbour)
        with engine.begin() as connection:
            (force if forced else write)(connection, case, prepared)
    lost = [jobs.add(JobStatus.RUNNING, max_attempts=1) for _ in range(3)]
    jobs.add_worker(silent_for=3600)
    enqueue(engine, *[bad.job() for _ in range(3)] + [good.job() for _ in range(3)])
    worker = Worker(queue, engine, options=quick(queues=["default", *(f"q{n}" for n in range(len(chosen)))]))
    log = EventLog(worker)
    await asyncio.wait_for(worker.run_until_idle(), PATIENCE)
    assert [event.error for event in log.of(ComponentFailed)] == []
    assert {jobs.status(job_id) for job_id in lost} == {JobStatus.DEAD}
    assert {jobs.status(job_id) for job_id in waiting} == {JobStatus.COMPLETED}
    with engine.connect() as connection:
        ended = "SELECT type_name, status::text, count(*) FROM job WHERE type_name <> 'test' GROUP BY 1, 2 ORDER BY 1"
        assert [tuple(row) for row in connection.execute(text(ended))] == [
            ("bad", "dead", 3),
            ("good", "completed", 3 + len(waiting)),
        ]
        # Each dead job has one unresolved dead letter, of its last attempt.
        counts = """SELECT count(*), count(*) FILTER (WHERE letter.attempts = job.attempt)
          FROM job LEFT JOIN dead_letter AS letter ON letter.job_id = job.id AND letter.resolution IS NULL
          WHERE job.status = 'dead'"""
        dead, consistent = connection.execute(text(counts)).one()
        assert dead == consistent > 6


def test_a_blocked_job_set_to_pending_in_sql_has_no_open_blockers(engine: Engine, jobs: Jobs) -> None:
    case = _written(engine, "a job released by hand")
    assert jobs.get(case["job"])["open_blockers"] == 0
    assert _blockers_resolved(engine, case["job"]) == [False]
    assert _blockers_resolved(engine, case["job2"]) == [True, True]


def test_a_chain_ended_in_sql_unblocks_its_dependants(engine: Engine, jobs: Jobs) -> None:
    case = _written(engine, "a chain ended by hand")
    root = jobs.get(case["root"])
    assert root["chain_completed_at"] == root["completed_at"]
    with engine.begin() as connection:
        result = unblock(connection, Job, {case["root"]: None})
    assert result.finished == [case["root"]]


def test_setting_a_dead_job_to_pending_in_sql_is_a_redrive(engine: Engine, jobs: Jobs) -> None:
    case = _written(engine, "a death undone")
    job, (dead_letter,) = jobs.get(case["job"]), jobs.dead_letters(case["job"])
    assert (job["status"], job["chain_completed_at"]) == (JobStatus.PENDING, None)
    assert (dead_letter["resolution"], dead_letter["resolved_by"]) == ("redriven", "postgres")


def test_reopening_the_last_job_in_sql_reopens_its_awaited_chain(engine: Engine, chains: Chains, jobs: Jobs) -> None:
    first, last = chains.add(JobStatus.COMPLETED, JobStatus.DEAD)
    waiting = jobs.add(JobStatus.BLOCKED)
    chains.block(waiting, first)
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET status = 'pending', completed_at = NULL WHERE id = :id"), {"id": last})
    root = jobs.get(first)
    assert (root["chain_completed_at"], root["chain_status"], root["has_waiters"]) == (None, None, True)
    with engine.begin() as connection:
        ended = "UPDATE job SET status = 'completed', completed_at = now() WHERE id = :id"
        connection.execute(text(ended), {"id": last})
        unblock(connection, Job, {first: None})
    assert jobs.get(first)["chain_status"] is JobStatus.COMPLETED
    assert jobs.status(waiting) is JobStatus.PENDING


def test_payload_size_and_type_names_are_bounded_in_sql_too(session: Session) -> None:
    view = text("INSERT INTO job_queue (type_name, input) VALUES (:type_name, CAST(:input AS jsonb))")
    longest = '"' + "x" * (1024 * 1024 - 2) + '"'
    session.execute(view, {"type_name": "a", "input": longest})
    for columns, field in (
        ({"type_name": "a", "input": '"x' + longest[1:]}, "input"),
        ({"type_name": "a\nb", "input": "1"}, "type_name"),
        ({"type_name": "x" * 101, "input": "1"}, "type_name"),
    ):
        with pytest.raises(DBAPIError, match=f"{field}: must be") as caught, session.begin_nested():
            session.execute(view, columns)
        diagnosis: Any = getattr(caught.value.orig, "diag", None)
        assert (diagnosis.sqlstate, diagnosis.column_name) == ("SJ002", field)


def _written(engine: Engine, name: str) -> dict[str, Any]:
    (case,) = (case for case in CASES if case.name == name)
    with engine.begin() as connection:
        prepared = set_up(connection, case)
    with engine.begin() as connection:
        write(connection, case, prepared)
    return prepared


def _blockers_resolved(engine: Engine, job_id: Any) -> list[bool]:
    with engine.connect() as connection:
        statement = text("SELECT NOT is_resolved FROM job_blocker WHERE job_id = :id ORDER BY index")
        return list(connection.scalars(statement, {"id": job_id}))
