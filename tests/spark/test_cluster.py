"""A standalone cluster of a master and two workers, with library and application shipped to it as the guide says.

The executors' Python has the dependencies and not the library: it runs without `site`, so an editable install is not found.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

import sa_jobqueue
from tests.fixtures.parts import needs
from tests.fixtures.ports import free_port
from tests.fixtures.transactions import rows, write
from tests.fixtures.workers import is_running

pytestmark = pytest.mark.timeout(1800)  # on a busy machine, each of five Javas takes its time

STARTED_SECONDS = 240
"""How long a process of the cluster may take to start on a busy machine."""
LIBRARY = Path(sa_jobqueue.__file__).parent
APPLICATION = """
import os, time
from pathlib import Path
from sqlalchemy import text
from sqlalchemy.orm import Session
import sa_jobqueue
from sa_jobqueue import AttemptContext, JobQueue

jobs = JobQueue()

@jobs.handler("effect")
def effect(n: int, session: Session, ctx: AttemptContext) -> None:
    gate = Path(os.environ["GATE"])
    if n < 2 and ctx.attempt == 1:
        (gate / f"{n}.{os.getpid()}").touch()
        deadline = time.monotonic() + 120
        while not (gate / "open").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    values = {"n": n, "library": sa_jobqueue.__file__}
    session.execute(text("INSERT INTO effect VALUES (:n, :library)"), values)
"""
WRITE = """
import os, time
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession
from sa_jobqueue.pipeline.spark import enqueue, register
from shipped import effect

spark = SparkSession.builder.getOrCreate()
register(spark)

def slow_once(batches):
    # The first attempt at one partition has read its rows and waits; Spark starts a second copy, which wins.
    task, copied = TaskContext.get(), Path(os.environ["GATE"]).parent / "copied"
    yield from batches
    if task.partitionId() == 3 and task.attemptNumber() == 0:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            time.sleep(0.1)
    elif task.partitionId() == 3:
        copied.touch()

rows = spark.range(0, 400, 1, 4).mapInArrow(slow_once, "id bigint").selectExpr("cast(id AS int) AS n")
result = enqueue(rows, effect, payload="n", write_id="nightly")
assert enqueue(rows, effect, payload="n", write_id="nightly") == result
print("written", result.enqueued)
spark.stop()
"""
WORK = """
import sys
from datetime import timedelta
from pyspark.sql import SparkSession
from sa_jobqueue.pipeline.spark import run_workers

remote, folder = sys.argv[1:]
sys.path.insert(0, folder)
spark = SparkSession.builder.remote(remote).getOrCreate()
spark.addArtifacts(folder + "/library.zip", folder + "/shipped.py", pyfile=True)
report = run_workers(
    spark, "shipped:jobs", slots=2, idle_exit=timedelta(seconds=3), poll_interval=timedelta(milliseconds=100),
    heartbeat_interval=timedelta(milliseconds=500), heartbeat_timeout=timedelta(seconds=3), progress="lines",
)
print("worked", report.ended)
print("completed", spark.read.format("jobqueue").load("jobs").where("status = 'completed'").count())
spark.stop()
"""


def zipped(folder: Path) -> Path:
    """Write the library and its module for Spark into an archive, as for `--py-files`."""
    path = folder / "library.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in (LIBRARY, LIBRARY.parent / "pyspark_sa_jobqueue"):
            for file in package.rglob("*"):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(LIBRARY.parent))
    return path


def bare_python(folder: Path) -> Path:
    """Write a command that runs Python with the installed dependencies, and without the path of an editable install."""
    path = folder / "python"
    packages = sysconfig.get_path("purelib")
    path.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.long
def test_the_library_works_when_imported_from_a_zip_archive(tmp_path: Path, database_url: str, engine: Engine) -> None:
    """What executors do with `--py-files`, without a cluster."""
    archive = zipped(tmp_path)
    (tmp_path / "shipped.py").write_text(APPLICATION)
    program = (
        "import pyarrow as pa, sys; from sa_jobqueue.pipeline.spark.options import read_options, Use;"
        "from sa_jobqueue.pipeline.spark import writing; from pyspark.sql.types import StructType;"
        "options = read_options({'app': 'shipped:jobs', 'type': 'effect', 'writeId': 'w'}, Use.WRITE);"
        "writer = writing.batch_writer(StructType().add('input', 'string'), options, overwrite=False);"
        "writer.commit([writer.write(iter([pa.record_batch({'input': ['5']})]))]); print(writing.__file__)"
    )
    environment = os.environ | {"PYTHONPATH": f"{archive}:{tmp_path}", "SA_JOBQUEUE_URL": database_url}
    command = [str(bare_python(tmp_path)), "-c", program]
    process = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == str(archive / "sa_jobqueue/pipeline/spark/writing.py")
    assert rows(engine, "SELECT type_name, input FROM job") == [("effect", 5)]


class Cluster:
    """A master, two workers and a Connect server on loopback, each a process of its own; `close` ends them by their pids."""

    def __init__(self, folder: Path, database_url: str) -> None:
        import pyspark

        from sa_jobqueue.pipeline.spark import java_home

        self.folder = folder
        self.gate = folder / "gate"
        self.gate.mkdir()
        self._home = Path(pyspark.__file__).parent
        self._stack = ExitStack()
        self.environment = os.environ | {
            "JAVA_HOME": str(java_home()),
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "640m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYSPARK_PYTHON": str(bare_python(folder)),
            "SA_JOBQUEUE_URL": database_url,
            "GATE": str(self.gate),
        }
        self.url = f"spark://127.0.0.1:{free_port()}"
        master = ("--host", "127.0.0.1", "--port", self.url.rpartition(":")[2], "--webui-port", "0")
        self._start("master", "spark-class", "org.apache.spark.deploy.master.Master", *master)
        self.await_line("master", "New state: ALIVE")
        # Spark does not start a second copy of a task on the host of the first: each worker has an address of its own.
        for name, host in (("worker1", "127.0.0.1"), ("worker2", "127.0.0.2")):
            worker = ("--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0")
            where = ("--work-dir", str(folder / name), self.url)
            self._start(name, "spark-class", "org.apache.spark.deploy.worker.Worker", *worker, *where, host=host)
        for name in ("worker1", "worker2"):
            self.await_line(name, "Successfully registered with master")

    def submit(self, *arguments: str) -> list[str]:
        """Return the command `spark-submit` with the settings of all applications, as the guide has them."""
        settings = {
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.executorEnv.SA_JOBQUEUE_URL": self.environment["SA_JOBQUEUE_URL"],
            "spark.executorEnv.GATE": str(self.gate),
            "spark.ui.enabled": "false",
            "spark.log.level": "INFO",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        return [str(self._home / "bin" / "spark-submit"), "--master", self.url, *given, *arguments]

    def serve_connect(self) -> str:
        """Start a Connect server on the cluster; return its address."""
        port = free_port()
        at = {"port": port, "address": "127.0.0.1"}
        settings = [part for name, value in at.items() for part in ("--conf", f"spark.connect.grpc.binding.{name}={value}")]
        server = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal")
        self._run("connect", self.submit(*settings, *server))
        self.await_line("connect", "Spark Connect server started")
        return f"sc://127.0.0.1:{port}"

    def log(self, name: str) -> str:
        """Return the output of a process."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def await_line(self, name: str, words: str) -> None:
        """Wait until a process prints something."""
        wait_until(lambda: words in self.log(name), description=f"{words!r} of {name}")

    def executors(self) -> dict[int, int]:
        """Return the processes of the executors, by the processes of Python that they have started for tasks."""
        parents = {int(path.name): parent_of(path) for path in Path("/proc").iterdir() if path.name.isdigit()}
        executors_found = {}
        for pid in (int(path.suffix[1:]) for path in self.gate.iterdir() if path.suffix):
            ancestor = pid
            while ancestor and "CoarseGrainedExecutorBackend" not in command_of(ancestor):
                ancestor = parents.get(ancestor, 0)
            executors_found[pid] = ancestor
        return executors_found

    def close(self) -> None:
        """End all processes."""
        self._stack.close()

    def _start(self, name: str, *command: str, host: str = "127.0.0.1") -> None:
        self._run(name, [str(self._home / "bin" / command[0]), *command[1:]], host=host)

    def _run(self, name: str, command: list[str], *, host: str = "127.0.0.1") -> None:
        output = self._stack.enter_context((self.folder / f"{name}.log").open("w"))
        process = subprocess.Popen(
            command,
            env=self.environment | {"SPARK_LOCAL_IP": host},
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            start_new_session=True,
        )
        self._stack.callback(end, process)


def wait_until(condition: Callable[[], bool], *, description: str) -> None:
    deadline = time.monotonic() + STARTED_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{description} did not become true"
        time.sleep(0.05)


def end(process: subprocess.Popen[Any]) -> None:
    """End a process and those it has started."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sent)
            process.wait(20)
            return
        except ProcessLookupError:
            process.wait()
            return
        except subprocess.TimeoutExpired:
            continue


def parent_of(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


@pytest.fixture
def cluster(tmp_path: Path, database_url: str) -> Iterator[Cluster]:
    """Start a cluster with the library and an application in its folder. Skips where no Java can be found."""
    needs("grpc")
    from sa_jobqueue.pipeline.spark import JavaNotFoundError, java_home

    try:
        java_home()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    zipped(tmp_path)
    (tmp_path / "shipped.py").write_text(APPLICATION)
    with ExitStack() as stack:
        new_cluster = Cluster(tmp_path, database_url)
        stack.callback(new_cluster.close)
        yield new_cluster


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by /proc")
def test_a_cluster_writes_with_speculation_and_runs_workers_while_an_executor_is_killed(
    cluster: Cluster, engine: Engine
) -> None:
    write(engine, "CREATE TABLE effect (n int NOT NULL, library text NOT NULL)")

    def count(query: str) -> Any:
        with engine.connect() as connection:
            return connection.execute(text(query)).scalar_one()

    (cluster.folder / "write.py").write_text(WRITE)
    speculation = {"speculation": "true", "speculation.quantile": "0.5", "speculation.multiplier": "1.1"}
    settings = [part for name, value in speculation.items() for part in ("--conf", f"spark.{name}={value}")]
    shipped = ("--py-files", f"{cluster.folder}/library.zip,{cluster.folder}/shipped.py")
    command = cluster.submit(*settings, *shipped, str(cluster.folder / "write.py"))
    process = run(command, cluster)
    assert process.stdout.splitlines()[-1] == "written 400", process.stdout[-3000:] + process.stderr[-5000:]
    assert (cluster.folder / "copied").exists(), process.stderr[-9000:]
    assert count("SELECT count(DISTINCT input) FROM job") == count("SELECT count(*) FROM job") == 400
    assert count("SELECT count(*) FROM job_bulk_staging WHERE write_id <> 'nightly'") == 0

    remote = cluster.serve_connect()
    (cluster.folder / "work.py").write_text(WORK)
    client = subprocess.Popen(
        [sys.executable, str(cluster.folder / "work.py"), remote, str(cluster.folder)],
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=(errors := (cluster.folder / "client.log").open("w")),
        text=True,
    )
    try:
        wait_until(lambda: len(list(cluster.gate.iterdir())) == 2, description="two jobs run")
        executors = cluster.executors()
        assert len(set(executors.values())) == 2, executors
        victim = min(executors.values())
        os.kill(victim, signal.SIGKILL)
        # Its Python would end the job, if the gate opened before it ends too.
        orphans = [pid for pid, executor in executors.items() if executor == victim]
        wait_until(lambda: not any(map(is_running, orphans)), description="the end of its Python")
        (cluster.gate / "open").touch()
        printed, _ = client.communicate(timeout=600)
    finally:
        client.kill()
        client.wait()
        errors.close()
    assert printed.splitlines() == ["worked idle", "completed 400"], cluster.log("client")[-5000:]
    assert count("SELECT count(DISTINCT n) FROM effect") == count("SELECT count(*) FROM effect") == 400
    assert count("SELECT count(*) FROM job_attempt WHERE outcome = 'lost'") == 1
    libraries = count("SELECT string_agg(DISTINCT library, ' ') FROM effect").split()
    assert all("library.zip/sa_jobqueue/" in library for library in libraries), libraries


def run(command: list[str], cluster: Cluster) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=cluster.environment, cwd=cluster.folder, capture_output=True, text=True, timeout=600, check=False
    )
