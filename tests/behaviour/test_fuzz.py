"""Whatever comes in from outside is refused or kept exactly; no worker stops, nothing is lost, no SQL is made of it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from sa_jobqueue import (
    Deduplicate,
    Enqueued,
    Job,
    JobQueue,
    JobStatus,
    Snooze,
    Worker,
    WorkerOptions,
    enqueue,
    enqueue_many,
    list_jobs,
)
from sa_jobqueue.cli import main
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.events import ComponentFailed, JobCompleted, WorkerStarted
from sa_jobqueue.layout import Layout
from sa_jobqueue.migrations.grants import role_names
from sa_jobqueue.operations import DeadLetterFilter, JobFilter, WorkerFilter, drain_workers, list_dead_letters
from tests.fixtures.transactions import call, rows, scalar, write
from tests.fixtures.workers import PATIENCE, EventLog, quick, working

amount = pytest.mark.parametrize("examples", [25, pytest.param(300, marks=[pytest.mark.long, pytest.mark.timeout(300)])])
"""A few in every run, always the same; many, and new ones, in the long run."""

PATIENT = quick(heartbeat_timeout=timedelta(seconds=15))
"""A server that is slow to answer is no failure here."""

INJECTIONS = [
    "'; DROP TABLE job; --",
    '"; DROP TABLE job; --',
    "$$; DROP TABLE job; $$",
    "\\'; SELECT 1; --",
    "%s",
    "%(x)s",
    ":x",
]
words = st.one_of(st.text(max_size=40), st.sampled_from(INJECTIONS), st.text("abc_.:/-;'\"\\%$\x00\n", max_size=12))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


def fuzz(examples: int, *strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], None]:
    """Run a property with a number of examples."""
    few = examples < 100
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    chosen = settings(max_examples=examples, derandomize=few, database=None, deadline=None, suppress_health_check=checks)
    return lambda holds: chosen(given(*strategies)(holds))()


def same(expected: Any, right: Any) -> bool:
    """Return whether two JSON values are one, numbers by digits: 1 and 1.0 are, true and 1 are not; 1e16 returns an int."""

    def digits(value: Any) -> Any:
        def number(digits: str) -> tuple[str, Decimal]:
            return "number", Decimal(digits)

        return json.loads(json.dumps(value), parse_float=number, parse_int=number)

    return bool(digits(expected) == digits(right))


@pytest.mark.slow
@amount
def test_payloads_and_names_are_stored_exactly_or_refused_before_writing(engine: Engine, examples: int) -> None:
    @fuzz(examples, values, words, words, words)
    def holds(payload: Any, queue: str, type_name: str, key: str) -> None:
        with Session(engine) as session:
            for many in (False, True):
                before = session.scalar(text("SELECT count(*) FROM job"))
                try:
                    job = Job(type_name, payload, queue=queue, deduplication_key=key or None)
                    job_id = job.id
                    if many:
                        enqueue_many(session, [job])
                    else:
                        session.add(job)
                        session.flush()
                except JobQueueError:
                    session.rollback()
                    assert session.scalar(text("SELECT count(*) FROM job")) == before
                    continue
                read = text("SELECT input, queue, type_name, deduplication_key FROM job WHERE id = :id")
                stored = session.execute(read, {"id": job_id}).one()
                assert same(stored[0], payload)
                assert tuple(stored[1:]) == (queue, type_name, key or None)
                session.rollback()
            try:
                existing, outcome = enqueue(session, Job("known", payload), deduplicate=Deduplicate(key))
                assert outcome is Enqueued.CREATED
                assert existing.deduplication_key == key
            except JobQueueError:
                pass
            session.rollback()


@amount
def test_identifiers_interpolated_into_sql_contain_no_special_characters(examples: int) -> None:
    """The only names that reach SQL as text without quotes."""

    @fuzz(examples, words)
    def holds(name: str) -> None:
        makers: list[Callable[[], Any]] = [
            lambda: Layout(None, name),
            lambda: role_names(name),
            lambda: WorkerOptions(queues=[name]),
            lambda: WorkerOptions(name=name),
        ]
        for make in makers:
            try:
                make()
            except JobQueueError:
                continue
            assert not set(name) & set("\x00'\"\\;%$ \n"), name


@amount
def test_a_schema_reaches_sql_as_one_identifier(examples: int) -> None:
    @fuzz(examples, words)
    def holds(name: str) -> None:
        try:
            place = Layout(name).qualified("job")
        except JobQueueError:
            return
        schema, _, table = place.rpartition(".")
        assert table == "job"
        assert schema == f'"{name.replace(chr(34), chr(34) * 2)}"' or re.fullmatch("[a-z_][a-z0-9_]*", schema)


@amount
def test_arbitrary_cursors_and_filters_are_accepted_or_refused_cleanly(engine: Engine, examples: int) -> None:
    with Session(engine) as session, session.begin():
        session.add(Job("test"))

    @fuzz(examples, values, words)
    def holds(cursor: Any, word: str) -> None:
        with Session(engine) as session:
            for read in (
                lambda: list_jobs(session, after=cursor),
                lambda: list_jobs(session, where=JobFilter(types=[word], queues=[word])),
                lambda: list_dead_letters(session, where=DeadLetterFilter(types=[word])),
                lambda: drain_workers(session, where=WorkerFilter(names=[word])),
            ):
                try:
                    read()
                except (JobQueueError, SQLAlchemyError):  # what is no id, or no text that PostgreSQL can hold
                    session.rollback()
            assert session.scalar(text("SELECT count(*) FROM job")) == 1


@amount
def test_arbitrary_command_arguments_cause_no_traceback_and_change_no_job(engine: Engine, examples: int) -> None:
    with Session(engine) as session, session.begin():
        session.add(Job("test"))
    url = engine.url.render_as_string(hide_password=False)
    commands = st.sampled_from(
        [
            ["jobs", "show"],
            ["jobs", "list", "--after"],
            ["jobs", "list", "--queue"],
            ["jobs", "cancel"],
            ["chains", "show"],
            ["chains", "list", "--since"],
            ["explain"],
            ["dead-letters", "list", "--type"],
            ["workers", "drain", "--name"],
            ["grants", "--roles"],
            ["migrate", "sql", "--to"],
        ]
    )

    @fuzz(examples, commands, words)
    def holds(command: list[str], word: str) -> None:
        result = CliRunner().invoke(main, [*command, word], env={"SA_JOBQUEUE_URL": url})
        assert result.exit_code in {0, 1, 2}, (command, word, result.output)
        assert result.exception is None or isinstance(result.exception, SystemExit), (command, word, result.exception)
        assert scalar(engine, "SELECT status FROM job") == "pending"


DEEP = "[" * 2000 + "]" * 2000
"""Deeper than Python reads before 3.13, not deeper than PostgreSQL."""
COLUMNS = {
    "queue": words,
    "type_name": st.just("poison"),
    "priority": st.integers(-(2**15), 2**15 - 1),
    "input": st.sampled_from([None, "null", "7", '"\\ud800"', '{"a": {"b": [1e400]}}', "nonsense", "9" * 5000, DEEP]),
    "input_version": st.integers(-(2**31), 2**31 - 1),
    "output": st.sampled_from([None, "null", "7", "[]"]),
    "status": st.sampled_from([*JobStatus, "nonsense"]),
    "open_blockers": st.sampled_from([-1, 0, 1, 2**31 - 1]),
    "created_at": st.sampled_from(["infinity", "-infinity", "0044-03-15 BC", "294276-01-01", "now"]),
    "scheduled_at": st.sampled_from(["infinity", "-infinity", "1900-01-01", "8999-01-01", "now"]),
    "started_at": st.sampled_from([None, "infinity", "-infinity", "now"]),
    "completed_at": st.sampled_from([None, "infinity", "now"]),
    "attempt": st.sampled_from([0, 1, 2**31 - 1]),
    "max_attempts": st.sampled_from([0, 1, 20, 2**31 - 1]),
    "timeout": st.sampled_from([None, "0", "1 day", "36500 days", "100000 years", "-1 day"]),
    "last_error": st.sampled_from([None, "null", "7", '"x"', '{"type": 7}']),
    "leased_by": st.sampled_from([None, "", "nobody"]),
    "leased_until": st.sampled_from([None, "infinity", "-infinity"]),
    "has_waiters": st.booleans(),
    "chain_status": st.sampled_from([None, "dead"]),
    "chain_completed_at": st.sampled_from([None, "infinity", "now"]),
    "trace_context": words,
    "expires_at": st.sampled_from([None, "infinity", "-infinity", "now"]),
    "ordering_key": words,
    "changed_xid": st.sampled_from(["0", "1", "18446744073709551615"]),
}


@pytest.mark.slow
@amount
async def test_arbitrary_rows_inserted_in_sql_do_not_stop_a_worker(engine: Engine, examples: int) -> None:
    """Whatever the table lets in, the jobs of others run beside it and after it."""
    queue = JobQueue()
    ran: list[int] = []

    @queue.handler("poison")
    async def poison(payload: Any) -> None: ...

    @queue.handler("good")
    async def good(n: int) -> None:
        ran.append(n)

    row = st.fixed_dictionaries({}, optional=COLUMNS)
    accepted: list[dict[str, Any]] = []

    def write(columns: dict[str, Any]) -> None:
        values = {"type_name": "poison", "queue": "default"} | columns
        values_of = ", ".join(f"CAST(:{name} AS {_cast(name)})" for name in values)
        names = ", ".join(["id", "chain_id", "chain_type_name", *values])
        statement = f"INSERT INTO job ({names}) VALUES (:id, :id, 'poison', {values_of})"
        try:
            with engine.begin() as connection:
                connection.execute(text(statement), values | {"id": Job("x").id})
        except (DBAPIError, UnicodeEncodeError):
            return
        accepted.append(values)

    fuzz(examples * 2, row)(write)
    call(engine, enqueue_many, [Job("good", n) for n in range(3)])
    worker = Worker(queue, engine, options=PATIENT)
    log = EventLog(worker)
    await asyncio.wait_for(worker.run_until_idle(), 60)
    assert sorted(ran) == [0, 1, 2]
    assert [event.error for event in log.of(ComponentFailed)] == []
    assert len(accepted) > examples / 4
    with engine.connect() as connection:  # nothing but what was written is there, and nothing of it is gone
        assert connection.scalar(text("SELECT count(*) FROM job")) == len(accepted) + 3


FAR = ["attempt = 2147483647", "created_at = 'infinity'", "created_at = '0044-03-15 BC'", "max_attempts = 2147483647"]


@pytest.mark.slow
@pytest.mark.parametrize("change", FAR)
async def test_numbers_and_times_at_their_maximum_do_not_delay_other_jobs(engine: Engine, change: str) -> None:
    queue = JobQueue()

    @queue.handler("far")
    async def far() -> None:
        raise Snooze(timedelta(hours=1))

    @queue.handler("good")
    async def good(n: int) -> int:
        return n

    with Session(engine) as session, session.begin():
        session.add(Job("far"))
        session.flush()
        session.execute(text(f"UPDATE job SET {change}"))
        session.add(Job("good", 1))
    worker = Worker(queue, engine, options=PATIENT)
    log = EventLog(worker)
    await asyncio.wait_for(worker.run_until_idle(), PATIENCE)
    assert log.of(ComponentFailed) == []
    assert dict(rows(engine, "SELECT type_name, status::text FROM job")) == {
        "far": "pending",
        "good": "completed",
    }


def reads(text: str) -> bool:
    """Return whether this Python reads a JSON document: from 3.13 on it reads all that PostgreSQL stores, however deep."""
    try:
        json.loads(text)
    except (RecursionError, ValueError):
        return False
    return True


UNREADABLE: Final = {name: text for name, text in {"long": "9" * 5000, "deep": DEEP}.items() if not reads(text)}


@pytest.mark.slow
@pytest.mark.parametrize("unreadable", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("concurrency", [1, 9])
async def test_a_payload_python_cannot_parse_kills_only_its_own_job(
    engine: Engine, unreadable: str, concurrency: int
) -> None:
    """The claim that brings it has committed: were it not read, nor were the jobs beside it, nor the worker's state."""
    queue = JobQueue()

    @queue.handler("any")
    async def any_(payload: Any) -> None: ...

    with Session(engine) as session, session.begin():
        enqueue_many(session, [Job("any", n) for n in range(3)])
        session.execute(text("UPDATE job SET input = CAST(:input AS jsonb) WHERE input = '1'"), {"input": unreadable})
    worker = Worker(queue, engine, options=quick(concurrency=concurrency, heartbeat_timeout=timedelta(seconds=15)))
    log = EventLog(worker)
    await asyncio.wait_for(worker.run_until_idle(), PATIENCE)
    assert log.of(ComponentFailed) == []
    with engine.connect() as connection:
        counts = connection.execute(text("SELECT status::text, count(*) FROM job GROUP BY 1 ORDER BY 1")).all()
        assert [tuple(row) for row in counts] == [("completed", 2), ("dead", 1)]
        assert "cannot be read by Python" in str(connection.scalar(text("SELECT error->>'message' FROM dead_letter")))


@amount
async def test_arbitrary_notifications_and_worker_rows_do_not_disturb_a_worker(engine: Engine, examples: int) -> None:
    """Of any payload, on any of the queue's channels, to a worker that listens; and rows of workers that never were."""
    queue = JobQueue()

    @queue.handler("good")
    async def good(n: int) -> int:
        return n

    def notify(topic: str, payload: str) -> None:
        with suppress(DBAPIError, UnicodeEncodeError), engine.begin() as connection:
            connection.execute(
                text("SELECT pg_notify(:channel, :payload)"), {"channel": f".job:{topic}", "payload": payload}
            )

    topics, ids = st.sampled_from(["due", "lost", "ended", "rules"]), st.uuids().map(str)
    payloads = st.one_of(words, ids, st.just("default"), st.just("x" * 7999))
    # Drawn before the worker runs: Hypothesis minds who else uses random numbers meanwhile.
    drawn: list[tuple[str, str]] = []
    fuzz(examples, topics, payloads)(lambda topic, payload: drawn.append((topic, payload)))
    async with working(Worker(queue, engine, options=PATIENT)) as log:
        await log.until(WorkerStarted)
        write(
            engine,
            "INSERT INTO worker (id, name, host, pid, version, queues, job_types, concurrency, heartbeat_at) "
            "VALUES ('', '', '', -1, '', '{NULL}', '{NULL}', -7, 'infinity'), "
            "('x', '', '', 0, '', '{}', '{}', 0, '-infinity')",
        )
        for topic, payload in drawn:
            await asyncio.to_thread(notify, topic, payload)
        with Session(engine) as session, session.begin():
            session.add(Job("good", 1))
        await log.until(JobCompleted)
        assert log.of(ComponentFailed) == []


@amount
def test_the_view_accepts_legal_changes_and_refuses_the_rest_unchanged(engine: Engine, examples: int) -> None:
    """Each refusal is one of the database's own, and leaves every row as it was."""
    statuses = st.sampled_from([*JobStatus, None])
    times = st.sampled_from([None, "now", "infinity", "-infinity", "8999-01-01", "294276-01-01"])

    @fuzz(examples, words, words, values, statuses, times)
    def holds(queue: str, type_name: str, payload: Any, status: Any, at: Any) -> None:
        insert = text(
            "INSERT INTO job_queue (queue, type_name, input, status, scheduled_at) VALUES "
            "(:queue, :type_name, CAST(:input AS jsonb), CAST(:status AS job_status), CAST(:at AS timestamptz)) RETURNING id"
        )
        change = text("UPDATE job_queue SET status = :status, scheduled_at = CAST(:at AS timestamptz) WHERE id = :id")
        values = {"queue": queue, "type_name": type_name, "input": json.dumps(payload), "status": status, "at": at}
        with engine.connect() as connection:
            try:
                job_id = connection.scalar(insert, values)
            except (DBAPIError, UnicodeEncodeError):
                return
            stored = connection.execute(text("SELECT queue, type_name, input, status::text FROM job")).one()
            assert tuple(stored[:2]) == (queue, type_name)
            assert same(stored[2], payload)
            assert stored[3] == "pending"
            try:
                with connection.begin_nested():
                    connection.execute(change, {"status": status, "at": at, "id": job_id})
            except DBAPIError:
                assert connection.execute(text("SELECT queue, type_name, input, status::text FROM job")).one() == stored


def _cast(name: str) -> str:
    casts = {"input": "jsonb", "output": "jsonb", "last_error": "jsonb", "timeout": "interval", "changed_xid": "xid8"}
    casts |= {"status": "job_status", "chain_status": "job_status", "has_waiters": "boolean"}
    if name.endswith("_at") or name == "leased_until":
        return "timestamptz"
    if name in {"priority", "input_version", "open_blockers", "attempt", "max_attempts"}:
        return "integer"
    return casts.get(name, "text")
