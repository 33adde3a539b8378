"""Vacuum and rebuilt indexes by hand: what they did, whom they did not wait for, and who keeps dead rows alive."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.observe import maintenance
from sa_jobqueue.observe.health import health
from sa_jobqueue.observe.health.figures import HolderKind
from tests.fixtures.commands import Run, document
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.holders import Holders
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import write

pytestmark = own_database

SHORT = timedelta(milliseconds=300)


@pytest.fixture
def dead(engine: Engine, jobs: Jobs) -> Callable[[], None]:
    """Give a function that leaves dead rows in `job`."""

    def make() -> None:
        jobs.add_many(2000)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("DELETE FROM job"))
            connection.execute(text("SELECT pg_stat_force_next_flush()"))

    return make


@pytest.mark.slow
@both_servers
def test_vacuum_reports_removed_rows_and_who_keeps_the_rest(
    engine: Engine, run: Run, dead: Callable[[], None], holders: Holders
) -> None:
    with holders.session("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1", name="report") as pid:
        dead()
        (job,) = maintenance.vacuum(engine, tables=["job"])
        assert (job.dead_before >= 2000, job.dead_after, job.skipped) == (True, 2000, None)
        assert job.kept_for is not None
        assert (job.kept_for.kind, job.kept_for.pid) == (HolderKind.SESSION, pid)
        printed = run("vacuum").output
        assert "2,000 dead rows of job are kept by " in printed
        assert "report" in printed
        run("vacuum", "worker")
    (job,) = maintenance.vacuum(engine, tables=["job"])
    assert (job.dead_after, job.kept_for) == (0, None)
    every = document(run("vacuum", "--json"))["vacuumed"]
    assert [row["table"] for row in every] == ["dead_letter", "job", "job_attempt", "job_blocker", "rate_state", "worker"]


@both_servers
def test_maintenance_skips_and_reports_locked_or_unowned_tables(
    engine: Engine, database_url: str, run: Run, holders: Holders
) -> None:
    with holders.session("BEGIN", "LOCK TABLE job IN SHARE UPDATE EXCLUSIVE MODE"):
        skipped = {vacuumed.table: vacuumed.skipped for vacuumed in maintenance.vacuum(engine, lock_timeout=SHORT)}
        assert skipped.pop("job") == "lock not available within the lock timeout"
        assert set(skipped.values()) == {None}
        assert "lock not available" in run("vacuum", "job", "--lock-timeout", "0.1s", status=1).output
    with engine.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS maintenance_guest"))
        connection.execute(text("CREATE ROLE maintenance_guest LOGIN"))
        connection.execute(text("GRANT SELECT ON ALL TABLES IN SCHEMA public TO maintenance_guest"))
    guest = create_engine(make_url(database_url).set(username="maintenance_guest"))
    assert [vacuumed.skipped for vacuumed in maintenance.vacuum(guest, tables=["job"])] == [
        "permission denied: not the owner of the table"
    ]
    (index,) = maintenance.reindex(guest, indexes=["ix_job_claim"])
    assert index.skipped is not None
    assert index.skipped.startswith(("must be owner of", "permission denied for"))
    guest.dispose()
    with engine.begin() as connection:
        connection.execute(text("DROP OWNED BY maintenance_guest"))
        connection.execute(text("DROP ROLE maintenance_guest"))


@pytest.mark.long
@both_servers
def test_reindex_shrinks_an_index_and_drops_leftovers_of_a_failed_rebuild(
    engine: Engine, run: Run, dead: Callable[[], None], jobs: Jobs, holders: Holders
) -> None:
    dead()
    maintenance.vacuum(engine, tables=["job"])
    jobs.add_many(10)
    assert maintenance.reindex(engine) == []  # not worth it
    with holders.session("BEGIN", "SELECT count(*) FROM job") as _:
        (claim,) = maintenance.reindex(engine, indexes=["ix_job_claim"], lock_timeout=timedelta(seconds=3))
        assert claim.skipped == "lock not available within the lock timeout"
    invalid = [index.name for index in health(engine).indexes if not index.is_valid]
    assert invalid in (["ix_job_claim_ccnew"], ["ix_job_claim_ccold"])  # who held it up also held up its end
    rebuilt = document(run("reindex", "--all", "--json"))["reindexed"]
    assert all(index.is_valid for index in health(engine).indexes)
    claim_done = next(row for row in rebuilt if row["index"] == "ix_job_claim")
    assert (claim_done["table"], claim_done["skipped"]) == ("job", None)
    assert claim_done["bytes_after"] < claim.bytes_before
    assert len(rebuilt) == len(health(engine).indexes)


def test_changed_storage_settings_are_shown_with_the_sql_that_restores_them(engine: Engine, run: Run) -> None:
    assert all(parameter.current == parameter.recommended for parameter in maintenance.storage_settings(engine))
    write(engine, "ALTER TABLE job SET (fillfactor = 100), RESET (autovacuum_vacuum_threshold)")
    changed = {
        parameter.name: parameter
        for parameter in maintenance.storage_settings(engine)
        if parameter.current != parameter.recommended
    }
    assert {name: parameter.current for name, parameter in changed.items()} == {
        "fillfactor": "100",
        "autovacuum_vacuum_threshold": None,
    }
    assert "ALTER TABLE job SET (fillfactor = 70)" in run("doctor", status=1).output
    with engine.begin() as connection:
        for parameter in changed.values():
            connection.execute(text(parameter.sql))
    assert all(parameter.current == parameter.recommended for parameter in maintenance.storage_settings(engine))


def test_invalid_maintenance_arguments_are_refused_before_anything_is_done(engine: Engine) -> None:
    with pytest.raises(
        InvalidOptionError, match="tables: 'jobs' does not belong to this queue: must be one of dead_letter, job, "
    ):
        maintenance.vacuum(engine, tables=["jobs"])
    with pytest.raises(InvalidOptionError, match="indexes: 'nope' does not belong to this queue"):
        maintenance.reindex(engine, indexes=["nope"])
    with pytest.raises(InvalidOptionError, match="lock_timeout: must be between 1 ms and 1 hour"):
        maintenance.vacuum(engine, lock_timeout=timedelta(0))
