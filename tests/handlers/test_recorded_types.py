"""Jobs that are written where the registry is not loaded: they have the values that a worker has recorded for their type."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, insert, select, text
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker

from sa_jobqueue import Deduplicate, JobMixin, JobQueue, Schedule, Worker, enqueue, enqueue_many, operations
from sa_jobqueue.models import Job
from sa_jobqueue.models.declarations import Declarations
from sa_jobqueue.observe.health import Code, Severity, Thresholds, health
from sa_jobqueue.operations.writer import write_one
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import call
from tests.fixtures.workers import quick, until, working

pytestmark = pytest.mark.every_python

Facts = tuple[str, int, int, timedelta | None, int | None, int]
DECLARED: Facts = ("mails", 5, 3, timedelta(minutes=2), 4, 2)
PLAIN: Facts = ("default", 0, 20, None, None, 1)


def service() -> JobQueue[Any]:
    """Return the registry of the service with the handler."""
    jobs = JobQueue()

    @jobs.handler(
        "mail",
        queue="mails",
        priority=5,
        max_attempts=3,
        timeout=timedelta(minutes=2),
        rate_cost=4,
        version=2,
    )
    def mail(name: str) -> None: ...

    mail.upcast(1)(str)
    return jobs


def facts(session: Session, type_name: str = "mail") -> list[Facts]:
    """Return the rows of a type, in the order of their ids."""
    columns = (Job.queue, Job.priority, Job.max_attempts, Job.timeout, Job.rate_cost, Job.input_version)
    rows = session.execute(select(*columns).where(Job.type_name == type_name).order_by(Job.id)).all()
    return [tuple(row) for row in rows]  # type: ignore[misc]


@pytest.fixture
def recorded(sessions: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch) -> None:
    """Record the handler's declarations, as a worker does at start."""
    assert call(sessions, operations.record_job_types, service().registry) == ["mail"]
    monkeypatch.setattr(Job, "__handlers__", Declarations())


def by_the_unit_of_work(session: Session, **options: Any) -> None:
    job = Job("mail", "you", **options)
    session.add(job)
    session.flush()
    written = (job.queue, job.priority, job.max_attempts, job.timeout, job.rate_cost, job.input_version)
    assert written == facts(session)[0]


def by_enqueue_one(session: Session, **options: Any) -> None:
    write_one(session, Job("mail", "you", **options))


def by_enqueue_many(session: Session, **options: Any) -> None:
    enqueue_many(session, [Job("mail", "you", **options)])


def by_deduplication(session: Session, **options: Any) -> None:
    enqueue(session, Job("mail", "you", **options), deduplicate="you")


def by_many_deduplicated(session: Session, **options: Any) -> None:
    enqueue_many(session, [Job("mail", "you", **options)], deduplicate_by=lambda _: "you")


def by_bulk_save_objects(session: Session, **options: Any) -> None:
    session.bulk_save_objects([Job("mail", "you", **options)])


def by_sql(session: Session, **options: Any) -> None:
    columns = {"id": func.job_uuid7(), "type_name": "mail", "chain_type_name": "mail", "input": "you"} | options
    made = session.scalars(select(func.job_uuid7())).one()
    session.execute(insert(Job.__table__).values(columns | {"id": made, "chain_id": made}))  # type: ignore[arg-type]


WRITERS = [
    by_the_unit_of_work,
    by_enqueue_one,
    by_enqueue_many,
    by_deduplication,
    by_many_deduplicated,
    by_bulk_save_objects,
    by_sql,
]


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("write", WRITERS)
def test_a_job_has_what_is_recorded_for_its_type(session: Session, write: Any) -> None:
    write(session)
    assert facts(session) == [DECLARED]


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("write", WRITERS)
def test_what_the_writer_gives_wins(session: Session, write: Any) -> None:
    given: list[tuple[dict[str, Any], Facts]] = [
        ({"queue": "default"}, ("default", *DECLARED[1:])),
        ({"priority": 0}, ("mails", 0, *DECLARED[2:])),
        ({"max_attempts": 20, "timeout": timedelta(seconds=9)}, ("mails", 5, 20, timedelta(seconds=9), *DECLARED[4:])),
        ({"rate_cost": 7, "input_version": 1}, (*DECLARED[:4], 7, 1)),
        ({"queue": "own", "priority": -1, "max_attempts": 1, "input_version": 2}, ("own", -1, 1, None, None, 2)),
    ]
    for options, expected in given:
        write(session, **options)
        assert facts(session) == [expected]
        session.rollback()


@pytest.mark.parametrize("write", WRITERS)
def test_a_job_of_an_unknown_type_is_plain(session: Session, write: Any) -> None:
    write(session)
    assert facts(session) == [PLAIN]


@pytest.mark.usefixtures("recorded")
def test_the_view_gives_the_queue_that_it_chose(session: Session) -> None:
    chosen = session.scalar(text("INSERT INTO job_queue (type_name, input) VALUES ('mail', '1') RETURNING queue"))
    assert (chosen, facts(session)) == ("mails", [DECLARED])
    chosen = session.scalar(text("INSERT INTO job_queue (type_name, queue) VALUES ('mail', 'own') RETURNING queue"))
    assert chosen == "own"


@pytest.mark.usefixtures("recorded")
def test_a_debounced_job_has_the_recorded_values(session: Session) -> None:
    deduplicate = Deduplicate("k", replace=["input", "priority"])
    first, _ = enqueue(session, Job("mail", "you", priority=-3, input_version=1), deduplicate=deduplicate)
    enqueue(session, Job("mail", "me"), deduplicate=deduplicate)
    session.refresh(first)
    assert (first.input, first.priority, first.input_version) == ("me", DECLARED[1], 2)


async def test_a_worker_records_its_types_and_again_when_they_are_deleted(
    engine: Engine, sessions: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = service()
    monkeypatch.setattr(Job, "__handlers__", Declarations())

    def recorded_types() -> list[tuple[Any, ...]]:
        with sessions() as session:
            kinds = operations.list_job_types(session).items
            names = ("type_name", "queue", "priority", "max_attempts", "timeout", "rate_cost", "input_version")
            return [tuple(getattr(one, name) for name in names) for one in kinds]

    async with working(Worker(jobs, engine, options=quick())):
        await until(lambda: recorded_types() == [("mail", *DECLARED)])
        call(sessions, operations.delete_job_types, ["mail"])
        await until(lambda: recorded_types() == [("mail", *DECLARED)])
    assert recorded_types() == [("mail", *DECLARED)]  # also when no worker runs


def test_the_declaration_of_a_newer_release_replaces_the_older(session: Session) -> None:
    operations.record_job_types(session, service().registry)
    newer = JobQueue()
    newer.handler("mail", queue="letters")(lambda name: None)
    assert operations.record_job_types(session, newer.registry) == ["mail"]
    assert operations.record_job_types(session, newer.registry) == []
    by_sql(session)
    assert facts(session) == [("letters", *PLAIN[1:])]


async def test_to_move_jobs_of_a_queue_without_a_worker_is_a_choice_with_its_target_and_count(
    engine: Engine, sessions: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    with sessions.begin() as session:  # before any worker has recorded the type
        enqueue_many(session, [Job("mail", "you"), Job("mail", "me")])
        waiting = session.scalars(select(Job.id).limit(1)).one()
        session.execute(text("UPDATE job SET scheduled_at = now() - interval '1 hour'"))
    jobs = service()
    monkeypatch.setattr(Job, "__handlers__", Declarations())
    async with working(Worker(jobs, engine, options=quick(queues=["mails"]))):
        move = "UPDATE job SET queue = 'mails' WHERE status = 'pending' AND queue = 'default' AND type_name = 'mail'"
        await until(lambda: workers(sessions) == 1)
        with sessions() as session:
            explained = operations.explain_job(session, waiting)
            start = "; start a worker that serves it (sa-jobqueue worker --queues default). "
            choice = "Only if its 2 waiting jobs should run in queue 'mails', whose workers handle the type: "
            assert explained.sentence.endswith(f"{start}{choice}{move}.")
            (finding,) = [finding for finding in health(engine).findings if "default" in finding.summary]
            assert (finding.code, finding.severity) == (Code.QUEUE_UNSERVED, Severity.CRITICAL)
            assert "UPDATE" not in finding.summary + finding.advice
            session.execute(text(explained.evidence["move"]))
            session.commit()
        await until(lambda: statuses(sessions) == {"completed"})


@pytest.mark.parametrize("evidence", ["worker", "minute"])
def test_jobs_of_a_queue_that_was_served_lately_are_not_to_be_moved(
    evidence: str, engine: Engine, sessions: sessionmaker[Session], jobs: Jobs
) -> None:
    """Its deployment is down, and another one of the same application serves another queue."""
    jobs.add_worker("mails:1", queues=["mails"], job_types=["mail"])
    waiting = jobs.add(type_name="mail", due_in=-3600)
    with sessions.begin() as session:
        assert "UPDATE" in operations.explain_job(session, waiting).sentence
        if evidence == "minute":
            columns = "minute, queue, type_name, enqueued, completed, failed, died, cancelled, due, running, wait, run"
            values = "now() - interval '3 min', 'default', 'mail', 0, 1, 0, 0, 0, 0, 0, '{}', '{}'"
            session.execute(text(f"INSERT INTO job_minute ({columns}) VALUES ({values})"))
    if evidence == "worker":
        jobs.add_worker("down:1", queues=["default"], job_types=["mail"], silent_for=60)
    with sessions() as session:
        sentence = operations.explain_job(session, waiting).sentence
    served = "worker down:1 did until its last heartbeat 1 min" if evidence == "worker" else "some worker did until 3 min"
    assert f"the only live worker does not serve queue 'default'; {served}" in sentence
    assert "UPDATE" not in sentence
    for warning in (timedelta(seconds=1), timedelta(hours=2)):
        thresholds = Thresholds(claim_age_warning=warning, claim_age_critical=timedelta(hours=3))
        findings = [finding for finding in health(engine, thresholds=thresholds).findings if "default" in finding.summary]
        assert Severity.CRITICAL in {finding.severity for finding in findings}
        assert "UPDATE" not in str(findings)


def workers(sessions: sessionmaker[Session]) -> int:
    with sessions() as session:
        return len(operations.list_workers(session).items)


def statuses(sessions: sessionmaker[Session]) -> set[str]:
    with sessions() as session:
        return set(session.scalars(select(Job.status)))


def test_columns_of_another_layout_are_filled_in_as_well(engine: Engine) -> None:
    class Base(DeclarativeBase): ...

    class Task(JobMixin[str], Base, queue_schema="elsewhere", queue_prefix="x_"): ...

    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA elsewhere"))
        Base.metadata.create_all(connection)
    jobs: JobQueue[Any] = JobQueue(Task)
    jobs.handler("mail", queue="mails")(lambda name: None)
    with Session(engine) as session, session.begin():
        operations.record_job_types(session, jobs.registry, model=Task)
        session.execute(text("INSERT INTO elsewhere.x_job_queue (id, type_name) VALUES ('a', 'mail')"))
        assert session.scalars(select(Task.queue)).all() == ["mails"]


def by_a_schedule_in_sql(session: Session) -> None:
    columns = "name, type_name, cron, input, next_fire_at"
    session.execute(text(f"INSERT INTO schedule ({columns}) VALUES ('s', 'mail', '0 0 1 1 *', '1', now())"))


def by_a_schedule_of_another_service(session: Session) -> None:
    operations.upsert_schedule(session, Schedule(name="s", type_name="mail", cron="0 0 1 1 *", input=1))
    session.execute(text("UPDATE schedule SET next_fire_at = now()"))


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("write", [by_a_schedule_in_sql, by_a_schedule_of_another_service])
def test_the_jobs_of_a_schedule_have_what_is_recorded_when_they_are_enqueued(session: Session, write: Any) -> None:
    write(session)
    operations.fire_schedules(session)
    assert facts(session) == [DECLARED]
    session.execute(text("UPDATE schedule SET queue = 'own', priority = 0, max_attempts = 1, next_fire_at = now()"))
    session.execute(text("DELETE FROM job"))
    session.execute(text("UPDATE schedule SET fired = '{}'"))
    operations.fire_schedules(session)
    assert facts(session) == [("own", 0, 1, *DECLARED[3:])]
