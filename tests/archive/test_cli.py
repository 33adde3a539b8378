"""`sa-jobqueue archive`: the chains that it moves, and its output."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from sa_jobqueue.ids import uuid7
from sa_jobqueue.pipeline.archive import Progress, Step, archive, archive_runs, read
from tests.archive.sample_data import chain, fill, in_archive, in_tables, together
from tests.fixtures.commands import Run

pytestmark = pytest.mark.parametrize("database_url", ["newest"], indirect=True)


@pytest.mark.slow
def test_the_archive_command_archives_reports_and_lists_runs(run: Run, engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    before = in_tables(engine)
    result = run("archive", "--before", "30d", "--to", tmp_path, "--json", "--max-jobs", 4)
    report = json.loads(result.stdout)
    assert (report["chains"], report["jobs"], report["held_chains"], report["engine"]) == (7, 9, 0, "pyarrow")
    assert report["jobs_per_second"] > 0
    assert together(in_archive(tmp_path), in_tables(engine)) == before
    assert result.stderr.startswith("archive: selecting chains\n")
    assert result.stderr.count("archive: deleting run") == report["runs"]
    assert "archive: done after" in result.stderr
    listed = json.loads(run("archive", "runs", "--json").stdout)["runs"]
    assert [(run_row["state"], run_row["path"]) for run_row in listed] == [("done", str(tmp_path))] * report["runs"]
    assert sum(run_row["jobs"] for run_row in listed) == read(tmp_path).num_rows
    assert "retained" in run("archive", "runs").stdout
    assert "0 chains archived" in run("archive", "--before", "30d", "--to", tmp_path).stdout


def test_a_dry_run_reports_chains_by_type_and_month_and_those_held(run: Run, engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET changed_xid = pg_current_xact_id() WHERE id = :job"), {"job": chain(9)})
        statement = (
            "INSERT INTO job_blocker (job_id, blocked_by_chain_id, index, is_resolved) VALUES (:job, :chain, 0, true)"
        )
        connection.execute(text(statement), {"job": chain(9), "chain": chain(3)})
        step = "INSERT INTO job_step (job_id, name, kind, attempt, started_at) SELECT id, 'pay', 'step', 1, now() FROM job"
        connection.execute(text(step))
    before = in_tables(engine)
    output = run("archive", "--before", "30d", "--dry-run").stdout
    assert "6 chains of 8 jobs" in output
    assert "Archived with them: 6 attempts, 1 dead letter and 3 blockers.\n" in output
    assert "Deleted with them, and not archived: 8 step results.\n" in output
    assert f"{datetime.now(UTC) - timedelta(days=41):%Y-%m}" in output
    assert chain(3) in output
    assert chain(9) in output
    document = json.loads(run("archive", "--before", "30d", "--to", tmp_path / "none", "--dry-run", "--json").stdout)
    assert (document["chains"], document["held_chains"]) == (6, 1)
    assert in_tables(engine) == before
    assert not (tmp_path / "none").exists()
    assert "1 chain kept" in run("archive", "--before", "30d", "--to", tmp_path).stdout


def test_a_dry_run_counts_unresolved_dead_letters_that_keep_chains(run: Run, engine: Engine) -> None:
    fill(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE dead_letter SET died_at = now() - interval '40 days'"))
        unresolved = connection.scalar(text("SELECT count(*) FROM dead_letter WHERE resolution IS NULL"))
    assert unresolved == 1
    assert f"are kept: {unresolved} dead letter" in run("archive", "--before", "30d", "--dry-run").stdout
    report = json.loads(run("archive", "--before", "30d", "--dry-run", "--json").stdout)
    assert report["unresolved_dead_letters"] == unresolved
    assert "are kept" not in run("archive", "--before", "30d", "--dry-run", "--include-dead").stdout


def test_archive_command_errors_are_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "--before 30d --to PATH" in run("archive", "--before", "30d", status=2).stderr
    assert "neither an age" in run("archive", "--before", "soon", "--to", tmp_path, status=2).stderr
    refused = run("archive", "--before", "30d", "--to", tmp_path / "file" / "x", status=1).stderr
    doing, error = refused.splitlines()
    assert doing == "archive: selecting chains"
    assert error.startswith("Error: ")


def test_a_planned_run_is_given_up_and_another_place_is_used(run: Run, engine: Engine, tmp_path: Path) -> None:
    fill(engine)
    before = in_tables(engine)

    class DiskFullError(Exception):
        pass

    def fail(progress: Progress) -> None:
        if progress.step is Step.PLANNED:
            raise DiskFullError

    with pytest.raises(DiskFullError):
        archive(engine, tmp_path / "full", before=timedelta(days=30), on_progress=fail)
    (planned,) = archive_runs(engine)
    refused = run("archive", "--before", "30d", "--to", tmp_path / "other", status=1)
    assert f"archive runs --abandon {planned.id}" in " ".join(refused.output.split())
    assert "no unfinished run has the id" in run("archive", "runs", "--abandon", uuid7(), status=1).output
    assert "--abandon goes with runs" in run("archive", "--abandon", planned.id, status=2).output
    assert f"run {planned.id} given up" in run("archive", "runs", "--abandon", planned.id).stdout
    assert archive_runs(engine) == []
    assert in_tables(engine) == before
    run("archive", "--before", "30d", "--to", tmp_path / "other")
    assert together(in_archive(tmp_path / "other"), in_tables(engine)) == before


@pytest.mark.parametrize("step", [Step.WRITTEN, Step.PUBLISHED, Step.DELETING], ids=lambda step: step.value)
@pytest.mark.parametrize("is_lost", [False, True], ids=["kept", "lost"])
def test_a_written_run_that_has_deleted_nothing_is_given_up(
    run: Run, engine: Engine, tmp_path: Path, step: Step, is_lost: bool
) -> None:
    fill(engine)
    before = in_tables(engine)
    place = tmp_path / "archive"

    class StoppedError(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.step is step:
            raise StoppedError

    with pytest.raises(StoppedError):
        archive(engine, place, before=timedelta(days=30), on_progress=stop)
    if is_lost:
        for file in place.rglob("*.parquet"):
            file.unlink()
        assert "run" in run("archive", "--before", "30d", "--to", place, status=1).output
    (begun,) = archive_runs(engine)
    run("archive", "runs", "--abandon", begun.id)
    assert archive_runs(engine) == []
    assert not list(place.rglob("*.parquet"))
    assert in_tables(engine) == before
    run("archive", "--before", "30d", "--to", tmp_path / "other")
    assert together(in_archive(tmp_path / "other"), in_tables(engine)) == before


def test_a_run_that_has_begun_to_delete_is_not_given_up(run: Run, engine: Engine, tmp_path: Path) -> None:
    fill(engine)

    class StoppedError(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.step is Step.DELETED_BATCH:
            raise StoppedError

    with pytest.raises(StoppedError):
        archive(engine, tmp_path, before=timedelta(days=30), on_progress=stop)
    (begun,) = archive_runs(engine)
    refused = run("archive", "runs", "--abandon", begun.id, status=1).output
    words = " ".join(refused.split())
    assert "is deleting, and rows may be in its files alone: archive to" in words
    assert str(tmp_path) in words
    assert len(archive_runs(engine)) == 1
