"""Row-level security on the job tables: tenants use their own jobs, and nothing is concluded from a row that is hidden."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, NullPool, create_engine, func, make_url, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, ChildJob, Job, JobQueue, JobStatus, Worker
from sa_jobqueue.cli.doctor import Check, Status, examine
from sa_jobqueue.errors import InvalidJobError, NotFoundError, RowSecurityError
from sa_jobqueue.events import Event, RowsHidden
from sa_jobqueue.migrations.grants import RIGHTS, apply_grants
from sa_jobqueue.observe.health import Code, Severity, health
from sa_jobqueue.operations import Cause, explain_job, get_job
from sa_jobqueue.operations.row_security import hidden_rows
from sa_jobqueue.testing import drain
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import call, write
from tests.fixtures.workers import working

pytestmark = both_servers

Login = Callable[..., Engine]
TENANT = "(fairness_key = current_setting('app.tenant', true))"


@pytest.fixture
def login(engine: Engine) -> Iterator[Login]:
    """Give a function that connects as a new role with the rights of some of the grants' roles."""
    prefix = f"rls_{uuid4().hex[:8]}"
    engines: list[Engine] = []
    with engine.begin() as connection:
        apply_grants(connection, Job.__jobqueue__, roles=prefix)

    def connect(*roles: str, attributes: str = "", **options: Any) -> Engine:
        user = f"{prefix}_app{len(engines)}"
        members = ", ".join(f"{prefix}_{role}" for role in roles)
        write(engine, f"CREATE ROLE {user} LOGIN PASSWORD 'x' {attributes} IN ROLE {members}")
        url = make_url(engine.url).set(username=user, password="x")
        engines.append(create_engine(url, poolclass=NullPool, **options))
        return engines[-1]

    yield connect
    for login_engine in engines:
        login_engine.dispose()
    names = [*(login_engine.url.username for login_engine in engines), *(f"{prefix}_{role}" for role in RIGHTS)]
    with engine.begin() as connection:
        for name in names:
            connection.execute(text(f"DROP OWNED BY {name}; DROP ROLE {name}"))


def run(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def secure(engine: Engine, *policies: str, table: str = "job") -> None:
    """Turn row-level security on."""
    run(engine, f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY", *policies)


def queue_of_tenants() -> tuple[JobQueue[Any], Any, list[int]]:
    queue, ran = JobQueue[Any](), list[int]()

    @queue.handler("count")
    def count(number: int) -> None:
        ran.append(number)

    return queue, count, ran


def as_tenant(session: Session, tenant: str) -> None:
    session.execute(select(func.set_config("app.tenant", tenant, True)))


def security(url: Any, role: str) -> Check | None:
    check_by_name = {check.name: check for check in examine(make_url(url), Job, role=role)}
    return check_by_name.get("row security")


def test_only_policies_that_let_the_role_use_every_row_hide_none(engine: Engine, login: Login) -> None:
    worker = login("worker")
    user = worker.url.username

    def hidden() -> list[tuple[str, tuple[str, ...], bool]]:
        with Session(worker) as session:
            return [(rows.table, rows.commands, rows.is_total) for rows in hidden_rows(session)]

    every = ("SELECT", "INSERT", "UPDATE", "DELETE")
    assert hidden() == []
    secure(engine)
    assert hidden() == [("job", every, True)]
    run(engine, f"CREATE POLICY tenant ON job TO {user} USING {TENANT}")
    assert hidden() == [("job", every, False)]
    run(engine, f"CREATE POLICY reading ON job FOR SELECT TO {user} USING (true)")
    assert hidden() == [("job", every[1:], False)]
    run(engine, f"CREATE POLICY every_row ON job TO {user} USING (true) WITH CHECK (true)")
    assert hidden() == []
    run(engine, "CREATE POLICY urgent ON job AS RESTRICTIVE FOR UPDATE USING (priority > 0)")
    assert hidden() == [("job", ("UPDATE",), False)]
    with Session(engine) as session:  # a superuser
        assert hidden_rows(session) == []


def test_row_security_that_is_forced_applies_to_the_owner(engine: Engine, login: Login) -> None:
    owner = login("operator")
    secure(engine, f"ALTER TABLE job OWNER TO {owner.url.username}")
    with Session(owner) as session:
        assert hidden_rows(session) == []
    run(engine, "ALTER TABLE job FORCE ROW LEVEL SECURITY")
    with Session(owner) as session:
        assert [rows.table for rows in hidden_rows(session)] == ["job"]
    run(engine, "ALTER TABLE job OWNER TO CURRENT_USER")


def test_tenants_enqueue_and_see_their_own_jobs_and_a_worker_runs_all(engine: Engine, login: Login) -> None:
    queue, count, ran = queue_of_tenants()
    tenant, worker = login("producer"), login("worker", attributes="BYPASSRLS")
    secure(engine, f"CREATE POLICY tenant ON job TO {tenant.url.username} USING {TENANT}")
    for name, first in (("a", 0), ("b", 100)):
        with Session(tenant) as session, session.begin():
            as_tenant(session, name)
            count.enqueue(session, first, fairness_key=name)
            session.add(count.job(first + 1, fairness_key=name))
            assert count.enqueue_many(session, range(first + 2, first + 5), fairness_key=name) == 3
            options = {"fairness_key": name, "deduplicate_by": str}
            assert count.enqueue_many(session, [first + 5, first + 5], **options) == 1
            assert session.scalar(select(func.count()).select_from(Job)) == 6
    with Session(tenant) as session:
        as_tenant(session, "a")
        with pytest.raises(DBAPIError, match="row-level security"):
            count.enqueue_many(session, [9], fairness_key="b")
    with Session(worker) as session:
        assert hidden_rows(session) == []
    drain(queue, worker)
    assert sorted(ran) == [*range(6), *range(100, 106)]


def test_enqueue_many_under_row_security_is_refused_in_a_two_phase_session(engine: Engine, login: Login) -> None:
    _, count, _ = queue_of_tenants()
    tenant = login("producer")
    secure(engine, f"CREATE POLICY tenant ON job TO {tenant.url.username} USING (true)")
    with Session(tenant, twophase=True) as session, pytest.raises(InvalidJobError, match="PREPARE refuses"):
        count.enqueue_many(session, [1])


async def test_a_worker_whose_role_sees_no_job_does_not_start(engine: Engine, login: Login) -> None:
    queue, _, _ = queue_of_tenants()
    worker = login("worker")
    secure(engine)
    with pytest.raises(RowSecurityError, match=f"row-level security on job hides all rows from role {worker.url.username}"):
        await Worker(queue, worker).run()
    check = await asyncio.to_thread(security, worker.url, "worker")
    assert check is not None
    assert check.status is Status.ERROR
    assert f"row-level security on job may hide rows from role {worker.url.username}" in check.found
    assert "BYPASSRLS" in check.advice


async def test_a_worker_whose_role_sees_some_jobs_warns_and_runs_them(engine: Engine, jobs: Jobs, login: Login) -> None:
    queue, count, ran = queue_of_tenants()
    worker = login("worker")
    secure(engine, f"CREATE POLICY tenant ON job TO {worker.url.username} USING (fairness_key = 'a')")
    with Session(engine) as session, session.begin():
        for tenant in ("a", "b"):
            count.enqueue(session, 1, fairness_key=tenant)
    tenant_worker = Worker(queue, worker)
    events = list[Event]()
    tenant_worker.events.subscribe(events.append)
    await tenant_worker.run_until_idle()
    assert ran == [1]
    [warning] = [event for event in events if isinstance(event, RowsHidden)]
    assert (warning.role, warning.tables) == (worker.url.username, ("job",))
    assert sorted(jobs.statuses().values()) == [JobStatus.COMPLETED, JobStatus.PENDING]


async def test_a_worker_that_sees_all_rows_warns_of_nothing(engine: Engine, login: Login) -> None:
    queue, _, _ = queue_of_tenants()
    worker = login("worker")
    secure(engine, f"CREATE POLICY all_rows ON job TO {worker.url.username} USING (true) WITH CHECK (true)")
    async with working(Worker(queue, worker)) as log:
        pass
    assert log.of(RowsHidden) == []
    assert await asyncio.to_thread(security, worker.url, "worker") is None


def test_health_states_what_its_role_may_not_see_and_concludes_nothing_from_it(
    engine: Engine, jobs: Jobs, login: Login
) -> None:
    observer = login("observer")
    jobs.add(due_in=-3600)
    secure(engine, table="worker")
    assert Code.NO_WORKER in {finding.code for finding in call(engine, health).findings}
    with Session(observer) as session:
        report = health(session)
    finding_by_code = {finding.code: finding for finding in report.findings}
    assert finding_by_code[Code.ROWS_HIDDEN].severity is Severity.WARNING
    assert (
        f"Row-level security on worker may hide rows from role {observer.url.username}"
        in finding_by_code[Code.ROWS_HIDDEN].summary
    )
    assert {Code.NO_WORKER, Code.QUEUE_UNSERVED, Code.CLAIM_AGE, Code.ORPHANED}.isdisjoint(finding_by_code)


def test_explain_does_not_take_hidden_workers_for_none(engine: Engine, jobs: Jobs, login: Login) -> None:
    observer = login("observer")
    due, running, blocked = jobs.add(due_in=-60), jobs.add(JobStatus.RUNNING), jobs.add(JobStatus.BLOCKED)
    secure(engine, table="worker")
    for job_id in (due, running, blocked):
        assert call(engine, explain_job, job_id).cause is not Cause.ROWS_HIDDEN
        with Session(observer) as session:
            explained = explain_job(session, job_id)
        assert explained.cause is Cause.ROWS_HIDDEN
        assert f"Row-level security on worker may hide rows from role {observer.url.username}" in explained.sentence


def test_explain_of_a_tenants_job_states_that_others_may_be_hidden(engine: Engine, jobs: Jobs, login: Login) -> None:
    observer = login("observer")
    job_id = jobs.add(due_in=-60, fairness_key="a")
    secure(engine, f"CREATE POLICY tenant ON job TO {observer.url.username} USING (fairness_key = 'a')")
    with Session(observer) as session:
        explained = explain_job(session, job_id)
    assert explained.cause is Cause.NO_WORKER
    assert "Row-level security on job may hide rows" in explained.sentence


def test_a_job_that_is_hidden_is_not_called_missing_alone(engine: Engine, jobs: Jobs, login: Login) -> None:
    observer = login("observer")
    job_id = jobs.add(fairness_key="b")
    secure(engine, f"CREATE POLICY tenant ON job TO {observer.url.username} USING (fairness_key = 'a')")
    with Session(observer) as session, pytest.raises(NotFoundError) as caught:
        get_job(session, job_id)
    assert "Row-level security on job may hide rows from role" in str(caught.value)
    assert "it may exist" in str(caught.value)
    with Session(engine) as session, pytest.raises(NotFoundError) as caught:
        get_job(session, uuid4())
    assert "security" not in str(caught.value)


def test_doctor_of_a_producer_accepts_a_policy_for_its_own_jobs(engine: Engine, login: Login) -> None:
    tenant = login("producer")
    secure(engine, f"CREATE POLICY tenant ON job TO {tenant.url.username} USING {TENANT}")
    check = security(tenant.url, "producer")
    assert check is not None
    assert check.status is Status.OK
    assert "as for a tenant" in check.found


@pytest.mark.parametrize("call", ["run", "all", "first"])
def test_a_child_that_the_worker_does_not_see_is_said_to_be_not_found_and_not_to_be_deleted(
    engine: Engine, jobs: Jobs, login: Login, call: str
) -> None:
    queue: JobQueue[Any] = JobQueue()
    elsewhere: JobQueue[Any] = JobQueue()
    ship = elsewhere.handler("ship")(lambda: None)

    @queue.handler("parent", max_attempts=1)
    def parent(ctx: AttemptContext) -> Any:
        if call == "all":
            return ctx.all(ChildJob(ship))
        return ctx.run(ship) if call == "run" else ctx.first("decision", ChildJob(ship))

    worker = login("worker")
    user = worker.url.username
    secure(engine, f"CREATE POLICY all_of_them ON job TO {user} USING (true) WITH CHECK (true)")
    with Session(engine) as session, session.begin():
        parent_id = parent.enqueue(session)
    drain(queue, worker)
    with Session(engine) as session:
        child_id = session.scalars(select(Job.id).where(Job.type_name == "ship")).one()
    hide = "USING (type_name <> 'ship') WITH CHECK (true)"
    run(engine, f"DROP POLICY all_of_them ON job; CREATE POLICY no_parcels ON job TO {user} {hide}")
    run(engine, f"UPDATE job SET scheduled_at = now() WHERE id = '{parent_id}'")
    drain(queue, worker, raise_errors=False)
    assert jobs.status(parent_id) is JobStatus.DEAD
    looked = f"the worker's connection found no job of id {child_id}: it was deleted, or the role"
    assert jobs.get(parent_id)["last_error"]["message"] == (
        f"job {child_id}, whose result step 'ship' waits for, was not found: {looked} of the connection does not see it "
        "(row-level security)"
    )
    with Session(engine) as session:
        step = session.scalars(select(Job.Step).where(Job.Step.child_chain_id == child_id)).one()
    assert step.output["status"] is None
    assert step.output["message"].startswith(looked)
    assert jobs.status(child_id) is JobStatus.PENDING
