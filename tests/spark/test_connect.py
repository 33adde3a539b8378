"""Spark Connect: the whole pipeline through a client that has no JVM, and what its server writes into its event log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from pyspark.sql import SparkSession
from sqlalchemy import Engine, make_url, text

from sa_jobqueue import Job, JobStatus
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.parts import needs
from tests.fixtures.transactions import write
from tests.spark import workers_app

pytestmark = pytest.mark.timeout(400)  # the first test to ask for Spark starts it

HIDDEN, SHOWN = "hidden-s3cr3t", "shown-s3cr3t"
"""Passwords in the URL: with the redaction that the guide asks for, and without."""

CLIENT = """
import sys
from datetime import timedelta
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession
from sa_jobqueue.pipeline.spark import REDACTION, enqueue, run_workers
from tests.spark.workers_app import effect

remote, url, shown_url, folder = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
assert isinstance(spark, ConnectSession)
spark.conf.set("spark.sql.redaction.string.regex", REDACTION)
rows = spark.range(20).selectExpr("concat('row ', id) AS told")
print("written", enqueue(rows, effect, url=url).enqueued)
jobs = spark.read.format("jobqueue").option("url", url).option("numPartitions", 2)
print("read", jobs.option("status", "pending").load("jobs").filter("type_name = 'effect'").count())
report = run_workers(
    spark, "tests.spark.workers_app:jobs", slots=1, url=url, idle_exit=timedelta(seconds=1.5),
    poll_interval=timedelta(milliseconds=100),
)
print("worked", report.completed, report.ended)
spark.conf.unset("spark.sql.redaction.string.regex")
stream = spark.readStream.format("jobqueue").option("url", shown_url).load("jobs").select("id").writeStream
query = stream.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start(folder + "/ended")
query.awaitTermination()
spark.stop()
"""


def test_a_spark_connect_client_writes_runs_workers_reads_and_streams(
    spark: SparkSession, database_url: str, jobs: Jobs, engine: Engine, event_log: Path, tmp_path: Path
) -> None:
    needs("grpc")
    write(engine, text(workers_app.EFFECTS))
    url, shown_url = (
        make_url(database_url).set(password=password).render_as_string(hide_password=False) for password in (HIDDEN, SHOWN)
    )
    remote = f"sc://127.0.0.1:{spark.conf.get('spark.connect.grpc.binding.port')}"
    client = [sys.executable, "-c", CLIENT, remote, url, shown_url, str(tmp_path)]
    process = subprocess.run(client, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=290, check=False)
    assert process.returncode == 0, process.stderr[-5000:]
    assert process.stdout.splitlines() == ["written 20", "read 20", "worked 20 idle"]
    assert set(jobs.statuses().values()) == {JobStatus.COMPLETED}
    streamed = parquet.read_table(tmp_path / "ended").column("id").to_pylist()
    assert sorted(streamed) == sorted(map(str, jobs.statuses()))
    spark._jsc.sc().listenerBus().waitUntilEmpty()
    events = "".join(file.read_text() for file in event_log.iterdir() if not file.name.startswith("."))
    assert HIDDEN not in events
    assert HIDDEN not in process.stdout + process.stderr
    # Connect writes what a client asks for into its log, options and all: why the guide wants the redaction, or a file.
    assert SHOWN in events


SHIPPING = """
import sys
from datetime import timedelta
from pyspark.sql import SparkSession
from sa_jobqueue.pipeline.spark import run_workers
from sa_jobqueue.pipeline.spark.errors import WorkersFailedError

remote, url, folder = sys.argv[1:]
sys.path.insert(0, folder)
spark = SparkSession.builder.remote(remote).getOrCreate()
try:
    run_workers(spark, "shipped:jobs", slots=1, url=url, idle_exit=timedelta(seconds=1))
except WorkersFailedError as error:
    print("failed", "addArtifacts" in str(error))
spark.addArtifacts(folder + "/shipped.py", pyfile=True)
report = run_workers(
    spark, "shipped:jobs", slots=1, url=url, idle_exit=timedelta(seconds=1), poll_interval=timedelta(milliseconds=100)
)
print("worked", report.completed, report.ended)
"""
"""It ends without `spark.stop()`."""


def test_workers_of_a_connect_client_import_its_files_and_do_not_block_its_exit(
    spark: SparkSession, database_url: str, engine: Engine, tmp_path: Path
) -> None:
    module = (
        "from sa_jobqueue import JobQueue\njobs = JobQueue()\n@jobs.handler('hello')\ndef hello(name: str) -> None: ...\n"
    )
    (tmp_path / "shipped.py").write_text(module)
    enqueue(engine, *(Job("hello", "world") for _ in range(3)))
    url = make_url(database_url).render_as_string(hide_password=False)
    remote = f"sc://127.0.0.1:{spark.conf.get('spark.connect.grpc.binding.port')}"
    client = [sys.executable, "-c", SHIPPING, remote, url, str(tmp_path)]
    process = subprocess.run(client, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=240, check=False)
    assert process.returncode == 0, process.stderr[-5000:]
    assert process.stdout.splitlines() == ["failed True", "worked 3 idle"]
