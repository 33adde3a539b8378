"""The search over everything: by id and by part of a name, without payloads."""

from __future__ import annotations

import re

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import Schedule
from sa_jobqueue.dashboard import Access, dashboard
from sa_jobqueue.operations import upsert_schedule
from tests.dashboard.conftest import Client
from tests.dashboard.pages import words
from tests.fixtures.jobs import Jobs


def test_a_search_finds_jobs_queues_types_workers_and_schedules(client: Client, session: Session, jobs: Jobs) -> None:
    jobs.add_worker("mailer-1:7", name="mailer-1", queues=["mail", "e-mail"], job_types=["send_mail"])
    upsert_schedule(session, Schedule(name="mail-report", type_name="report", cron="0 3 * * *"))
    session.commit()
    page = client.page("/queue/search?q=MAIL")
    kinds = re.findall(r"<small>([a-z ]+)</small> ([^<]*)</a>", page)
    assert kinds == [
        *(("queue", "mail"), ("queue", "e-mail"), ("job type", "send_mail"), ("worker", "mailer-1")),
        ("schedule", "mail-report"),
    ]
    for link in re.findall(r'<li><a href="/admin/jobs([^"]*)"', page):
        assert "mail" in client.page(link)
    job_id = jobs.add(type_name="pay")
    assert f"job pay {job_id}, pending" in words(client.page(f"/queue/search?q={job_id}"))
    assert "Nothing has this name." in client.page("/queue/search?q=nosuch*_%")
    assert "Nothing" not in client.page("/queue/search")
    assert client.get("/queue/search?q=" + "x" * 1001).status_code == 400


def test_a_search_does_not_find_payloads(engine: Engine, jobs: Jobs) -> None:
    jobs.add(type_name="pay", input={"card": "4711"})
    access = Access(user="eve")
    page = Client(dashboard(engine, authorize=lambda request: access)).page("/queue/search?q=4711")
    assert "Nothing has this name." in page
