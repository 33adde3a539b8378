"""`require_no_jobs`: an upgrade is refused while jobs are open that need the code from before it."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from psycopg.errors import RaiseException
from sqlalchemy import Connection, Engine, event, text

from sa_jobqueue import Job, JobQueue
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError, OpenJobsError, SchemaError
from sa_jobqueue.layout import Layout
from sa_jobqueue.migrations import runner
from sa_jobqueue.migrations.open_jobs import NoJobs
from sa_jobqueue.models.base import verbatim
from sa_jobqueue.statements import deployments
from tests.fixtures.jobs import enqueue
from tests.fixtures.transactions import scalar, write
from tests.fixtures.workers import drain
from tests.migrations.applications import PLAIN_MODELS, Application, run_script
from tests.migrations.conftest import MakeApplication, one_server

SHIP = {"type_name": "ship", "below_version": 2}
REQUIRE = "op.require_no_jobs('ship', below_version=2)"


def no_jobs(**options: Any) -> NoJobs:
    return NoJobs(**{"layout": Layout(), **SHIP, "patience": timedelta(0), **options})


def add(connection: Connection, version: int = 1, *, type_name: str = "ship", **columns: Any) -> Any:
    """Insert a job, as a producer of any version does; return its id."""
    job_id = uuid4()
    row = {"id": job_id, "chain_id": job_id, "type_name": type_name, "chain_type_name": type_name, "input_version": version}
    row |= columns
    statement = f"INSERT INTO job ({', '.join(row)}) VALUES ({', '.join(f':{name}' for name in row)})"
    connection.execute(text(statement), row)
    return job_id


def add_and_commit(engine: Engine, version: int = 1, **columns: Any) -> Any:
    with engine.begin() as connection:
        return add(connection, version, **columns)


def set_status(engine: Engine, job_id: Any, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(f"UPDATE job SET {statement} WHERE id = :id"), {"id": job_id})


CLAIMED = "status = 'running', leased_by = 'w', attempt = 1, started_at = now()"


@pytest.fixture
def queue_engine(engine: Engine) -> Engine:
    """Give an engine on a database with job tables."""
    with engine.begin() as connection:
        runner.upgrade(connection, Layout())
    return engine


@pytest.fixture
def application(make_application: MakeApplication) -> Application:
    """Give an application with job tables, and a revision that requires that no old jobs are open."""
    created = make_application(PLAIN_MODELS)
    created.autogenerate()
    created.upgrade()
    created.revision(
        upgrade=f"{REQUIRE}; op.execute('CREATE TABLE parcel ()')", downgrade=f"{REQUIRE}; op.drop_table('parcel')"
    )
    return created


def has_parcels(engine: Engine) -> bool:
    return scalar(engine, "SELECT to_regclass('parcel') IS NOT NULL") is True


def test_an_upgrade_is_refused_until_the_jobs_have_ended(application: Application) -> None:
    job_id = add_and_commit(application.engine)
    add_and_commit(application.engine, 2)
    add_and_commit(application.engine, type_name="bill")
    with pytest.raises(OpenJobsError) as raised:
        application.upgrade()
    assert raised.value.jobs == {("default", "pending"): 1}
    assert not has_parcels(application.engine)
    set_status(application.engine, job_id, CLAIMED)
    with pytest.raises(OpenJobsError) as raised:
        application.upgrade()
    assert raised.value.jobs == {("default", "running"): 1}
    set_status(application.engine, job_id, "status = 'completed', leased_by = NULL, completed_at = now()")
    application.upgrade()
    assert has_parcels(application.engine)


@one_server
def test_the_error_says_how_many_where_for_how_long_and_what_to_do(queue_engine: Engine) -> None:
    for queue in ("parcels", "parcels", "express"):
        add_and_commit(queue_engine, queue=queue)
    add_and_commit(queue_engine, queue="parcels", scheduled_at="2099-01-01T00:00:00Z")
    with queue_engine.connect() as connection:
        with pytest.raises(OpenJobsError) as raised:
            no_jobs().check(connection)
        message = str(raised.value)
        assert "jobs of type 'ship' below version 2 are open at 20" in message
        assert "1 pending in queue 'express', 3 pending in queue 'parcels'" in message
        assert "Time until they have ended: not known; the last of them is due at 2099-01-01" in message
        assert "workers: none seen. schedules: none seen" in message
        for command in (
            "sa-jobqueue jobs list --type ship",
            "sa-jobqueue worker OLD --until-idle",
            "UPDATE job SET input = ..., input_version = 2 WHERE type_name = 'ship' AND input_version < 2 AND status IN",
            "or cancel them, whatever their version (sa-jobqueue jobs cancel --type ship --dry-run)",
        ):
            assert command in message
        minute = "date_trunc('minute', now()) - interval '{} minutes', '{}', '{}', 0, {}, 0, 1, 0, 0, 0, '{{}}', '{{}}'"
        rows = [
            minute.format(age, *names) for age in (2, 3) for names in (("", "", 50), ("parcels", "ship", 2), ("x", "y", 9))
        ]
        for row in rows:
            connection.execute(text(f"INSERT INTO job_minute VALUES ({row})"))
        worker = (
            "INSERT INTO worker (id, name, host, pid, version, queues, job_types, concurrency, type_versions, heartbeat_at)"
        )
        types = """'{parcels}', '{ship}', 1, '{"ship": 1}'"""
        connection.execute(text(f"{worker} VALUES ('w-1', 'w', 'h', 1, '1', {types}, now())".replace(":", "\\:")))
        connection.execute(
            text(f"{worker} VALUES ('w-2', 'w', 'h', 1, '1', {types}, now() - interval '1 h')".replace(":", "\\:"))
        )
        schedule = "INSERT INTO schedule (name, type_name, input_version, cron, paused_at) VALUES"
        connection.execute(text(f"{schedule} ('nightly', 'ship', 1, '@daily', NULL), ('new', 'ship', 2, '@daily', NULL)"))
        connection.execute(
            text(f"{schedule} ('recorded', 'ship', NULL, '@daily', now()), ('other', 'bill', 1, '@daily', NULL)")
        )
        with pytest.raises(OpenJobsError) as raised:
            no_jobs().check(connection)
        # 6 ended in 2 minutes: 4 jobs take 80 s.
        assert "about 1 min 20 s at the rate of the last 2 recorded minutes (6 ended, of all versions)" in str(raised.value)
        assert "workers: w-1 (version 1). schedules: nightly, recorded (paused)" in str(raised.value)


@one_server
@pytest.mark.parametrize(
    ("options", "is_refused"),
    [
        ({}, True),
        ({"below_version": None}, True),
        ({"below_version": 3}, True),
        ({"type_name": "bill"}, False),
        ({"queue": "parcels"}, True),
        ({"queue": "express"}, False),
        ({"queue": "parcels", "type_name": None, "below_version": None}, True),
        ({"queue": "express", "type_name": None, "below_version": None}, False),
    ],
)
def test_the_condition_is_by_type_version_and_queue(queue_engine: Engine, options: Any, is_refused: bool) -> None:
    add_and_commit(queue_engine, queue="parcels")
    block = no_jobs(**options).block()
    with queue_engine.connect() as connection:
        if not is_refused:
            no_jobs(**options).check(connection)
            run_script(queue_engine, block)
            return
        with pytest.raises(OpenJobsError):
            no_jobs(**options).check(connection)
    with pytest.raises(RaiseException, match=r"are open at .*: 1 pending in queue parcels"):
        run_script(queue_engine, block)


@one_server
def test_a_blocked_job_is_open(queue_engine: Engine) -> None:
    with queue_engine.begin() as connection:
        first = add(connection, 2)
        blocked = add(connection, status="blocked", open_blockers=1)
        blocker = "INSERT INTO job_blocker (job_id, blocked_by_chain_id, index) VALUES (:job, :chain, 0)"
        connection.execute(text(blocker), {"job": blocked, "chain": first})
        with pytest.raises(OpenJobsError) as raised:
            no_jobs().check(connection)
    assert raised.value.jobs == {("default", "blocked"): 1}


@one_server
def test_dead_letters_are_counted_and_refused_if_asked(queue_engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with queue_engine.begin() as connection:
        letter = "INSERT INTO dead_letter (id, job_id, chain_id, queue, type_name, input, input_version, reason, attempts)"
        values = {"id": uuid4(), "job": uuid4()}
        connection.execute(text(f"{letter} VALUES (:id, :job, :job, 'default', 'ship', 'null', 1, 'exhausted', 1)"), values)
    with queue_engine.connect() as connection, caplog.at_level(logging.INFO, "sa_jobqueue.migrations"):
        no_jobs().check(connection)
        assert "Unresolved dead letters: 1 (allowed; see include_dead)" in caplog.text
        with pytest.raises(OpenJobsError) as raised:
            no_jobs(include_dead=True).check(connection)
        assert (raised.value.jobs, raised.value.dead_letters) == ({}, 1)
        assert str(raised.value).startswith("no open jobs of type 'ship' below version 2 were committed at 20")
    run_script(queue_engine, no_jobs().block())
    with pytest.raises(RaiseException, match="dead letters of jobs of type 'ship' below version 2"):
        run_script(queue_engine, no_jobs(include_dead=True).block())


@one_server
@pytest.mark.parametrize("commits", [True, False])
def test_a_job_that_an_older_transaction_has_not_committed_is_awaited(queue_engine: Engine, commits: bool) -> None:
    with queue_engine.connect() as producer, queue_engine.connect() as connection:
        add(producer)
        pauses: list[float] = []

        def end_the_older_transaction(seconds: float) -> None:
            pauses.append(seconds)
            producer.commit() if commits else producer.rollback()
            add(producer, 2)  # a later transaction of the same session, which is not awaited

        condition = no_jobs(patience=timedelta(minutes=1))
        if not commits:
            condition.check(connection, sleep=end_the_older_transaction)
        else:
            with pytest.raises(OpenJobsError) as raised:
                condition.check(connection, sleep=end_the_older_transaction)
            assert raised.value.jobs == {("default", "pending"): 1}
        assert len(pauses) == 1


def test_what_an_older_transaction_enqueues_is_not_known_when_the_patience_is_over(queue_engine: Engine) -> None:
    with queue_engine.connect() as producer, queue_engine.connect() as connection:
        producer.execute(text("SET application_name = 'shop'"))
        add(producer, 2)
        with pytest.raises(OpenJobsError, match=r"have not ended within 0 s, and what they enqueued is not known") as raised:
            no_jobs().check(connection)
        assert f"process {producer.scalar(text('SELECT pg_backend_pid()'))} (shop)" in str(raised.value)
        assert raised.value.jobs == {}
        with pytest.raises(RaiseException, match="older transactions wrote to the job table and go on"):
            run_script(queue_engine, no_jobs().block())
        connection.rollback()
        producer.rollback()
        producer.execute(text("SELECT FROM job"))  # readers are not awaited
        no_jobs().check(connection)


@one_server
def test_the_block_waits_for_older_transactions(queue_engine: Engine) -> None:
    with queue_engine.connect() as producer:
        add(producer)
        body = no_jobs(patience=timedelta(minutes=1)).block()
        producer.execute(text("CREATE FUNCTION pg_temp.x() RETURNS void LANGUAGE sql AS 'SELECT'"))
        pid = producer.scalar(text("SELECT pg_backend_pid()"))
        # It ends the older transaction itself, in the place of its pause.
        assert "pg_sleep(0.1)" in body
        with pytest.raises(RaiseException, match="go on"):
            run_script(queue_engine, body.replace("'60.0 s'", "'0.2 s'"))
        run_script(queue_engine, body.replace("pg_sleep(0.1)", f"pg_terminate_backend({pid}, 5000)"))
        producer.invalidate()


def test_a_job_that_is_enqueued_during_the_migration_is_caught_at_its_end(
    make_application: MakeApplication, engine: Engine
) -> None:
    application = make_application(PLAIN_MODELS)
    application.autogenerate()
    application.upgrade()
    application.revision(upgrade=f"{REQUIRE}; op.execute('CREATE TABLE parcel ()')", downgrade="pass")

    @event.listens_for(Engine, "after_cursor_execute")
    def enqueue_meanwhile(_: Any, cursor: Any, statement: str, *more: Any) -> None:
        if statement == "CREATE TABLE parcel ()":
            add_and_commit(engine)

    try:
        with pytest.raises(OpenJobsError) as raised:
            application.upgrade()
    finally:
        event.remove(Engine, "after_cursor_execute", enqueue_meanwhile)
    assert raised.value.jobs == {("default", "pending"): 1}
    assert not has_parcels(engine)


@one_server
def test_the_second_check_belongs_to_one_transaction(queue_engine: Engine) -> None:
    with queue_engine.connect() as connection:
        no_jobs().check(connection)
        connection.rollback()
        add(connection)
        connection.commit()
        connection.execute(text("DELETE FROM job"))
        no_jobs().check(connection)
        add(connection)
        with pytest.raises(OpenJobsError):
            connection.commit()
    with queue_engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM job")) == 1


def test_rows_that_row_security_hides_are_not_taken_for_absent(queue_engine: Engine) -> None:
    role = f"migrator_{uuid4().hex[:8]}"
    with queue_engine.connect() as connection:
        for statement in (
            f"CREATE ROLE {role}",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}",
            "REVOKE USAGE ON SCHEMA public FROM PUBLIC",
            "ALTER TABLE job ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY tenants ON job USING (fairness_key = 'a')",
        ):
            connection.execute(text(statement))
        connection.commit()
        try:
            no_jobs().check(connection)  # the owner sees all
            connection.execute(text(f"SET ROLE {role}"))
            with pytest.raises(OpenJobsError, match="in a schema of the search path that this role may not use: public"):
                no_jobs().check(connection)
            with pytest.raises(Exception, match="this role may not use"):
                connection.exec_driver_sql(no_jobs().block())
            connection.rollback()
            connection.execute(text(f"GRANT USAGE ON SCHEMA public TO {role}"))
            connection.commit()
            connection.execute(text(f"SET ROLE {role}"))
            with pytest.raises(OpenJobsError, match=rf"it is not known .* hide rows of job from role {role}"):
                no_jobs().check(connection)
            with pytest.raises(Exception, match="row-level security may hide rows"):
                connection.exec_driver_sql(no_jobs().block())
            connection.rollback()
            connection.execute(text("CREATE POLICY all_rows ON job FOR SELECT USING (true); DROP POLICY tenants ON job"))
            connection.execute(text("ALTER TABLE worker ENABLE ROW LEVEL SECURITY"))
            connection.execute(text(f"SET LOCAL ROLE {role}"))
            connection.execute(text("RESET ROLE"))
            add(connection)
            connection.execute(text(f"SET LOCAL ROLE {role}"))
            with pytest.raises(
                OpenJobsError, match=f"row-level security may hide rows of worker from role {role}"
            ) as raised:
                no_jobs().check(connection)
            assert raised.value.jobs == {("default", "pending"): 1}
            with pytest.raises(Exception, match="are open at"):
                connection.exec_driver_sql(no_jobs().block())
        finally:
            connection.rollback()
            connection.execute(text("RESET ROLE"))
            connection.execute(text(f"DROP OWNED BY {role}; DROP ROLE {role}"))
            connection.commit()


@one_server
def test_absent_tables_pass_and_a_table_of_the_application_does_not(engine: Engine) -> None:
    with engine.begin() as connection:
        no_jobs().check(connection)
    run_script(engine, no_jobs().block())
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE job (id int)"))
        with pytest.raises(SchemaError, match="does not mark it as a job queue"):
            no_jobs().check(connection)


@one_server
def test_the_tables_of_another_class_are_named_by_schema_and_prefix(engine: Engine) -> None:
    layout = Layout("jobs", "mail_", "text")
    with engine.begin() as connection:
        runner.upgrade(connection, layout)
        connection.execute(
            text("INSERT INTO jobs.mail_job (id, chain_id, type_name, chain_type_name) VALUES ('a', 'a', 'ship', 'ship')")
        )
    migrate(engine, lambda op: op.require_no_jobs("ship"))
    with pytest.raises(OpenJobsError):
        migrate(engine, lambda op: op.require_no_jobs("ship", schema="jobs", prefix="mail_"))


@one_server
def test_a_downgrade_does_nothing(application: Application) -> None:
    application.upgrade()
    add_and_commit(application.engine)
    assert "DO $" not in application.downgrade("head:-1", sql=True)
    application.downgrade("-1")
    assert not has_parcels(application.engine)


def test_offline_it_is_a_block_that_raises(application: Application) -> None:
    script = application.upgrade(sql=True)
    (block,) = [part for part in script.split(";\n\n") if "ON_ERROR_STOP" in part]
    assert "-- psql goes on after an error unless it is started with -v ON_ERROR_STOP=1\nDO $sa_jobqueue$" in block
    job_id = add_and_commit(application.engine)
    with pytest.raises(RaiseException, match=r"below version 2 are open at .*: 1 pending in queue default") as raised:
        run_script(application.engine, f"{block};")
    assert "sa-jobqueue jobs cancel --type ship" in (raised.value.diag.message_hint or "")
    set_status(application.engine, job_id, "status = 'cancelled', completed_at = now()")
    run_script(application.engine, f"{block};")


@one_server
def test_a_snapshot_that_sees_no_later_commits_is_refused(queue_engine: Engine) -> None:
    engine = queue_engine.execution_options(isolation_level="REPEATABLE READ")
    with engine.connect() as connection:
        with pytest.raises(OpenJobsError, match="a repeatable read transaction sees no job that is committed meanwhile"):
            no_jobs().check(connection)
        with pytest.raises(Exception, match="a read committed transaction is needed"):
            connection.exec_driver_sql(no_jobs().block())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"type_name": None, "below_version": None}, InvalidOptionError),
        ({"type_name": None, "queue": "a"}, InvalidOptionError),
        ({"below_version": 1}, InvalidOptionError),
        ({"patience": timedelta(seconds=-1)}, InvalidOptionError),
        ({"type_name": ""}, InvalidJobError),
        ({"queue": "\0"}, InvalidJobError),
    ],
)
def test_wrong_conditions_are_refused(options: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        no_jobs(**options)


@one_server
def test_the_schema_may_have_any_name(engine: Engine) -> None:
    layout = Layout("o'clock $$ \"\\ % :x", id_type="text")
    with engine.begin() as connection:
        runner.upgrade(connection, layout)
        connection.execute(
            verbatim(
                f"INSERT INTO {layout.qualified('job')} (id, chain_id, type_name, chain_type_name) "
                "VALUES ('a', 'a', 'ship', 'ship')"
            )
        )
    with engine.connect() as connection, pytest.raises(OpenJobsError):
        no_jobs(layout=layout).check(connection)
    with pytest.raises(RaiseException, match="are open"):
        run_script(engine, no_jobs(layout=layout).block())


STAGES = ("migrate", "new workers", "old workers stop", "new producers")


@one_server
@pytest.mark.slow
@pytest.mark.parametrize("order", list(itertools.permutations(STAGES)), ids=", ".join)
async def test_a_rolling_deploy_in_any_order_leaves_no_dead_letter(queue_engine: Engine, order: tuple[str, ...]) -> None:
    """Jobs of version 1 need a table that the migration drops; new workers convert them as long as it is there."""
    engine, shipped = queue_engine, list[int]()
    write(engine, "CREATE TABLE address (id int)")

    def deployed(version: int) -> JobQueue[Any]:
        jobs: JobQueue[Any] = JobQueue()

        @jobs.handler("ship", version=version, max_attempts=1)
        def ship(order: int) -> None:
            shipped.append(order)

        return jobs

    def from_addresses(payload: Any) -> Any:
        assert scalar(engine, "SELECT to_regclass('address') IS NOT NULL")
        return payload

    old, new = deployed(1), deployed(2)
    new["ship"].upcast(from_version=1)(from_addresses)
    producer, workers, sent, stages = old, [old], 0, list(order)
    for stage in stages:  # grows when the migration is refused
        enqueue(engine, producer.job("ship", sent := sent + 1))
        if stage == "migrate":
            try:
                migrate(engine, lambda op: (op.require_no_jobs("ship", below_version=2), op.drop_table("address")))
            except OpenJobsError:
                stages.append(stage)
        elif stage == "new workers":
            workers.append(new)
        elif stage == "old workers stop":
            workers.remove(old)
        else:
            producer = new
        for worker in workers:
            await drain(worker, engine)
    for worker in workers:
        await drain(worker, engine)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM dead_letter")) == 0
        assert connection.scalar(text("SELECT to_regclass('address') IS NULL"))
    assert sorted(shipped) == list(range(1, sent + 1))


def migrate(engine: Engine, upgrade: Callable[[Any], object]) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        with Operations.context(context) as op, context.begin_transaction():
            upgrade(op)


@one_server
def test_the_check_does_not_read_the_jobs_that_have_ended(queue_engine: Engine) -> None:
    with queue_engine.connect() as connection:
        connection.execute(
            text(
                "INSERT INTO job (id, chain_id, type_name, chain_type_name) "
                "SELECT id, id, 'ship', 'ship' FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, 20000)) AS jobs"
            )
        )
        connection.execute(text("UPDATE job SET status = 'cancelled', completed_at = now()"))
        add(connection)
        connection.execute(text("ANALYZE job"))
        statements = {"migration": no_jobs()._open_jobs, "deploy": str(deployments.open_jobs(Job).compile(queue_engine))}
        for name, statement in statements.items():
            plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {statement}").scalars())
            assert "Seq Scan on job" not in plan, name
            assert {"ix_job_claim", "ix_job_running", "ix_job_blocked_or_dead"} <= {*re.findall(r"ix_job_\w+", plan)}, plan
