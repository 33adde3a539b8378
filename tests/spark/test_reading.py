"""Batch reads return the written rows, whatever becomes of the rows meanwhile."""

from __future__ import annotations

import gc
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.types import StructType
from sqlalchemy import Engine, insert, text
from sqlalchemy.orm import Session

from sa_jobqueue import JobStatus, cancel_jobs
from sa_jobqueue.db import copy as copying
from sa_jobqueue.errors import InvalidOptionError, SchemaError
from sa_jobqueue.layout import Layout
from sa_jobqueue.pipeline.history import DATASETS, Kind
from sa_jobqueue.pipeline.spark import ReadError
from sa_jobqueue.pipeline.spark.connections import connect, model_of, sanitised
from sa_jobqueue.pipeline.spark.source import JobQueueSource
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.fixtures.schemas import NASTY_SCHEMA
from tests.fixtures.workers import wait_until
from tests.spark import applications
from tests.spark.reading import ATTEMPT, batches, read, reader, stream

HOSTILE = [
    "",
    "null",
    'quoted "twice", and a comma',
    "lines\nof\r\nall\rkinds",
    "\\.",
    "\\N\t\\\\",
    "é 😀 \U0010ffff   \x7f",
    "'; DROP TABLE job; --",
]


@both_servers
def test_every_value_round_trips_through_a_read(database_url: str, engine: Engine, jobs: Jobs) -> None:
    values: list[Any] = [*HOSTILE, None, True, 0.1, 2**53 + 1, {}, [], {"a": [None, {"b": HOSTILE}]}]
    ids = [str(jobs.add(JobStatus.COMPLETED, input=value, output=value)) for value in values]
    pending = str(jobs.add(input=None))
    strange = '-- odd "queue",\n\'\\. 😀'
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET queue = :queue, timeout = '1 day 00:00:00.25'"), {"queue": strange})
        connection.execute(
            text(
                "INSERT INTO job_attempt (job_id, attempt, worker_id, ended_at, outcome, error)"
                " VALUES (:id, 1, '', '0204-02-29 01:02:03.000004+00', 'failed', 'null'),"
                "        (:id, 2, NULL, '1969-12-31 23:59:59.999999+00', 'failed', NULL)"
            ),
            {"id": pending},
        )
    rows = {row["id"]: row for row in read(database_url, "jobs")}
    assert [json.loads(rows[job_id]["input"]) for job_id in ids] == values
    assert [json.loads(rows[job_id]["output"]) for job_id in ids] == values
    # The JSON null is a value, SQL's is not.
    assert (rows[pending]["input"], rows[pending]["output"]) == ("null", None)
    assert {row["queue"] for row in rows.values()} == {strange}
    assert {row["timeout_seconds"] for row in rows.values()} == {86400.25}
    first, second = sorted(read(database_url, "attempts"), key=lambda row: row["attempt"])
    assert (first["worker_id"], first["error"], first["ended_at"]) == (
        "",
        "null",
        datetime(204, 2, 29, 1, 2, 3, 4, tzinfo=UTC),
    )
    assert (second["worker_id"], second["error"], second["ended_at"]) == (
        None,
        None,
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    )
    # A row of one column that is null is an empty line of CSV, and still a row.
    assert Counter(row["worker_id"] for row in read(database_url, "attempts", columns="worker_id")) == {"": 1, None: 1}


def test_an_instant_that_spark_lacks_is_null(database_url: str, engine: Engine, jobs: Jobs) -> None:
    odd, usual = jobs.add(), jobs.add()
    with engine.begin() as connection:
        change = text("UPDATE job SET expires_at = 'infinity', created_at = '12026-01-01' WHERE id = :id")
        connection.execute(change, {"id": odd})
        connection.execute(text("UPDATE job SET expires_at = '9999-12-31 23:59:59.999999+00' WHERE id = :id"), {"id": usual})
    rows = {row["id"]: row for row in read(database_url, "jobs")}
    assert (rows[str(odd)]["expires_at"], rows[str(odd)]["created_at"]) == (None, None)
    assert rows[str(usual)]["expires_at"] == datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert rows[str(usual)]["created_at"] is not None


@both_servers
def test_each_dataset_equals_its_table(database_url: str, engine: Engine, jobs: Jobs) -> None:
    blocker = jobs.add(JobStatus.DEAD, error={"type": "E", "message": "m", "traceback": ""}, fingerprint="f")
    waiting = jobs.add(JobStatus.BLOCKED)
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE job SET changed_xid = pg_current_xact_id() WHERE id = :waiting"), {"waiting": waiting}
        )
        connection.execute(
            text("INSERT INTO job_blocker (job_id, blocked_by_chain_id, index) VALUES (:waiting, :blocker, 0)"),
            {"waiting": waiting, "blocker": blocker},
        )
        connection.execute(
            text("INSERT INTO job_attempt (job_id, attempt, outcome, error) VALUES (:blocker, 1, 'failed', '{}')"),
            {"blocker": blocker},
        )
    tables = {"jobs": "job", "attempts": "job_attempt", "dead_letters": "dead_letter", "blockers": "job_blocker"}
    for name, dataset in DATASETS.items():
        columns = {column.name: f'"{column.name}"' for column in dataset.columns}
        columns |= {column.name: f"{column.name}::text" for column in dataset.columns if column.kind is Kind.JSON}
        columns |= {
            "application": "NULL::text",
            "xid": "changed_xid::text::bigint",
            "timeout_seconds": "extract(epoch FROM timeout)::float8",
        }
        chosen = ", ".join(f"{columns[name]} AS {name}" if name != "index" else '"index"' for name in dataset.names)
        with engine.connect() as connection:
            stored = [dict(row) for row in connection.execute(text(f"SELECT {chosen} FROM {tables[name]}")).mappings()]
        assert stored, name
        assert sorted(map(comparable, read(database_url, name))) == sorted(map(comparable, stored))


def comparable(row: dict[str, Any]) -> str:
    """Return a row as text: ids and states as such, instants in UTC."""
    return str({key: str(value.astimezone(UTC) if isinstance(value, datetime) else value) for key, value in row.items()})


@both_servers
def test_partitions_are_complete_and_disjoint(database_url: str, jobs: Jobs) -> None:
    assert read(database_url, "jobs", numPartitions=4) == []  # an empty table is one part, and no error
    expected = {str(job_id) for job_id in jobs.add_many(500)}
    for parts in (1, 2, 7):
        jobs_reader = reader(database_url, "jobs", {"num_partitions": parts, "columns": "id"})
        planned = jobs_reader.partitions()
        assert len(planned) == parts
        ids_by_part = [[row["id"] for batch in jobs_reader.read(part) for row in batch.to_pylist()] for part in planned]
        assert sorted(job_id for part in ids_by_part for job_id in part) == sorted(expected)
        assert max(map(len, ids_by_part)) <= 2 * min(map(len, ids_by_part))
    assert len(reader(database_url, "jobs").partitions()) == 1  # a small table is not worth a second connection


def test_a_queue_is_addressed_by_schema_prefix_and_id_type(database_url: str, engine: Engine) -> None:
    layout = Layout(NASTY_SCHEMA, "mail_", "text")
    model = model_of(layout)
    assert model_of(Layout(NASTY_SCHEMA, "mail_", "text")) is model
    model.__table__.metadata.create_all(engine)  # type: ignore[attr-defined]
    with engine.begin() as connection:
        for n in range(50):
            connection.execute(
                insert(model),
                {"id": (key := f"{'Ab%€ '[n % 5]}'{n}\""), "chain_id": key, "type_name": "t", "chain_type_name": "t"},
            )
    where = {"schema": NASTY_SCHEMA, "prefix": "mail_"}
    rows = read(database_url, "jobs", **where, numPartitions=3)
    assert len(rows) == len({row["id"] for row in rows}) == 50
    assert len(reader(database_url, "jobs", {**where, "numPartitions": 3}).partitions()) == 3
    for app in ("jobs", "MailJob"):
        assert len(read(database_url, "jobs", app=f"tests.spark.applications:{app}")) == 50
    with pytest.raises(InvalidOptionError, match="neither a JobQueue nor a Job model"):
        read(database_url, "jobs", app="tests.spark.applications:Base")
    with pytest.raises(SchemaError, match=re.escape(f"{Layout(NASTY_SCHEMA).qualified('job')} does not exist")):
        read(database_url, "jobs", schema=NASTY_SCHEMA)


@both_servers
def test_read_filters_select_matching_rows(database_url: str, engine: Engine, jobs: Jobs) -> None:
    jobs.add(JobStatus.COMPLETED, queue="a", type_name="x")
    jobs.add(JobStatus.PENDING, queue="b, with a comma", type_name="x")
    jobs.add(JobStatus.DEAD, queue="c", type_name="y")
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE job SET created_at = '2026-01-31 12:00+00', changed_xid = pg_current_xact_id() WHERE queue = 'a'")
        )
        ended = connection.execute(text("SELECT completed_at FROM job WHERE queue = 'a'")).scalar_one()
    for options, queues in [
        ({"queue": "a, c"}, {"a", "c"}),
        ({"type": "x"}, {"a", "b, with a comma"}),
        ({"status": "Dead,pending"}, {"b, with a comma", "c"}),
        ({"createdBefore": "2026-02-01"}, {"a"}),
        ({"createdAfter": "2026-01-31T13:00:00+01:00", "createdBefore": "2026-01-31T12:00:00.000001"}, {"a"}),
        ({"completedAfter": ended.isoformat()}, {"a", "c"}),
        ({"completed_before": ended.isoformat()}, set()),
        ({"queue": "a", "type": "y"}, set()),
    ]:
        assert {row["queue"] for row in read(database_url, "jobs", **options)} == queues, options
    assert {row["queue"] for row in read(database_url, "dead_letters", queue="c")} == {"c"}
    assert read(database_url, "dead_letters", completedAfter="2020-01-01") == []  # none is resolved


def test_rows_that_wait_to_be_decoded_are_no_work_for_the_garbage_collector(database_url: str, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(ATTEMPT, (1, 5_000))
    collections: list[int] = []

    def note(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            collections.append(1)

    thresholds, is_enabled = gc.get_threshold(), gc.isenabled()
    gc.set_threshold(100, *thresholds[1:])
    gc.callbacks.append(note)
    gc.enable()
    try:
        dataset_reader = reader(database_url, "attempts")
        (part,) = dataset_reader.partitions()
        collections.clear()
        assert sum(len(batch) for batch in dataset_reader.read(part)) == 5_000
    finally:
        if not is_enabled:
            gc.disable()
        gc.callbacks.remove(note)
        gc.set_threshold(*thresholds)
    assert len(collections) < 25, "lines kept as memoryviews make a hundred"


@both_servers
def test_a_read_up_to_the_watermark_is_repeatable(database_url: str, jobs: Jobs) -> None:
    jobs.add_many(3)
    with psycopg.connect(plain_url(database_url)) as writing:
        writing.execute("SELECT pg_current_xact_id()")
        jobs.add_many(4)  # after a transaction that is still open
        jobs_reader = reader(database_url, "jobs", {"upTo": "watermark"})
        parts = jobs_reader.partitions()
        assert sum(batch.num_rows for part in parts for batch in jobs_reader.read(part)) == 3
        assert len(read(database_url, "jobs")) == 7
    # Even when that transaction is gone, and more has come: the range was fixed when the read was planned.
    assert sum(batch.num_rows for part in parts for batch in jobs_reader.read(part)) == 3
    assert len(read(database_url, "jobs", upTo="watermark")) == 7


def plain_url(url: str) -> str:
    return url.replace("postgresql+psycopg", "postgresql")


@both_servers
def test_a_row_changed_during_a_read_is_read_exactly_once(
    database_url: str, engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Counter(str(job_id) for job_id in jobs.add_many(600))
    monkeypatch.setattr(copying, "BLOCK_BYTES", 2000)
    jobs_reader = reader(database_url, "jobs", {"numPartitions": 3})
    count_by_id: Counter[str] = Counter()
    passed = 0
    for part in jobs_reader.partitions():
        for batch in jobs_reader.read(part):
            count_by_id.update(row["id"] for row in batch.to_pylist())
            passed += 1
            if passed % 10 == 1:
                # Every row moves: behind where this part has read, and into where the next one will.
                with engine.begin() as connection:
                    connection.execute(text("UPDATE job SET priority = (priority + 1) % 9"))
                    connection.execute(
                        text(
                            "INSERT INTO job (id, chain_id, type_name, chain_type_name)"
                            " SELECT id, id, 'new', 'new' FROM (SELECT job_uuid7() AS id) AS made"
                        )
                    )
        with engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("VACUUM job"))
    assert passed > 20
    assert max(count_by_id.values()) == 1
    assert expected <= count_by_id


def test_the_applications_own_columns_are_read_and_streamed_as_one_json_object(database_url: str, engine: Engine) -> None:
    model = applications.TenantJob
    model.metadata.create_all(
        engine, tables=[table for table in model.metadata.tables.values() if table.schema == "tenants"]
    )
    with Session(engine) as session:
        written_jobs = [model("mail", tenant=7, region="ä"), model("secret", tenant=8)]
        session.add_all(written_jobs)
        session.commit()
        cancel_jobs(session, [job.id for job in written_jobs], model=model)
        session.commit()
    app = "tests.spark.applications:TenantJob"
    rows = read(database_url, "jobs", app=app, columns="type_name,application", redact="secret")
    application_by_type = {row["type_name"]: row["application"] for row in rows}
    assert application_by_type == {"mail": '{"region": "ä", "tenant": 7}', "secret": '"(redacted)"'}
    (streamed,) = [rows for rows, _ in batches(stream(database_url, "jobs", app=app, startingXid="earliest")) if rows]
    assert {json.loads(row["application"])["tenant"] for row in streamed} == {7, 8}
    assert {row["application"] for row in read(database_url, "jobs", schema="tenants")} == {None}
    (hidden,) = {"application" in row for row in read(database_url, "jobs", app=app, excludePrivate="true")}
    assert not hidden


@both_servers
def test_an_abandoned_read_leaves_no_connection(
    database_url: str, engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.add_many(300)
    monkeypatch.setattr(copying, "BLOCK_BYTES", 1000)
    jobs_reader = reader(database_url, "jobs")
    batches = jobs_reader.read(jobs_reader.partitions()[0])
    assert isinstance(batches, Iterator)
    next(batches)
    ours = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE application_name LIKE 'jobqueue-spark%' AND datname = current_database()"
    )

    def are(count: int) -> bool:
        with engine.connect() as connection:
            return int(connection.execute(ours).scalar_one()) == count

    wait_until(lambda: are(1), description="the read alone is connected, and the plan's connection is gone")
    batches.close()  # type: ignore[attr-defined]
    wait_until(lambda: are(0), description="its connection is closed")


def test_a_read_connection_has_timeouts_and_is_read_only(database_url: str) -> None:
    bounds = ("statement_timeout", "idle_in_transaction_session_timeout", "default_transaction_read_only")
    for read_options, statement in (({}, "10min"), ({"statementTimeout": "0.05"}, "50ms")):
        options = reader(database_url, "jobs", read_options).options
        with connect(options, read_only=True) as connection:
            settings = [connection.execute(text(f"SHOW {name}")).scalar_one() for name in bounds]
            assert settings == [statement, "1min", "on"]
    with connect(options) as connection, pytest.raises(ReadError, match="statement timeout"), sanitised(options):
        connection.execute(text("SELECT pg_sleep(60)"))


@dataclass
class Refused:
    """Refused options, and their errors."""

    option: str
    reason: str
    dataset: str
    options: dict[str, str]
    types: dict[str, str] = field(default_factory=dict)


REFUSED = [
    Refused("numPartition", "did you mean numPartitions?", "jobs", {"numPartition": "1"}),
    Refused("dataset", "must be one of jobs, attempts, dead_letters, blockers", "dead_leters", {}),
    Refused("dataset", "is given twice", "attempts", {"dataset": "jobs"}),
    Refused("numPartitions", "must be from 1 to 10,000, got 0", "jobs", {"numPartitions": "0"}),
    Refused("numPartitions", "given twice", "jobs", {"numPartitions": "1", "num_partitions": "2"}),
    Refused("status", "must be one of blocked, pending", "jobs", {"status": "complete"}),
    Refused("status", "nothing that it could select by", "attempts", {"status": "dead"}),
    Refused("upTo", "nothing that it could select by", "blockers", {"upTo": "watermark"}),
    Refused("startingXid", "belongs to spark.readStream", "jobs", {"startingXid": "1", "createdAfter": "2026-01-01"}),
    Refused("writeId", "belongs to df.write", "jobs", {"writeId": "x", "createdAfter": "2026-01-01"}),
    Refused("createdAfter", "must be a time such as", "jobs", {"createdAfter": "yesterday"}),
    Refused("columns", "did you mean type_name?", "jobs", {"columns": "id,typename"}),
    Refused("columns", "twice", "jobs", {"columns": "id,id"}),
    Refused("columns", "excludePrivate leaves out", "jobs", {"columns": "id,input", "excludePrivate": "true"}),
    Refused("schema()", "choose columns with option columns", "jobs", {"columns": "id"}, {"queue": "string"}),
    Refused("schema()", "cast after load()", "jobs", {"columns": "xid"}, {"xid": "string"}),
    Refused("schema", "must not begin with pg_", "jobs", {"schema": "pg_jobs"}),
    Refused("prefix", "lower-case SQL identifier", "jobs", {"prefix": "Mail"}),
    Refused("app", "leave out schema and prefix", "jobs", {"app": "a:b", "prefix": "x_"}),
    Refused("statementTimeout", "above 0", "jobs", {"statementTimeout": "-1"}),
    Refused("url", "must be a PostgreSQL URL", "jobs", {"url": "mysql://h/d"}),
]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda parameter: f"{parameter.option} {parameter.reason}")
def test_an_invalid_read_option_is_refused_before_connecting(refused: Refused) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        reader("postgresql://nobody@127.0.0.1:1/none", refused.dataset, refused.options, **refused.types)
    assert caught.value.option.lower() == refused.option.lower()
    assert refused.reason in caught.value.reason


def test_a_read_needs_a_dataset_and_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidOptionError, match=r'is required; pass load\("?.?jobs'):
        JobQueueSource({"url": "postgresql://h/d"}).schema()
    monkeypatch.delenv("SA_JOBQUEUE_URL", raising=False)
    monkeypatch.delenv("PGSERVICE", raising=False)
    source = JobQueueSource({"path": "jobs"})
    with pytest.raises(InvalidOptionError, match=r"SA_JOBQUEUE_URL .* on every executor"):
        source.reader(source.schema()).partitions()


def test_private_columns_can_be_excluded() -> None:
    column_names = JobQueueSource({"path": "jobs", "excludeprivate": "true"}).schema().names
    assert not {"input", "output", "last_error", "deduplication_key"} & set(column_names)
    assert column_names == [column.name for column in DATASETS["jobs"].columns if not column.private]


class Numbers(DataSource):
    """Pushes one filter down, as the engine lets it."""

    @classmethod
    def name(cls) -> str:
        return "pushed_numbers"

    def schema(self) -> str:
        return "n int"

    def reader(self, schema: StructType) -> DataSourceReader:
        return PushedReader()


class PushedReader(DataSourceReader):
    """Reads ten numbers, or the one that is asked for."""

    def __init__(self) -> None:
        self.wanted = list(range(10))

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        for one in filters:
            if isinstance(one, EqualTo):
                self.wanted = [one.value]
            else:
                yield one

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter([(n,) for n in self.wanted])


def test_spark_discovers_the_data_source_and_reads_its_datasets(
    spark: SparkSession, load: Callable[..., DataFrame], jobs: Jobs, engine: Engine
) -> None:
    jobs.add_many(100, input={"n": 1, "text": HOSTILE[5]})
    jobs.add(JobStatus.DEAD)
    frame = load("jobs", numPartitions=3, status="pending,dead")
    assert frame.count() == 101
    assert frame.rdd.getNumPartitions() == 3
    assert {field.nullable for field in frame.schema.fields} == {True}
    assert frame.groupBy("status").count().orderBy("status").collect() == [("dead", 1), ("pending", 100)]
    assert json.loads(frame.select("input").first()["input"])["text"] == HOSTILE[5]  # type: ignore[index]
    assert load("dead_letters").select("reason").collect() == [("exhausted",)]
    projected = spark.read.format("jobqueue").options(
        url=engine.url.render_as_string(hide_password=False), columns="status,attempt"
    )
    assert sorted(map(tuple, projected.load("jobs").distinct().collect())) == [("dead", 1), ("pending", 0)]
    # The reader offers no push-down, or every read would fail while Spark's setting is off.
    assert frame.filter("status = 'dead'").count() == 1
    assert frame.count() == 101


def test_filters_that_spark_pushes_down_stay_on_the_relation(spark: SparkSession) -> None:
    """Why the source pushes nothing down: this is Spark's defect, and the day it goes, this fails."""
    spark.dataSource.register(Numbers)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("pushed_numbers").load()
        assert frame.filter("n = 3").count() == 1
        assert frame.count() == 1  # of ten
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
