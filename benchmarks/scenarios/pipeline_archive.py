"""Finished jobs into Parquet files and out of the tables, beside doing both with one object at a time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from benchmarks import rows, spark
from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from sa_jobqueue import Job

_NAIVE: Final = "one at a time"
_BEFORE: Final = timedelta(days=30)
_END: Final = """
INSERT INTO job_attempt (job_id, attempt, worker_id, outcome) SELECT id, 1, 'worker', 'failed' FROM job;
UPDATE job SET status = 'completed', attempt = 2, completed_by = 'worker', output = 'null', chain_status = 'completed',
  completed_at = now() - interval '40 days', chain_completed_at = now() - interval '40 days';
"""


def scenario() -> Scenario:
    """Return the cases."""
    naive = Comparison(case=_NAIVE)
    return Scenario(
        name="pipeline archive",
        says="jobs and an attempt each to files that are read back and compared, then deleted; one at a time does neither",
        jobs=100_000,
        cases=(
            Case(name=_NAIVE, run=_one_at_a_time, prepare=_ended, most=500),
            Case(name="pyarrow", run=_archived(_with_pyarrow), prepare=_ended, against=naive),
            Case(name="Spark", run=_archived(_with_spark), prepare=_ended_and_awake, against=naive),
        ),
    )


def _ended(place: Place, jobs: int) -> None:
    rows.fill(place, jobs)
    place.run(*filter(str.strip, _END.split(";\n")), "VACUUM ANALYZE job", "VACUUM ANALYZE job_attempt")
    place.checkpoint()


def _ended_and_awake(place: Place, jobs: int) -> None:
    _ended(place, jobs)
    spark.wake(place.url)


def _one_at_a_time(place: Place, watch: Stopwatch, jobs: int) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.string()) for name in Job.__table__.c.keys()])  # noqa: SIM118 - a collection of columns
    engine = place.engine(size=1)
    with TemporaryDirectory() as folder, Session(engine) as session:
        ids = session.scalars(select(Job.id)).all()
        session.commit()
        with watch, pq.ParquetWriter(Path(folder) / "jobs.parquet", schema) as file:
            for one in ids:
                job = session.get_one(Job, one)
                shown: dict[str, Any] = {name: str(getattr(job, name)) for name in schema.names}
                file.write_batch(pa.RecordBatch.from_pylist([shown], schema))
                session.delete(job)
                session.commit()
    engine.dispose()
    return len(ids) - rows.count(place)


def _archived(act: Callable[[Place, str], int]) -> Callable[[Place, Stopwatch, int], int]:
    def run(place: Place, watch: Stopwatch, jobs: int) -> int:
        with TemporaryDirectory() as folder:
            if act is _with_spark:
                watch.beside = spark.pids
            with watch:
                archived = act(place, folder)
            watch.round_trips = None
        return archived

    return run


def _with_pyarrow(place: Place, folder: str) -> int:
    from sa_jobqueue.pipeline.archive import archive

    return archive(place.url, folder, before=_BEFORE).jobs


def _with_spark(place: Place, folder: str) -> int:
    from sa_jobqueue.pipeline.spark import archive

    return archive(spark.session(), folder, before=_BEFORE, url=place.url, tasks=spark.TASKS).jobs
