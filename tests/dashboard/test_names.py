"""The pages of one job type, one queue and the fairness keys: their records, who serves them, their acts."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, insert, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.dashboard import ALL_PERMISSIONS, Access, Permission, dashboard
from sa_jobqueue.operations import get_queue, list_audit, pause_job_types, upsert_job_type, upsert_queue
from sa_jobqueue.settings import QueueSettings, TypeSettings
from sa_jobqueue.statements.minutes import COUNTS
from tests.dashboard.conftest import Client
from tests.dashboard.pages import buffers, confirmed, forms, words
from tests.fixtures.database import own_database
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.transactions import write

HISTOGRAM = [0] * 6 + [90, 0, 0, 0, 0, 10] + [0] * 4
"""Of 100 jobs ninety between 0.25 s and 0.5 s, and ten between 10 s and 30 s."""


def remember(engine: Engine, *, ago: int, queue: str = "mail", type_name: str = "send", **figures: int) -> None:
    """Write a minute as a worker records it."""
    row: dict[str, Any] = dict.fromkeys(COUNTS, 0) | {"wait": HISTOGRAM, "run": HISTOGRAM} | figures
    minute = func.date_trunc("minute", func.now()) - timedelta(minutes=ago)
    with engine.begin() as connection:
        for names in ({"queue": queue, "type_name": type_name}, {"queue": "", "type_name": ""}):
            connection.execute(insert(Job.Minute).values({"minute": minute, **names, **row}))


def test_a_job_type_shows_its_rates_percentiles_errors_workers_and_settings(
    client: Client, engine: Engine, session: Session, jobs: Jobs
) -> None:
    remember(engine, ago=2, completed=90, failed=10, enqueued=120, due=7, running=3)
    remember(engine, ago=1, completed=90, failed=10, enqueued=120, due=8, running=4, died=2)
    upsert_job_type(session, TypeSettings(type_name="send", global_concurrency=5))
    session.commit()
    pause_job_types(session, ["send"], by="carol")
    session.commit()
    jobs.add_worker(WORKER, queues=["mail"], job_types=["send"])
    jobs.add_worker("dead:1", queues=["mail"], job_types=["send"], silent_for=60)
    jobs.add(JobStatus.DEAD, type_name="send", error={"type": "ValueError", "message": "no address"}, fingerprint="f")
    page = client.page("/queue/job-type?name=send")
    page_text = words(page)
    for part in ("Due 8", "Running 4 of 5 allowed", "Enqueued 240 2.0/s", "Failed attempts 10%", "20 failed, 2 died"):
        assert part in page_text, part
    assert re.search(r"Wait 389 ms p95 20 s", page_text), page_text
    assert "ValueError: no address" in page_text
    assert "paused" in page_text
    assert page.count(f"/workers?id={WORKER.replace(':', '%3A')}") == 1
    assert "/workers?id=dead" not in page  # a dead worker serves nothing
    # Each chart has the values of each minute for the pointer, and marks of what operators did.
    charts = re.findall('(?s)<svg class="chart".*?</svg>', page)
    assert len(charts) == 4
    assert re.search(r"<title>\d\d:\d\d UTC: enqueued 2, completed 1.5, failed 0.1667</title>", charts[0]), charts[0]
    assert re.search(r'<g class="mark">.*?<title>\d\d:\d\d send paused by carol</title>', charts[0])
    assert "1 worker started" in charts[0]
    assert "p95 20 s" in charts[2]
    [arguments] = forms(page, "resume-job-types")
    assert "<strong>1</strong> resumed" in confirmed(client, client.post("resume-job-types", arguments).text)


def test_ranges_combine_minutes_and_leave_gaps_where_nothing_was_recorded(client: Client, engine: Engine) -> None:
    remember(engine, ago=300, completed=60)
    remember(engine, ago=10, completed=120)
    remember(engine, ago=9, completed=0)
    assert "Completed 120 1.0/s" in words(client.page("/queue/job-type?name=send"))
    page = client.page("/queue/job-type?name=send&range=6h")
    assert "Completed 180 1.0/s" in words(page)
    assert re.findall(r'<path class="line line-2" d="(M[^"]*)"', page)[0].count("M") == 2
    assert client.get("/queue/job-type?name=send&range=9h").status_code == 400
    assert client.get("/queue/job-type").status_code == 400


def test_a_type_with_jobs_and_no_handler_is_red_wherever_types_are_listed(client: Client, engine: Engine) -> None:
    remember(engine, ago=1, type_name="send_fax", due=15)
    page = client.page("/queue/job-types")
    [row] = re.findall(r"(?s)<tr>(?:(?!</tr>).)*name=send_fax.*?</tr>", page)
    assert '<span class="severity critical">no handler</span>' in row
    assert ">15, 0<" in row
    page = client.page("/queue/job-type?name=send_fax")
    assert "No live worker has a handler for send_fax." in page


def test_one_search_box_finds_jobs_by_id_type_and_queue(client: Client, jobs: Jobs) -> None:
    jobs.add_worker(WORKER, queues=["mail", "send"], job_types=["send"])
    ids = {
        "one": str(jobs.add(type_name="send", queue="mail", fairness_key="7")),
        "other": str(jobs.add(type_name="charge", queue="mail")),
        "third": str(jobs.add(type_name="charge", queue="send")),
    }

    def found(query: str) -> set[str]:
        page = client.page(f"/queue/jobs?{query}")
        return {name for name, job_id in ids.items() if f'title="{job_id}"' in page}

    assert found(f"search={ids['one']}") == {"one"}
    assert found("search=mail") == {"one", "other"}
    assert found("search=charge") == {"other", "third"}
    assert found("search=send") == {"one"}  # a type and a queue: the type
    assert found("search=queue:send") == {"third"}
    assert found("search=key:7") == {"one"}
    assert found("search=mail&type=charge&status=pending") == {"other"}
    assert client.get("/queue/jobs?search=id:x").status_code == 400
    page = client.page("/queue/jobs?search=mail&type=charge&status=pending")
    assert "<h1>Pending jobs of charge in mail</h1>" in page
    assert '<option value="queue:mail"></option>' in page
    [without] = re.findall(r'href="([^"]*)" title="Remove this filter">queue: mail', page)
    assert html.unescape(without).endswith("/queue/jobs?status=pending&type=charge")
    tabs = words(page)
    assert "pending 3" in tabs
    assert "running 0" in tabs


@own_database
def test_each_status_tab_has_a_count(client: Client, engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(WORKER)
    for status, count in ((JobStatus.BLOCKED, 2), (JobStatus.DEAD, 3), (JobStatus.RUNNING, 1)):
        for _ in range(count):
            jobs.add(status)
    for _ in range(4):
        jobs.add(JobStatus.COMPLETED)
    write(engine, "ANALYZE job")
    tabs = words(client.page("/queue/jobs"))
    for tab in ("blocked 2", "pending 0", "running 1", "completed ~4", "dead 3"):
        assert tab in tabs, tabs


def test_every_list_leads_to_the_page_of_a_type_and_of_a_queue(client: Client, jobs: Jobs) -> None:
    jobs.add_worker(WORKER, queues=["mail"], job_types=["send"])
    jobs.add(JobStatus.DEAD, queue="mail", type_name="send")
    job_id = jobs.add(JobStatus.RUNNING, queue="mail", type_name="send")
    for path in ("overview", "jobs", f"job?id={job_id}", "dead-letters", "job-types", "workers", "chains"):
        assert "/queue/job-type?name=send" in client.page(f"/queue/{path}"), path
    for path in ("overview", "jobs", f"job?id={job_id}", "queues", "workers", "chains"):
        assert "/queue/queue?name=mail" in client.page(f"/queue/{path}"), path


def test_a_queue_shows_its_limits_in_use_and_its_keys_with_most_due_jobs(
    client: Client, session: Session, jobs: Jobs
) -> None:
    limits = {"global_concurrency": 3, "rate_limit": 4, "rate_period": timedelta(days=1)}
    upsert_queue(session, QueueSettings(name="imports", weight=2, **limits))  # type: ignore[arg-type]
    session.commit()
    jobs.add_many(3, queue="imports", fairness_key="acme")
    jobs.add_many(7, queue="imports", fairness_key="stark")
    jobs.add(JobStatus.RUNNING, queue="imports", fairness_key="stark")
    jobs.add_worker(WORKER, queues=["imports"], job_types=["test"])
    page_text = words(client.page("/queue/queue?name=imports"))
    assert "Running 1 of 3 allowed" in page_text
    assert "4.0 of 4 left, next start now" in page_text
    assert page_text.index("stark 7") < page_text.index("acme 3")
    page_text = words(client.page("/queue/queue?name=imports&fairness_key=acme"))
    assert "acme 3" in page_text
    assert "stark" not in page_text


def test_a_fairness_key_is_paused_with_one_form_and_limited_with_another(
    client: Client, session: Session, jobs: Jobs
) -> None:
    jobs.add_many(2, queue="imports", fairness_key="stark")
    page = client.page("/queue/fairness-keys")
    [arguments] = forms(page, "pause-queues")
    assert arguments == {"name": "imports", "fairness_key": "stark"}
    assert "<strong>1</strong> paused" in confirmed(client, client.post("pause-queues", arguments).text)
    assert get_queue(session, "imports", fairness_key="stark").paused_by == "ann"
    assert [row.operation for row in list_audit(session)] == ["pause_queues"]
    [link] = re.findall(r'href="([^"]*)#settings-of"', page)
    [arguments] = forms(client.page(html.unescape(link).removeprefix(client.prefix)), "upsert-queue")
    confirmed(client, client.post("upsert-queue", arguments, global_concurrency="1").text)
    session.rollback()
    assert get_queue(session, "imports", fairness_key="stark").global_concurrency == 1
    assert "0 of 1" in words(client.page("/queue/fairness-keys"))


def test_keys_cannot_be_paused_without_the_permission(engine: Engine, jobs: Jobs) -> None:
    jobs.add(queue="imports", fairness_key="stark")
    without = ALL_PERMISSIONS - {Permission.PAUSE_QUEUES, Permission.UPSERT_QUEUE}
    client = Client(dashboard(engine, operator=engine, authorize=lambda request: Access(user="bob", permissions=without)))
    page = client.page("/queue/fairness-keys")
    assert "stark" in page
    assert forms(page, "pause-queues") == []
    assert "#settings-of" not in page


@pytest.mark.slow
def test_one_of_fifty_thousand_keys_is_found_by_the_index(client: Client, engine: Engine, jobs: Jobs) -> None:
    fill = """
    INSERT INTO job (id, chain_id, type_name, chain_type_name, priority, max_attempts, input_version, queue, fairness_key)
    SELECT id, id, 'test', 'test', 0, 20, 1, 'imports', 'key' || n FROM
    (SELECT job_uuid7() AS id, n FROM generate_series(1, 50000) AS n) AS one
    """
    write(engine, fill)
    jobs.add_many(4, queue="imports", fairness_key="key33333")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE job"))
    statements: list[tuple[str, Any]] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append((arguments[2], arguments[3])))
    page = client.page("/queue/fairness-keys?queue=imports&key=key33333")
    assert "key33333 5" in words(page)
    assert "key33334" not in page
    key_statements = [statement for statement in statements if "starts_with" in statement[0]]
    assert len(key_statements) == 1
    by_due = words(client.page("/queue/fairness-keys?queue=imports"))
    assert by_due.index("key33333") < by_due.index(" 1 ", by_due.index("key33333"))
    assert "There are more keys" in by_due
    assert buffers(engine, key_statements) < 2_000
    by_name = words(client.page("/queue/fairness-keys?queue=imports&order=key"))
    assert by_name.index("key1 ") < by_name.index("key10 ")
