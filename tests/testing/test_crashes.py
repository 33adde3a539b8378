"""`crash_test`: a crash at each point of an attempt, and the report of the problems after it."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import MetaData, NullPool, String, create_engine, func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from sa_jobqueue import AttemptContext, Blockers, JobMixin, JobQueue
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.operations import send_event
from sa_jobqueue.testing import CallRecorder, CrashReport, CrashTest, CrashTestError, crash_test
from sa_jobqueue.testing._crash_points import all_engines
from tests.fixtures.transactions import call

pytestmark = [pytest.mark.slow, pytest.mark.every_python]


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    pass


class Entry(Base):
    __tablename__ = "ledger"

    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str] = mapped_column(String(100))


@pytest.fixture(scope="module")
def jobqueue_metadata() -> MetaData:
    return Base.metadata


@pytest.fixture
def sessions(jobqueue_database_url: str) -> Iterator[sessionmaker[Session]]:
    engine = create_engine(jobqueue_database_url)
    yield sessionmaker(engine)
    engine.dispose()


def failed_points(report: CrashReport) -> dict[str, tuple[str, ...]]:
    return {crash.point: crash.problems for crash in report.failed}


def test_writes_through_the_session_pass_a_crash_at_every_point(sessions: sessionmaker[Session]) -> None:
    jobs = JobQueue(Job)

    @jobs.handler("book")
    def book(note: str, session: Session) -> None:
        session.add(Entry(note=note))

    def check(session: Session) -> None:
        assert session.scalars(select(Entry.note)).all() == ["x"]

    report = crash_test(book, "x", session_factory=sessions, check=check)
    assert report.passed, report
    points = [crash.point for crash in report.crashes]
    assert points[0].startswith("before statement 1: INSERT INTO ledger")
    assert points[-2:] == ["before commit 1", "after commit 1"]
    assert str(report) == "crash test of 'book': 6 of 6 points passed"
    with sessions() as session:  # the database itself was not changed
        assert session.scalar(select(func.count()).select_from(Job)) == 0


def test_a_call_before_the_commit_is_reported_as_made_twice(sessions: sessionmaker[Session]) -> None:
    jobs, recorder = JobQueue(Job), CallRecorder()
    send = recorder.wrap("mailer.send", lambda address: f"to {address}")

    @jobs.handler("welcome")
    def welcome(address: str, session: Session) -> None:
        session.add(Entry(note=send(address)))

    report = crash_test(welcome, "ann", session_factory=sessions, recorder=recorder)
    assert not report.passed
    failures = failed_points(report)
    twice = ("mailer.send: twice, once without a crash",)
    assert list(failures.values()) == [twice] * len(failures)
    passed_points = [crash.point for crash in report.crashes if crash.passed]
    assert passed_points == ["before call 1: mailer.send", "after commit 1"]
    assert "after call 1: mailer.send" in failures
    assert "  before commit 1                " in str(report)
    assert "mailer.send: twice, once without a crash" in str(report)


def test_what_a_separate_transaction_writes_is_reported_as_rows_too_many(sessions: sessionmaker[Session]) -> None:
    jobs = JobQueue(Job)

    @jobs.handler("book")
    def book(note: str) -> None:
        with sessions.begin() as session:
            session.add(Entry(note=note))

    failures = failed_points(crash_test(book, "x", session_factory=sessions))
    points = list(failures)
    assert points[0] == "after commit 1"
    assert points[1].startswith("before statement 2: ")  # the completion of a handler without a session
    assert len(points) == 2
    assert set(failures.values()) == {("rows in ledger: 2, 1 without a crash",)}


def test_work_left_out_by_the_second_attempt_is_reported_as_missing(sessions: sessionmaker[Session]) -> None:
    jobs, recorder = JobQueue(Job), CallRecorder()

    @jobs.handler("once")
    def once(note: str) -> None:
        with sessions.begin() as session:
            if session.scalar(select(func.count()).select_from(Entry)):
                return
            session.add(Entry(note=note))
        recorder.call("mailer.send", print, end="")

    report = crash_test(once, "x", session_factory=sessions, recorder=recorder)
    missing = {"after commit 1", "before call 1: mailer.send"}
    assert failed_points(report) == dict.fromkeys(missing, ("mailer.send: never, once without a crash",))


def test_a_failed_check_is_quoted_beside_the_rows_that_differ(sessions: sessionmaker[Session]) -> None:
    jobs = JobQueue(Job)

    @jobs.handler("book")
    def book(note: str) -> None:
        with sessions.begin() as session:
            session.add(Entry(note=note))

    def check(session: Session) -> None:
        count = session.scalar(select(func.count()).select_from(Entry))
        if count != 1:
            raise ValueError(f"booked {count} times")

    failures = failed_points(crash_test(book, "x", session_factory=sessions, check=check))
    problems = ("check: booked 2 times", "rows in ledger: 2, 1 without a crash")
    assert set(failures.values()) == {problems}


def test_rows_that_a_check_accepts_are_no_problem(sessions: sessionmaker[Session]) -> None:
    jobs = JobQueue(Job)

    @jobs.handler("log")
    def log(note: str) -> None:
        with sessions.begin() as session:
            session.add(Entry(note=note))

    assert crash_test(log, "x", session_factory=sessions, check=lambda session: None).passed


def test_a_crash_at_the_last_attempt_is_reported_as_a_dead_job(sessions: sessionmaker[Session]) -> None:
    jobs = JobQueue(Job)

    @jobs.handler("fragile", max_attempts=1)
    def fragile(note: str, session: Session) -> None:
        session.add(Entry(note=note))

    report = crash_test(fragile, "x", session_factory=sessions)
    problems = failed_points(report)["before commit 1"]
    assert problems[:2] == (
        "jobs fragile completed: 0, 1 without a crash",
        "jobs fragile dead: 1, 0 without a crash",
    )
    assert problems[2].startswith("a job died of Lost")


def test_no_finally_block_runs_at_a_crash_and_the_next_attempt_sees_the_rollback(sessions: sessionmaker[Session]) -> None:
    jobs, recorder = JobQueue(Job), CallRecorder()

    @jobs.handler("book")
    def book(note: str, session: Session) -> None:
        try:
            session.add(Entry(id=7, note=note))  # the second attempt would wait for a first one that lives on
            session.flush()
        finally:
            recorder.call("cleanup", print, end="")

    report = crash_test(book, "x", session_factory=sessions, recorder=recorder)
    assert "after statement 1" not in str(report)
    assert set(failed_points(report).values()) == {("cleanup: twice, once without a crash",)}


def test_a_point_that_is_not_reached_again_is_reported_and_does_not_pass(sessions: sessionmaker[Session]) -> None:
    jobs, runs = JobQueue(Job), iter(range(100))
    number = next(runs)

    @jobs.handler("unsteady")
    def unsteady(note: str, session: Session) -> None:
        for _ in range(0 if number else 3):
            session.execute(select(Entry))

    with CrashTest(unsteady, "x", session_factory=sessions) as test:
        number = next(runs)  # the processes that follow are forked with it
        crashes = [test.crash(point) for point in test.points]
    assert not crashes[-1].reached
    assert not crashes[-1].passed
    assert "not reached" in str(CrashReport("unsteady", tuple(crashes)))


def test_a_handler_that_fails_without_a_crash_is_refused(sessions: sessionmaker[Session]) -> None:
    jobs = JobQueue(Job)

    @jobs.handler("broken", max_attempts=2)
    def broken(note: str) -> None:
        raise ValueError("no")

    with pytest.raises(CrashTestError, match=r"without a crash a job died of builtins\.ValueError: no|ValueError: no"):
        crash_test(broken, "x", session_factory=sessions)


def test_a_database_in_use_is_refused_and_left_alone(sessions: sessionmaker[Session]) -> None:
    jobs = JobQueue(Job)

    @jobs.handler("book")
    def book(note: str) -> None: ...

    # Of another engine: the pool of this one is replaced meanwhile, and would not close it.
    other_engine = create_engine(sessions.kw["bind"].url, poolclass=NullPool)
    with other_engine.connect(), pytest.raises(CrashTestError, match="close all sessions"):
        crash_test(book, "x", session_factory=sessions)


def test_windows_is_refused_with_an_error_that_says_so(
    sessions: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = JobQueue(Job)

    @jobs.handler("book")
    def book(note: str) -> None: ...

    monkeypatch.delattr(os, "fork")
    with pytest.raises(CrashTestError, match="Windows"):
        crash_test(book, "x", session_factory=sessions)


def test_it_works_in_a_process_with_other_threads(sessions: sessionmaker[Session]) -> None:
    jobs, stop = JobQueue(Job), threading.Event()

    @jobs.handler("book")
    def book(note: str, session: Session) -> None:
        session.add(Entry(note=note))

    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert crash_test(book, "x", session_factory=sessions).passed
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def async_sessions(jobqueue_database_url: str) -> async_sessionmaker[AsyncSession]:
    return async_sessionmaker(create_async_engine(jobqueue_database_url))


def test_an_async_handler_is_tried_with_an_async_check(async_sessions: async_sessionmaker[AsyncSession]) -> None:
    jobs, recorder = JobQueue(Job), CallRecorder()

    async def post(note: str) -> None: ...

    send = recorder.wrap("post", post)

    @jobs.handler("book")
    async def book(note: str, session: AsyncSession) -> None:
        session.add(Entry(note=note))
        await session.flush()
        await send(note)

    async def check(session: AsyncSession) -> None:
        assert (await session.scalars(select(Entry.note))).all() == ["x"]

    report = crash_test(book, "x", session_factory=async_sessions, check=check, recorder=recorder)
    failures = failed_points(report)
    assert set(failures.values()) == {("post: twice, once without a crash",)}
    assert {"after call 1: post", "before commit 1"} <= failures.keys()
    assert len(report.crashes) - len(failures) == 4  # those around the first statement, before the call, after the commit


@pytest.mark.parametrize("with_key", [False, True])
def test_a_step_narrows_a_call_to_one_point_and_its_key_closes_that(sessions: sessionmaker[Session], with_key: bool) -> None:
    jobs, recorder = JobQueue(Job), CallRecorder()
    send = recorder.wrap("mail", lambda key: key, key=(lambda key: key) if with_key else None)

    @jobs.handler("mail")
    def mail(note: str, ctx: AttemptContext) -> None:
        ctx.step("send", send, str(ctx.job.id))

    report = crash_test(mail, "x", session_factory=sessions, recorder=recorder)
    points = [crash.point.partition(": ")[0] for crash in report.crashes]
    assert points[:3] == ["before step 1", "before call 1", "after call 1"]
    assert "after step 1" in points
    failures = [point.partition(": ")[0] for point in failed_points(report)]
    assert failures == ([] if with_key else ["after call 1", "before statement 1"])


def test_the_jobs_of_a_chain_are_tried_with_their_registry(sessions: sessionmaker[Session]) -> None:
    jobs, recorder = JobQueue(Job), CallRecorder()
    send = recorder.wrap("mail", lambda: None)

    @jobs.handler("second")
    def second(note: str) -> None:
        send()

    @jobs.handler("first")
    def first(note: str, session: Session) -> Any:
        session.add(Entry(note=note))
        return second.continuation(note)

    report = crash_test(first, "x", session_factory=sessions, recorder=recorder, jobs=jobs)
    assert list(failed_points(report)) == ["after call 1: mail", "before statement 4: completion of the job"]
    assert set(failed_points(report).values()) == {("mail: twice, once without a crash",)}


@pytest.mark.long
def test_a_job_with_blockers_and_an_event_is_tried(sessions: sessionmaker[Session]) -> None:
    jobs = JobQueue(Job)

    @jobs.handler("part")
    def part(note: str, session: Session) -> str:
        session.add(Entry(note=note))
        return note

    @jobs.handler("whole")
    def whole(note: str, blockers: Blockers[list[str]], session: Session, ctx: AttemptContext) -> None:
        approved = ctx.wait_for("approval", event="approved", timeout=timedelta(days=1), output=str)
        session.add(Entry(note=f"{note} {approved} {sorted(blockers.outputs)}"))

    call(sessions, send_event, "approved", "yes", model=Job)

    def check(session: Session) -> None:
        assert set(session.scalars(select(Entry.note))) == {"a", "b", "x yes ['a', 'b']"}

    blockers = [part.job("a"), part.job("b")]
    report = crash_test(whole, "x", session_factory=sessions, check=check, jobs=jobs, blockers=blockers)
    assert report.passed, report
    assert len(report.crashes) > 12


def test_a_batch_has_the_jobs_that_were_committed_before(sessions: sessionmaker[Session]) -> None:
    jobs, recorder = JobQueue(Job), CallRecorder()
    send = recorder.wrap("mail", lambda count: None)

    @jobs.batch_handler("digest", max_size=3)
    def digest(notes: list[str], session: Session) -> None:
        session.add_all(Entry(note=note) for note in notes)
        session.flush()
        send(len(notes))

    with sessions.begin() as session:
        session.add_all([digest.job("a"), digest.job("b")])
    report = crash_test(digest, "c", session_factory=sessions, recorder=recorder)
    failures = failed_points(report)
    assert {"after call 1: mail", "before commit 1"} <= failures.keys()  # again once or more: their backoffs differ
    assert all(problem.startswith("mail: ") for problems in failures.values() for problem in problems)
    points = [crash.point.partition(":")[0] for crash in report.crashes]
    assert points.count("before commit 1") == 1  # of all three jobs


def test_each_point_can_be_a_test_of_its_own(sessions: sessionmaker[Session], subtests: pytest.Subtests) -> None:
    jobs = JobQueue(Job)

    @jobs.handler("book")
    def book(note: str, session: Session) -> None:
        session.add(Entry(note=note))

    with CrashTest(book, "x", session_factory=sessions) as test:
        assert test.points[-1] == "after commit 1"
        for point in test.points:
            with subtests.test(point):
                assert test.crash(point).passed


def test_engines_are_found_beside_weak_proxies_whose_object_is_gone() -> None:
    class Gone: ...

    present = Gone()
    proxy, engine = weakref.proxy(present), create_engine("postgresql+psycopg://")
    del present
    assert gc.is_tracked(proxy)
    assert engine in all_engines()


def test_a_handler_in_a_separate_process_and_a_factory_without_an_engine_are_refused(
    sessions: sessionmaker[Session],
) -> None:
    jobs = JobQueue(Job)

    @jobs.handler("isolated", isolation="process")
    def isolated(note: str) -> None: ...

    with pytest.raises(InvalidOptionError, match="other processes"):
        crash_test(isolated, "x", session_factory=sessions)
    with pytest.raises(InvalidOptionError, match="session_factory"):
        crash_test(isolated, "x", session_factory=sessionmaker())
