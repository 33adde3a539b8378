"""The faults of a bulk write, each on real Spark and real PostgreSQL: whatever fails, each row is a job once.

What has been counted is shown when a row of the table is wrong: (fault, rows expected, rows found).
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from sqlalchemy import Engine, text

from sa_jobqueue.spark import enqueue, written
from tests.fixtures.tallies import tally
from tests.spark.faults import FaultySource, write_and_die
from tests.spark.test_writing_rows import Row, batch, writer
from tests.spark.writing_app import mail

ROWS, TASKS = 2_000, 4

pytestmark = pytest.mark.timeout(300)  # the first test to ask for Spark starts it


@pytest.fixture
def frame(spark: SparkSession) -> Iterator[DataFrame]:
    """Give the rows, and make a task see its own in six batches."""
    spark.dataSource.register(FaultySource)
    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "90")
    yield spark.range(0, ROWS, 1, TASKS).select(F.col("id").cast("string").alias("input"))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(before))


def found(engine: Engine) -> tuple[Any, ...]:
    """Count jobs, different inputs among them, and rows that are still staged."""
    counts = "SELECT (SELECT count(*) FROM job), (SELECT count(DISTINCT input) FROM job), (SELECT count(*) FROM job_stage)"
    with engine.connect() as connection:
        return tuple(connection.execute(text(counts)).one())


def clear(engine: Engine) -> None:
    """Begin anew."""
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE job, job_write, job_stage CASCADE"))


BATCH_FAULTS: dict[str, tuple[bool, int, int | None]] = {
    # What fails: whether `save` raises, rows when it has returned, rows after the same write without the fault.
    "nothing": (False, ROWS, ROWS),
    "raise": (False, ROWS, None),
    "kill": (False, ROWS, None),
    "kill in COPY": (False, ROWS, None),
    "raise after staging": (False, ROWS, None),
    "always": (True, 0, ROWS),
    "server crash": (True, 0, ROWS),
    "raise after commit": (True, ROWS, ROWS),
}


def test_whatever_fails_in_a_batch_write_each_row_is_a_job_once(
    frame: DataFrame, database_url: str, engine: Engine, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    table: list[tuple[str, Any, Any]] = []
    for fault, (is_raised, at_once, again) in BATCH_FAULTS.items():
        clear(engine)
        marks = tmp_path / fault
        marks.mkdir()
        options = {"url": database_url, "type": "t", "writeId": "nightly"}
        faulty = frame.write.format("faulty").mode("append").options(**options, fault=fault, marks=str(marks))
        try:
            faulty.save()
            raised = False
        except Exception:  # Spark's, of several classes
            raised = True
        table.append((fault, (is_raised, at_once, at_once, 0), (raised, *found(engine))))
        injected = {"nothing": 0, "raise": TASKS, "raise after staging": TASKS, "kill": TASKS // 2, "kill in COPY": 1}
        if fault in injected:
            assert len(list(marks.iterdir())) == injected[fault], fault
        if again is None:
            continue
        # The caller does what callers do, and writes again under the same name.
        frame.write.format("jobqueue").mode("append").options(**options).save()
        table.append((f"{fault}, then again", (again, again, 0), found(engine)))
    assert [row for row in table if row[1] != row[2]] == []
    tally(pytestconfig, "faults of bulk writes after which each row was a job once", len(table))


def test_whenever_the_driver_dies_its_write_can_be_made_again(database_url: str, engine: Engine) -> None:
    rows: list[Row] = [{"input": str(n)} for n in range(100)]
    table: list[tuple[str, Any, Any]] = []
    for where, expected in (("before", 0), ("in", 0), ("after", 100)):
        clear(engine)
        one = writer(database_url, ["input"], type="t", writeId="nightly")
        driver = get_context("spawn").Process(
            target=write_and_die, args=(one, [[batch(rows[:50])], [batch(rows[50:])]], where)
        )
        driver.start()
        driver.join(timeout=60)
        assert driver.exitcode == -signal.SIGKILL
        # The server may still be about to notice.
        with engine.begin() as connection:
            connection.execute(text("LOCK job_write IN ACCESS EXCLUSIVE MODE"))
        table.append((f"driver killed {where} its commit", expected, found(engine)[0]))
        again = writer(database_url, ["input"], type="t", writeId="nightly")
        again.commit([again.write(iter([batch(rows)]))])
        table.append((f"driver killed {where} its commit, then again", (100, 100, 0), found(engine)))
    assert [row for row in table if row[1] != row[2]] == []


def test_whatever_fails_in_a_stream_each_row_is_a_job_once(
    frame: DataFrame, spark: SparkSession, database_url: str, engine: Engine, tmp_path: Path
) -> None:
    source = tmp_path / "rows"
    frame.repartition(4).write.parquet(str(source))
    table: list[tuple[str, Any, Any]] = []
    for fault, is_raised in (("raise by turns", False), ("raise after commit", True)):
        clear(engine)
        marks = tmp_path / fault
        marks.mkdir()

        def start(marks: Path = marks, fault: str = fault) -> Any:
            rows = spark.readStream.schema("input string").option("maxFilesPerTrigger", 1).parquet(str(source))
            sink = rows.repartition(2).writeStream.format("faulty").options(url=database_url, type="t")
            sink = sink.options(fault=fault, marks=str(marks), checkpointLocation=str(marks / "checkpoint"))
            return sink.trigger(availableNow=True).start()

        query = start()
        try:
            query.awaitTermination()
            raised = False
        except Exception:  # Spark's
            raised = True
        assert raised == is_raised
        if is_raised:
            table.append((f"{fault} of batch 1", (1000, 1000), found(engine)[:2]))
            query = start()
            query.awaitTermination()
        if fault == "raise by turns":
            assert len([one for one in marks.iterdir() if one.name.startswith("batch-")]) == 8  # two tasks a batch
        with engine.connect() as connection:
            batches = connection.execute(text("SELECT sequence, enqueued FROM job_write ORDER BY 1")).all()
        assert [tuple(one) for one in batches] == [(0, 500), (1, 500), (2, 500), (3, 500)]
        result = written(database_url, str(query.id), sequence=3)
        assert result is not None
        assert result.enqueued == 500
        table.append((f"stream: {fault}", (ROWS, ROWS, 0), found(engine)))
    assert [row for row in table if row[1] != row[2]] == []


def test_rows_are_enqueued_by_a_handler_with_its_own_checks_and_settings(
    frame: DataFrame, database_url: str, engine: Engine
) -> None:
    people = frame.select(F.concat(F.lit("p"), "input").alias("to"), (F.col("input").cast("int") % 3).alias("copies"))
    result = enqueue(people, mail, url=database_url, deduplication_key="to", write_id="mails")
    assert (result.staged, result.enqueued, result.duplicates, result.rejected) == (ROWS, ROWS, 0, 0)
    assert enqueue(people, mail, url=database_url, write_id="mails") == result == written(database_url, "mails")
    counts = "SELECT queue, priority, input_version, count(*), count(DISTINCT input) FROM job GROUP BY 1, 2, 3"
    with engine.connect() as connection:
        assert connection.execute(text(counts)).all() == [("mails", 3, 2, ROWS, ROWS)]
    numbers: dict[str, Any] = {"payload": F.col("copies"), "priority": F.col("copies"), "url": database_url}
    assert enqueue(people.limit(3), "number", **numbers).enqueued == 3
    assert enqueue(people.limit(0), "number", **numbers).staged == 0
    nobody = people.withColumn("to", F.lit(None))
    assert enqueue(nobody, mail, mode="PERMISSIVE", url=database_url).rejected == ROWS
    with pytest.raises(Exception, match=r"partition \d, row 0: input\.to Input should be a valid string") as failed:
        enqueue(people.select(F.lit(1).alias("to")), mail, url=database_url)
    assert type(failed.value).__name__ == "WriteError"
    assert found(engine)[0] == ROWS + 3
