"""Commits with a NOTIFY that wait for each other: the first waits for a standby, with the lock that the others need."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from sqlalchemy import Engine, text

from sa_jobqueue.observe.health import Code, health
from tests.fixtures.database import own_database
from tests.fixtures.workers import wait_until

pytestmark = own_database


@pytest.fixture
def no_standby(engine: Engine) -> Iterator[None]:
    """Make commits that ask for a standby wait; nothing in the tests' server does."""
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("ALTER SYSTEM SET synchronous_standby_names = 'nobody'"))
        connection.execute(text("SELECT pg_reload_conf()"))
        yield
        connection.execute(text("ALTER SYSTEM RESET synchronous_standby_names"))
        connection.execute(text("SELECT pg_reload_conf()"))


@pytest.mark.usefixtures("no_standby")
def test_commits_that_wait_for_the_lock_of_notifications_are_a_finding(engine: Engine) -> None:
    def notify(durability: str) -> None:
        with engine.begin() as connection:
            connection.execute(text(f"SET LOCAL synchronous_commit = {durability}"))
            connection.execute(text("CREATE TEMPORARY TABLE written ON COMMIT DROP AS SELECT 1"))
            connection.execute(text("NOTIFY application"))

    def found() -> list[int]:
        return [finding.evidence["waiting"] for finding in health(engine).findings if finding.code is Code.NOTIFY_CONTENDED]

    with ThreadPoolExecutor() as threads:
        holder = threads.submit(notify, "on")
        waits = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            wait_until(lambda: connection.execute(waits).scalar() == 1)
            assert found() == []
            notifies = [threads.submit(notify, "off") for _ in range(3)]
            wait_until(lambda: found() == [3])
            connection.execute(text("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
        wait([holder, *notifies])
    assert found() == []
