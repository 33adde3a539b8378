"""Chains that an archive takes and leaves, and its report of both."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, text

from sa_jobqueue import Job
from sa_jobqueue.errors import DatabaseUnavailableError, InvalidOptionError
from sa_jobqueue.pipeline.archive import (
    ArchiveBusyError,
    ArchiveElsewhereError,
    ArchiveOptions,
    ArchivePathError,
    ArchiveReport,
    Progress,
    Step,
    archive,
    archive_runs,
    preview,
    read,
)
from sa_jobqueue.pipeline.history import DATASETS, SCHEMA_VERSION
from sa_jobqueue.pipeline.statements import archiving
from tests.archive.sample_data import chain, chains_in, fill, in_archive, in_tables, states, together
from tests.fixtures.database import both_servers
from tests.fixtures.transactions import rows, scalar
from tests.fixtures.workers import PATIENCE, until

pytestmark = both_servers

MONTH = timedelta(days=30)
GO = {chain(number) for number in (1, 2, 3, 4, 5, 6, 8)}


def run(engine: Engine, path: Path, **options: Any) -> ArchiveReport:
    return archive(engine, path, before=MONTH, options=ArchiveOptions(**options))


def execute(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def edge(job: int, blocked_by: int) -> str:
    columns = "job_id, blocked_by_chain_id, index, is_resolved"
    # An edge of a job that has not ended comes in the transaction that writes that job.
    own = (
        f"WITH own AS (UPDATE job SET changed_xid = pg_current_xact_id() WHERE id = '{chain(job)}' AND status = 'pending') "
    )
    return own + f"INSERT INTO job_blocker ({columns}) VALUES ('{chain(job)}', '{chain(blocked_by)}', 9, true)"


# What goes.


def test_finished_chains_are_archived_whole_with_every_column(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    before = in_tables(engine)
    report = run(engine, tmp_path)
    archived, remaining = in_archive(tmp_path), in_tables(engine)
    assert together(archived, remaining) == before
    assert chains_in(archived) == GO
    assert len(archived["jobs"]) == report.jobs == 9
    counted = (report.chains, report.attempts, report.dead_letters, report.blockers, report.retained, report.held_chains)
    assert counted == (7, 6, 1, 3, 0, 0)
    assert (report.runs, report.resumed, report.engine) == (1, 0, "pyarrow")
    (row,) = archive_runs(engine)
    assert (row.state, row.chains, row.jobs, row.path) == ("done", 7, 9, str(tmp_path))
    assert not execute_one(engine, "SELECT count(*) FROM archive_chain")


def execute_one(engine: Engine, query: str) -> Any:
    with engine.connect() as connection:
        return connection.execute(text(query)).scalar_one()


def test_a_whole_chain_is_archived_under_the_day_it_ended(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    report = run(engine, tmp_path)
    jobs, attempts = read(tmp_path), read(tmp_path, "attempts")
    day = dict(zip(jobs["id"].to_pylist(), jobs["completed_date"].to_pylist(), strict=True))
    ended = dict(zip(jobs["id"].to_pylist(), jobs["chain_completed_at"].to_pylist(), strict=True))
    assert {day[chain(10)], day[chain(11)]} == {ended[chain(2)].astimezone(UTC).date()}
    assert all(
        day[job] == on for job, on in zip(*attempts.select(["job_id", "completed_date"]).to_pydict().values(), strict=True)
    )
    files = list(tmp_path.rglob("*.parquet"))
    assert len(files) == report.files
    assert sum(file.stat().st_size for file in files) == report.bytes
    assert all(file.parent.name == f"run={archive_runs(engine)[0].id}" for file in files)
    newest = max(day.values())
    chosen = read(tmp_path, columns=["id"], where=pc.field("completed_date") == newest)
    assert set(chosen["id"].to_pylist()) == {job for job, on in day.items() if on == newest}


def test_archive_files_record_their_schema_version(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    run(engine, tmp_path)
    for name, dataset in DATASETS.items():
        for file in (tmp_path / name).rglob("*.parquet"):
            schema = pq.read_schema(file)
            assert schema.metadata[b"sa_jobqueue.schema_version"] == str(SCHEMA_VERSION).encode()
            assert tuple(schema.names[: len(dataset.names)]) == dataset.names


@pytest.mark.slow
def test_several_runs_and_archives_can_be_read_together(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    before = in_tables(engine)
    # 1 was waited for by 8, which belongs to a later run: it goes when that is gone.
    execute(engine, edge(8, 1))
    before = in_tables(engine)
    first = run(engine, tmp_path, max_jobs=1, max_runs=2, scan_batch_size=2)
    assert first.runs == 2
    report = run(engine, tmp_path, max_jobs=1, scan_batch_size=2)
    assert report.held_chains == 0
    assert together(in_archive(tmp_path), in_tables(engine)) == before
    assert chains_in(in_archive(tmp_path)) == GO
    assert set(states(engine)) == {"done"}
    execute(engine, f"UPDATE dead_letter SET resolution = 'dismissed', resolved_at = now() WHERE job_id = '{chain(7)}'")
    assert run(engine, tmp_path).chains == 1
    assert {"jobs": len(in_archive(tmp_path)["jobs"])} == {"jobs": 10}


@pytest.mark.slow
@pytest.mark.parametrize("step", [Step.FILES, Step.PUBLISHED])
def test_foreign_files_are_named_and_neither_read_nor_deleted(engine: Engine, tmp_path: Path, step: Step) -> None:
    fill(engine)
    foreign: list[Path] = []

    def put(progress: Progress) -> None:
        if progress.step is step and not foreign:
            archived_file = next(tmp_path.rglob("part-*.parquet"))
            for folder in (archived_file.parent, tmp_path / "jobs", archived_file.parent.parent):
                folder.mkdir(exist_ok=True)
                for name in ("notes.txt", "other.parquet"):
                    foreign.append(folder / name)
                    pq.write_table(pa.table({"id": ["theirs"]}), foreign[-1])

    before = in_tables(engine)
    with pytest.raises(ArchivePathError, match=r"notes\.txt: is no file of the archive; it is neither read nor deleted"):
        archive(engine, tmp_path, before=MONTH, on_progress=put)
    with pytest.raises(ArchivePathError, match=r"notes\.txt"):
        run(engine, tmp_path)
    assert all(file.exists() for file in foreign)
    for file in foreign:
        if "run=" in str(file):
            file.unlink()
    run(engine, tmp_path)
    assert together(in_tables(engine), in_archive(tmp_path)) == before
    assert [file for file in foreign if file.exists()] == [file for file in foreign if "run=" not in str(file)]


def test_an_archive_without_rows_can_be_read(tmp_path: Path, engine: Engine) -> None:
    assert run(engine, tmp_path).runs == 0
    assert {name: read(tmp_path, name).num_rows for name in DATASETS} == dict.fromkeys(DATASETS, 0)
    with pytest.raises(InvalidOptionError, match="dataset"):
        read(tmp_path, "workers")


# What stays.


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        f"UPDATE job SET has_waiters = true WHERE id = '{chain(1)}'",
        f"UPDATE job SET chain_completed_at = now() - interval '29 days' WHERE id = '{chain(1)}'",
        f"UPDATE job SET chain_completed_at = NULL WHERE id = '{chain(1)}'",
        "INSERT INTO dead_letter (id, job_id, chain_id, queue, type_name, input_version, reason, attempts) "
        f"VALUES (gen_random_uuid(), '{chain(1)}', '{chain(1)}', 'q', 't', 1, 'lost', 1)",
        "INSERT INTO job_step (job_id, name, kind, attempt, child_chain_id, started_at) "
        f"SELECT id, 'ship', 'run', 1, '{chain(1)}', now() FROM job WHERE completed_at IS NULL LIMIT 1",
    ],
    ids=["awaited", "young", "open", "unresolved letter", "untaken result"],
)
def test_a_chain_not_eligible_for_archiving_stays(engine: Engine, tmp_path: Path, change: str) -> None:
    fill(engine)
    execute(engine, change)
    before = in_tables(engine)
    run(engine, tmp_path)
    assert chains_in(in_archive(tmp_path)) == GO - {chain(1)}
    assert together(in_archive(tmp_path), in_tables(engine)) == before


def test_an_unresolved_dead_letter_keeps_its_whole_chain_and_its_blockers(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    execute(
        engine,
        "INSERT INTO dead_letter (id, job_id, chain_id, queue, type_name, input_version, reason, attempts) "
        f"VALUES (gen_random_uuid(), '{chain(10)}', '{chain(2)}', 'q', 't', 1, 'lost', 1)",
    )
    run(engine, tmp_path)
    # And with it all that it waited for, and these.
    assert chains_in(in_archive(tmp_path)) == GO - {chain(number) for number in (2, 3, 4, 5)}


def test_include_dead_archives_unresolved_dead_letters(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    run(engine, tmp_path, include_dead=True)
    assert chains_in(in_archive(tmp_path)) == GO | {chain(7)}


def test_blockers_of_an_open_chain_are_held_transitively(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    execute(engine, edge(9, 2))  # pending, it refers to 2, and that to 3 and 4, and that to 5
    report = run(engine, tmp_path)
    assert report.held_chains == 4
    assert [(str(hold.chain_id), str(hold.by_job_id), str(hold.by_chain_id)) for hold in report.held_by] == [
        (chain(2), chain(9), chain(9))
    ]
    assert chains_in(in_archive(tmp_path)) == {chain(number) for number in (1, 6, 8)}
    execute(engine, f"UPDATE job_queue SET status = 'cancelled' WHERE id = '{chain(9)}'")
    assert run(engine, tmp_path).held_chains == 4  # it ended today
    execute(engine, f"DELETE FROM job_blocker WHERE job_id = '{chain(9)}'")
    assert run(engine, tmp_path).held_chains == 0
    assert chains_in(in_archive(tmp_path)) == GO


def test_a_preview_reports_what_would_be_archived_and_writes_nothing(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    execute(engine, edge(9, 4))
    before = in_tables(engine)
    seen = preview(engine, before=MONTH)
    assert in_tables(engine) == before
    assert states(engine) == []
    assert (seen.held_chains, str(seen.held_by[0].by_job_id)) == (2, chain(9))
    # 2 waited for 4, but does not keep it: it may go without.
    assert (seen.chains, seen.jobs) == (5, 7)
    assert sum(month.chains for month in seen.months) == 5
    assert {month.type_name for month in seen.months} == {"type0", "type1"}
    report = run(engine, tmp_path)
    for name in ("chains", "jobs", "attempts", "dead_letters", "blockers", "held_chains"):
        assert getattr(report, name) == getattr(seen, name), name
    assert (report.attempts, report.dead_letters, report.blockers) == (6, 1, 2)


# Other queues, other archivers.


async def test_an_archiver_waits_for_the_lock_of_a_session_that_is_ending(engine: Engine, tmp_path: Path) -> None:
    """A session ends a moment after its client: an archiver that was started at once again found it still there."""
    fill(engine)
    waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    with engine.connect() as ending, engine.connect() as looking:
        ending.execute(archiving.lock(Job))
        async with asyncio.TaskGroup() as group:
            report = group.create_task(asyncio.to_thread(run, engine, tmp_path, lock_timeout=timedelta(seconds=PATIENCE)))
            await until(lambda: looking.execute(waiting).scalar_one() == 1, description="the next one waits")
            ending.invalidate()
        assert report.result().jobs == 9


def test_a_second_archiver_raises_archive_busy_error(engine: Engine, tmp_path: Path) -> None:
    fill(engine)

    def disturb(progress: Progress) -> None:
        with pytest.raises(ArchiveBusyError):
            archive(engine, tmp_path, before=MONTH, options=ArchiveOptions(lock_timeout=timedelta(milliseconds=1)))

    before = in_tables(engine)
    archive(engine, tmp_path, before=MONTH, on_progress=disturb)
    assert together(in_archive(tmp_path), in_tables(engine)) == before


def test_an_unfinished_run_is_resumed_only_at_its_own_path(engine: Engine, tmp_path: Path) -> None:
    fill(engine)

    def stop(progress: Progress) -> None:
        if progress.step is Step.DELETING:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        archive(engine, tmp_path / "one", before=MONTH, on_progress=stop)
    with pytest.raises(ArchiveElsewhereError, match="one"):
        archive(engine, tmp_path / "two", before=MONTH)
    assert archive(engine, tmp_path / "one", before=timedelta(days=1000)).resumed == 1


def test_no_transaction_is_open_between_archive_steps(engine: Engine, tmp_path: Path, database_url: str) -> None:
    fill(engine)
    transactions: list[Any] = []
    activity = "SELECT state, backend_xmin, backend_xid FROM pg_stat_activity WHERE application_name = 'sa_jobqueue archive'"
    with psycopg.connect(engine.url.set(drivername="postgresql").render_as_string(hide_password=False)) as watcher:

        def read_activity(progress: Progress) -> None:
            transactions.extend(watcher.execute(activity).fetchall())
            watcher.rollback()

        archive(engine, tmp_path, before=MONTH, on_progress=read_activity)
    assert set(transactions) == {("idle", None, None)}


@pytest.mark.parametrize(
    ("before", "options", "option"),
    [
        (timedelta(days=-1), {}, "before"),
        (datetime(2026, 1, 1), {}, "before"),
        (datetime(9999, 1, 1, tzinfo=UTC), {}, "before"),
        (MONTH, {"max_jobs": 0}, "max_jobs"),
        (MONTH, {"delete_batch_size": True}, "delete_batch_size"),
        (MONTH, {"lock_timeout": timedelta(0)}, "lock_timeout"),
    ],
)
def test_options_are_checked_before_anything_is_done(
    engine: Engine, tmp_path: Path, before: Any, options: dict[str, Any], option: str
) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        archive(engine, tmp_path / "new", before=before, options=ArchiveOptions(**options))
    assert caught.value.option == option
    assert not (tmp_path / "new").exists()


def test_a_password_is_in_no_error(tmp_path: Path, database_url: str) -> None:
    with pytest.raises(DatabaseUnavailableError) as caught:
        archive("postgresql://me:hidden@127.0.0.1:1/none", tmp_path, before=MONTH)
    assert "hidden" not in repr(caught.value) + str(caught.value)


@pytest.mark.long
def test_a_chain_that_cannot_be_deleted_stays_in_the_tables_and_is_reported(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''kept''; END'"
    execute(
        engine,
        refuse,
        f"CREATE TRIGGER refuse BEFORE DELETE ON job FOR EACH ROW WHEN (OLD.id = '{chain(1)}') EXECUTE FUNCTION refuse()",
    )
    report = run(engine, tmp_path)
    assert (report.chains, report.retained) == (len(GO) - 1, 1)
    assert chains_in(in_archive(tmp_path)) == GO - {chain(1)}
    ((subject, statement, error),) = rows(engine, "SELECT subject, statement, error FROM quarantine")
    assert (subject, statement, error) == (str(chain(1)), "archive", "RaiseException: kept")
    execute(engine, "DROP TRIGGER refuse ON job", "DROP FUNCTION refuse()")
    assert run(engine, tmp_path).chains == 1
    assert scalar(engine, "SELECT count(*) FROM quarantine") == 0
