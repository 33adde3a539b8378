"""Who holds back vacuum: each kind for real, and the same number from a VACUUM, which must respect it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import JobQueue, Worker
from sa_jobqueue.display.printable import shortened
from sa_jobqueue.events import JobCompleted
from sa_jobqueue.observe.health import Code, Severity, Thresholds, health
from sa_jobqueue.observe.health.figures import Holder, HolderKind
from sa_jobqueue.observe.health.findings import described
from sa_jobqueue.statements.session_names import session_name
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.holders import Holders
from tests.fixtures.transactions import write
from tests.fixtures.workers import PATIENCE, quick, until, wait_until, working

pytestmark = own_database

AT_ONCE = Thresholds(horizon_warning=timedelta(microseconds=1), horizon_age_warning=5)

KINDS: list[tuple[str, Callable[[Holders], AbstractContextManager[Any]], HolderKind, str, str]] = [
    (
        "a reader",
        lambda of: of.session("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 'secret', 7 FROM pg_class"),
        HolderKind.SESSION,
        "Session {pid} 'report' of postgres, idle in transaction",
        "SELECT pg_terminate_backend({pid})",
    ),
    (
        "a writer",
        lambda of: of.session("BEGIN", "SELECT pg_current_xact_id()"),
        HolderKind.SESSION,
        "Session {pid} 'report' of postgres, idle in transaction",
        "idle_in_transaction_session_timeout",
    ),
    (
        "a prepared transaction",
        lambda of: of.prepared("its forgotten"),
        HolderKind.PREPARED_TRANSACTION,
        "The prepared transaction 'its forgotten' of postgres",
        "COMMIT PREPARED 'its forgotten'",
    ),
    (
        "a slot",
        lambda of: of.slot("gone_standby"),
        HolderKind.REPLICATION_SLOT,
        "The inactive replication slot 'gone_standby'",
        "SELECT pg_drop_replication_slot('gone_standby')",
    ),
    (
        "a standby",
        lambda of: of.standby("east"),
        HolderKind.STANDBY_FEEDBACK,
        "The standby 'east' (pid {pid}), by hot_standby_feedback,",
        "turn hot_standby_feedback off",
    ),
]


@pytest.mark.slow
@both_servers
@pytest.mark.parametrize(("hold", "kind", "who", "cure"), [kind[1:] for kind in KINDS], ids=[kind[0] for kind in KINDS])
def test_the_reported_xmin_horizon_matches_vacuum_and_names_its_holder(
    hold: Callable[[Holders], AbstractContextManager[Any]],
    kind: HolderKind,
    who: str,
    cure: str,
    holders: Holders,
    engine: Engine,
) -> None:
    with holders.session("BEGIN", "SELECT pg_current_xact_id()", database="postgres"):  # in another database: no holder
        with hold(holders) as pid:
            holders.burn(10)
            cutoff = holders.cutoff()
            before = holders.next_xid()
            report = health(engine, thresholds=AT_ONCE)
            after = holders.next_xid()  # an autovacuum may have come by
            (holder,) = report.horizon.holders
            assert holder.kind is kind
            assert int(holder.xmin) == cutoff
            assert report.horizon.age == holder.age
            assert 10 <= before - cutoff <= holder.age <= after - cutoff
            assert described(holder) == who.format(pid=pid)
            (finding,) = report.findings
            assert (finding.code, finding.severity) == (Code.HORIZON, Severity.WARNING)
            assert finding.summary.startswith(who.format(pid=pid))
            assert cure.format(pid=pid) in finding.advice
            assert "secret" not in str(report)
        wait_until(lambda: not health(engine).horizon.holders, description="the horizon's release")
        wait_until(lambda: holders.cutoff() == holders.next_xid(), description="a horizon that nobody holds")


@pytest.mark.slow
@both_servers
@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_handlers_session_is_reported_with_its_job(
    mode: str, engine: Engine, async_engine: AsyncEngine, sessions: sessionmaker[Session], holders: Holders
) -> None:
    queue: JobQueue[Any] = JobQueue()
    go = threading.Event()

    @queue.handler("slow")
    def slow(payload: None, session: Session) -> None:
        session.execute(text("SELECT pg_current_xact_id()"))
        with session.begin_nested():
            assert go.wait(PATIENCE)

    @queue.handler("slow_async")
    async def slow_async(payload: None, session: AsyncSession) -> None:
        await session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))  # must come first, and does
        await session.execute(text("SELECT 1 FROM pg_class"))
        await asyncio.to_thread(go.wait, PATIENCE)

    job = slow.job(None) if mode == "sync" else slow_async.job(None)
    job_id, type_name = job.id, job.type_name
    with sessions.begin() as session:
        session.add(job)
    factories: dict[str, Any] = {"session_factory": sessions, "async_session_factory": async_sessionmaker(async_engine)}
    worker = Worker(queue, engine, options=quick(), **factories)

    def held() -> list[Holder]:
        found = health(engine, thresholds=AT_ONCE).horizon.holders
        return [holder for holder in found if holder.kind is HolderKind.HANDLER]

    async with working(worker):
        await until(lambda: bool(held()), description="the handler's session among the holders")
        holders.burn(10)
        report = await asyncio.to_thread(health, engine, thresholds=AT_ONCE)
        (holder,) = [one for one in report.horizon.holders if one.kind is HolderKind.HANDLER]
        assert (holder.job_id, holder.type_name, holder.attempt) == (job_id, type_name, 1)
        assert holder.name == session_name(job_id)
        (finding,) = [one for one in report.findings if one.code is Code.HORIZON and one.evidence.get("job_id")]
        assert finding.summary.startswith(f"The handler of {type_name} {job_id} (pid {holder.pid}, attempt 1 on tester")
        assert f"sa-jobqueue jobs cancel {job_id}" in finding.advice
        assert int(holder.xmin) >= holders.cutoff()
        go.set()
        await until(lambda: holders.number("SELECT count(*) FROM job WHERE status = 'completed'") == 1)
        # The connection is back in its pool, and has its own name again.
        named = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'sa_jobqueue job %'"
        await until(lambda: holders.number(named) == 0, description="its own name")


async def test_a_handler_that_does_not_use_its_session_costs_no_statement(
    engine: Engine, sessions: sessionmaker[Session]
) -> None:
    queue: JobQueue[Any] = JobQueue()
    executed: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        executed.append(statement)

    @queue.handler("idle")
    def idle(payload: None, session: Session) -> None: ...

    @queue.handler("busy")
    def busy(payload: None, session: Session) -> None:
        session.execute(text("SELECT 1"))
        with session.begin_nested():
            session.execute(text("SELECT 2"))

    with sessions.begin() as session:
        session.add_all([idle.job(None), busy.job(None)])
    async with working(Worker(queue, engine, session_factory=sessions, options=quick())) as log:
        await log.until(JobCompleted, 2)
    assert sum("SET LOCAL application_name" in statement for statement in executed) == 1


@both_servers
def test_without_pg_monitor_the_report_says_what_it_cannot_see(engine: Engine, holders: Holders, database_url: str) -> None:
    role = f"observer_{engine.url.database}"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN"))
        connection.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"))
    observer = create_engine(engine.url.set(username=role))
    try:
        with holders.session("BEGIN", "SELECT pg_current_xact_id()") as pid:
            holders.burn(10)
            report = health(observer, thresholds=AT_ONCE)
            (holder,) = report.horizon.holders
            assert (holder.pid, holder.name, holder.user) == (pid, "report", "postgres")
            assert (holder.age >= 10, holder.held_for, holder.query, holder.state) == (True, None, None, None)
            assert {finding.code for finding in report.findings} == {Code.HORIZON, Code.CANNOT_SEE}
            write(engine, f"GRANT pg_monitor TO {role}")
            observer.dispose()
            (holder,) = health(observer).horizon.holders
            assert (holder.held_for is not None, holder.state) == (True, "idle in transaction")
            assert {finding.code for finding in health(observer, thresholds=AT_ONCE).findings} == {Code.HORIZON}
    finally:
        observer.dispose()
        with engine.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))


def test_the_health_report_holds_no_snapshot_between_statements(engine: Engine, holders: Holders) -> None:
    seen: list[int] = []
    watched = create_engine(engine.url, isolation_level="REPEATABLE READ")  # whatever the application's own default is

    @event.listens_for(watched, "before_cursor_execute")
    def count_snapshots(connection: Any, *_: Any) -> None:
        pid = connection.connection.dbapi_connection.info.backend_pid
        seen.append(
            holders.number(f"SELECT count(coalesce(backend_xmin, backend_xid)) FROM pg_stat_activity WHERE pid = {pid}")
        )

    health(watched)
    watched.dispose()
    assert len(seen) > 10
    assert set(seen) == {0}


def test_a_query_is_shown_without_literals() -> None:
    assert shortened("SELECT *\n  FROM t WHERE a = 'it''s' AND b = 42 AND c = $$x$$") == (
        "SELECT * FROM t WHERE a = ? AND b = ? AND c = ?"
    )
    assert shortened("ALTER ROLE a PASSWORD 'cut off at five hun") == "ALTER ROLE a PASSWORD ?"
    assert shortened("SELECT job.id2 FROM job WHERE id = $1") == "SELECT job.id2 FROM job WHERE id = $1"
    assert len(shortened("SELECT " + "a, " * 500) or "") == 120
    assert shortened(None) is None


def test_a_session_name_is_plain_ascii_and_fits_application_name() -> None:
    assert session_name("a'b\\c;é") == "sa_jobqueue job a?b?c??"
    assert len(session_name("x" * 500)) == 63
    held = Holder(
        kind=HolderKind.SESSION, xmin="1", age=1, held_for=None, pid=7, name=None, user="a", state=None, query=None
    )
    assert described(held) == "Session 7 of a"
