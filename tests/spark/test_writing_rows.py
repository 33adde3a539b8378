"""Rows of a bulk write: each becomes what `Job(...)` would have made of it, or is refused by the same words. No JVM."""

from __future__ import annotations

import gc
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, DataType, DecimalType, NullType, StructField, StructType, TimestampNTZType
from sqlalchemy import Engine, create_engine, insert, select, text
from sqlalchemy.orm import DeclarativeBase, Session

from sa_jobqueue import Job, JobMixin
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError, UnknownJobTypeError
from sa_jobqueue.ids import uuid7
from sa_jobqueue.payloads import opened
from sa_jobqueue.pipeline.spark import connections, written
from sa_jobqueue.pipeline.spark.columns import InvalidColumnError
from sa_jobqueue.pipeline.spark.source import JobQueueSource
from sa_jobqueue.pipeline.spark.staging import BadRowError
from sa_jobqueue.testing.plugin import MakeDatabase
from tests.fixtures.database import both_servers
from tests.fixtures.schemas import NASTY_SCHEMA
from tests.fixtures.workers import wait_until
from tests.spark import writing_app
from tests.spark.writing import INT, LONG, TEXT, TIME, Row, account, batch, count, write, writer


@both_servers
@pytest.mark.parametrize("name", ["scheduled_at", "expires_at", "deadline"])
@pytest.mark.parametrize("microseconds", [253_402_300_800_000_000, -62_135_596_800_000_001, -(2**61)])
def test_a_timestamp_outside_pythons_range_is_a_bad_row(
    database_url: str, session: Session, name: str, microseconds: int
) -> None:
    instants = pa.array([0, microseconds], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    rows = pa.RecordBatch.from_arrays([pa.array(["1", "2"]), instants], names=["input", name])
    strict = writer(database_url, ["input", name], type="t")
    with pytest.raises(BadRowError, match=rf"row 1: {name} must be in the years 1 to 8999") as raised:
        strict.write(iter([rows]))
    assert raised.value.excerpt == "2"
    permissive = writer(database_url, ["input", name], type="t", mode="PERMISSIVE")
    permissive.commit([permissive.write(iter([rows]))])
    bulk_write = account(database_url, permissive.write_id)
    assert (bulk_write.enqueued, bulk_write.rejected) == (1, 1)
    assert [field for field, _ in rejects(session).values()] == [name]
    (record,) = session.scalars(select(Job.Reject.record))
    assert str(microseconds) in str(record)


def rejects(session: Session) -> dict[int, tuple[str, str]]:
    """Return the rejections by row."""
    return {reject.row: (reject.field, reject.reason) for reject in session.scalars(select(Job.Reject))}


@pytest.mark.parametrize(
    "name", ["input", "type_name", "queue", "fairness_key", "deduplication_key", "ordering_key", "id", "blockers"]
)
@pytest.mark.parametrize("app", [{}, {"app": "tests.spark.parity_app:jobs"}], ids=["by name", "with an app"])
def test_a_text_that_is_not_utf8_is_a_bad_row(database_url: str, session: Session, name: str, app: dict[str, str]) -> None:
    is_list = name == "blockers"
    odd = pa.array([None, [b"x", b"A\xff"], None] if is_list else [None, b"A\xff", None])
    odd = odd.cast(pa.list_(pa.binary())) if is_list else odd
    columns = {"input": pa.array(["1", "2", "3"])} | {
        name: pa.ListArray.from_arrays(odd.offsets, odd.values.view(pa.string()), mask=odd.is_null())
        if isinstance(odd, pa.ListArray)
        else odd.view(pa.string())
    }
    rows = pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])
    strict = writer(database_url, columns, type="any", **app)
    with pytest.raises(BadRowError, match=rf"row 1.*: {name} has bytes that are not UTF-8"):
        strict.write(iter([rows]))
    permissive = writer(database_url, columns, type="any", mode="PERMISSIVE", **app)
    permissive.commit([permissive.write(iter([rows]))])
    bulk_write = account(database_url, permissive.write_id)
    assert bulk_write.rejected == 1
    assert rejects(session)[1] == (name, "has bytes that are not UTF-8")
    (record,) = (reject.record for reject in session.scalars(select(Job.Reject)) if reject.row == 1)
    assert "A\ufffd" in str(json.loads(record))


@both_servers
def test_a_written_row_equals_an_enqueued_job(database_url: str, session: Session) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    described: list[Row] = [
        {"type_name": "plain"},
        {"type_name": "other", "input": {"a": [1, 2.5, None, 'é "quoted", \\ and\nbroken']}, "queue": "mails"},
        {
            "type_name": "numbers",
            "input": 1.5,
            "priority": -9,
            "max_attempts": 7,
            "input_version": 3,
            "rate_cost": 1_000_000,
        },
        {"type_name": "late", "input": "", "at": soon, "timeout": timedelta(days=36_500)},
        {"type_name": "past", "input": [], "at": datetime(1950, 1, 1, tzinfo=UTC), "timeout": timedelta(microseconds=1)},
        {"type_name": "delayed", "input": True, "delay": timedelta(seconds=3.25), "deduplication_key": 'k,"\n\\N'},
        {"type_name": "far", "input": {}, "delay": timedelta(days=36_500), "trace_context": trace},
        {"type_name": "ordered", "ordering_key": 'customer "42", \\', "expires_at": soon},
        {"type_name": "ordered", "ordering_key": "43", "deadline": soon},
        {"type_name": "keyed", "queue": "mail/eu", "fairness_key": 'ann "a" <ann@example.org>, \\'},
    ]
    for row in described:
        row["id"] = uuid7()
    jobs = [Job(**row) for row in described]
    session.add_all(jobs)
    session.flush()
    session.expire_all()  # the database lowers `expires_at` to the deadline
    expected_rows = [_columns_of(job) for job in jobs]
    session.rollback()

    rows = []
    for given in described:
        row = given | {"id": str(given["id"]), "input": json.dumps(given.get("input"))}
        row["scheduled_at"] = row.pop("at", None)
        row["delay"] = given["delay"].total_seconds() if "delay" in given else None
        rows.append(row)
    result = write(database_url, rows[:3], rows[3:])
    assert (result.staged, result.enqueued, result.duplicates, result.rejected) == (10, 10, 0, 0)
    actual_rows = [_columns_of(session.get_one(Job, row["id"])) for row in described]
    assert actual_rows == expected_rows
    assert count(session, Job.Stage) == 0


def _columns_of(job: Job) -> dict[str, Any]:
    changing = {"created_at", "scheduled_at", "changed_xid"}
    columns = {column.name: getattr(job, column.name) for column in Job.__table__.columns if column.name not in changing}
    due = job.scheduled_at - job.created_at
    # What is due at an instant of its own is so, whenever it was enqueued.
    return columns | {"due": job.scheduled_at if job.type_name == "late" else due}


@both_servers
def test_a_bad_row_is_refused_with_the_error_of_a_job(database_url: str, session: Session) -> None:
    bad: list[tuple[Row, dict[str, Any]]] = [
        ({"type_name": "two words"}, {}),
        ({"type_name": ""}, {}),
        ({"type_name": "x\n"}, {}),
        ({"queue": "-"}, {}),
        ({"priority": 10}, {}),
        ({"max_attempts": 0}, {}),
        ({"input_version": 2**31}, {}),
        ({"deduplication_key": ""}, {}),
        ({"deduplication_key": "k" * 501}, {}),
        ({"deduplication_key": "a\x00b"}, {}),
        ({"id": "not-a-uuid"}, {}),
        ({"input": '"\\u0000"'}, {"input": "\x00"}),
        ({"input": '"\\ud800"'}, {"input": "\ud800"}),
        ({"input": "1e999"}, {"input": float("inf")}),
        ({"rate_cost": 1_000_001}, {}),
        ({"ordering_key": ""}, {}),
        ({"ordering_key": "k" * 501}, {}),
        ({"fairness_key": "k" * 101}, {}),
        ({"fairness_key": "a\x00b"}, {}),
    ]
    rows = [{"type_name": "t"} | row for row, _ in bad]
    result = write(database_url, [*rows, {"type_name": "good", "delay": 0.0}], mode="permissive")
    assert (result.enqueued, result.rejected) == (1, len(bad))
    rejects_by_row = rejects(session)
    for place, (row, job) in enumerate(bad):
        with pytest.raises(InvalidJobError) as refused:
            Job(**({"type_name": "t"} | row | job))
        reason = refused.value.reason.partition("; uuid.UUID(")[0]  # Spark has ids as text
        assert rejects_by_row[place] == (refused.value.field, reason[:300]), row
    record = session.scalars(select(Job.Reject.record).where(Job.Reject.row == 9)).one()
    assert json.loads(record or "") == {"type_name": "t", "deduplication_key": "a\x00b"}


def test_an_invalid_trace_context_is_refused_by_name(database_url: str, session: Session) -> None:
    good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    bad = ["hello", "", f"{good[:-1]}\x00", good.upper(), f"{good}1"]
    rows: list[Row] = [{"trace_context": value} for value in (*bad, good, f"{good}-later", None)]
    result = write(database_url, rows, type="t", mode="PERMISSIVE")
    assert (result.enqueued, result.rejected) == (3, len(bad))
    assert {rejects(session)[place][0] for place in range(len(bad))} == {"trace_context"}


POISON = {
    "{": "is not JSON",
    "": "is not JSON",
    '{"a": 1} x': "is not JSON",
    "'single'": "is not JSON",
    "NaN": "cannot represent",
    "[Infinity]": "cannot represent",
    '{"a": "\\u0000"}': "NUL",
    '["\\udc00"]': "surrogate",
    '"\x00"': "is not JSON",
    "1e400": "cannot represent",
    "1e200000": "cannot represent",
    "-" + "9" * 5000: "is not JSON",
    "[" * 600 + "]" * 600: "deep",
    '"' + "x" * (1024 * 1024) + '"': "bytes of JSON",
    '"' + "é" * 600_000 + '"': "bytes of JSON",
}


@both_servers
def test_every_invalid_input_is_rejected_and_every_valid_one_enqueued(database_url: str, session: Session) -> None:
    good = ["1", " [1,\n 2] ", '"\\\\u0000"', '"\\ud83d\\ude00"', "0e300", "[" * 400 + "]" * 400, '{"a": 1, "a": 2}', None]
    inputs: list[str | None] = []
    for poison in POISON:
        inputs += [*good, poison]
    result = write(database_url, [{"input": text} for text in inputs], type="t", mode="PERMISSIVE")
    assert (result.enqueued, result.rejected) == (len(good) * len(POISON), len(POISON))
    reasons = [reason for _, (_, reason) in sorted(rejects(session).items())]
    assert all(words in reason for words, reason in zip(POISON.values(), reasons, strict=True)), reasons
    stored = session.scalars(select(Job.input).limit(len(good)).order_by(Job.id)).all()
    assert stored == [None if text is None else json.loads(text) for text in good]


@both_servers
def test_rows_that_only_postgresql_refuses_are_found_by_bisection(
    database_url: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if Python took whatever PostgreSQL does not: the row is found all the same, and those around it arrive.
    monkeypatch.setattr("sa_jobqueue.pipeline.spark.validation._check_input", lambda text: None)
    rows = [{"input": "{" if place in {0, 7, 8, 31} else str(place)} for place in range(32)]
    result = write(database_url, rows, type="t", mode="PERMISSIVE")
    assert (result.enqueued, result.rejected) == (28, 4)
    assert sorted(rejects(session)) == [0, 7, 8, 31]
    assert rejects(session)[7] == ("input", "invalid input syntax for type json: The input string ended unexpectedly.")


@both_servers
def test_a_bad_row_fails_the_write_and_its_error_shows_little_of_the_payload(database_url: str, session: Session) -> None:
    private = "private " * 100
    rows = [{"input": "1"}, {"input": f'{{"a": "{private}', "deduplication_key": "invoice-7"}]
    batch_writer = writer(database_url, ["input", "deduplication_key"], type="t")
    batch_writer.write(iter([batch(rows[:1])]))
    with pytest.raises(BadRowError) as refused:
        batch_writer.write(iter([batch(rows[:1]), batch(rows)]))
    error = refused.value
    assert (error.partition, error.row, error.key, error.field) == (0, 2, "invoice-7", "input")
    assert len(error.excerpt) <= 200
    assert private not in str(error)
    batch_writer.abort([None])
    assert (count(session), count(session, Job.Stage), count(session, Job.Write)) == (0, 0, 0)


def test_unknown_columns_are_refused_before_planning() -> None:
    struct = StructType([StructField("a", INT)])
    refused: list[tuple[dict[str, DataType], str]] = [
        ({"type_name": TEXT, "run_at": TIME}, "run_at: is no column of a job; known: type_name, .*scheduled_at"),
        ({"type_name": TEXT, "priorty": INT}, "priorty: is no column of a job; did you mean priority?"),
        ({"type_name": TEXT, "zzz": INT}, "zzz: is no column of a job; known: type_name, input"),
        ({"type_name": TEXT, "skip_while_retrying": TEXT}, "skip_while_retrying: is no option: .*Set max_attempts"),
        ({"input": TEXT}, "type_name: is missing"),
        ({"type_name": TEXT, "input": struct}, "input: must be STRING.*write sa_jobqueue.*document\\(df, handler\\)"),
        ({"type_name": TEXT, "scheduled_at": TimestampNTZType()}, "scheduled_at: must be TIMESTAMP.*cast it"),
        ({"type_name": TEXT, "blockers": ArrayType(INT)}, "blockers: must be ARRAY<STRING>"),
        ({"type_name": INT}, "type_name: must be STRING, not INT"),
    ]
    for names, reason in refused:
        schema = StructType([StructField(name, kind) for name, kind in names.items()])
        with pytest.raises(InvalidColumnError, match=reason):
            JobQueueSource({"url": "postgresql://nobody@nowhere/none"}).writer(schema, False)
    schema = StructType([StructField("type_name", TEXT), StructField("delay", NullType())])
    with pytest.raises(InvalidOptionError, match="is not overwritten"):
        JobQueueSource({"url": "postgresql://nobody@nowhere/none"}).writer(schema, True)


def test_invalid_write_options_are_refused() -> None:
    for options, reason in [
        ({"mode": "DROPMALFORMED"}, "mode: must be one of FAILFAST, PERMISSIVE"),
        ({"onDuplicate": "replace"}, "onDuplicate: must be one of skip, fail"),
        ({"type": "two words"}, "type: must be 1 to 100"),
        ({"write_id": ""}, "writeId: must be text of 1 to 500"),
    ]:
        with pytest.raises(InvalidOptionError, match=reason):
            JobQueueSource({"url": "postgresql://u@h/d", **options}).writer(StructType(), False)
    with pytest.raises(InvalidOptionError, match=r"writeId: is not an option of df\.writeStream"):
        JobQueueSource({"url": "postgresql://u@h/d", "writeId": "w"}).streamWriter(StructType(), False)


def test_a_table_of_sparks_catalog_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SA_JOBQUEUE_URL", "postgresql://u@h/d")  # where it would write without a word
    with pytest.raises(InvalidOptionError, match=r"url: is missing.*OPTIONS.*CREATE TEMPORARY VIEW"):
        JobQueueSource({}).writer(StructType([StructField("type_name", TEXT)]), False)
    with pytest.raises(InvalidOptionError, match=r"provider: .*OPTIONS.*CREATE TEMPORARY VIEW") as raised:
        JobQueueSource({"provider": "jobqueue", "url": "postgresql://u:secret@h/d", "dataset": "jobs"})
    assert "secret" not in str(raised.value)


def test_a_path_and_a_whole_result_are_refused() -> None:
    url = "postgresql://u@h/d"
    for path in ("some/where", "jobs"):
        with pytest.raises(InvalidOptionError, match=r"path: save\(\) and start\(\) take none for a queue"):
            JobQueueSource({"url": url, "path": path}).writer(StructType(), False)
    with pytest.raises(InvalidOptionError, match=r'outputMode: a queue is not overwritten: .outputMode\("append"\)'):
        JobQueueSource({"url": url}).streamWriter(StructType(), True)


def test_what_is_given_once_as_an_argument_is_not_given_again(database_url: str) -> None:
    with pytest.raises(InvalidOptionError, match="is given twice"):
        written(database_url, "nightly", URL="postgresql://u@h/other")
    assert written(None, "nightly", URL=database_url) is None


@both_servers
def test_rows_of_application_types_are_validated_and_stored_as_by_its_handlers(database_url: str, session: Session) -> None:
    app = "tests.spark.writing_app:jobs"
    rows: list[Row] = [
        {"type_name": "mail", "input": '{"to": "a", "copies": "2"}'},
        {
            "type_name": "mail",
            "input": '{"recipient": "b"}',
            "input_version": 1,
            "queue": "slow",
            "priority": 0,
            "rate_cost": 2,
        },
        {"type_name": "raw", "input": '{"x": [1]}'},
        {"type_name": "mail", "input": '{"copies": 1}'},
        {"type_name": "mail", "input": "{}", "input_version": 9},
        {"type_name": "raw", "input": "[]"},
        {"type_name": "fax", "input": "{}"},
        {"type_name": "mail", "input": "{"},
    ]
    result = write(database_url, rows, app=app, mode="PERMISSIVE")
    assert (result.enqueued, result.rejected) == (3, 5)
    first, second, third = session.scalars(select(Job).order_by(Job.id))
    assert (first.input, first.input_version, first.queue, first.priority) == ({"to": "a", "copies": 2}, 2, "mails", 3)
    assert (first.max_attempts, first.timeout) == (4, timedelta(minutes=1))
    assert (second.input, second.input_version, second.queue, second.priority) == ({"to": "b", "copies": 1}, 2, "slow", 0)
    assert [job.rate_cost for job in (first, second, third)] == [5, 2, None]
    assert (third.input, third.queue, third.max_attempts, third.timeout) == ({"x": [1]}, "default", 20, None)
    rejects_by_row = rejects(session)
    assert [rejects_by_row[place][0] for place in range(3, 8)] == [
        "input.to",
        "input_version",
        "input",
        "type_name",
        "input",
    ]
    assert "known job types: letter, mail, parcel, raw" in rejects_by_row[6][1]
    with pytest.raises(UnknownJobTypeError, match="fax"):
        writer(database_url, ["input"], app=app, type="fax")


def test_rows_have_the_codec_and_the_fairness_key_of_their_handler(database_url: str, session: Session) -> None:
    app = "tests.spark.writing_app:jobs"
    mail = writing_app.Mail("ada", 2)
    compact, spaced = '{"to":"ada","copies":2}', '{"to": "ada", "copies": 2}'
    forged = json.dumps({"sa_jobqueue.codec": "reversed", "data": compact[::-1]})
    rows: list[Row] = [
        *({"type_name": "letter", "input": text} for text in (compact, spaced, forged)),
        *({"type_name": "parcel", "input": text} for text in (compact, spaced)),
        {"type_name": "parcel", "input": compact, "fairness_key": "own"},
        {"type_name": "parcel", "input": json.dumps({"to": "x" * 101})},
    ]
    result = write(database_url, rows, app=app, mode="PERMISSIVE")
    assert (result.enqueued, result.rejected) == (5, 2)
    written_rows = session.execute(select(Job.input, Job.fairness_key).order_by(Job.id)).all()
    with session.begin_nested():
        session.add_all([writing_app.letter.job(mail), writing_app.parcel.job(mail)])
    enqueued_rows = session.execute(select(Job.input, Job.fairness_key).order_by(Job.id)).all()[len(written_rows) :]
    sealed = {"sa_jobqueue.codec": "reversed", "data": compact[::-1]}
    assert [tuple(row) for row in enqueued_rows] == [(sealed, ""), ({"to": "ada", "copies": 2}, "ada")]
    assert [tuple(row) for row in written_rows[2:]] == [(*enqueued_rows[1][:1], key) for key in ("ada", "ada", "own")]
    codecs = writing_app.letter.job_type.registry.find_codec
    assert [opened("input", row.input, codecs) for row in written_rows[:2]] == [{"to": "ada", "copies": 2}] * 2
    assert all(row.input.keys() == {"sa_jobqueue.codec", "data"} for row in written_rows[:2])
    assert {place: reject[0] for place, reject in rejects(session).items()} == {2: "input.to", 6: "fairness_key"}


def test_rows_of_a_type_have_what_is_recorded_for_it(database_url: str, session: Session) -> None:
    minute = timedelta(minutes=1)
    declared = {"queue": "mails", "priority": 3, "max_attempts": 4, "timeout": minute, "rate_cost": 5, "input_version": 2}
    session.execute(insert(Job.JobType).values(type_name="mail", **declared))
    session.commit()
    recorded_values = {"queue": "own", "priority": 0, "max_attempts": 9, "input_version": 1}
    rows: list[Row] = [
        {"type_name": "mail", **dict.fromkeys(recorded_values)},
        {"type_name": "mail", "queue": "own", "priority": 0},
        {"type_name": "mail", **recorded_values},
        {"type_name": "other"},
    ]
    assert write(database_url, rows).enqueued == len(rows)
    columns = (Job.queue, Job.priority, Job.max_attempts, Job.timeout, Job.rate_cost, Job.input_version)
    assert [tuple(row) for row in session.execute(select(*columns).order_by(Job.id))] == [
        ("mails", 3, 4, minute, 5, 2),
        ("own", 0, 4, minute, 5, 2),
        ("own", 0, 9, None, None, 1),
        ("default", 0, 20, None, None, 1),
    ]


def test_a_queue_with_text_ids_accepts_any_text_as_id_and_blocker(make_database: MakeDatabase, jobqueue_server: Any) -> None:
    url = make_database(jobqueue_server)

    class Base(DeclarativeBase):
        pass

    class TextJob(JobMixin[str], Base, queue_schema=NASTY_SCHEMA, queue_prefix="my_", queue_pipeline=True):
        pass

    engine = create_engine(url)
    Base.metadata.create_all(engine)
    odd = 'a, "b" \\ {c}\n'
    rows: list[Row] = [{"id": odd}, {"id": "second", "blockers": [odd]}, {"id": None, "blockers": ["second", odd]}]
    batch_writer = writer(url, ["id", "blockers"], schema=NASTY_SCHEMA, prefix="my_", type="t")
    batch_writer.commit([batch_writer.write(iter([batch(rows)]))])
    with Session(engine) as session:
        job_by_id = {job.id: job for job in session.scalars(select(TextJob))}
        assert len(job_by_id) == 3
        generated_id = next(job_id for job_id in job_by_id if job_id not in {odd, "second"})
        assert UUID(generated_id).version == 7
        assert [job_by_id[job_id].open_blockers for job_id in (odd, "second", generated_id)] == [0, 1, 2]
        edges = session.scalars(
            select(TextJob.Blocker).where(TextJob.Blocker.job_id == generated_id).order_by(TextJob.Blocker.index)
        )
        assert [edge.blocked_by_chain_id for edge in edges] == ["second", odd]
    engine.dispose()


@both_servers
def test_all_numeric_types_are_accepted_and_an_empty_column_is_ignored(database_url: str, session: Session) -> None:
    kinds = {"type_name": TEXT, "delay": DecimalType(10, 3), "timeout": LONG, "queue": NullType(), "priority": LONG}
    schema = StructType([StructField(name, kind) for name, kind in kinds.items()])
    batch_writer = JobQueueSource({"url": database_url}).writer(schema, False)
    arrays = [
        pa.array(["t"]),
        pa.array([Decimal("1.250")], pa.decimal128(10, 3)),
        pa.array([90], pa.int64()),
        pa.nulls(1),
        pa.array([5], pa.int64()),
    ]
    batch_writer.commit([batch_writer.write(iter([pa.RecordBatch.from_arrays(arrays, names=schema.names)]))])
    job = session.scalars(select(Job)).one()
    assert (job.scheduled_at - job.created_at, job.timeout) == (timedelta(seconds=1.25), timedelta(seconds=90))
    assert (job.queue, job.priority) == ("default", 5)


def test_the_tasks_of_a_python_worker_share_a_connection(
    database_url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = SimpleNamespace(stageId=lambda: 1, partitionId=lambda: 2, attemptNumber=lambda: 0)
    monkeypatch.setattr(connections, "_task", lambda: task)
    monkeypatch.setattr(connections, "KEEP_SECONDS", 600.0)
    freezings: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: freezings.append(1))
    connections.freeze_modules.cache_clear()
    options = writer(database_url, ["type_name"], type="a")._options

    def backend() -> int:
        with connections.connect(options) as connection:
            return int(connection.scalar(text("SELECT pg_backend_pid()")) or 0)

    first = backend()
    assert [backend(), backend()] == [first, first]
    assert freezings == [1]
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": first})
    second = backend()  # the server has ended the one that was kept
    assert second != first
    with pytest.raises(RuntimeError), connections.connect(options):
        raise RuntimeError
    monkeypatch.setattr(connections, "KEEP_SECONDS", 0.0)
    third = backend()
    assert third not in {first, second}  # a task that failed may have left a COPY half way
    open_still = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        wait_until(lambda: connection.scalar(open_still, {"pid": third}) == 0, description="the idle connection is closed")


@pytest.mark.parametrize("app", [None, "tests.spark.writing_app:jobs"])
def test_the_size_limit_of_an_input_counts_utf8(database_url: str, app: str | None) -> None:
    texts = [json.dumps({"to": "日" * count, "copies": 1}, ensure_ascii=False) for count in (340_000, 350_000)]
    options = {"type": "mail", "mode": "PERMISSIVE"} | ({"app": app} if app else {})
    result = write(database_url, [{"input": text} for text in texts], **options)
    assert (result.enqueued, result.rejected) == (1, 1)


@both_servers
def test_timestamps_out_of_range_are_refused(database_url: str, session: Session) -> None:
    nan, inf = float("nan"), float("inf")
    micro = timedelta(microseconds=1)
    rows: list[Row] = [{"delay": seconds} for seconds in (-0.001, nan, inf, -inf, 1e300, 36_500 * 86_400 + 0.001)]
    rows += [{"timeout": limit} for limit in (timedelta(0), -micro, timedelta(days=36_500) + micro)]
    rows += [{"scheduled_at": datetime(9000, 1, 1, tzinfo=UTC)}, {"scheduled_at": datetime.now(UTC), "delay": 1.0}]
    rows += [{"expires_at": datetime(9000, 1, 1, tzinfo=UTC)}, {"deadline": datetime(9000, 1, 1, tzinfo=UTC)}]
    result = write(database_url, rows, type="t", mode="PERMISSIVE")
    assert (result.enqueued, result.rejected) == (0, len(rows))
    assert [rejects(session)[place][0] for place in range(len(rows))] == [
        *["delay"] * 6,
        *["timeout"] * 3,
        "scheduled_at",
        "delay",
        "expires_at",
        "deadline",
    ]
