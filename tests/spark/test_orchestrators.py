"""The example of orchestrators: its files run as they are, with the real packages where those are installed."""

from __future__ import annotations

import asyncio
import importlib
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, text

from sa_jobqueue import Discard, JobQueue, Worker
from tests.fixtures.parts import needs
from tests.fixtures.workers import quick
from tests.spark.writing import Row, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
FILES = {path.name: path.read_text() for path in (ROOT / "examples" / "orchestrators").glob("*.py")}

AIRFLOW_VARIABLE = "SA_JOBQUEUE_AIRFLOW_PYTHON"
AIRFLOW = os.environ.get(AIRFLOW_VARIABLE)
"""The Python of an environment of its own: Airflow needs other versions of libraries than the suite."""

pytestmark = pytest.mark.timeout(900)

dying: JobQueue[Any] = JobQueue()


@dying.handler("remind")
def die(payload: Any) -> None:
    """Leave a dead letter at once."""
    raise Discard("no such customer")


@pytest.fixture
def folder(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder, on Python's path, with the files of the example."""
    for name, code in FILES.items():
        (tmp_path / name).write_text(code)
    monkeypatch.setenv("SA_JOBQUEUE_URL", database_url)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def work(jobs: JobQueue[Any], engine: Engine) -> None:
    asyncio.run(Worker(jobs, engine, options=quick()).run_until_idle())


def count(engine: Engine, query: str = "SELECT count(*) FROM job") -> Any:
    with engine.connect() as connection:
        return connection.execute(text(query)).scalar_one()


def test_a_bulk_write_has_ended_when_its_chains_have_and_dead_ones_raise(
    folder: Path, engine: Engine, database_url: str
) -> None:
    reminders = importlib.import_module("reminders")
    assert reminders.has_ended("no rows")
    valid: Row = {"type_name": "remind", "input": '{"customer": "ada", "day": "2026-11-20"}'}
    write(database_url, [valid], writeId="one")
    write(database_url, [valid, valid | {"input": "7"}], writeId="two")
    assert not reminders.has_ended("one")
    work(reminders.jobs, engine)
    assert reminders.has_ended("one")
    with pytest.raises(reminders.JobsDiedError, match="1 of 2 jobs of two died"):
        reminders.has_ended("two")


def test_dagster_enqueues_a_partition_once_and_a_sensor_waits_for_its_jobs(
    folder: Path, engine: Engine, plainly: SparkSession
) -> None:
    dg = needs("dagster")
    plainly.sparkContext.addPyFile(str(folder / "reminders.py"))
    assets = importlib.import_module("reminders_assets")
    reminders = importlib.import_module("reminders")
    first, second = "2026-11-19", "2026-11-20"
    with dg.DagsterInstance.ephemeral() as instance:

        def requested() -> list[str]:
            with dg.build_sensor_context(instance=instance, definitions=assets.definitions) as context:
                requests = assets.when_ended(context)
            return [] if isinstance(requests, dg.SkipReason) else [request.partition_key for request in requests]

        def materialize(asset: Any, day: str, *, raise_on_error: bool = True) -> bool:
            every = [assets.reminders_loaded, assets.reminders_sent]
            run_result = dg.materialize(
                every, partition_key=day, instance=instance, selection=[asset], raise_on_error=raise_on_error
            )
            return bool(run_result.success)

        for _ in range(2):
            assert materialize(assets.reminders_loaded, first)
        assert count(engine) == 2
        assert requested() == []
        work(reminders.jobs, engine)
        assert requested() == [first]
        assert materialize(assets.reminders_sent, first)
        assert requested() == []
        assert materialize(assets.reminders_loaded, second)
        work(dying, engine)
        assert requested() == [second]
        with pytest.raises(reminders.JobsDiedError, match="2 of 2 jobs"):
            materialize(assets.reminders_sent, second)


@pytest.mark.long
@pytest.mark.skipif(AIRFLOW is None, reason=f"{AIRFLOW_VARIABLE} names no Python with apache-airflow and the extra spark")
def test_airflow_enqueues_a_day_waits_for_its_jobs_and_fails_when_some_died(
    folder: Path, engine: Engine, database_url: str
) -> None:
    from sa_jobqueue.pipeline.spark import java_home

    home, dags = folder / "airflow", folder / "dags"
    dags.mkdir()
    dag = (folder / "reminders_dag.py").read_text()
    (dags / "reminders_dag.py").write_text(dag.replace("poke_interval=60", "poke_interval=1"))
    environment = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": str(AIRFLOW),
        "PYSPARK_SUBMIT_ARGS": "--master local[1] --conf spark.ui.enabled=false pyspark-shell",
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "SA_JOBQUEUE_URL": database_url,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    airflow = [str(AIRFLOW), "-m", "airflow"]
    subprocess.run([*airflow, "db", "migrate"], env=environment, cwd=folder, capture_output=True, timeout=300, check=True)

    def run(day: str, jobs: JobQueue[Any]) -> dict[str, str]:
        """Run the DAG for a day, and workers when its jobs are there; return the states of its tasks."""
        before = count(engine)
        with (folder / f"{day}.log").open("w") as log:
            running = subprocess.Popen(
                [*airflow, "dags", "test", "daily_reminders", day], env=environment, cwd=folder, stdout=log, stderr=log
            )
            try:
                deadline = time.monotonic() + 240
                while count(engine) == before and running.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.1)  # nothing announces a commit to those who do not work
                work(jobs, engine)
                running.wait(240)
            finally:
                running.kill()
                running.wait()
        assert count(engine) == before + 2, (folder / f"{day}.log").read_text()[-5000:]
        with sqlite3.connect(home / "airflow.db") as database:
            states = """SELECT task_id, t.state FROM task_instance AS t JOIN dag_run AS r USING (run_id)
                WHERE r.logical_date LIKE ?"""
            return dict(database.execute(states, [f"{day}%"]).fetchall())

    sys.path.insert(0, str(folder))
    reminders = importlib.import_module("reminders")
    assert run("2026-11-19", reminders.jobs) == {"load": "success", "ended": "success"}
    assert run("2026-11-20", dying) == {"load": "success", "ended": "failed"}
    write_count = count(engine, "SELECT count(*) FROM job_bulk_write WHERE write_id LIKE 'daily\\_reminders.manual\\_\\_%'")
    assert write_count == 2  # by the run ids of `dags test`
