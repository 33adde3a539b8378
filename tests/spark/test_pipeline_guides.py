"""The code of the guides to reading, streaming and workers on executors runs as it is on the page, in the suite's Spark."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine

from sa_jobqueue import JobStatus
from sa_jobqueue.pipeline.spark.progress import WorkersEnd
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
OURS = re.compile(r"<!-- not run: tests/spark/test_pipeline_guides\.py [^\n]*-->\n```python\n(.*?)\n```", re.DOTALL)
RunPage = Callable[[str], dict[str, Any]]


@pytest.fixture
def run_page(plainly: SparkSession, database_url: str, tmp_path: Path) -> RunPage:
    """Give a function that runs a page's blocks in one program; returns its names. Spark's own paths are not the test's."""

    def run(name: str) -> dict[str, Any]:
        page = GUIDES / name
        names: dict[str, Any] = {"url": database_url}
        for block in OURS.finditer(page.read_text()):
            code = ast.parse("\n" * page.read_text()[: block.start(1)].count("\n") + block[1], str(page))
            for node in ast.walk(code):
                if isinstance(node, ast.Constant) and str(node.value).startswith("lake/"):
                    node.value = str(tmp_path / str(node.value))
            exec(compile(code, str(page), "exec"), names)
        return names

    return run


@pytest.fixture
def history(engine: Engine, jobs: Jobs) -> None:
    """Write some history: a job in each state that a page shows, and an attempt that failed."""
    ended = jobs.add(JobStatus.COMPLETED)
    jobs.add(JobStatus.DEAD)
    jobs.add(JobStatus.PENDING)
    write(engine, "INSERT INTO job_attempt (job_id, attempt, outcome) VALUES (:id, 1, 'failed')", {"id": ended})


@pytest.mark.usefixtures("history")
def test_the_guide_to_reading_runs(run_page: RunPage, capfd: pytest.CaptureFixture[str]) -> None:
    run_page("reading-with-spark.md")
    assert re.search(r"default\|\s*pending\|\s*1\|", capfd.readouterr().out)


@pytest.mark.usefixtures("history")
def test_the_guide_to_streaming_runs(run_page: RunPage, spark: SparkSession, tmp_path: Path) -> None:
    names = run_page("streaming-with-spark.md")
    assert spark.read.parquet(str(tmp_path / "lake/attempts")).count() == 1
    assert names["newest"](spark.read.parquet(str(tmp_path / "lake/jobs"))).count() == 2
    assert names["lag"].holder is None


def test_the_guide_to_workers_on_executors_runs(
    run_page: RunPage, spark: SparkSession, jobs: Jobs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (GUIDES / "workers-on-executors.md").read_text()
    (file,) = re.findall(r"```python\n(# embedding\.py\n.*?)```", page, re.DOTALL)
    (tmp_path / "embedding.py").write_text(file)
    spark.sparkContext.addPyFile(str(tmp_path / "embedding.py"))
    ids = [jobs.add(type_name="embed", queue="embed", input=n) for n in range(3)]
    names = run_page("workers-on-executors.md")
    assert capsys.readouterr().out.splitlines()[0] == "3 0 idle"
    assert [jobs.get(job_id)["output"] for job_id in ids] == [0, 2, 4]
    assert names["report"].ended is WorkersEnd.DRAINED
