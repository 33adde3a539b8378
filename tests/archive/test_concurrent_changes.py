"""Chains that change between their writing and deletion stay, and damaged files are noticed."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from sa_jobqueue.pipeline import archive
from tests.archive.disturbing import ARCHIVED, MONTH, at, before_statement, execute
from tests.archive.sample_data import Rows, chain, chains_in, fill, in_archive, in_tables, states, together
from tests.fixtures.database import both_servers
from tests.fixtures.transactions import write

pytestmark = both_servers


def archive_disturbed(
    engine: Engine, path: Path, do: Callable[[], Any], **options: Any
) -> tuple[Rows, archive.ArchiveReport]:
    """Archive, do something when the files are published, and return the rows that were there before."""
    before = in_tables(engine)
    report = archive.archive(
        engine, path, before=MONTH, options=archive.ArchiveOptions(**options), on_progress=at(archive.Step.DELETING, do)
    )
    return before, report


EDGE = f"""WITH own AS (UPDATE job SET changed_xid = pg_current_xact_id() WHERE id = '{chain(9)}')
INSERT INTO job_blocker (job_id, blocked_by_chain_id, index, is_resolved) VALUES ('{chain(9)}', '{chain(1)}', 0, true)"""
CHANGES = {
    "its output": f"UPDATE job SET output = '7' WHERE id = '{chain(1)}'",
    "a column that no transaction number tells of": f"UPDATE job SET trace_context = 'new' WHERE id = '{chain(1)}'",
    "a continuation": "INSERT INTO job (id, chain_id, chain_index, type_name, chain_type_name) "
    f"VALUES (gen_random_uuid(), '{chain(1)}', 1, 'later', 'type1')",
    "an attempt": f"INSERT INTO job_attempt (job_id, attempt, outcome) VALUES ('{chain(1)}', 3, 'failed')",
    "its history": f"DELETE FROM job_attempt WHERE job_id = '{chain(1)}' AND attempt = 1",
    "who awaits it": f"UPDATE job SET has_waiters = true WHERE id = '{chain(1)}'",
    "what waits for it": EDGE,
    "a step that refers to its result": "INSERT INTO job_step (job_id, name, kind, attempt, child_chain_id, started_at) "
    f"SELECT id, 'ship', 'run', 1, '{chain(1)}', now() FROM job WHERE completed_at IS NULL LIMIT 1",
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_chain_changed_during_archiving_stays_only_in_the_tables(engine: Engine, tmp_path: Path, change: str) -> None:
    fill(engine)
    before, report = archive_disturbed(engine, tmp_path, lambda: execute(engine, change))
    archived, remaining = in_archive(tmp_path), in_tables(engine)
    assert chains_in(archived) == ARCHIVED - {chain(1)}
    assert (report.retained, report.chains, states(engine)) == (1, 6, ["done"])
    together(archived, remaining)
    assert (chain(1),) in remaining["jobs"]
    remaining_rows = {
        name: {key: row for key, row in rows.items() if key in archived[name]} for name, rows in before.items()
    }
    assert archived == remaining_rows


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE job SET expires_at = 'infinity'",
        "UPDATE job SET created_at = '12026-01-01'",
        "UPDATE job SET completed_at = '-infinity'",
        "UPDATE job SET chain_completed_at = '0044-03-15 BC'",
        "UPDATE job SET chain_completed_at = '-infinity'",
        "UPDATE job_attempt SET started_at = '-infinity'",
    ],
)
def test_a_chain_with_an_instant_that_files_lack_stays_and_others_are_archived(
    engine: Engine, tmp_path: Path, change: str
) -> None:
    fill(engine)
    with engine.begin() as connection:
        key = "job_id" if "job_attempt" in change else "id"
        connection.execute(text(f"{change} WHERE {key} = :id"), {"id": chain(1)})
    assert archive.preview(engine, before=MONTH).chains == 7
    report = archive.archive(engine, tmp_path, before=MONTH)
    assert (report.chains, report.retained) == (6, 1)
    assert chain(1) not in chains_in(in_archive(tmp_path))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM job WHERE id = :id"), {"id": chain(1)}).scalar_one() == 1
    assert archive.archive(engine, tmp_path, before=MONTH).retained == 1


def test_a_column_added_while_chains_are_deleted_loses_no_value(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    updated = 0

    def add_column(progress: archive.Progress) -> None:
        nonlocal updated
        if progress.step is archive.Step.DELETED_BATCH and not updated:
            updated = progress.completed
            write(engine, "ALTER TABLE job_attempt ADD COLUMN note text NOT NULL DEFAULT 'kept'")

    options = archive.ArchiveOptions(delete_batch_size=1)
    with pytest.raises(archive.UnarchivedColumnsError, match=r"note of table job_attempt: .*; no row with them was deleted"):
        archive.archive(engine, tmp_path, before=MONTH, options=options, on_progress=add_column)
    assert updated
    with engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM job_attempt WHERE note = 'kept'")).scalar_one() > 0
        connection.execute(text("ALTER TABLE job_attempt DROP COLUMN note"))
    report = archive.archive(engine, tmp_path, before=MONTH, options=options)
    assert (report.resumed, report.chains, report.retained) == (1, 7, 0)


@pytest.mark.slow
def test_a_run_whose_chains_all_changed_leaves_no_file(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    _, report = archive_disturbed(engine, tmp_path, lambda: execute(engine, "UPDATE job SET trace_context = 'new'"))
    assert (report.chains, report.retained, report.files) == (0, 7, 0)
    assert not list(tmp_path.rglob("*.parquet"))
    assert archive.archive(engine, tmp_path, before=MONTH).chains == 7


def test_a_chain_deleted_concurrently_is_not_archived(engine: Engine, tmp_path: Path) -> None:
    fill(engine)

    def delete() -> None:
        execute(engine, f"DELETE FROM job_attempt WHERE job_id = '{chain(1)}'")
        execute(engine, f"DELETE FROM job WHERE id = '{chain(1)}'")

    archive_disturbed(engine, tmp_path, delete)
    # Not the archiver but another transaction deleted it, so it is not archived.
    assert chain(1) not in chains_in(in_archive(tmp_path)) | chains_in(in_tables(engine))


def test_a_chain_referenced_by_an_application_table_stays_and_others_are_archived(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    execute(engine, "CREATE TABLE receipt (job_id uuid REFERENCES job)")
    try:
        execute(engine, f"INSERT INTO receipt VALUES ('{chain(3)}')")
        before = in_tables(engine)
        report = archive.archive(engine, tmp_path, before=MONTH)
        assert (report.chains, report.retained) == (6, 1)
        assert chains_in(in_archive(tmp_path)) == ARCHIVED - {chain(3)}
        assert together(in_archive(tmp_path), in_tables(engine)).keys() == before.keys()
    finally:
        execute(engine, "DROP TABLE receipt")


# Races, each with who comes first.


def test_an_uncommitted_reference_keeps_its_chain(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    with engine.connect() as second:
        begun: Connection = second

        def refer() -> None:
            begun.execute(text(EDGE))  # and its transaction stays open until the archiver is done

        before, report = archive_disturbed(engine, tmp_path, refer)
        second.commit()
    assert report.retained == 1
    remaining = in_tables(engine)
    assert (chain(9), chain(1)) in remaining["blockers"]
    assert chains_in(in_archive(tmp_path)) == ARCHIVED - {chain(1)}
    jobs = together(in_archive(tmp_path), remaining)["jobs"]
    changed = jobs.pop((chain(9),))  # with its edge
    stamps = {"changed_xid": None, "xid": None}
    assert changed | stamps == before["jobs"].pop((chain(9),)) | stamps
    assert jobs == before["jobs"]


def test_a_reference_created_after_locking_waits_and_fails(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    refused: list[str] = []

    def refer(lock_timeout: str = "200ms") -> None:
        with pytest.raises(DBAPIError) as caught:
            execute(engine, EDGE, lock_timeout=lock_timeout)
        refused.append(type(caught.value).__name__)

    # Between the look for references and the deletion: what came in here would be broken by it.
    with before_statement(engine, "DELETE FROM job_blocker", refer):
        report = archive.archive(engine, tmp_path, before=MONTH)
    refer("60s")
    assert refused == [OperationalError.__name__, IntegrityError.__name__]
    assert (report.chains, report.retained) == (7, 0)


def test_a_change_between_locking_and_comparing_waits(engine: Engine, tmp_path: Path) -> None:
    """The rows are locked before they are compared, continuations too: the compared rows are the deleted ones."""
    fill(engine)
    waited: list[bool] = []

    def change() -> None:
        for number in (1, 10):
            with pytest.raises(OperationalError):
                execute(engine, f"UPDATE job SET output = '7' WHERE id = '{chain(number)}'", lock_timeout="100ms")
            waited.append(True)

    with before_statement(engine, "WITH member AS", change):
        archive.archive(engine, tmp_path, before=MONTH)
    assert waited == [True, True]
    assert chains_in(in_archive(tmp_path)) == ARCHIVED


def test_locked_chains_are_skipped(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    with engine.connect() as second:
        lock_rows = f"SELECT FROM job WHERE id IN ('{chain(1)}', '{chain(10)}') FOR NO KEY UPDATE"
        before, report = archive_disturbed(engine, tmp_path, lambda: second.execute(text(lock_rows)))
    # 2 for one of its continuations, and with it what it waited for.
    assert (report.chains, report.retained) == (2, 5)
    assert together(in_archive(tmp_path), in_tables(engine)) == before


# Damage.


def test_an_unwritable_path_leaves_the_tables_unchanged(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    before = in_tables(engine)
    (tmp_path / "file").touch()
    with pytest.raises(archive.ArchivePathError, match="file"):
        archive.archive(engine, tmp_path / "file" / "archive", before=MONTH)
    assert (in_tables(engine), states(engine)) == (before, [])


def test_a_full_disk_leaves_the_tables_unchanged(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    before = in_tables(engine)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(archive.ArchivePathError, match="too large"):
            archive.archive(engine, tmp_path, before=MONTH)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (in_tables(engine), states(engine)) == (before, ["planned"])
    assert archive.archive(engine, tmp_path, before=MONTH).resumed == 1
    assert together(in_archive(tmp_path), in_tables(engine)) == before


def first_file(path: Path, dataset: str = "jobs") -> Path:
    return min(path.rglob(f"{dataset}/**/*.parquet"))


def truncate(path: Path) -> None:
    file = first_file(path)
    file.write_bytes(file.read_bytes()[:-40])


def flip(path: Path) -> None:
    file = first_file(path)
    content = bytearray(file.read_bytes())
    content[200] ^= 1
    file.write_bytes(content)


def lose_rows(path: Path) -> None:
    file = first_file(path)
    table = pq.ParquetFile(file).read()
    pq.write_table(table.slice(1), file)


def change_expected_counts(path: Path) -> None:
    """A whole and valid file, in which one value is not the database's."""
    file = first_file(path)
    table = pq.ParquetFile(file).read()
    wrong_counts = pa.array(["another"] * table.num_rows)
    pq.write_table(table.set_column(table.schema.get_field_index("queue"), "queue", wrong_counts), file)


def lose_file(path: Path) -> None:
    first_file(path, "attempts").unlink()


def duplicate_rows(path: Path) -> None:
    file = first_file(path)
    table = pq.ParquetFile(file).read()
    pq.write_table(pa.concat_tables([table, table]), file)


DAMAGE = [truncate, flip, lose_rows, change_expected_counts, lose_file, duplicate_rows]


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_corrupt_files_are_detected_before_anything_is_deleted(
    engine: Engine, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    fill(engine)
    before = in_tables(engine)
    with pytest.raises(archive.ArchiveCorruptError) as caught:
        archive.archive(engine, tmp_path, before=MONTH, on_progress=at(archive.Step.FILES, lambda: damage(tmp_path)))
    assert str(tmp_path) in caught.value.path
    assert (in_tables(engine), in_archive(tmp_path)["jobs"]) == (before, {})
    assert archive.archive(engine, tmp_path, before=MONTH).resumed == 1
    assert together(in_archive(tmp_path), in_tables(engine)) == before


def test_a_resumed_run_verifies_its_files_again(engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    before = in_tables(engine)

    def stop() -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        archive.archive(engine, tmp_path, before=MONTH, on_progress=at(archive.Step.DELETING, stop))
    file = first_file(tmp_path)
    content = file.read_bytes()
    change_expected_counts(tmp_path)
    with pytest.raises(archive.ArchiveCorruptError, match="not as the database had it"):
        archive.archive(engine, tmp_path, before=MONTH)
    assert in_tables(engine) == before
    file.write_bytes(content)
    archive.archive(engine, tmp_path, before=MONTH)
    assert together(in_archive(tmp_path), in_tables(engine)) == before
