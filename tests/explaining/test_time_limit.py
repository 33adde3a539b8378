"""An explanation is limited in time: it names the readings that did not end, and whose lock they may wait for."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import JobStatus
from sa_jobqueue.operations import Cause, ScheduleCause, explain_job, explain_schedule
from tests.fixtures.commands import Run, document
from tests.fixtures.database import both_servers
from tests.fixtures.holders import until_locks_are_waited_for
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import write

LIMIT = timedelta(seconds=1)


@contextmanager
def locked(engine: Engine, table: str) -> Iterator[int]:
    """Make every statement that reads a table wait, for a session named `deploy`; give its pid."""
    deploy = create_engine(engine.url, connect_args={"application_name": "deploy"})
    with deploy.connect() as connection:
        connection.execute(text(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
        yield connection.connection.dbapi_connection.info.backend_pid  # type: ignore[union-attr]
        connection.rollback()
    deploy.dispose()


@both_servers
def test_a_job_whose_row_cannot_be_read_is_explained_by_the_lock_on_it(engine: Engine, jobs: Jobs, run: Run) -> None:
    jobs.add_worker()
    job = jobs.add(due_in=-90)
    with locked(engine, "job") as pid:
        began = time.monotonic()
        explained = document(run("explain", job, "--timeout", "300ms", "--json"))
        text_output = run("explain", job, "--timeout", "300ms").stdout
        duration = time.monotonic() - began
    assert duration < 10
    assert (explained["cause"], explained["status"], explained["evidence"]["missing"]) == (
        "not_measured",
        None,
        [f"job {job}"],
    )
    sentence = explained["sentence"]
    assert sentence.startswith(
        f"Its row could not be read. Not measured within 0.3 s, when the server cancelled the "
        f"statement: job {job}. Session {pid} 'deploy' of postgres, idle in transaction"
    )
    assert "holds an ACCESS EXCLUSIVE lock on job" in sentence
    assert "Its row could not be read." in text_output


@both_servers
@pytest.mark.parametrize(
    ("table", "cause", "missing"),
    [
        ("worker", Cause.NOT_MEASURED, ["workers", "pauses", "limits"]),
        ("queue", Cause.READY, ["pauses", "limits", "rate limits"]),
        ("quarantine", Cause.READY, ["quarantine"]),
    ],
)
def test_what_cannot_be_read_in_time_is_named_and_the_rest_is_explained(
    table: str, cause: Cause, missing: list[str], engine: Engine, jobs: Jobs
) -> None:
    jobs.add_worker()
    job = jobs.add(due_in=-90)
    with locked(engine, table) as pid, Session(engine) as session:
        explained = explain_job(session, job, timeout=LIMIT)
        assert session.scalar(text("SHOW statement_timeout")) == "0"
    assert explained.cause is cause
    assert [name for name in explained.evidence.get("missing", []) if name != "schedule"] == missing
    if missing:
        assert f"statement: {', '.join(missing)}" in explained.sentence
        assert f"Session {pid} 'deploy'" in explained.sentence
    assert "no worker" not in explained.sentence


@both_servers
def test_a_running_job_whose_worker_cannot_be_read_is_not_called_lost(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker()
    job = jobs.add(JobStatus.RUNNING)
    with locked(engine, "worker"), Session(engine) as session:
        explained = explain_job(session, job, timeout=LIMIT)
    assert explained.cause is Cause.RUNNING
    assert explained.sentence.startswith("It has been running for ")
    assert "statement: workers. Session" in explained.sentence


@both_servers
def test_a_schedule_that_cannot_be_read_is_explained_by_the_lock_on_it(engine: Engine, run: Run) -> None:
    write(engine, "INSERT INTO schedule (name, type_name, cron) VALUES ('nightly', 't', '@daily')")
    with locked(engine, "schedule") as pid, Session(engine) as session:
        explained = explain_schedule(session, "nightly", timeout=LIMIT)
        printed = run("schedules", "explain", "nightly", "--timeout", "300ms").stdout
    assert explained.cause is ScheduleCause.NOT_MEASURED
    assert f"statement: schedule 'nightly'. Session {pid} 'deploy'" in explained.sentence
    assert "It is not known when it fires." in printed


@both_servers
def test_an_explanation_behind_a_waiting_alter_table_names_the_session_at_the_root(
    engine: Engine, jobs: Jobs, run: Run
) -> None:
    jobs.add_worker()
    job = jobs.add(due_in=-90)
    reader = create_engine(engine.url, connect_args={"application_name": "metabase"})
    deploy = create_engine(engine.url, connect_args={"application_name": "deploy"})
    with reader.connect() as idle, deploy.connect() as altering, ThreadPoolExecutor() as threads:
        idle.execute(text("SELECT count(*) FROM job"))
        waiting = threads.submit(altering.execute, text("ALTER TABLE job ADD COLUMN note text"))
        until_locks_are_waited_for(engine, 1)
        explained = json.loads(run("explain", job, "--timeout", "300ms", "--json").stdout)
        idle.rollback()
        waiting.result()
        altering.rollback()
    reader.dispose()
    deploy.dispose()
    assert "'metabase' of postgres, idle in transaction, in a transaction for" in explained["sentence"]
    assert "'deploy' of postgres (ALTER TABLE job ADD COLUMN note text) waits for." in explained["sentence"]
