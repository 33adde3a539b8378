"""Workers without heartbeats: gone, frozen, and connected but failing are three things."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, Worker
from sa_jobqueue.observe.health import Code, health
from sa_jobqueue.operations import Cause, explain_job
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import write
from tests.fixtures.workers import quick, until, working


def named(engine: Engine, name: str) -> Engine:
    """Return an engine whose sessions have this application name."""
    return create_engine(engine.url, connect_args={"application_name": name})


@both_servers
@pytest.mark.parametrize("is_connected", [True, False])
def test_a_connected_worker_without_heartbeats_is_not_called_gone(is_connected: bool, engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker("web:1", name="web", silent_for=100)
    job = jobs.add(due_in=-90)
    other = named(engine, "sa_jobqueue web" if is_connected else "gunicorn")
    with other.connect() as connection, Session(engine) as session:
        connection.execute(text("SELECT 1"))
        (finding,) = [finding for finding in health(engine).findings if finding.code is Code.NO_WORKER]
        explained = explain_job(session, job)
    other.dispose()
    assert explained.cause is Cause.NO_WORKER
    if is_connected:
        assert finding.summary.startswith("No worker has a recent heartbeat. 1 job is due.")
        assert "(connected, its last statement " in finding.summary
        assert " ago: its heartbeats fail)" in finding.summary
        assert finding.advice.startswith("See the error in the log of web:1, or at its /readyz")
        assert "Start a worker" not in finding.advice
        assert "web:1 is connected, its last statement " in explained.sentence
        assert "start one" not in explained.sentence
    else:
        assert "no session of it is visible to this role: killed, disconnected, or behind a pooler" in finding.summary
        assert finding.advice.startswith("Start a worker")
        assert "start one" in explained.sentence


@both_servers
def test_what_a_connected_worker_does_is_not_visible_to_a_role_without_rights(engine: Engine, jobs: Jobs) -> None:
    role = f"sees_{engine.url.database}"
    jobs.add_worker("web:1", name="web", silent_for=100)
    jobs.add(due_in=-90)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN"))
        connection.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"))
    worker, observer = named(engine, "sa_jobqueue web"), create_engine(engine.url.set(username=role))
    try:
        with worker.connect() as connection:
            connection.execute(text("SELECT 1"))
            (finding,) = [finding for finding in health(observer).findings if finding.code is Code.NO_WORKER]
    finally:
        worker.dispose()
        observer.dispose()
        with engine.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))
    assert "(connected; its statements are not visible to this role)" in finding.summary


def test_the_sessions_of_a_worker_that_was_started_again_prove_nothing_of_the_old_one(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker("web:1", name="web", silent_for=100)
    other = named(engine, "sa_jobqueue web")
    with other.connect() as connection:
        connection.execute(text("SELECT 1"))
        report = health(engine)
        jobs.add_worker("web:2", name="web", host="other")
        again = health(engine)
    other.dispose()
    (silence,) = report.workers.silences
    assert (silence.is_connected, silence.is_failing) == (True, True)
    assert [silence.is_connected for silence in again.workers.silences] == [None]
    assert "(killed, frozen, or disconnected)" in str(again.findings)
    frozen = replace(silence, idle_for=silence.worker.silent_for)
    assert (frozen.is_failing, frozen.description[-42:]) == (False, "ago: frozen, or disconnected without notice"[-42:])


@own_database
async def test_the_probe_names_the_error_that_the_database_answers_a_heartbeat_with(engine: Engine) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("test")
    def test(payload: None) -> None: ...

    full = "RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'"
    async with working(worker := Worker(queue, engine, options=quick())):
        with engine.begin() as connection:
            connection.exec_driver_sql(
                f"CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {full}; END $$;"
                "CREATE TRIGGER full_disk BEFORE UPDATE ON worker FOR EACH ROW EXECUTE FUNCTION full_disk()"
            )
        await until(lambda: worker.vitals.database_error is not None, description="a failed heartbeat")
        assert worker.vitals.database_error == "DiskFull: could not extend file"
        await until(lambda: any("DiskFull" in cause for cause in worker.vitals.unready), description="the probe")
        write(engine, "DROP TRIGGER full_disk ON worker")
        await until(lambda: not worker.vitals.unready, description="the next heartbeat")
        assert worker.vitals.database_error is None
