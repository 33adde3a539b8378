"""Chains with their graph, schedules, workers, limits, storage and audit: what they show, and what their acts change."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, Schedule
from sa_jobqueue.dashboard.screens import ACTS
from sa_jobqueue.dashboard.screens.limits import shares
from sa_jobqueue.observe.health import health
from sa_jobqueue.operations import (
    get_schedule,
    list_audit,
    list_jobs,
    list_workers,
    pause_queues,
    sync_schedules,
    upsert_queue,
)
from sa_jobqueue.settings import QueueSettings
from tests.dashboard.conftest import Client
from tests.fixtures.jobs import WORKER, Jobs

NIGHTLY = Schedule(name="nightly", type_name="report", cron="0 3 * * *", time_zone="Europe/Berlin")


def test_the_graph_of_a_chain_opens_from_any_job_and_names_what_is_stuck(client: Client, engine: Engine, jobs: Jobs) -> None:
    dead = jobs.add(JobStatus.DEAD, type_name="dies")
    with Session(engine) as session, session.begin():
        first = Job(type_name="first")
        middle = Job(type_name="middle", blockers=[dead, first])
        last = Job(type_name="last", blockers=[middle])
        session.add_all([first, middle, last])
        ids = {job.type_name: str(job.id) for job in (first, middle, last)} | {"dies": str(dead)}
    for job_id in ids.values():
        page = client.page(f"/queue/chain?id={job_id}")
        graph = re.findall('(?s)<svg class="graph".*?</svg>', page)[0]
        assert {name for name in ids if f">{name}</text>" in graph} == set(ids)
        assert graph.count('marker-end="url(#arrow)"') == 3
        # The dead one and those that wait for it, but not what is only pending.
        assert graph.count(" stuck") >= 3
        assert ">pending 1 job</text>" in graph
        outline = page[page.index('id="outline"') :]
        assert outline.index("last") < outline.index("middle") < outline.index("dies")
    assert "3 of them are dead, or wait for one that is" in client.page(f"/queue/chain?id={ids['last']}")
    alone = jobs.add()
    assert "It waits for no chain" in client.page(f"/queue/chain?id={alone}")
    assert client.get("/queue/chain").status_code == 400
    assert client.get("/queue/chain?id=00000000-0000-0000-0000-000000000000").status_code == 404


def test_chains_are_listed_by_filters_and_cancelled(client: Client, jobs: Jobs) -> None:
    one, other = jobs.add(type_name="mail"), jobs.add(JobStatus.COMPLETED, type_name="pay")
    page = client.page("/queue/chains?status=pending")
    assert str(one) in page
    assert str(other) not in page
    assert "<strong>1</strong> row would change" in client.post("cancel-chains", {"id": str(one)}).text
    assert jobs.status(one) is JobStatus.PENDING
    assert "1</strong> cancelled." in client.post("cancel-chains", {"id": [str(one), str(other)]}, confirmed="1").text
    assert jobs.status(one) is JobStatus.CANCELLED


def test_a_schedule_shows_its_next_times_in_its_own_zone_and_is_paused_resumed_and_run(
    client: Client, engine: Engine, session: Session
) -> None:
    sync_schedules(session, [NIGHTLY])
    session.commit()
    page = client.page("/queue/schedules?name=nightly")
    assert len(re.findall(r"<strong>\w{3} \d{4}-\d\d-\d\d 03:00 CES?T</strong>", page)) == 5
    assert "It fires next in" in page
    assert "1 row would change" in re.sub("<.?strong>", "", client.post("pause-schedules", {"name": "nightly"}).text)
    client.post("pause-schedules", {"name": "nightly"}, confirmed="1")
    assert get_schedule(session, "nightly").paused_by == "ann"
    assert "already paused, by ann" in client.post("pause-schedules", {"name": "nightly"}).text
    assert "It was paused" in client.page("/queue/schedules?name=nightly")
    assert "1</strong> enqueued." in client.post("run-schedule", {"name": "nightly"}, confirmed="1").text
    session.rollback()
    assert [job.type_name for job in list_jobs(session)] == ["report"]
    client.post("resume-schedules", {"name": "nightly"}, confirmed="1")
    session.rollback()
    session.expire_all()
    assert get_schedule(session, "nightly").paused_at is None
    assert client.get("/queue/schedules?name=unknown").status_code == 404
    with engine.begin() as connection:
        connection.execute(text("UPDATE schedule SET cron = '99 99 * * *', error = 'no such time'"))
    page = client.page("/queue/schedules?name=nightly")
    assert "broken" in page
    assert "none that could be computed" in page


def test_a_worker_shows_its_heartbeat_and_is_drained_and_resized(client: Client, session: Session, jobs: Jobs) -> None:
    jobs.add_worker(WORKER, silent_for=60, queues=["mail"])
    page = client.page("/queue/workers")
    assert "silent" in page
    assert "Run the worker" not in page
    assert "at most 7 jobs at once" in client.post("resize-workers", {"id": WORKER}, concurrency="7").text
    client.post("resize-workers", {"id": WORKER}, concurrency="7", confirmed="1")
    assert client.post("resize-workers", {"id": WORKER}, concurrency="0", confirmed="1").status_code == 400
    assert list_workers(session).items[0].drain_requested_at is None
    client.post("drain-workers", {"id": WORKER}, confirmed="1")
    session.rollback()
    assert list_workers(session).items[0].drain_requested_at is not None
    asked = session.execute(text("SELECT concurrency_requested FROM worker")).scalar_one()
    assert asked == 7
    for act in ("drain-workers", "resize-workers"):
        assert client.post(act, {}, confirmed="1").status_code == 400  # an empty filter would mean every worker


def test_limits_show_what_a_rate_has_left_and_shares_what_queues_got(
    client: Client, engine: Engine, session: Session, jobs: Jobs
) -> None:
    upsert_queue(session, QueueSettings(name="mail", weight=3, rate_limit=4, rate_period=timedelta(days=1)))
    spent = "INSERT INTO rate_state (is_type, name, tokens, spent_at) VALUES (false, 'mail', 0, now())"
    session.execute(text(spent))
    session.commit()
    jobs.add(queue="mail")
    jobs.add(JobStatus.COMPLETED, queue="reports")
    page = re.sub("<[^>]*>", " ", client.page("/queue/limits"))
    assert "0.0 of 4" in page
    assert re.search(r"in \d+h|in [56]\.\d h|in \d+ h", page), page
    (mail, reports) = shares(health(session), {"mail": 3})
    assert (mail.name, mail.weight, mail.completed, mail.received, mail.due_share, mail.is_starving) == (
        *("mail", 3, 0, 0.0, 1.0),
        True,
    )
    assert (reports.name, reports.received, reports.due_share, reports.is_starving) == ("reports", 1.0, None, False)


def test_storage_names_what_holds_back_vacuum_and_the_job_that_does(client: Client, engine: Engine, jobs: Jobs) -> None:
    job_id = jobs.add(JobStatus.RUNNING, type_name="slow")
    with engine.connect() as holder:
        holder.execute(text("SELECT set_config('application_name', :name, false)"), {"name": f"sa_jobqueue job {job_id}"})
        holder.execute(text("SELECT pg_current_xact_id()"))
        jobs.add()
        page = client.page("/queue/storage")
    assert "xmin horizon" in page
    assert "dead_letter" in page
    assert "pk_job" in page
    held = re.sub("<[^>]*>", " ", page)
    assert "Session" in held or "handler of slow" in held


def test_the_url_of_a_list_has_its_columns_and_its_page(client: Client, jobs: Jobs) -> None:
    jobs.add_many(3)
    page = client.page("/queue/jobs?column=started_at&column=worker&column=chain&limit=2")
    headings = re.findall('<th scope="col">([^<]*)</th>', page)
    assert headings == ["Select", "Job", "Started", "Worker", "Chain"]
    (following,) = re.findall(r'href="([^"]+)" rel="next"', page)
    assert re.findall("column=([a-z_]+)", following) == ["started_at", "worker", "chain"]
    assert 'name="column" value="type"' in page
    assert client.get("/queue/jobs?column=input").status_code == 400


def test_the_audit_shows_who_did_what(client: Client, session: Session, jobs: Jobs) -> None:
    pause_queues(session, ["mail"], by="bob")
    session.commit()
    job_id = jobs.add()
    client.post("cancel-jobs", {"id": str(job_id)}, confirmed="1")
    page = client.page("/queue/audit")
    assert page.index("cancel_jobs") < page.index("pause_queues")
    assert "bob" in page
    only = client.page("/queue/audit?by=bob")
    assert "pause_queues" in only
    assert str(job_id) not in only
    assert client.get("/queue/audit?after=x").status_code == 400


ASKED: dict[str, dict[str, Any]] = {
    "cancel-jobs": {"id": "pending"},
    "trigger-jobs": {"id": "pending"},
    "set-priority": {"id": "pending", "priority": "3"},
    "redrive-dead-letters": {"job": "dead"},
    "dismiss-dead-letters": {"job": "dead"},
    "pause-queues": {"name": "mail"},
    "resume-queues": {"name": "mail"},
    "pause-job-types": {"name": "test"},
    "resume-job-types": {"name": "test"},
    "cancel-chains": {"id": "pending"},
    "pause-schedules": {"name": "nightly"},
    "resume-schedules": {"name": "nightly"},
    "run-schedule": {"name": "nightly"},
    "drain-workers": {"id": WORKER},
    "resize-workers": {"id": WORKER},
}


@pytest.mark.parametrize("act", ACTS)
def test_each_act_leaves_one_record_of_its_user_and_a_preview_none(
    client: Client, session: Session, jobs: Jobs, act: str
) -> None:
    jobs.add_worker(WORKER)
    sync_schedules(session, [NIGHTLY])
    session.commit()
    ids = {"pending": str(jobs.add(due_in=3600)), "dead": str(jobs.add(JobStatus.DEAD))}
    given = {name: ids.get(value, value) for name, value in ASKED[act].items()}
    assert client.post(act, given).status_code == 200
    assert list_audit(session).items == []
    session.rollback()
    response = client.post(act, given, confirmed="1")
    assert response.status_code == 200, response.text
    (record,) = list_audit(session)
    assert (record.done_by, record.operation) == ("ann", ACTS[act].permission.value)
