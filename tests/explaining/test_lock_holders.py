"""Whose locks others wait for: the ends of the chains of waiting sessions, and the advice about them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job
from sa_jobqueue.observe.health import Code, health
from sa_jobqueue.operations import Cause, explain_job
from sa_jobqueue.operations.lock_holders import LockHolder, list_lock_holders, lock_holders
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.fixtures.workers import wait_until


@contextmanager
def session_named(engine: Engine, name: str) -> Iterator[Any]:
    """Yield a connection with an application name."""
    other = create_engine(engine.url, connect_args={"application_name": name})
    with other.connect() as connection:
        yield connection
    other.dispose()


@both_servers
@pytest.mark.parametrize("name", ["sa_jobqueue web-1", "sa_jobqueue dashboard", "sa_jobqueue job 7"])
def test_a_session_of_this_library_is_never_advised_to_be_ended(
    name: str, engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.add_worker()
    job = jobs.add(due_in=-90)
    with session_named(engine, name) as holder:
        holder.execute(select(Job.id).where(Job.id == job).with_for_update())
        with Session(engine) as session:
            assert explain_job(session, job).cause is Cause.READY  # the claim of a healthy worker
            session.rollback()
            monkeypatch.setattr("sa_jobqueue.operations.lock_holders.MIN_LOCKED", timedelta(0))
            explained = explain_job(session, job)
        reports = str(health(engine).findings)
    assert explained.cause is Cause.LOCKED
    assert f"{name!r} of postgres, idle in transaction, in a transaction for" in explained.sentence
    remedy = "jobs cancel 7" if name.endswith("7") else f"a session of sa-jobqueue: see the log of {name[12:]!r}"
    assert remedy in explained.sentence
    assert "pg_terminate_backend" not in explained.sentence + reports


@both_servers
def test_the_root_of_a_chain_of_waiting_sessions_is_named_with_the_one_in_between(engine: Engine, jobs: Jobs) -> None:
    """As of an ALTER TABLE that waits for a reader, and all statements behind it."""
    jobs.add_worker()
    jobs.add(due_in=-90)
    with (
        session_named(engine, "metabase") as reader,
        session_named(engine, "deploy") as deploy,
        session_named(engine, "sa_jobqueue tester") as worker,
        ThreadPoolExecutor() as threads,
        Session(engine) as session,
    ):
        root = reader.exec_driver_sql("SELECT pg_backend_pid() FROM job LIMIT 1").scalar_one()
        pids = {connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() for connection in (deploy, worker)}
        [connection.rollback() for connection in (deploy, worker)]
        waiting = [
            threads.submit(deploy.exec_driver_sql, "ALTER TABLE job ADD COLUMN note text"),
        ]
        wait_until(lambda: list_lock_holders(session, Job) != [], description="the ALTER TABLE to wait")
        waiting.append(threads.submit(worker.exec_driver_sql, "SELECT count(*) FROM job"))

        def holder() -> LockHolder:
            (lock_holder,) = list_lock_holders(session, Job)
            return lock_holder

        wait_until(lambda: set(holder().waiters) == pids, description="the worker to wait")
        lock_holder = holder()
        report = health(engine, timeout=timedelta(seconds=1))
        reader.rollback()
        waiting[0].result()
        deploy.rollback()
        waiting[1].result()
    assert (lock_holder.pid, lock_holder.name, lock_holder.state) == (root, "metabase", "idle in transaction")
    assert lock_holder.through.endswith("'deploy' of postgres (ALTER TABLE job ADD COLUMN note text)")
    (missing,) = [finding for finding in report.findings if finding.code is Code.NOT_MEASURED]
    assert f"Session {root} 'metabase' of postgres, idle in transaction, in a transaction for " in missing.summary
    assert "holds a lock, which session" in missing.summary
    assert "'deploy' of postgres (ALTER TABLE job ADD COLUMN note text) waits for, and others behind it." in missing.summary
    assert "pg_terminate_backend" not in missing.advice.replace(f"pg_terminate_backend({root})", "")


@both_servers
def test_a_role_without_rights_names_the_session_but_not_its_age(engine: Engine, jobs: Jobs) -> None:
    role = f"looks_{engine.url.database}"
    jobs.add_worker()
    job = jobs.add(due_in=-90)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN"))
        connection.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"))
    other = create_engine(engine.url.set(username=role))
    try:
        with session_named(engine, "psql") as holder, Session(other) as session:
            holder.execute(select(Job.id).where(Job.id == job).with_for_update())
            sentence = explain_job(session, job).sentence
        with session_named(engine, "sa_jobqueue web-1") as claim, Session(other) as session:
            claim.execute(select(Job.id).where(Job.id == job).with_for_update())
            assert explain_job(session, job).cause is Cause.READY
    finally:
        other.dispose()
        with engine.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))
    assert "'psql' of postgres (since when is not visible to this role) has locked its row; GRANT pg_monitor" in sentence
    assert "pg_terminate_backend" not in sentence


graphs = st.dictionaries(st.integers(1, 9), st.sets(st.integers(0, 9), max_size=3), max_size=9)


@given(graphs, st.data())
def test_the_roots_of_any_waits_wait_for_nothing_and_block_a_session_of_the_queue(
    graph: dict[int, set[int]], data: st.DataObject
) -> None:
    """The oracle follows the edges from each waiter, one step after the other."""
    edges = {pid: blockers - {pid} for pid, blockers in graph.items()}
    pids = set(edges).union(*edges.values())
    workers = data.draw(st.sets(st.sampled_from(sorted(pids)))) if pids else set()
    rows = [
        {
            "pid": pid,
            "name": f"sa_jobqueue {pid}" if pid in workers else "other",
            **dict.fromkeys(("user", "kind", "state", "query", "locked_for", "table")),
            "waited_for": timedelta(seconds=pid) if pid in edges else None,
            "blockers": sorted(edges[pid]) if pid in edges else None,
            "is_of_table": False,
            "is_waiting": pid in edges,
        }
        for pid in sorted(pids)
    ]
    waiters_by_root: dict[int, set[int]] = {}
    for waiter in workers & set(edges):
        reached, step = {waiter}, {waiter}
        while step := set().union(*(edges.get(pid, set()) for pid in step)) - reached:
            reached |= step
        for root in reached - set(edges):
            waiters_by_root.setdefault(root, set()).add(waiter)
    assert {holder.pid or 0: set(holder.waiters) for holder in lock_holders(rows)} == waiters_by_root
