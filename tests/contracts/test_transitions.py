"""One table of legal transitions: in Python, in the database's view, and in what its trigger really lets through."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, func, insert, text, update
from sqlalchemy.exc import DBAPIError

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.ids import uuid7
from sa_jobqueue.types import ENDED, INITIAL, TRANSITIONS
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.transactions import rows

pytestmark = both_servers

TABLE: Any = Job.__table__


def consistent(status: JobStatus) -> dict[str, Any]:
    """Give the columns that the table's checks want of a row of this status."""
    return {
        "status": status,
        "leased_by": WORKER if status is JobStatus.RUNNING else None,
        "completed_at": func.now() if status in ENDED else None,
        "open_blockers": 1 if status is JobStatus.BLOCKED else 0,
    }


def sqlstate(error: pytest.ExceptionInfo[DBAPIError]) -> Any:
    return getattr(error.value.orig, "sqlstate", None)


def test_the_database_allows_exactly_the_legal_transitions(engine: Engine, jobs: Jobs) -> None:
    for old, new in product(JobStatus, JobStatus):
        job_id = jobs.add(old)
        statement = update(TABLE).where(TABLE.c.id == job_id).values(consistent(new))
        with engine.connect() as connection:
            if old is new or (old, new) in TRANSITIONS:
                connection.execute(statement)
                connection.commit()
                assert jobs.status(job_id) is new
            else:
                with pytest.raises(DBAPIError, match=f"job {job_id}: illegal transition from {old} to {new}") as caught:
                    connection.execute(statement)
                assert sqlstate(caught) == "SJ001"
                connection.rollback()
                assert jobs.status(job_id) is old


@pytest.mark.parametrize("status", JobStatus)
def test_a_row_starts_in_an_initial_state(engine: Engine, status: JobStatus) -> None:
    job_id = uuid7()
    row = {"id": job_id, "chain_id": job_id, "type_name": "a", "chain_type_name": "a"} | consistent(status)
    with engine.connect() as connection:
        if status in INITIAL:
            connection.execute(insert(TABLE).values(row))
        else:
            with pytest.raises(DBAPIError, match=f"a job cannot be inserted as {status}") as caught:
                connection.execute(insert(TABLE).values(row))
            assert sqlstate(caught) == "SJ001"


def test_the_job_transition_view_lists_the_legal_transitions(engine: Engine) -> None:
    pairs = {tuple(row) for row in rows(engine, "SELECT from_status, to_status FROM job_transition")}
    assert {(JobStatus(old), JobStatus(new)) for old, new in pairs if old is not None} == TRANSITIONS
    assert {JobStatus(new) for old, new in pairs if old is None} == INITIAL
    assert len(pairs) == len(TRANSITIONS) + len(INITIAL)


# The rules beside the transitions.

BROKEN: dict[str, dict[str, Any]] = {
    "ck_job_lease": {"leased_by": "somebody"},
    "ck_job_ended": {"completed_at": func.now()},
    "ck_job_blocked": {"open_blockers": -1},
    "its blockers were not written": {"status": JobStatus.BLOCKED},
    "ck_job_priority": {"priority": 10},
    "ck_job_attempts": {"attempt": -1},
    "ck_job_timeout": {"timeout": text("'0'::interval")},
    "ck_job_times": {"scheduled_at": text("'-infinity'")},
    "ck_job_times ": {"scheduled_at": text("'infinity'")},
    "ck_job_times  ": {"timeout": text("'9000000 years'")},
    "ck_job_queue": {"queue": ""},
    "ck_job_type_name": {"type_name": ""},
    "ck_job_chain": {"chain_index": 1},
    "fk_job_root": {"chain_id": UUID(int=7), "chain_index": 1},
}


@pytest.mark.parametrize("constraint", BROKEN)
def test_an_inconsistent_row_is_refused(engine: Engine, constraint: str) -> None:
    job_id = uuid7()
    row: dict[str, Any] = {"id": job_id, "chain_id": job_id, "type_name": "a", "chain_type_name": "a"}
    row |= BROKEN[constraint]
    with engine.connect() as connection, pytest.raises(DBAPIError, match=constraint.strip()):
        connection.execute(insert(TABLE).values(row))


# The stamp.


@pytest.fixture
def stamped(engine: Engine, jobs: Jobs) -> Callable[..., tuple[bool, bool]]:
    """Return a function that changes a job by hand, and returns whether its stamp moved and to that transaction."""

    def change(job_id: UUID, **values: Any) -> tuple[bool, bool]:
        before = jobs.get(job_id)["changed_xid"]
        with engine.begin() as connection:
            connection.execute(update(TABLE).where(TABLE.c.id == job_id).values(values))
            xid = int(connection.execute(text("SELECT pg_current_xact_id()::text")).scalar_one())
        after = jobs.get(job_id)["changed_xid"]
        return after != before, after == xid

    return change


@pytest.mark.parametrize(("old", "new"), sorted(TRANSITIONS))
def test_every_manual_status_change_is_stamped(
    jobs: Jobs, stamped: Callable[..., Any], old: JobStatus, new: JobStatus
) -> None:
    assert stamped(jobs.add(old), **consistent(new)) == (True, True)


@pytest.mark.parametrize(
    "change", [{"queue": "other"}, {"priority": 3}, {"scheduled_at": text("now() + interval '1 hour'")}], ids=" ".join
)
def test_every_change_that_moves_a_pending_job_to_another_lane_is_stamped(
    jobs: Jobs, stamped: Callable[..., Any], change: dict[str, Any]
) -> None:
    assert stamped(jobs.add(), **change) == (True, True)
    # One that runs is counted by its queue: whatever moves it there is news to the count (`worker.claim.limits`).
    is_counted_elsewhere = "queue" in change
    assert stamped(jobs.add(JobStatus.RUNNING), **change) == (is_counted_elsewhere, is_counted_elsewhere)


def test_changes_irrelevant_to_the_claim_are_not_stamped(jobs: Jobs, stamped: Callable[..., Any]) -> None:
    job_id = jobs.add()
    unmoved: dict[str, Any] = {
        "queue": "default",
        "priority": 0,
        "scheduled_at": TABLE.c.scheduled_at,
        "status": JobStatus.PENDING,
    }
    changes: list[dict[str, Any]] = [{"max_attempts": 3}, {"input": [1]}, {"last_error": {}}, unmoved]
    for change in changes:
        assert stamped(job_id, **change) == (False, False)


def test_an_insert_is_stamped(engine: Engine, jobs: Jobs) -> None:
    with engine.begin() as connection:
        job_id = uuid7()
        row = {"id": job_id, "chain_id": job_id, "type_name": "a", "chain_type_name": "a"}
        connection.execute(insert(TABLE).values(row))
        xid = int(connection.execute(text("SELECT pg_current_xact_id()::text")).scalar_one())
    assert jobs.get(job_id)["changed_xid"] == xid


def test_a_stamp_of_another_transaction_is_corrected(jobs: Jobs, stamped: Callable[..., Any]) -> None:
    """No client, by mistake or on purpose, hides a job from the claims."""
    assert stamped(jobs.add(), priority=1, changed_xid=text("'3'")) == (True, True)
