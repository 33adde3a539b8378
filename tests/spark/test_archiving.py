"""Archives that Spark writes: the same rows as in the tables, through crashes, beside runs of the other engine."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine

from sa_jobqueue.pipeline.archive import ArchiveError, ArchiveOptions, Progress, Step
from sa_jobqueue.pipeline.archive import archive as archive_here
from sa_jobqueue.pipeline.history import DATASETS, SCHEMA_VERSION
from tests.archive.sample_data import chain, chains_in, fill, in_archive, in_tables, states, together
from tests.fixtures.transactions import write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MONTH = timedelta(days=30)
SMALL = ArchiveOptions(read_batch_size=5, delete_batch_size=3)
STATES = (Step.PLANNED, Step.FILES, Step.WRITTEN, Step.DELETING, Step.DELETED_BATCH, Step.DELETED)


class Killed(BaseException):
    """What no code of the archiver's may catch."""


def test_the_spark_archive_equals_the_tables_after_a_crash_in_every_state(
    spark: SparkSession, engine: Engine, database_url: str, tmp_path: Path
) -> None:
    from sa_jobqueue.pipeline.spark import archive

    fill(engine)
    before = in_tables(engine)
    # Each archiver takes up what the one before it left, and dies one state later.
    for point in STATES:

        def kill(progress: Progress, point: Step = point) -> None:
            if progress.step is point:
                raise Killed

        with pytest.raises(Killed):
            archive(spark, tmp_path, before=MONTH, url=database_url, tasks=2, options=SMALL, on_progress=kill)
        there = {name: rows.keys() for name, rows in in_archive(tmp_path).items()}
        remaining_ids = {name: rows.keys() for name, rows in in_tables(engine).items()}
        assert all(before[name].keys() == there[name] | remaining_ids[name] for name in before), point
    report = archive(spark, tmp_path, before=MONTH, url=database_url, options=SMALL)
    assert (report.engine, report.resumed, report.chains, report.jobs) == ("spark", 1, 7, 9)
    archived = in_archive(tmp_path)
    assert together(archived, in_tables(engine)) == before
    assert not list(tmp_path.glob("_*"))
    # Spark, too, sees each row once, and the version of the schema.
    for name, dataset in DATASETS.items():
        frame = spark.read.parquet(str(tmp_path / name))
        assert {"completed_date", "run"} <= set(frame.columns)
        keys = [tuple(row) for row in frame.select(*dataset.key).collect()]
        assert sorted(keys) == sorted(archived[name])
    footer = pq.read_metadata(min(tmp_path.rglob("jobs/**/*.parquet"))).metadata
    assert footer[b"sa_jobqueue.schema_version"] == str(SCHEMA_VERSION).encode()


def test_files_of_tasks_that_failed_are_never_shown(
    spark: SparkSession, engine: Engine, database_url: str, tmp_path: Path
) -> None:
    from sa_jobqueue.pipeline.spark import archive

    fill(engine)
    before = in_tables(engine)
    left_over: list[Path] = []

    def leave(progress: Progress) -> None:
        """Leave the file of another attempt of a task, before the driver lists the files and after it has died."""
        if progress.step in {Step.FILES, Step.WRITTEN}:
            file = min(tmp_path.glob("_run=*/jobs/*/*.parquet"))
            left_over.append(Path(shutil.copy(file, file.with_name(f"part-{progress.step}.parquet"))))
        if progress.step is Step.WRITTEN:
            raise Killed

    with pytest.raises(Killed):
        archive(spark, tmp_path, before=MONTH, url=database_url, tasks=2, on_progress=leave)
    report = archive(spark, tmp_path, before=MONTH, url=database_url)
    assert (report.resumed, report.chains, report.jobs) == (1, 7, 9)
    assert len(left_over) == 2
    names = {path.name for path in tmp_path.rglob("*")}
    assert not {"part-files.parquet", "part-written.parquet"} & names
    assert not list(tmp_path.glob("_*"))
    assert together(in_archive(tmp_path), in_tables(engine)) == before


def test_both_archive_engines_share_an_archive_and_resume_each_others_runs(
    spark: SparkSession, engine: Engine, database_url: str, tmp_path: Path
) -> None:
    from sa_jobqueue.pipeline.spark import archive

    fill(engine)
    before = in_tables(engine)

    def change_and_kill(progress: Progress) -> None:
        if progress.step is Step.DELETING:
            write(engine, "UPDATE job SET output = '7' WHERE id = :id", {"id": chain(1)})
            raise Killed

    with pytest.raises(Killed):
        archive(spark, tmp_path, before=MONTH, url=database_url, options=SMALL, on_progress=change_and_kill)
    # The one that changed leaves the files that Spark wrote, and goes with a run of this process.
    report = archive_here(engine, tmp_path, before=MONTH)
    assert (report.resumed, report.retained, report.runs, report.chains) == (1, 1, 1, 7)
    archived = in_archive(tmp_path)
    assert chains_in(archived) == {chain(number) for number in (1, 2, 3, 4, 5, 6, 8)}
    together(archived, in_tables(engine))
    assert archived["jobs"].pop((chain(1),))["output"] == "7"
    assert all(row == before["jobs"][key] for key, row in archived["jobs"].items())
    jobs = spark.read.parquet(str(tmp_path / "jobs"))
    assert jobs.count() == jobs.select("id").distinct().count() == 9
    assert {row.created_at.year for row in jobs.select("created_at").collect()} == {
        before["jobs"][chain(1),]["created_at"].year
    }
    assert states(engine) == ["done", "done"]


def test_rows_that_spark_cannot_write_stay_in_the_tables(
    spark: SparkSession, engine: Engine, database_url: str, tmp_path: Path
) -> None:
    from sa_jobqueue.pipeline.spark import archive

    fill(engine)
    before = in_tables(engine)

    def withdraw(progress: Progress) -> None:
        """The tasks meet a table that is not as the driver saw it."""
        if progress.step is Step.PLANNED:
            write(engine, "ALTER TABLE job RENAME COLUMN trace_context TO gone")

    with pytest.raises(ArchiveError, match="Spark could not write the files") as caught:
        archive(spark, tmp_path, before=MONTH, url=database_url, on_progress=withdraw)
    assert database_url not in str(caught.value)
    write(engine, "ALTER TABLE job RENAME COLUMN gone TO trace_context")
    assert (in_tables(engine), states(engine)) == (before, ["planned"])
