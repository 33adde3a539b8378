"""Rehearsed jobs: each verdict is compared with that of a worker, and the database with itself before."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import Engine, MetaData, create_engine, select, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import JobQueue
from sa_jobqueue.cli import main
from sa_jobqueue.errors import InvalidHandlerError, InvalidOptionError
from sa_jobqueue.layout import Layout
from sa_jobqueue.operations import DeadLetterFilter, list_attempts, redrive_dead_letters
from sa_jobqueue.rehearsal import RehearsalError, rehearse
from sa_jobqueue.testing import drain
from sa_jobqueue.types import AttemptOutcome
from tests.fixtures.hostile import unsafe
from tests.fixtures.jobs import enqueue
from tests.fixtures.notifications import Notifications
from tests.fixtures.programs import Programs
from tests.fixtures.workers import PATIENCE
from tests.rehearsal import application
from tests.rehearsal.application import Job, Order, Payment, jobs

pytestmark = [pytest.mark.slow, pytest.mark.every_python]

KINDS = ("psycopg", "psycopg_async", "asyncpg")
APP = "tests.rehearsal.application:jobs"
TABLES = """
SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE relkind = 'r' AND nspname = 'public'
"""
LOCKS = "SELECT count(*) FROM pg_locks WHERE pid <> pg_backend_pid() AND database IS NOT NULL"
SESSIONS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.fixture(scope="module")
def jobqueue_metadata() -> MetaData:
    return application.Base.metadata


@pytest.fixture
def engine(jobqueue_database_url: str) -> Iterator[Engine]:
    engine = create_engine(jobqueue_database_url)
    with Session(engine) as session, session.begin():
        session.add_all([Order(id=1), Order(id=2)])
        session.flush()
        session.add(Payment(order_id=1, code="taken"))
    yield engine
    engine.dispose()


def factory_of(engine: Engine, kind: str) -> Any:
    if kind == "psycopg":
        return sessionmaker(engine)
    driver = "postgresql+asyncpg" if kind == "asyncpg" else "postgresql+psycopg"
    return async_sessionmaker(create_async_engine(engine.url.set(drivername=driver)))


def handler_of(kind: str, name: str) -> Any:
    return jobs[name if kind == "psycopg" else f"async_{name}"]


def dead(engine: Engine, handler: Any, payload: Any, **options: Any) -> Any:
    """Return the id of a dead job of this payload."""
    application.is_broken = True
    try:
        enqueue(engine, job := handler.job(payload, **options))
        assert drain(jobs, engine, raise_errors=False).died == 1
    finally:
        application.is_broken = False
    return job.id


def rows(engine: Engine) -> dict[str, list[str]]:
    """Return all rows of all tables."""
    with engine.connect() as connection:
        tables = connection.exec_driver_sql(TABLES).scalars().all()
        return {
            table: [*connection.exec_driver_sql(f"SELECT xmin::text || t::text FROM {table} t ORDER BY 1").scalars()]
            for table in tables
        }


@contextmanager
def no_trace(engine: Engine) -> Iterator[None]:
    """Check that no row, lock, notification or connection is left behind."""
    engine.dispose()
    before = rows(engine)
    notifications = Notifications(engine.url.render_as_string(hide_password=False), Layout())
    try:
        with engine.connect() as connection:
            sessions = {*connection.exec_driver_sql(SESSIONS).scalars()}
            locks = connection.exec_driver_sql(LOCKS).scalar_one()
        yield
        deadline = time.monotonic() + PATIENCE
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            while not {*connection.exec_driver_sql(SESSIONS).scalars()} <= sessions:  # the server notices their ends later
                assert time.monotonic() < deadline
            assert connection.exec_driver_sql(LOCKS).scalar_one() == locks
        assert notifications.seen() == []
    finally:
        notifications.close()
    assert rows(engine) == before


@contextmanager
def nothing_else(engine: Engine) -> Iterator[None]:
    yield


@contextmanager
def lock_of_order(engine: Engine) -> Iterator[None]:
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT FROM shop_order WHERE id = 1 FOR UPDATE")
        yield


STOPPED = "stopped"
# payload: the outcome, the beginning of the reason, a line of the effects
LETTERS: dict[str, tuple[str, str, str]] = {
    "pay": ("completes", "", "update Order 1: status 'new' -> 'paid'"),
    "bug": ("retries", "KeyError: 'vat'", ""),
    "unique": ("retries", "UniqueViolation", ""),
    "deferred": ("retries", "ForeignKeyViolation", ""),
    "permission": ("retries", "permission denied for table payment", ""),
    "hang": ("retries", "sa_jobqueue.errors.AttemptTimeoutError", ""),
    "locked": (STOPPED, "a lock is held by another session", ""),
    "step": (STOPPED, "step 'draft' is not recorded: --allow-step draft", ""),
    "connect": (STOPPED, "socket.connect ('127.0.0.1', 9)", ""),
    "swallow": (STOPPED, "socket.connect ('127.0.0.1', 9)", ""),
    "program": (STOPPED, "subprocess.Popen true", ""),
    "commit_elsewhere": (STOPPED, "commit on another connection", ""),
    "autocommit": (STOPPED, "commit on another connection", ""),
    "commit": ("retries", "sa_jobqueue.errors.HandlerCommitError", ""),
    "commit_text": ("retries", "sa_jobqueue.errors.HandlerCommitError", ""),
    "commit_driver": ("retries", "", ""),
    "enqueue": ("completes", "", "enqueue act: queue 'mail', input 'second'"),
    "wait": ("waits", "snoozed", ""),
    "child": ("waits", "snoozed", "enqueue act: queue 'default', input 'pay'"),
    "discard": ("dies", "discarded: sa_jobqueue.errors.Discard: no longer wanted", ""),
    "cancel": ("cancels", "sa_jobqueue.errors.Cancel: nothing to do", ""),
    "remove": ("completes", "", "delete Order 2"),
    "bypass": ("completes", "", "execute UPDATE shop_order SET status = 'secret': rows 2"),
    "savepoint": ("completes", "", "insert Payment"),
    "transaction": ("retries", "KeyError: 'after'", "insert Payment"),
}
PLACES = {"bug": "in bug", "connect": "in connect", "program": "in program", "commit_elsewhere": "in commit_elsewhere"}


def true_outcome(engine: Engine, kind: str, job_id: Any) -> str:
    """Return how a worker ends the next attempt of a job, once it is redriven."""
    with Session(engine) as session, session.begin():
        redrive_dead_letters(session, where=DeadLetterFilter(job_ids=[job_id]), model=Job)
        last_attempt = session.get_one(Job, job_id).attempt
    drain(jobs, engine, raise_errors=False)
    with Session(engine) as session:
        attempts = list_attempts(session, job_id, newest_first=False, model=Job)
        outcomes = [attempt.outcome for attempt in attempts if attempt.attempt > last_attempt]
        status = session.get_one(Job, job_id).status
    if AttemptOutcome.SNOOZED in outcomes:
        return "waits"
    return {"completed": "completes", "dead": "dies", "cancelled": "cancels", "pending": "retries"}[status]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("payload", LETTERS)
def test_the_verdict_on_a_dead_letter_is_what_a_worker_does(engine: Engine, kind: str, payload: str) -> None:
    outcome, reason, effect = LETTERS[payload]
    options = {"timeout": timedelta(milliseconds=500)} if payload == "hang" else {}
    job_id = dead(engine, handler_of(kind, "act"), payload, **options)
    with no_trace(engine), lock_of_order(engine) if payload == "locked" else nothing_else(engine):
        report = rehearse(factory_of(engine, kind), job_id, jobs=jobs, lock_timeout=timedelta(milliseconds=100))
    assert report.outcome == outcome, report
    assert reason in report.reason, report
    assert effect in str(report), report
    assert (report.place or "").endswith(PLACES.get(payload, "")), report
    assert not re.search("code '(undone|lost|before the bug)'", str(report)), report
    if outcome != STOPPED:  # which a worker would not be
        assert true_outcome(engine, kind, job_id) == outcome


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_are_loaded_upcast_and_checked_as_in_a_worker(engine: Engine, kind: str) -> None:
    factory = factory_of(engine, kind)
    with Session(engine) as session:
        order = session.get_one(Order, 2)
    present = dead(engine, handler_of(kind, "ship"), order)
    assert "update Order 2: status 'new' -> 'shipped'" in str(rehearse(factory, present, jobs=jobs))
    with Session(engine) as session, session.begin():
        session.delete(session.get_one(Order, 2))
    with no_trace(engine):
        report = rehearse(factory, present, jobs=jobs)
    assert (report.outcome, report.error["type"]) == ("retries", "sa_jobqueue.errors.ObjectNotFoundError"), report
    assert true_outcome(engine, kind, present) == "retries"

    report = rehearse(factory, present, jobs=jobs, input={"$class": "Order", "id": 1})
    assert (report.outcome, report.effects[0]["name"], report.effects[0]["detail"]) == ("completes", "Order", "1"), report

    with Session(engine, expire_on_commit=False) as session, session.begin():
        session.add(no_upcaster := handler_of(kind, "versioned").job("x", input_version=1))
        session.add(unfit := handler_of(kind, "act").job("x"))
        session.flush()
        session.execute(text("UPDATE job SET input = '{}' WHERE id = :id"), {"id": unfit.id})
    assert drain(jobs, engine, raise_errors=False).died == 2
    for job, words in ((no_upcaster, "has no upcaster from 1"), (unfit, "invalid_input: sa_jobqueue.errors.Unreadable")):
        report = rehearse(factory, job.id, jobs=jobs)
        assert (report.outcome, report.place) == ("dies", None), report
        assert words in report.reason
        assert true_outcome(engine, kind, job.id) == "dies"
    assert rehearse(factory, no_upcaster.id, jobs=jobs, input="x").outcome == "completes"
    assert rehearse(factory, unfit.id, jobs=jobs, input="pay").outcome == "completes"
    with pytest.raises(RehearsalError, match="input"):
        rehearse(factory, unfit.id, jobs=jobs, input={"still": "not"})


@pytest.mark.parametrize("kind", KINDS)
def test_steps_that_are_recorded_or_allowed_go_on(engine: Engine, kind: str) -> None:
    factory, handler = factory_of(engine, kind), handler_of(kind, "act")
    job_id = dead(engine, handler, "step")
    with no_trace(engine):
        report = rehearse(factory, job_id, jobs=jobs, allow_steps=["draft"])
    assert [effect["values"].get("code") for effect in report.effects] == [["Dear customer"]], report
    with engine.begin() as connection:  # as an attempt before the one that died has recorded it
        connection.execute(
            text(
                "INSERT INTO job_step (job_id, name, key, kind, output, attempt, started_at, completed_at) "
                "VALUES (:id, 'draft', '', 'step', '\"recorded\"', 1, now(), now())"
            ),
            {"id": job_id},
        )
    assert "insert Payment" in str(rehearse(factory, job_id, jobs=jobs))
    assert "code 'recorded'" in str(rehearse(factory, job_id, jobs=jobs))


def test_an_allowed_step_may_leave_the_process(engine: Engine) -> None:
    job_id = dead(engine, jobs["act"], "call")
    assert rehearse(sessionmaker(engine), job_id, jobs=jobs).outcome == STOPPED
    assert rehearse(sessionmaker(engine), job_id, jobs=jobs, allow_steps=["call"]).outcome == "completes"
    report = rehearse(sessionmaker(engine), job_id, jobs=jobs, allow_steps=["call"], input="nested")
    assert report.reason.startswith("step 'draft' is not recorded"), report
    assert (report.place or "").endswith("in <lambda>"), report


async def test_it_runs_within_an_event_loop(engine: Engine) -> None:
    job_id = await asyncio.to_thread(dead, engine, jobs["async_act"], "pay")
    assert rehearse(factory_of(engine, "asyncpg"), job_id, jobs=jobs).outcome == "completes"


@pytest.mark.parametrize("kind", KINDS)
def test_a_rehearsal_ends_at_its_time_limit(engine: Engine, kind: str) -> None:
    job_id = dead(engine, handler_of(kind, "act"), "hang")
    with no_trace(engine):
        report = rehearse(factory_of(engine, kind), job_id, jobs=jobs, timeout=timedelta(milliseconds=300))
    assert (report.outcome, report.reason) == (STOPPED, "it did not end within 0.3 s")
    assert (report.place or "").endswith("in act" if kind == "psycopg" else "in async_act"), report


def test_waiting_jobs_are_rehearsed_and_others_are_refused(engine: Engine) -> None:
    factory = sessionmaker(engine)
    with Session(engine, expire_on_commit=False) as session, session.begin():
        session.add(waiting := jobs["act"].job("pay", delay=timedelta(hours=1)))
        session.add(unmarked := jobs["unmarked"].job("x"))
        session.add(ended := jobs["select"].job())
        session.flush()
        session.add(blocked := jobs["act"].job("pay", blockers=[waiting]))
    assert rehearse(factory, waiting.id, jobs=jobs).outcome == "completes"
    with no_trace(engine):
        refusals = [(unmarked.id, "not declared with rehearsable=True"), (blocked.id, "the job is blocked")]
        refusals += [(UUID(int=7), "no such job")]
        for job_id, words in refusals:
            with pytest.raises(RehearsalError, match=words):
                rehearse(factory, job_id, jobs=jobs)
        with pytest.raises(RehearsalError, match="'act'"):
            rehearse(factory, waiting.id, jobs=JobQueue(Job))
    drain(jobs, engine)
    with pytest.raises(RehearsalError, match="the job is completed"):
        rehearse(factory, ended.id, jobs=jobs)
    with engine.begin() as connection:
        connection.execute(text("SELECT FROM job WHERE id = :id FOR UPDATE"), {"id": waiting.id})
        with pytest.raises(RehearsalError, match="a lock is held by another session"):
            rehearse(factory, waiting.id, jobs=jobs, lock_timeout=timedelta(milliseconds=50))


def test_a_rehearsable_handler_has_a_session() -> None:
    queue = JobQueue(Job)
    with pytest.raises(InvalidHandlerError, match="give a rehearsable handler a session"):
        queue.handler("plain", rehearsable=True)(lambda: None)
    with pytest.raises(InvalidOptionError, match="rehearsable: must be True or False, got 1"):
        queue.handler("plain", rehearsable=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="session_factory"):
        rehearse(sessionmaker(), "x", jobs=queue)


def test_a_redacted_type_shows_names_only(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    job_ids = {name: dead(engine, jobs["act"], name) for name in ("pay", "bypass", "bug", "connect", "enqueue")}
    monkeypatch.setenv("SA_JOBQUEUE_REDACT", "act")
    texts = {name: str(rehearse(sessionmaker(engine), job_id, jobs=jobs)) for name, job_id in job_ids.items()}
    assert "  update Order: status\n" in texts["pay"]
    assert "  execute UPDATE: rows\n" in texts["bypass"]
    assert "retries: KeyError: (redacted)" in texts["bug"]
    assert "stopped: socket.connect\n" in texts["connect"]
    assert "  enqueue act: queue, input\n" in texts["enqueue"]
    for secret in ("paid", "secret", "vat", "127.0.0.1", "second"):
        assert secret not in "".join(texts.values())


def test_hooks_after_the_commit_do_not_run(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", str(tmp_path / "hook"))
    report = rehearse(sessionmaker(engine), dead(engine, jobs["act"], "listen_to_end"), jobs=jobs)
    assert report.outcome == "completes"
    assert "after_commit hooks did not run, after_rollback hooks did" in str(report)
    assert not (tmp_path / "hook").exists()


Run = Callable[..., Result]


@pytest.fixture
def run(engine: Engine) -> Run:
    def run_main(*arguments: object, status: int = 0, **options: Any) -> Result:
        environment = {"SA_JOBQUEUE_URL": engine.url.render_as_string(hide_password=False)}
        words = [*map(str, arguments), "--app", APP]
        result = CliRunner().invoke(main, words, env=environment, **options)
        assert result.exit_code == status, result.output
        return result

    return run_main


def letter_of(engine: Engine, job_id: Any) -> Any:
    with Session(engine) as session:
        return session.scalars(select(Job.DeadLetter.id).where(Job.DeadLetter.job_id == job_id)).one()


def test_the_command_prints_one_report(engine: Engine, run: Run, tmp_path: Path) -> None:
    job_id = dead(engine, jobs["act"], "bug")
    with no_trace(engine):
        printed = run("jobs", "rehearse", job_id, status=1).stdout
    assert printed.splitlines()[:2] == [
        f"job {job_id} (act) retries: KeyError: 'vat'",
        f"  at tests/rehearsal/application.py:{application.bug.__code__.co_firstlineno + 4} in bug",
    ]
    (tmp_path / "fixed.json").write_text('"pay"')
    letter_id = letter_of(engine, job_id)
    fixed = run("dead-letters", "rehearse", letter_id, "--input", tmp_path / "fixed.json", "--json")
    document = json.loads(fixed.stdout)
    assert (document["outcome"], document["job_id"]) == ("completes", str(job_id))
    values = {effect["name"]: effect["values"] for effect in document["effects"]}
    assert values == {"Order": {"status": ["new", "paid"]}, "Payment": {"order_id": [1], "code": ["new"]}}
    assert run("jobs", "rehearse", job_id, "--input", "-", input='"connect"', status=2).stdout.count("socket.connect") == 1
    assert "draft" in run("jobs", "rehearse", job_id, "--input", "-", input='"step"', status=2).stdout
    run("jobs", "rehearse", job_id, "--input", "-", "--allow-step", "draft", input='"step"')
    factory = "tests.rehearsal.test_jobs:async_factory"
    globals()["async_factory"] = factory_of(engine, "asyncpg")
    run("jobs", "rehearse", job_id, "--engine", factory, "--input", "-", input='"pay"')


def test_hostile_text_of_an_error_is_escaped(engine: Engine, run: Run) -> None:
    job_id = dead(engine, jobs["act"], "hostile")
    printed = run("jobs", "rehearse", job_id, status=1).stdout
    assert "ValueError" in printed
    assert not unsafe(printed)
    assert not unsafe(run("dead-letters", "rehearse", letter_of(engine, job_id), "--json", status=1).stdout)


def test_the_command_counts_the_outcomes_of_a_sample(engine: Engine, run: Run) -> None:
    for payload in ("pay", "pay", "bug", "unique"):
        dead(engine, jobs["act"], payload)
    dead(engine, jobs["async_act"], "pay")
    printed = run("dead-letters", "rehearse", "--type", "act", status=1).stdout.splitlines()
    assert printed[0] == "2 of 4: completes"
    assert "1 of 4: retries KeyError: 'vat'" in printed
    (document,) = json.loads(run("dead-letters", "rehearse", "--sample", 1, "--json").stdout)["rehearsals"]
    assert (document["type_name"], document["outcome"]) == ("async_act", "completes")
    assert "no dead letter found" in run("dead-letters", "rehearse", unknown := UUID(int=7), status=1).output, unknown
    with Session(engine, expire_on_commit=False) as session, session.begin():
        session.add(unmarked := jobs["unmarked"].job("x"))
    assert "rehearsable=True" in run("jobs", "rehearse", unmarked.id, status=2).output


@pytest.mark.parametrize("killed", ["the command", "its process"])
def test_a_killed_rehearsal_leaves_nothing_behind(engine: Engine, programs: Programs, tmp_path: Path, killed: str) -> None:
    job_id, file = dead(engine, jobs["act"], "block"), tmp_path / "blocked"
    url = engine.url.render_as_string(hide_password=False)
    environment = {"SA_JOBQUEUE_URL": url, "BLOCKED": str(file)}
    with no_trace(engine):
        words = ("-m", "sa_jobqueue.cli", "jobs", "rehearse", str(job_id), "--app", APP, "--timeout", "1h")
        command = programs.start(*words, cwd=Path.cwd(), env=environment, log=tmp_path / "log")
        deadline = time.monotonic() + PATIENCE
        while not (file.exists() and file.read_text()):
            assert command.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
        with engine.connect() as connection:
            open_transactions = text("SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'")
            assert connection.execute(open_transactions).scalar_one() >= 1
        engine.dispose()
        os.kill(command.pid if killed == "the command" else int(file.read_text()), signal.SIGKILL)
        assert command.wait(PATIENCE) == (-signal.SIGKILL if killed == "the command" else 2)
