"""`sa-jobqueue import`: waiting jobs of the real procrastinate and pgqueuer become ours, in one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from sqlalchemy import Engine, make_url, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import Deduplicate, Job, JobQueue, enqueue
from sa_jobqueue.cli import main
from sa_jobqueue.testing import drain
from tests.fixtures.hostile import HOSTILE, unsafe
from tests.fixtures.parts import needs
from tests.fixtures.workers import wait_until

APPLICATION = """
from pydantic import BaseModel
from sa_jobqueue import JobQueue

jobs = JobQueue()
done = []

class Order(BaseModel):
    order_id: int

@jobs.keyword_handler("receipt", queue="mail")
def receipt(order_id: int) -> int:
    done.append(order_id)
    return order_id

@jobs.handler("ship")
def ship(order: Order) -> int:
    done.append(order.order_id)
    return order.order_id

@jobs.handler("clean_up")
def clean_up() -> None: ...
"""
FUTURE = datetime(2100, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imports_app.py").write_text(APPLICATION)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def jobs() -> Iterator[JobQueue[Any]]:
    import importlib
    import sys

    yield importlib.import_module("imports_app").jobs
    del sys.modules["imports_app"]


@pytest.fixture
def procrastinate(database_url: str) -> Iterator[Any]:
    """Give an open application of procrastinate, its tables beside ours."""
    package = needs("procrastinate")
    url = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    app = package.App(connector=package.SyncPsycopgConnector(conninfo=url, min_size=1, max_size=1))
    with app.open():
        app.schema_manager.apply_schema()
        yield app


@pytest.fixture
def pgqueuer(database_url: str) -> Iterator[Any]:
    """Give the synchronous queries of pgqueuer, its tables beside ours."""
    needs("pgqueuer")
    from pgqueuer.adapters.drivers.psycopg import SyncPsycopgDriver
    from pgqueuer.adapters.persistence.qb import QueryBuilderEnvironment
    from pgqueuer.adapters.persistence.queries import SyncQueries

    url = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(QueryBuilderEnvironment().build_install_query().encode())
        yield SyncQueries(SyncPsycopgDriver(connection))


def call(url: str, *arguments: str) -> Result:
    command = ["import", *arguments, "--app", "imports_app:jobs"]
    return CliRunner().invoke(main, command, env={"SA_JOBQUEUE_URL": url}, catch_exceptions=False)


def document(url: str, *arguments: str, exit_code: int = 0) -> dict[str, Any]:
    result = call(url, *arguments, "--json")
    assert result.exit_code == exit_code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def our_jobs(engine: Engine) -> list[Any]:
    with Session(engine) as session:
        return list(session.scalars(select(Job).order_by(Job.created_at, Job.id)))


def count(engine: Engine, table: str) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def test_import_escapes_control_characters_in_names_and_payloads(database_url: str, procrastinate: Any) -> None:
    name = HOSTILE[:128]  # as long as its column
    for task in (name, "ship"):
        procrastinate.configure_task(task, allow_unknown=True).defer(order_id=HOSTILE)
    for arguments in (["--dry-run"], ["--dry-run", "--json"], ["--map", f"{name}={HOSTILE}"]):
        shown = call(database_url, "procrastinate", *arguments).output
        assert "owned" in shown or "passwd" in shown
        assert unsafe(shown) == []


def test_imported_procrastinate_jobs_keep_arguments_time_priority_queue_and_locks(
    database_url: str, engine: Engine, procrastinate: Any, jobs: JobQueue[Any]
) -> None:
    receipt = procrastinate.configure_task("shop.receipt", allow_unknown=True, priority=12)
    receipt.defer(order_id=7)
    options = {"queue": "slow", "lock": "order-8", "queueing_lock": "receipt-8", "schedule_at": FUTURE, "priority": -3}
    procrastinate.configure_task("shop.receipt", allow_unknown=True, **options).defer(order_id=8)
    procrastinate.configure_task("ship", allow_unknown=True).defer(order_id=9)
    procrastinate.configure_task("clean_up", allow_unknown=True).defer()

    dry = document(database_url, "procrastinate", "--map", "shop.receipt=receipt", "--dry-run")
    assert (dry["committed"], dry["moved"], dry["left"]) == (False, 4, 0)
    assert (count(engine, "job"), count(engine, "procrastinate_jobs"), count(engine, "job_audit")) == (0, 4, 0)

    moved = document(database_url, "procrastinate", "--map", "shop.receipt=receipt", "--by", "ann")
    assert (moved["committed"], moved["moved"]) == (True, 4)
    assert moved["tasks"] == dry["tasks"]
    (of_receipt,) = [task for task in moved["tasks"] if task["task"] == "shop.receipt"]
    assert (of_receipt["type_name"], of_receipt["moved"], of_receipt["priority_changed"]) == ("receipt", 2, 1)
    assert count(engine, "procrastinate_jobs") == 0

    here = {(job.type_name, str(job.input)): job for job in our_jobs(engine)}
    first, second = here["receipt", "{'order_id': 7}"], here["receipt", "{'order_id': 8}"]
    assert (first.queue, first.priority, first.ordering_key, first.deduplication_key) == ("mail", 9, None, None)
    assert (second.queue, second.priority, second.ordering_key) == ("slow", -3, "order-8")
    assert (second.deduplication_key, second.scheduled_at) == ("receipt-8", FUTURE)
    with engine.connect() as connection:
        audited = connection.execute(text("SELECT done_by, operation, changed FROM job_audit")).one()
    assert tuple(audited) == ("ann", "import_jobs", 4)

    again = document(database_url, "procrastinate")
    assert (again["moved"], again["tasks"], count(engine, "job")) == (0, [], 4)
    drain(jobs, engine)
    assert {job.output for job in our_jobs(engine) if job.completed_at is not None} == {7, 9, None}


def test_import_moves_all_jobs_or_none_and_lists_each_reason(database_url: str, engine: Engine, procrastinate: Any) -> None:
    def defer(task: str, lock: str | None = None, **arguments: Any) -> int:
        configured = procrastinate.configure_task(task, allow_unknown=True, lock=lock)
        return int(configured.defer(**arguments))

    good = defer("receipt", order_id=1)
    unknown = defer("other", order_id=1)
    misfit = defer("receipt", order_id="seven")
    surplus = defer("clean_up", timestamp=1)
    unknown_argument = defer("receipt", order_id=2, timestamp=1)
    unknown_field = defer("ship", order_id=2, express=True)
    running = defer("receipt", "order-5", order_id=5)
    with engine.begin() as connection:
        connection.execute(text("UPDATE procrastinate_jobs SET status = 'doing' WHERE id = :id"), {"id": running})
    behind_running = defer("receipt", "order-5", order_id=6)
    misfit_with_lock = defer("receipt", "order-7", order_id=None)
    behind_misfit = defer("receipt", "order-7", order_id=7)

    refused = document(database_url, "procrastinate", exit_code=1)
    assert (refused["committed"], refused["moved"], refused["left"], refused["other"]) == (False, 1, 8, {"doing": 1})
    assert (count(engine, "job"), count(engine, "procrastinate_jobs")) == (0, 10)
    reasons = {job_id: one["reason"] for task in refused["tasks"] for one in task["reasons"] for job_id in one["ids"]}
    assert "no handler is named 'other'; pass --map 'other=TYPE'" in reasons.pop(unknown)
    assert "payload" in reasons[misfit]
    assert "order_id" in reasons.pop(misfit)
    assert "takes no payload" in reasons.pop(surplus)
    assert "payload: has 'timestamp', which the handler does not take" in reasons.pop(unknown_argument)
    assert "payload: has 'express', which the handler does not take" in reasons.pop(unknown_field)
    assert "a running job of procrastinate holds its lock" in reasons.pop(behind_running)
    assert "order_id" in reasons.pop(misfit_with_lock)
    assert "a job with the same lock that runs earlier cannot be moved" in reasons.pop(behind_misfit)
    assert reasons == {}

    shown = call(database_url, "procrastinate")
    assert shown.exit_code == 1
    assert "other: 1 job left: no handler is named 'other'" in shown.output
    assert "not looked at in procrastinate: 1 doing" in shown.output
    assert "Nothing was changed." in shown.output

    moved = document(database_url, "procrastinate", "--partial")
    assert (moved["committed"], moved["moved"], moved["left"]) == (True, 1, 8)
    assert [job.input for job in our_jobs(engine)] == [{"order_id": 1}]
    with engine.connect() as connection:
        left = set(connection.execute(text("SELECT id FROM procrastinate_jobs")).scalars())
    assert left == {
        unknown,
        misfit,
        surplus,
        unknown_argument,
        unknown_field,
        running,
        behind_running,
        misfit_with_lock,
        behind_misfit,
    }
    assert good not in left


def test_imported_jobs_with_one_lock_keep_procrastinates_order(
    database_url: str, engine: Engine, procrastinate: Any, jobs: JobQueue[Any]
) -> None:
    for order_id, priority in ((1, 0), (2, 5), (3, 0), (4, 5)):
        task = procrastinate.configure_task("receipt", allow_unknown=True, lock="one", priority=priority)
        task.defer(order_id=order_id)
    document(database_url, "procrastinate")
    drain(jobs, engine)
    import imports_app  # type: ignore[import-not-found]

    assert imports_app.done == [2, 4, 1, 3]


def test_a_job_behind_one_that_a_worker_starts_meanwhile_is_left(
    database_url: str, engine: Engine, procrastinate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for order_id in (1, 2):
        procrastinate.configure_task("receipt", allow_unknown=True, lock="one").defer(order_id=order_id)
    monkeypatch.setenv("SA_JOBQUEUE_URL", database_url)
    observer = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    with ThreadPoolExecutor(1) as pool, observer, engine.connect() as worker:
        worker.execute(text("SELECT procrastinate_fetch_job_v2(NULL, NULL)"))
        command = ["import", "procrastinate", "--app", "imports_app:jobs", "--partial"]
        move = pool.submit(main, command, standalone_mode=False)
        wait_until(lambda: observer.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one() == 1)
        worker.commit()
        move.result(30)
    assert (count(engine, "job"), count(engine, "procrastinate_jobs")) == (0, 2)


def test_a_waiting_job_is_no_duplicate_of_a_running_one_with_its_queueing_lock(
    database_url: str, engine: Engine, procrastinate: Any, jobs: JobQueue[Any]
) -> None:
    with Session(engine) as session, session.begin():
        running, _ = enqueue(session, jobs["receipt"].job({"order_id": 7}), deduplicate=Deduplicate("receipt-7"))
        running_id = running.id
    with engine.begin() as connection:  # as a claim leaves it
        started = "UPDATE job SET status = 'running', attempt = 1, leased_by = 'other', started_at = now() WHERE id = :id"
        connection.execute(text(started), {"id": running_id})
    procrastinate.configure_task("receipt", allow_unknown=True, queueing_lock="receipt-7").defer(order_id=7)
    (task,) = document(database_url, "procrastinate")["tasks"]
    assert (task["moved"], task["duplicates"]) == (1, 0)
    assert {job.deduplication_key for job in our_jobs(engine) if job.id != running_id} == {"receipt-7"}
    assert count(engine, "job") == 2


def test_more_jobs_than_a_page_are_moved_and_a_lock_is_kept_across_pages(
    database_url: str, engine: Engine, procrastinate: Any
) -> None:
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO procrastinate_jobs (queue_name, task_name, lock, queueing_lock, args) "
                "SELECT 'default', CASE WHEN n = 10 THEN 'other' ELSE 'receipt' END, "
                "CASE WHEN n IN (10, 2400) THEN 'one' END, CASE WHEN n % 2 = 0 THEN 'key-' || n END, "
                "jsonb_build_object('order_id', n) FROM generate_series(1, 2500) AS n"
            )
        )
    moved = document(database_url, "procrastinate", "--partial")
    assert (moved["moved"], moved["left"]) == (2498, 2)
    (behind,) = next(task for task in moved["tasks"] if task["task"] == "receipt")["reasons"]
    assert "a job with the same lock that runs earlier" in behind["reason"]
    with engine.connect() as connection:
        left = connection.execute(text("SELECT args->>'order_id' FROM procrastinate_jobs ORDER BY id")).scalars()
        assert list(left) == ["10", "2400"]
    assert count(engine, "job") == 2498


def test_concurrent_imports_move_each_job_once(
    database_url: str, engine: Engine, procrastinate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for order_id in range(30):
        procrastinate.configure_task("receipt", allow_unknown=True).defer(order_id=order_id)
    monkeypatch.setenv("SA_JOBQUEUE_URL", database_url)
    observer = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    with ThreadPoolExecutor(2) as pool, observer, engine.begin() as holder:
        holder.execute(text("SELECT FROM procrastinate_jobs ORDER BY id LIMIT 1 FOR UPDATE"))
        command = ["import", "procrastinate", "--app", "imports_app:jobs", "--json"]
        moves = [pool.submit(main, command, standalone_mode=False) for _ in range(2)]
        wait_until(lambda: observer.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one() == 2)
        holder.rollback()
        assert [move.result(30) for move in moves] == [None, None]
    assert (count(engine, "job"), count(engine, "procrastinate_jobs"), count(engine, "job_audit")) == (30, 0, 1)


def test_imported_pgqueuer_jobs_keep_payload_time_priority_and_key(
    database_url: str, engine: Engine, pgqueuer: Any, jobs: JobQueue[Any]
) -> None:
    pgqueuer.enqueue("receipt", b'{"order_id": 7}', 4)
    later = pgqueuer.enqueue("shop.ship", b'{"order_id": 8}', execute_after=timedelta(days=300), dedupe_key="ship-8")
    pgqueuer.enqueue("clean_up", None)
    picked = pgqueuer.enqueue("receipt", b'{"order_id": 9}')
    with engine.begin() as connection:
        connection.execute(text("UPDATE pgqueuer SET status = 'picked' WHERE id = :id"), {"id": picked[0]})
        due = connection.execute(text("SELECT execute_after FROM pgqueuer WHERE id = :id"), {"id": later[0]}).scalar_one()

    dry = document(database_url, "pgqueuer", "--map", "shop.ship=ship", "--dry-run")
    assert (dry["moved"], dry["other"], count(engine, "job"), count(engine, "pgqueuer")) == (3, {"picked": 1}, 0, 4)
    moved = document(database_url, "pgqueuer", "--map", "shop.ship=ship")
    assert (moved["committed"], moved["moved"], count(engine, "pgqueuer")) == (True, 3, 1)
    here = {job.type_name: job for job in our_jobs(engine)}
    assert (here["receipt"].input, here["receipt"].priority, here["receipt"].queue) == ({"order_id": 7}, 4, "mail")
    assert (here["ship"].scheduled_at, here["ship"].deduplication_key) == (due, "ship-8")
    assert here["clean_up"].input is None
    drain(jobs, engine)
    assert document(database_url, "pgqueuer")["moved"] == 0
    assert count(engine, "job") == 3


def test_reasons_of_redacted_types_do_not_quote_payloads(
    database_url: str, pgqueuer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pgqueuer.enqueue("receipt", b'{"order_id": "hunter2"}')
    monkeypatch.setenv("SA_JOBQUEUE_REDACT", "receipt")
    shown = call(database_url, "pgqueuer", "--json")
    assert "hunter2" not in shown.output
    assert "(redacted)" in shown.output


def test_import_from_missing_tables_or_to_unknown_types_is_a_usage_error(database_url: str) -> None:
    for arguments, expected in (
        (["procrastinate"], "table 'procrastinate_jobs' of procrastinate not found in the search path of this database"),
        (["pgqueuer", "--schema", "jobs"], "table 'pgqueuer' of pgqueuer not found in schema 'jobs'"),
        (["pgqueuer", "--prefix", "shop_"], "table 'shop_pgqueuer' of pgqueuer"),
        (["pgqueuer", "--map", "receipt"], "'receipt' must be TASK=TYPE"),
        (["pgqueuer", "--map", "a=b"], "no handler is named 'b'; there are: clean_up, receipt, ship"),
    ):
        refused = call(database_url, *arguments)
        assert (refused.exit_code, expected in refused.output) == (2, True), refused.output


def test_jobs_of_one_lock_keep_their_order_with_and_without_a_queueing_lock(
    database_url: str, engine: Engine, procrastinate: Any, jobs: JobQueue[Any]
) -> None:
    for order_id, queueing_lock in ((1, "z"), (2, None), (3, "a"), (4, None)):
        task = procrastinate.configure_task("receipt", allow_unknown=True, lock="one", queueing_lock=queueing_lock)
        task.defer(order_id=order_id)
    document(database_url, "procrastinate")
    drain(jobs, engine)
    import imports_app

    assert imports_app.done == [1, 2, 3, 4]


def test_import_drops_a_job_whose_deduplication_key_is_taken_as_a_duplicate(
    database_url: str, engine: Engine, procrastinate: Any, jobs: JobQueue[Any]
) -> None:
    with Session(engine) as session, session.begin():
        enqueue(session, jobs["receipt"].job({"order_id": 7}), deduplicate=Deduplicate("receipt-7"))
    procrastinate.configure_task("receipt", allow_unknown=True, queueing_lock="receipt-7").defer(order_id=7)
    (task,) = document(database_url, "procrastinate")["tasks"]
    assert (task["moved"], task["duplicates"]) == (1, 1)
    assert (count(engine, "job"), count(engine, "procrastinate_jobs")) == (1, 0)


def test_a_pgqueuer_payload_that_is_not_json_is_not_imported(database_url: str, engine: Engine, pgqueuer: Any) -> None:
    (pickled,) = pgqueuer.enqueue("receipt", b"\x80\x04K\x07.")
    refused = document(database_url, "pgqueuer", exit_code=1)
    (task,) = refused["tasks"]
    assert task["reasons"] == [{"reason": "its payload is not JSON", "jobs": 1, "ids": [pickled]}]
    assert count(engine, "pgqueuer") == 1
