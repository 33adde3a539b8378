"""Progress of a write, on a real Spark: how many of its tasks have ended, and the lines that `enqueue` prints."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.orm import Session

from sa_jobqueue.pipeline.spark import enqueue
from sa_jobqueue.pipeline.spark.progress import counted_tasks
from tests.fixtures.workers import PATIENCE, wait_until
from tests.spark.writing import count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_finished_tasks_are_counted_while_others_run(spark: SparkSession, tmp_path: Path) -> None:
    gate = tmp_path / "go"

    def end_at_the_gate(rows: Iterable[int]) -> Iterator[int]:
        # The tasks 2 and 3 begin last, when both cores have ended one.
        for number in rows:
            until = time.monotonic() + PATIENCE
            while number >= 2 and not gate.exists() and time.monotonic() < until:
                time.sleep(0.01)
            yield number

    def run() -> None:
        spark.sparkContext.parallelize(range(4), 4).mapPartitions(end_at_the_gate).count()

    with counted_tasks(spark) as measure:
        thread = threading.Thread(target=run)
        thread.start()
        try:
            wait_until(lambda: measure() == (2, 4), description="two of four tasks")
        finally:
            gate.touch()
            thread.join(PATIENCE)
        assert measure() == (4, 4)


def test_enqueue_prints_a_progress_line_at_its_start_and_end(
    spark: SparkSession, database_url: str, session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = spark.createDataFrame([("{}",), ("{}",)], "input string")
    enqueue(rows, "t", url=database_url, write_id="nightly", progress="lines")
    begun, *_, ended = capsys.readouterr().err.splitlines()  # on a busy machine, one in between
    assert begun == "enqueue nightly: staging tasks"
    assert ended.startswith("enqueue nightly: done after ")
    assert count(session) == 2
    enqueue(rows, "t", url=database_url, write_id="nightly", progress="lines", on_repeat="skip")
    assert capsys.readouterr().err == ""  # a committed write has nothing to do
