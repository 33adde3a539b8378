"""One report for all viewers, measured only when a page asks, and never more often than it costs."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text

from sa_jobqueue import JobStatus
from sa_jobqueue.dashboard import Access, Source, dashboard
from sa_jobqueue.dashboard.sampler import AT_LEAST, AT_MOST, SHARE, Sampler
from sa_jobqueue.dashboard.screens import SCREENS
from sa_jobqueue.ddl import LATEST
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.observe.health import Health, health
from tests.dashboard.conftest import Client, everyone
from tests.dashboard.pages import buffers
from tests.fixtures.database import own_database
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import write
from tests.fixtures.workers import wait_until

pytestmark = own_database

NAMED = ("job-type", "queue")
"""Pages about one name."""


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_report_is_cached_for_a_multiple_of_its_cost(engine: Engine) -> None:
    clock, calls, report = Clock(), [], health(engine)

    def read() -> Health:
        calls.append(clock.now)
        clock.now += 1.5
        return report

    sampler = Sampler(read, clock=clock)
    for _ in range(50):
        assert sampler.sample().value is report
    assert len(calls) == 1
    assert sampler.sample().took == timedelta(seconds=1.5)
    clock.now += 1.5 * SHARE - 0.1
    assert sampler.sample().age.total_seconds() > 29
    assert len(calls) == 1
    clock.now += 0.2
    sampler.sample()
    assert len(calls) == 2
    clock.now += AT_MOST.total_seconds()
    sampler.sample()
    assert len(calls) == 3


def test_who_asks_for_a_new_report_gets_one_at_most_every_two_seconds() -> None:
    clock, calls = Clock(), []

    def read() -> int:
        calls.append(clock.now)
        clock.now += 2.5
        return len(calls)

    sampler = Sampler(read, clock=clock)
    assert sampler.sample().value == 1
    clock.now += AT_LEAST.total_seconds() + 0.1
    assert sampler.sample().value == 1  # it is kept for twenty times what it took
    sampler.expire()
    assert sampler.sample().value == 2
    sampler.expire()
    assert sampler.sample().value == 2
    clock.now += AT_LEAST.total_seconds() + 0.1
    assert sampler.sample().value == 3
    clock.now += AT_LEAST.total_seconds() + 0.1
    assert sampler.sample().value == 3


def test_measure_now_measures_the_parts_that_are_kept_longest_as_well(engine: Engine) -> None:
    source = Source(name="queue", engine=engine)
    client = Client(dashboard([source], authorize=lambda request: Access(user="eve")))
    page = client.page("/queue/overview")
    assert 'action="/admin/jobs/queue/measure"' in page
    report = source.sampler.last
    assert report is not None
    for sampler in (source.sampler, source.shares, source.recorded):
        sampler._tried_at -= AT_LEAST.total_seconds() + 1  # as if that long ago
    assert client.request("POST", "/queue/measure", data={}).status_code == 403  # no token
    sent = {"data": {"csrf_token": client.token()}, "headers": {"Sec-Fetch-Site": "same-origin"}}
    response = client.request("POST", "/queue/measure", **sent)
    assert (response.status_code, response.headers["location"]) == (303, "/admin/jobs/queue/overview")
    client.page("/queue/overview")
    new = source.sampler.last
    assert new is not None
    assert new.measured_at > report.measured_at
    assert new.older_at is None  # all of it, not the cheap part alone


def test_a_failed_report_keeps_the_last_one_and_shows_one_sentence(engine: Engine) -> None:
    clock, report = Clock(), health(engine)
    answers: list[Any] = [report, JobQueueError("it is down\nwith details")]

    def read() -> Health:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        report: Health = answer
        return report

    sampler = Sampler(read, clock=clock)
    sampler.sample()
    clock.now += 3
    sample = sampler.sample()
    assert (sample.value, sample.error, sample.age) == (report, "it is down", timedelta(seconds=3))
    assert sampler.sample().error == "it is down"  # not tried again at once


def test_viewers_get_the_last_report_while_a_new_one_is_measured(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, report = Clock(), health(engine)
    began, may_end = threading.Event(), threading.Event()
    calls = []

    def read() -> Health:
        calls.append(1)
        if len(calls) > 1:
            began.set()
            assert may_end.wait(20)
        return report

    sampler = Sampler(read, clock=clock)
    sampler.sample()
    clock.now += 3
    monkeypatch.setattr("sa_jobqueue.dashboard.sampler.PATIENCE", 0.01)
    for _ in range(5):
        assert sampler.sample().value is report  # at once
    assert began.wait(20)
    assert len(calls) == 2
    may_end.set()
    monkeypatch.setattr("sa_jobqueue.dashboard.sampler.PATIENCE", 20)
    assert sampler.sample().age == timedelta(0)


def test_a_page_does_not_wait_for_the_first_report(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    report, may_end = health(engine), threading.Event()

    def read() -> Health:
        assert may_end.wait(20)
        return report

    source = Source(name="queue", engine=engine)
    source.sampler.__init__(read)  # type: ignore[misc]
    client = Client(dashboard([source], authorize=everyone))
    monkeypatch.setattr("sa_jobqueue.dashboard.sampler.PATIENCE", 0.01)
    assert "is being measured" in client.page("/queue/overview")
    assert client.get("/queue/queues").status_code == 200
    may_end.set()
    monkeypatch.setattr("sa_jobqueue.dashboard.sampler.PATIENCE", 20)
    assert "Findings" in client.page("/queue/overview")


def test_fifty_viewers_cause_no_more_queries_than_one(engine: Engine, jobs: Jobs) -> None:
    jobs.add()
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    source = Source(name="queue", engine=engine)
    for sampler in (source.sampler, source.recorded, source.shares):
        sampler._clock = Clock()  # the reports stay new however long the pages take
    client = Client(dashboard([source], authorize=everyone))
    client.page("/queue/overview")
    once = len(statements)
    assert once > 10
    for _ in range(49):
        fragment = client.get("/queue/overview", headers={"HX-Request": "true"})
        assert fragment.text.lstrip().startswith("<title>")  # what changes alone, and the title
    assert len(statements) < 1.2 * once + 49
    etag = fragment.headers["etag"]
    again = client.get("/queue/overview", headers={"HX-Request": "true", "If-None-Match": etag})
    assert again.status_code in {200, 304}


def test_shares_are_measured_once_for_all_viewers_and_their_failure_leaves_limits_shown(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.add()
    counted: list[str] = []
    event.listen(
        engine,
        "before_cursor_execute",
        lambda *arguments: (
            counted.append(arguments[2]) if "GROUP BY seen.queue, seen.fairness_key" in arguments[2] else None
        ),
    )
    source = Source(name="queue", engine=engine, timeout=timedelta(milliseconds=200))
    client = Client(dashboard([source], authorize=everyone))
    source.shares.__init__(source.shares._read, clock=Clock())  # type: ignore[misc]
    for _ in range(20):
        assert "Jobs started within" in client.page("/queue/limits")
    assert len(counted) == 1

    def slow(session: Any, **options: Any) -> Any:
        session.execute(text("SELECT pg_sleep(30)"))

    monkeypatch.setattr("sa_jobqueue.dashboard.sources.shares", slow)
    page = Client(dashboard([Source(name="queue", engine=engine, timeout=source.timeout)], authorize=everyone)).page(
        "/queue/limits"
    )
    assert "The shares could not be measured: canceling statement due to statement timeout" in page
    assert "Concurrency and rates of queues" in page


def test_showing_a_cached_report_reads_little_and_no_viewer_costs_nothing(engine: Engine, jobs: Jobs) -> None:
    """A page's own statements read at most 5,000 buffers, and nothing is read without a viewer."""
    jobs.add()
    source, clock = Source(name="queue", engine=engine), Clock()
    source.sampler.__init__(source.sampler._read, clock=clock)  # type: ignore[misc]
    client = Client(dashboard([source], authorize=everyone))
    client.page("/queue/overview")
    statements: list[tuple[str, Any]] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append((arguments[2], arguments[3])))
    client.get("/queue/overview", headers={"HX-Request": "true"})
    looked_at = list(statements)
    assert buffers(engine, looked_at) <= 5_000
    statements.clear()
    clock.now += timedelta(hours=1).total_seconds()
    assert [
        thread.name for thread in threading.enumerate() if thread.name == "sa_jobqueue dashboard"
    ] == []  # nothing is polled
    assert statements == []
    client.get("/queue/overview", headers={"HX-Request": "true"})
    assert len(statements) > len(looked_at)  # a whole report, since the last one is old


@pytest.mark.slow
def test_statement_timeouts_leave_each_page_usable(engine: Engine, jobs: Jobs) -> None:
    """No role can read the jobs: each page answers soon, says why, and leads to the others."""
    job_id = jobs.add()
    source = Source(name="queue", engine=engine, timeout=timedelta(milliseconds=100))
    client = Client(dashboard([source], authorize=everyone))
    client.page("/queue/jobs")
    pages = {screen.name: screen.name for screen in SCREENS}
    pages |= {name: f"{name}?id={job_id}" for name in ("job", "chain")} | {name: f"{name}?name=a" for name in NAMED}
    with engine.connect() as holder:
        holder.execute(text("LOCK TABLE job IN ACCESS EXCLUSIVE MODE"))
        for path in pages.values():
            answer = client.get(f"/queue/{path}")
            assert answer.status_code in {200, 503}, path
            if answer.status_code == 503 or "could not be measured" in answer.text:
                assert "statement timeout" in answer.text, path
            assert "/queue/workers" in answer.text, path  # the way on
        assert client.get("/queue/jobs").status_code == 503
        reason = "because the server cancelled the statement: "
        wait_until(lambda: reason in client.page("/queue/overview"), description="a report of what could be measured")
        assert client.get("/queue/audit").status_code == 200
    for path in pages.values():
        client.page(f"/queue/{path}")


@pytest.fixture
def as_replica(engine: Engine) -> Iterator[Engine]:
    """Give an engine whose sessions refuse writes, and believe to be on a replica."""
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA shadow"))
        connection.execute(text("CREATE FUNCTION shadow.pg_is_in_recovery() RETURNS bool LANGUAGE sql AS 'SELECT true'"))
    options = "-c search_path=shadow,pg_catalog,public -c default_transaction_read_only=on"
    replica_engine = create_engine(engine.url, connect_args={"options": options})
    yield replica_engine
    replica_engine.dispose()


def test_a_replica_is_read_and_never_written(engine: Engine, as_replica: Engine, jobs: Jobs) -> None:
    job_id = str(jobs.add())
    client = Client(dashboard(as_replica, operator=as_replica, authorize=everyone))
    client.page("/queue/jobs")
    page = client.page(f"/queue/job?id={job_id}")
    assert "read from a replica" in page
    assert "Nothing can be changed there" in page
    assert "Cancel…" not in page
    # Reads from a replica, writes to the primary.
    client = Client(dashboard(as_replica, operator=engine, authorize=everyone))
    client.page("/queue/jobs")
    page = client.page(f"/queue/job?id={job_id}")
    assert "read from a replica" in page
    assert "Cancel…" in page
    # The other way round.
    client = Client(dashboard(engine, operator=as_replica, authorize=everyone))
    refused = client.post("cancel-jobs", {"id": job_id}, confirmed="1")
    assert refused.status_code == 409
    assert "is a replica, which accepts no writes" in refused.text


def test_tables_of_another_schema_version_are_reported_in_a_sentence(engine: Engine, client: Client) -> None:
    client.page("/queue/jobs")
    for version, sentence in ((LATEST + 2, "upgrade sa-jobqueue here"), (LATEST - 1, "this library needs")):
        with engine.begin() as connection:
            connection.execute(text(f"COMMENT ON TABLE job IS 'sa_jobqueue version={version}'"))
            connection.execute(text("ALTER TABLE IF EXISTS job RENAME COLUMN fairness_key TO renamed"))
        first, second = client.get("/queue/jobs"), client.get("/queue/jobs")
        assert first.status_code == second.status_code == 503
        assert "Traceback" not in first.text + second.text
        assert sentence in second.text
        assert client.get("/readyz").status_code == 503
        write(engine, "ALTER TABLE job RENAME COLUMN renamed TO fairness_key")


def test_an_unavailable_or_empty_database_is_reported_in_a_sentence(engine: Engine) -> None:
    down = create_engine("postgresql+psycopg://app:secret@127.0.0.1:1/none")
    client = Client(dashboard(down, authorize=everyone))
    page = client.page("/queue/overview")
    assert "could not be measured" in page
    assert "secret" not in page
    response = client.get("/queue/jobs")
    assert response.status_code == 503
    assert "did not answer" in response.text
    assert "secret" not in response.text
    write(engine, "DROP TABLE job CASCADE")
    client = Client(dashboard(engine, authorize=everyone))
    assert "Traceback" not in client.page("/queue/overview")
    assert client.get("/queue/jobs").status_code == 503


def test_a_role_without_pg_monitor_sees_the_queue_and_a_note_on_what_is_hidden(engine: Engine, jobs: Jobs) -> None:
    job_id = jobs.add(JobStatus.RUNNING)
    role = f"plain_{engine.url.database}"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role}"))
        connection.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"))
    plain = create_engine(engine.url, connect_args={"options": f"-c role={role}"})
    try:
        client = Client(dashboard(plain, operator=plain, authorize=everyone))
        for screen in SCREENS:
            path = f"?id={job_id}" if screen.name in {"job", "chain"} else "?name=a" if screen.name in NAMED else ""
            assert client.get(f"/queue/{screen.name}{path}").status_code == 200, screen.name
        assert "GRANT pg_monitor" in client.page("/queue/overview")
        refused = client.post("cancel-jobs", {"id": str(job_id)}, confirmed="1")
        assert refused.status_code == 503
        assert "permission denied" in refused.text
        assert "Traceback" not in refused.text
        assert "UPDATE" not in refused.text
    finally:
        plain.dispose()
        write(engine, f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert jobs.status(job_id) is JobStatus.RUNNING


@pytest.mark.long
def test_updates_leak_neither_memory_nor_threads(engine: Engine, jobs: Jobs) -> None:
    jobs.add_many(60)
    source = Source(name="queue", engine=engine)
    client = Client(dashboard([source], authorize=everyone))

    def update(times: int) -> None:
        for _ in range(times):
            for screen in ("overview", "jobs", "limits"):
                client.get(f"/queue/{screen}", headers={"HX-Request": "true"})
        gc.collect()

    tracemalloc.start()
    try:
        update(3)
        before, _ = tracemalloc.get_traced_memory()
        update(8)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 8 * 3 * 3000, f"{before:,} to {after:,} bytes"
    source.sampler.sample()
    source.shares.sample()
    measuring = [thread for thread in threading.enumerate() if thread.name == "sa_jobqueue dashboard"]
    for thread in measuring:  # none waits for the next page
        thread.join(20)
    assert not any(thread.is_alive() for thread in measuring)
