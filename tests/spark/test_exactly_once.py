"""The faults of a bulk write, each on real Spark and real PostgreSQL: whatever fails, each row is a job once.

The suite's run ends with the table of them: the fault, the rows expected, the rows found.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from sqlalchemy import Engine, create_engine, event, text

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.layout import Layout
from sa_jobqueue.migrations.runner import upgrade
from sa_jobqueue.pipeline.spark import enqueue, written
from sa_jobqueue.pipeline.spark.errors import WriteError
from sa_jobqueue.testing.embedded import EmbeddedServer
from sa_jobqueue.testing.servers import open_server
from tests.fixtures.parts import needs
from tests.fixtures.tallies import show_row
from tests.fixtures.transactions import rows, write
from tests.fixtures.variants import variants
from tests.spark.faults import FaultySource, write_and_die
from tests.spark.writing import Row, batch, writer
from tests.spark.writing_app import mail

ROWS, TASKS = 2_000, 4

pytestmark = pytest.mark.timeout(600)  # the first test to ask for Spark starts it, which takes its time on a busy machine


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
    counts = (
        "SELECT (SELECT count(*) FROM job), (SELECT count(DISTINCT input) FROM job), (SELECT count(*) FROM job_bulk_staging)"
    )
    with engine.connect() as connection:
        return tuple(connection.execute(text(counts)).one())


class CountUp(Protocol):
    """Compares the rows of the queue with those expected, and shows both at the end of the suite's run."""

    def __call__(self, fault: str, expected: int, *, still_staged: int = 0) -> None: ...


@pytest.fixture
def count_up(engine: Engine, pytestconfig: pytest.Config) -> CountUp:
    def compare(fault: str, expected: int, *, still_staged: int = 0) -> None:
        rows, different, staged = found(engine)
        show_row(pytestconfig, fault, expected, "rows expected", rows, "found")
        assert (rows, different, staged) == (expected, expected, still_staged), fault

    return compare


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


@pytest.mark.parametrize("fault", BATCH_FAULTS)
def test_any_failure_in_a_batch_write_leaves_each_row_enqueued_once(
    fault: str, frame: DataFrame, database_url: str, tmp_path: Path, count_up: CountUp
) -> None:
    is_raised, at_once, again = BATCH_FAULTS[fault]
    options = {"url": database_url, "type": "t", "writeId": "nightly"}
    faulty = frame.write.format("faulty").mode("append").options(**options, fault=fault, marks=str(tmp_path))
    try:
        faulty.save()
        raised = False
    except Exception:  # Spark's, of several classes
        raised = True
    count_up(f"batch write: {fault}", at_once)
    assert raised == is_raised
    if fault == "nothing":  # what a Python worker has imported is not traversed after each of its tasks
        assert all(int(mark.name.rpartition("-")[2]) > 10_000 for mark in tmp_path.iterdir())
    injected = {"nothing": TASKS, "raise": TASKS, "raise after staging": TASKS, "kill": TASKS // 2, "kill in COPY": 1}
    assert len(list(tmp_path.iterdir())) == injected.get(fault, 0)
    if again is not None:
        # The caller does what callers do, and writes again under the same name.
        frame.write.format("jobqueue").mode("append").options(**options).save()
        count_up(f"batch write: {fault}, then again", again)


def test_a_write_repeated_with_other_rows_is_committed_once(frame: DataFrame, database_url: str, count_up: CountUp) -> None:
    def write(rows: DataFrame, **options: str) -> None:
        all_options = {"url": database_url, "type": "t", "writeId": "nightly", **options}
        rows.write.format("jobqueue").mode("append").options(**all_options).save()

    write(frame.where("input = 'none'"))
    count_up("batch write: no rows at first", 0)
    write(frame)
    count_up("batch write: no rows at first, then again", ROWS)
    write(frame.where(f"CAST(input AS INT) < {ROWS // 2}"))
    count_up("batch write: half of its rows when repeated", ROWS)
    others = frame.where(f"CAST(input AS INT) < {ROWS // 2}").select(F.concat("input", F.lit(".5")).alias("input"))
    write(others, onRepeat="skip")
    count_up("batch write: other rows when repeated, skipped", ROWS)
    with pytest.raises(PySparkException, match=f"{ROWS:,}"):
        write(others)
    count_up("batch write: other rows when repeated", ROWS)


CLIENT = """
import sys
from pyspark.sql import SparkSession
from tests.spark.faults import FaultySource

remote, url, marks = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
spark.dataSource.register(FaultySource)
rows = spark.range(0, 2_000, 1, 4).selectExpr("CAST(id AS STRING) AS input")
options = {"url": url, "type": "t", "writeId": "nightly", "fault": "kill", "marks": marks}
for _ in range(2):
    rows.write.format("faulty").mode("append").options(**options).save()
spark.stop()
"""


def test_a_spark_connect_write_with_killed_tasks_is_committed_once(
    spark: SparkSession, database_url: str, tmp_path: Path, count_up: CountUp
) -> None:
    needs("grpc")
    remote = f"sc://127.0.0.1:{spark.conf.get('spark.connect.grpc.binding.port')}"
    client = [sys.executable, "-c", CLIENT, remote, database_url, str(tmp_path)]
    process = subprocess.run(client, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=290, check=False)
    assert process.returncode == 0, process.stderr[-5000:]
    assert len(list(tmp_path.iterdir())) == TASKS // 2
    count_up("batch write through Connect: kill, then again", ROWS)


@pytest.mark.slow
@pytest.mark.parametrize(("where", "at_once"), variants([("before", 0), ("in", 0), ("after", 100)], default=[("in", 0)]))
def test_a_write_can_be_repeated_after_its_driver_died_at_any_point(
    where: str, at_once: int, database_url: str, engine: Engine, count_up: CountUp
) -> None:
    rows: list[Row] = [{"input": str(n)} for n in range(100)]
    batch_writer = writer(database_url, ["input"], type="t", writeId="nightly")
    driver = get_context("spawn").Process(
        target=write_and_die, args=(batch_writer, [[batch(rows[:50])], [batch(rows[50:])]], where)
    )
    driver.start()
    driver.join(timeout=240)
    assert driver.exitcode == -signal.SIGKILL
    # The server may still be about to notice.
    write(engine, "LOCK job_bulk_write IN ACCESS EXCLUSIVE MODE")
    count_up(f"driver killed {where} its commit", at_once, still_staged=100 - at_once)
    again = writer(database_url, ["input"], type="t", writeId="nightly")
    again.commit([again.write(iter([batch(rows)]))])
    count_up(f"driver killed {where} its commit, then again", 100)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["newest", "oldest"])
def test_a_commit_outlives_a_restart_of_the_server_before_each_of_its_statements(version: str) -> None:
    with open_server(version) as server:
        assert isinstance(server, EmbeddedServer)
        engine = create_engine(server.url)
        with engine.begin() as connection:
            upgrade(connection, Layout(pipeline=True))
        place, interrupted = 0, True
        while interrupted:
            batch_writer = writer(server.url, ["input"], type="t", writeId=f"write-{place}")
            parts = [batch_writer.write(iter([batch([{"input": f"{place}.{number}"} for number in range(1, 4)])]))]
            statements: list[str] = []

            def restart(*arguments: Any, statements: list[str] = statements, place: int = place) -> None:
                statements.append(arguments[2])
                if len(statements) == place + 1:
                    server.restart()

            event.listen(Engine, "before_cursor_execute", restart)
            try:
                batch_writer.commit(list(parts))
            finally:
                event.remove(Engine, "before_cursor_execute", restart)
            engine.dispose()
            place, interrupted = place + 1, len(statements) > place
            assert found(engine) == (3 * place, 3 * place, 0)
        engine.dispose()
        assert place > 8


@pytest.mark.parametrize(("fault", "is_raised"), [("raise by turns", False), ("raise after commit", True)])
def test_any_failure_in_a_stream_leaves_each_row_enqueued_once(
    fault: str,
    is_raised: bool,
    frame: DataFrame,
    spark: SparkSession,
    database_url: str,
    engine: Engine,
    tmp_path: Path,
    count_up: CountUp,
) -> None:
    source, marks = tmp_path / "rows", tmp_path / "marks"
    marks.mkdir()
    frame.repartition(4).write.parquet(str(source))

    def start() -> Any:
        rows = spark.readStream.schema("input string").option("maxFilesPerTrigger", 1).parquet(str(source))
        sink = rows.repartition(2).writeStream.format("faulty").options(url=database_url, type="t")
        sink = sink.options(fault=fault, marks=str(marks), checkpointLocation=str(tmp_path / "checkpoint"))
        return sink.trigger(availableNow=True).start()

    query = start()
    try:
        query.awaitTermination()
        raised = False
    except Exception:  # Spark's
        raised = True
    assert raised == is_raised
    if is_raised:
        count_up(f"stream: {fault} of batch 1", 1_000)
        query = start()
        query.awaitTermination()
    else:
        assert len([mark for mark in marks.iterdir() if mark.name.startswith("batch-")]) == 8  # two tasks a batch
    count_up(f"stream: {fault}{', then again' if is_raised else ''}", ROWS)
    with engine.connect() as connection:
        batches = connection.execute(text("SELECT sequence, enqueued FROM job_bulk_write ORDER BY 1")).all()
    assert [tuple(batch) for batch in batches] == [(0, 500), (1, 500), (2, 500), (3, 500)]
    result = written(database_url, str(query.id), sequence=3)
    assert result is not None
    assert result.enqueued == 500


def test_spark_counts_rows_and_the_ledger_counts_jobs(spark: SparkSession, database_url: str, tmp_path: Path) -> None:
    spark.range(100).selectExpr("CAST(id AS STRING) AS input").coalesce(1).write.parquet(str(tmp_path / "rows"))
    rows = spark.readStream.schema("input string").parquet(str(tmp_path / "rows"))
    rows = rows.withColumn("deduplication_key", F.expr("right(input, 1)"))
    observed = rows.observe("sent", F.count(F.lit(1)).alias("rows"))
    sink = observed.writeStream.format("jobqueue").options(url=database_url, type="t")
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    (progress,) = query.recentProgress
    assert (progress["observedMetrics"]["sent"]["rows"], progress["sink"]["numOutputRows"]) == (100, 100)
    result = written(database_url, str(query.id), sequence=0)
    assert result is not None
    assert (result.staged, result.enqueued, result.duplicates) == (100, 10, 90)


@pytest.mark.parametrize("sink", ["writeStream", "foreachBatch"])
@pytest.mark.parametrize(
    ("lost", "replayed"),
    [
        ("the last record", None),
        ("the last record and rows", None),
        ("all records", 12),
        ("all records and rows", 7),
    ],
)
def test_a_stream_with_an_older_checkpoint_loses_no_row_silently(
    lost: str, replayed: int | None, sink: str, spark: SparkSession, database_url: str, engine: Engine, tmp_path: Path
) -> None:
    source, checkpoint, backup = tmp_path / "rows", tmp_path / "checkpoint", tmp_path / "backup"

    def add(name: str, rows: int) -> None:
        spark.range(rows).selectExpr(f"concat('\"{name}-', id, '\"') AS input").coalesce(1).write.parquet(
            str(tmp_path / name)
        )
        source.mkdir(exist_ok=True)
        (file,) = (tmp_path / name).glob("*.parquet")
        file.rename(source / f"{name}.parquet")

    def run(**options: Any) -> None:
        rows = spark.readStream.schema("input string").parquet(str(source))
        if sink == "writeStream":
            stream = rows.writeStream.format("jobqueue").options(url=database_url, type="t", **options)
        else:

            def enqueue_batch(batch: DataFrame, number: int) -> None:
                enqueue(batch, "t", payload="input", url=database_url, write_id=f"batch-{number}", **options)

            stream = rows.writeStream.foreachBatch(enqueue_batch)
        stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    def take_back(name: str, rows: int) -> None:
        shutil.rmtree(tmp_path / name)
        (source / f"{name}.parquet").unlink()
        (source / f".{name}.parquet.crc").unlink(missing_ok=True)
        if rows:
            add(name, rows)

    add("a", 10)
    run()
    shutil.copytree(checkpoint, backup)
    add("b", 5)
    run()
    assert found(engine)[0] == 15
    if replayed is None:  # the batch is planned again, with the same rows, or without those that have been deleted since
        for file in checkpoint.glob("commits/*1*"):
            file.unlink()
        if "rows" in lost:
            take_back("b", 3)
        add("c", 7)
        run()
        assert found(engine) == (22, 22, 0)
        return
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)
    add("c", 7)
    if "rows" in lost:
        take_back("b", 0)
    with pytest.raises(Exception, match=rf"has committed 5 rows, this time there are {replayed}.*onRepeat=skip"):
        run()
    assert found(engine)[:2] == (15, 15)
    run(onRepeat="skip")  # the operator accepts that the rows of "c" are left out, and enqueues them apart
    add("d", 3)
    run()
    assert found(engine)[:2] == (18, 18)


def test_rows_enqueued_for_a_handler_use_its_validation_and_settings(
    frame: DataFrame, database_url: str, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    people = frame.select(F.concat(F.lit("p"), "input").alias("to"), (F.col("input").cast("int") % 3).alias("copies"))
    mails: dict[str, Any] = {"deduplication_key": "to", "write_id": "mails", "rate_cost": 7, "progress": "lines"}
    result = enqueue(people, mail, url=database_url, **mails)
    assert (result.staged, result.enqueued, result.duplicates, result.rejected) == (ROWS, ROWS, 0, 0)
    printed = capsys.readouterr().err
    assert "enqueue mails: staging tasks\n" in printed
    assert "enqueue mails: done after " in printed
    assert enqueue(people, mail, url=database_url, **mails) == result == written(database_url, "mails")
    counts = "SELECT queue, priority, rate_cost, input_version, count(*), count(DISTINCT input) FROM job GROUP BY 1,2,3,4"
    assert rows(engine, counts) == [("mails", 3, 7, 2, ROWS, ROWS)]
    copies = F.col("copies")
    numbers: dict[str, Any] = {"payload": copies, "priority": copies, "rate_cost": copies + 1, "url": database_url}
    assert enqueue(people.limit(3), "number", **numbers).enqueued == 3
    as_given = "SELECT count(*) FROM job WHERE type_name = 'number' AND priority = input::int AND rate_cost = priority + 1"
    with engine.connect() as connection:
        assert connection.execute(text(as_given)).scalar_one() == 3
    assert enqueue(people.limit(0), "number", **numbers).staged == 0
    nobody = people.withColumn("to", F.lit(None))
    assert enqueue(nobody, mail, mode="PERMISSIVE", url=database_url).rejected == ROWS
    with pytest.raises(WriteError, match=r"partition \d, row 0: input\.to Input should be a valid string"):
        enqueue(people.select(F.lit(None).cast("string").alias("to")), mail, url=database_url)
    assert found(engine)[0] == ROWS + 3


def test_jobs_of_an_ordering_key_keep_the_row_order_of_their_partition(
    frame: DataFrame, database_url: str, engine: Engine
) -> None:
    number = F.col("input").cast("int")
    customer = F.concat(F.lit("customer "), (number % 7).cast("string"))
    events = frame.select(number.alias("n"), customer.alias("customer"))
    in_order = events.repartition(3, "customer").sortWithinPartitions("customer", F.desc("n"))
    until = datetime.now(UTC) + timedelta(hours=1)
    options: dict[str, Any] = {
        "payload": F.col("n"),
        "ordering_key": "customer",
        "expires_at": until,
    }
    assert enqueue(in_order, "number", url=database_url, **options).enqueued == ROWS
    columns = """SELECT count(DISTINCT ordering_key), min(expires_at), max(expires_at),
        bool_and(is_next)
      FROM (SELECT *, coalesce(input::int < lag(input::int) OVER (PARTITION BY ordering_key ORDER BY created_at, id), true)
        AS is_next FROM job) AS job"""
    with engine.connect() as connection:
        assert connection.execute(text(columns)).one() == (7, until, until, True)
    for wrong in ({"expires_at": datetime(2026, 1, 1)}, {"progress": "bar"}):
        with pytest.raises(InvalidOptionError, match=next(iter(wrong))):
            enqueue(events, "number", url=database_url, **wrong)


def test_an_option_already_set_by_an_argument_is_refused(frame: DataFrame, database_url: str) -> None:
    with pytest.raises(InvalidOptionError, match="writeId: is given twice"):
        enqueue(frame, "number", payload="input", url=database_url, write_id="nightly", writeId="x")
    with pytest.raises(InvalidOptionError, match="type: is given twice"):
        enqueue(frame, "number", payload="input", url=database_url, TYPE="x")
