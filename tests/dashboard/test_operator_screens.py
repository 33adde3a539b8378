"""Chains with their trees, schedules, workers, limits, storage and audit: what they show, and what their acts change."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, insert, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Job, JobQueue, JobStatus, Schedule, operations
from sa_jobqueue.dashboard import ALL_PERMISSIONS, Access, Permission, dashboard
from sa_jobqueue.dashboard.screens import ACTS
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.observe.shares import shares
from sa_jobqueue.operations.schedules import id_of
from sa_jobqueue.policies.cron import Cron
from sa_jobqueue.settings import QueueSettings, TypeSettings
from sa_jobqueue.statements.session_names import session_name
from sa_jobqueue.testing import drain
from tests.dashboard.conftest import Client, everyone
from tests.dashboard.pages import confirmed, forms, words
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.transactions import call, write
from tests.fixtures.workers import wait_until
from tests.health.problems import UnhealthyQueue, awaiting_event_of_another_name, blocked_by_dead

NIGHTLY = Schedule(name="nightly", type_name="report", cron="0 3 * * *", time_zone="Europe/Berlin")


def test_a_chain_shows_what_it_waits_for_as_a_tree_and_what_waits_for_it_by_type(
    client: Client, engine: Engine, jobs: Jobs
) -> None:
    dead = jobs.add(JobStatus.DEAD, type_name="dies")
    with Session(engine) as session, session.begin():
        first = Job(type_name="first")
        middle = Job(type_name="middle", blockers=[dead, first])
        adds = [Job(type_name="add_up", blockers=[middle]) for _ in range(60)]
        last = Job(type_name="last", blockers=[*adds, first])
        session.add_all([first, middle, *adds, last])
        ids = {job.type_name: str(job.id) for job in (first, middle, last)} | {"dies": str(dead)}
    page = words(client.page(f"/queue/chain?id={ids['last']}"))
    assert "63 of these chains are dead, or wait for one that is" in page
    # The dead one and those that wait for it are stuck, but not what is only pending; each stands there once.
    tree = page[page.index("without help.") :]
    assert re.search("blocked 60 × add_up [^ ]+ stuck blocked middle [^ ]+ stuck dead dies [^ ]+ stuck pending first", tree)
    assert tree.count("dies") == 1
    page = words(client.page(f"/queue/chain?id={ids['middle']}"))
    assert re.search("Waited for by .*60 × add_up blocked", page), page
    job_page = client.page(f"/queue/job?id={ids['middle']}")
    assert job_page.count("Root cause:") == 2  # the one that died, and the one that no worker runs
    assert job_page.count("It died ") == 1
    assert "blocked 60 × add_up" in words(job_page)
    assert "blocked 60 × add_up" in words(client.page(f"/queue/job?id={ids['last']}"))
    preview = client.post("cancel-chains", {"id": [ids["middle"], *(str(job_id) for job_id in jobs.add_many(3))]}).text
    assert f"middle {ids['middle']} (blocked)" in words(preview)
    assert "3 × test (pending)" in words(preview)
    alone = words(client.page(f"/queue/chain?id={jobs.add()}"))
    assert "It waits for no chain" in alone
    assert "No job waits for it" in alone
    assert client.get("/queue/chain").status_code == 400
    assert client.get("/queue/chain?id=00000000-0000-0000-0000-000000000000").status_code == 404


def test_chains_can_be_filtered_and_cancelled(client: Client, jobs: Jobs) -> None:
    pending_id, completed_id = jobs.add(type_name="mail"), jobs.add(JobStatus.COMPLETED, type_name="pay")
    page = client.page("/queue/chains?status=pending")
    assert str(pending_id) in page
    assert str(completed_id) not in page
    assert "<strong>1</strong> row would change" in client.post("cancel-chains", {"id": str(pending_id)}).text
    assert jobs.status(pending_id) is JobStatus.PENDING
    assert (
        "1</strong> cancelled."
        in client.post("cancel-chains", {"id": [str(pending_id), str(completed_id)]}, confirmed="1").text
    )
    assert jobs.status(pending_id) is JobStatus.CANCELLED


def test_a_schedule_shows_its_next_times_in_its_time_zone_and_can_be_paused_and_run(
    client: Client, engine: Engine, session: Session
) -> None:
    operations.sync_schedules(session, [NIGHTLY])
    session.commit()
    page = client.page("/queue/schedules?name=nightly")
    assert len(re.findall(r"<strong>\w{3} \d{4}-\d\d-\d\d 03:00 CES?T</strong>", page)) == 5
    assert "It fires next in" in page
    assert "At 03:00 every day" in page
    write(engine, "UPDATE schedule SET created_at = now() - interval '3 days'")
    times = Cron(NIGHTLY.cron, NIGHTLY.time_zone).latest(
        since=datetime.now(UTC) - timedelta(days=3), until=datetime.now(UTC), limit=3
    )
    ran = Jobs(engine).add(JobStatus.COMPLETED, id=id_of("nightly", times[-1], Job))
    page = client.page("/queue/schedules?name=nightly")
    assert page.count("no job") == 2 * (len(times) - 1)
    assert page.count(f"/job?id={ran}") == 2
    assert "1 row would change" in re.sub("<.?strong>", "", client.post("pause-schedules", {"name": "nightly"}).text)
    client.post("pause-schedules", {"name": "nightly"}, confirmed="1")
    assert operations.get_schedule(session, "nightly").paused_by == "ann"
    assert "already paused, by ann" in client.post("pause-schedules", {"name": "nightly"}).text
    assert "It was paused" in client.page("/queue/schedules?name=nightly")
    assert "1</strong> enqueued." in client.post("run-schedule", {"name": "nightly"}, confirmed="1").text
    session.rollback()
    assert sorted(job.type_name for job in operations.list_jobs(session)) == ["report", "test"]
    client.post("resume-schedules", {"name": "nightly"}, confirmed="1")
    session.rollback()
    session.expire_all()
    assert operations.get_schedule(session, "nightly").paused_at is None
    assert client.get("/queue/schedules?name=unknown").status_code == 404
    write(engine, "UPDATE schedule SET cron = '99 99 * * *', error = 'no such time'")
    page = client.page("/queue/schedules?name=nightly")
    assert "broken" in page
    assert "none that could be computed" in page


async def wait_for_approval(payload: str, ctx: AttemptContext) -> str:
    return str(await ctx.wait_for("approval", event=payload, timeout=timedelta(hours=1), output=str))


def test_an_event_that_jobs_wait_for_is_sent_by_a_person_once_and_audited(
    client: Client, engine: Engine, session: Session
) -> None:
    queue: JobQueue[Any] = JobQueue()
    queue.handler("answer")(wait_for_approval)
    job = queue.job("answer", "approved:<7>")
    job_id = job.id
    session.add(job)
    session.commit()
    drain(queue, engine)
    assert "approved:&lt;7&gt;" in client.page("/queue/events")
    page = client.page("/queue/events?name=approved:%3C7%3E")
    assert f"/job?id={job_id}" in page
    assert "was not sent" in page
    [arguments] = forms(page, "send-event")
    assert client.post("send-event", arguments, input="{").status_code == 400
    preview = client.post("send-event", arguments, input='"yes"').text
    assert f"answer {job_id} in step approval" in preview
    assert session.scalars(select(Job.Event)).all() == []
    assert "<strong>1</strong> sent." in confirmed(client, preview)
    session.rollback()
    [record] = operations.list_audit(session)
    assert (record.operation, record.done_by, record.ids) == ("send_event", "ann", ["approved:<7>"])
    assert "by ann" in client.page("/queue/events?name=approved:%3C7%3E")
    assert "was sent before, by ann, and counts" in client.post("send-event", arguments, input='"no"').text
    [deletion] = forms(client.page("/queue/events?name=approved:%3C7%3E"), "delete-event")
    assert "Another one of its name can be sent then" in client.post("delete-event", deletion).text
    drain(queue, engine)
    session.expire_all()
    assert session.get_one(Job, job_id).output == "yes"
    assert "No job waits for an event" in client.page("/queue/events")


def test_waits_for_many_events_are_one_row_for_each_step(client: Client, engine: Engine, jobs: Jobs) -> None:
    ids = jobs.add_many(7, type_name="order")
    with engine.begin() as connection:
        for number, job_id in enumerate(ids):
            step = {"name": "approval", "kind": "wait", "attempt": 1, "started_at": datetime.now(UTC)}
            step |= {"event": f"approved:{number}" if number else "paid", "deadline": datetime.now(UTC) + timedelta(hours=1)}
            connection.execute(insert(Job.Step).values(job_id=job_id, **step))
    page = client.page("/queue/events")
    assert "6 order approval 6 × approved:…" in words(page)
    assert "1 order approval paid" in words(page)
    assert 'events?after=approved"' in page
    assert "approved:6" in client.page("/queue/events?after=approved")
    assert "By step" not in client.page("/queue/events?after=approved")


def test_an_event_is_sent_with_the_permission_only(engine: Engine, session: Session) -> None:
    without = ALL_PERMISSIONS - {Permission.SEND_EVENT}
    client = Client(dashboard(engine, operator=engine, authorize=lambda request: Access(user="bob", permissions=without)))
    assert "permission <code>send_event</code>" in client.page("/queue/events")
    assert client.post("send-event", {"name": "a"}, confirmed="1").status_code == 403
    assert session.scalars(select(Job.Event)).all() == []


def test_a_worker_shows_its_heartbeat_and_can_be_drained_and_resized(client: Client, session: Session, jobs: Jobs) -> None:
    jobs.add_worker(WORKER, silent_for=60, queues=["mail"])
    page = client.page("/queue/workers")
    assert "silent" in page
    assert "Run the worker" not in page
    assert "at most 7 jobs at once" in client.post("resize-workers", {"id": WORKER}, concurrency="7").text
    client.post("resize-workers", {"id": WORKER}, concurrency="7", confirmed="1")
    assert client.post("resize-workers", {"id": WORKER}, concurrency="0", confirmed="1").status_code == 400
    assert operations.list_workers(session).items[0].drain_requested_at is None
    client.post("drain-workers", {"id": WORKER}, confirmed="1")
    session.rollback()
    assert operations.list_workers(session).items[0].drain_requested_at is not None
    requested = session.execute(text("SELECT concurrency_requested FROM worker")).scalar_one()
    assert requested == 7
    for act in ("drain-workers", "resize-workers"):
        assert client.post(act, {}, confirmed="1").status_code == 400  # an empty filter would mean every worker


def test_a_worker_shows_its_jobs_its_memory_its_code_and_the_workers_that_it_replaced(
    client: Client, engine: Engine, jobs: Jobs
) -> None:
    hour = func.now() - timedelta(hours=1)
    declared = {"resident_bytes": 310 * 2**20, "declared": {"type test": "a"}}
    jobs.add_worker("web:2", name="web", report=declared, started_at=func.now() - timedelta(minutes=1))
    jobs.add_worker("web:1", name="web", started_at=hour, silent_for=300)
    jobs.add_worker("web:3", name="web", started_at=hour, report={"declared": {"type test": "b"}})
    jobs.add_worker("lost:1", name="lost", started_at=hour, silent_for=300)
    oldest, newer, pay = (jobs.add(JobStatus.RUNNING, type_name=name) for name in ("send", "send", "pay"))
    with engine.begin() as connection:
        connection.execute(update(Job).values(leased_by="web:2").where(Job.id.in_([oldest, newer])))
        connection.execute(update(Job).values(leased_by="web:3").where(Job.id == pay))
        connection.execute(update(Job).values(started_at=hour).where(Job.id == oldest))
    page = client.page("/queue/workers")
    lost, second, third = (words(f"<h1>{row}") for row in re.findall('(?s)<tr id="worker-.*?</tr>', page))
    assert "silent" in lost  # none has replaced it
    assert "replaced 1 pid 1, started" in second
    assert "2 × send first started" in second
    assert "310" in second
    assert f'job?id={oldest}"' in page
    assert "pay started" in third
    assert "replaced" not in third
    codes = re.findall("0, code ([0-9a-f]{7})", page)
    assert len(set(codes)) == 2
    assert page.count("/acts/drain-workers") == 3


def test_limits_show_the_remaining_rate_and_shares_of_queues(client: Client, session: Session, jobs: Jobs) -> None:
    operations.upsert_queue(session, QueueSettings(name="mail", weight=3, rate_limit=4, rate_period=timedelta(days=1)))
    spent = "INSERT INTO rate_state (is_type, name, tokens, spent_at) VALUES (false, 'mail', 0, now())"
    session.execute(text(spent))
    session.commit()
    jobs.add(queue="mail")
    jobs.add(JobStatus.COMPLETED, queue="reports")
    held_id = jobs.add(JobStatus.RUNNING, queue="mail", fairness_key="7")
    jobs.add(JobStatus.RUNNING, queue="mail", fairness_key="8")
    wait_until(lambda: "/job?id=" in client.page("/queue/limits"), description="a report")
    page = client.page("/queue/limits")
    words = re.sub("<[^>]*>", " ", page)
    assert "0.0 of 4" in words
    assert re.search(r"in \d+h|in [56]\.\d h|in \d+ h", words), words
    assert re.findall(r'/job\?id=([^"]+)"', page) == [str(held_id)]  # has held a slot of the limit longest


def test_shares_compare_started_jobs_of_queues_and_fairness_keys_with_their_weights(
    client: Client, session: Session, jobs: Jobs
) -> None:
    jobs.add_worker(queues=["mail", "reports"])
    operations.upsert_queue(session, QueueSettings(name="mail", weight=3))
    operations.upsert_queue(session, QueueSettings(name="mail", fairness_key="7", weight=4))
    session.commit()
    for key, started in (("7", 1), ("8", 3)):
        jobs.add(queue="mail", fairness_key=key, due_in=-30)
        for _ in range(started):
            jobs.add(JobStatus.COMPLETED, queue="mail", fairness_key=key)
    jobs.add(JobStatus.RUNNING, queue="reports")
    jobs.add(queue="reports", due_in=3600)
    measured_shares = shares(session)
    (mail, reports) = measured_shares.queues
    assert (mail.queue, mail.weight, mail.started, mail.received, mail.due_share) == ("mail", 3, 4, 0.8, 1.0)
    assert (reports.queue, reports.received, reports.due_share, reports.is_starving) == ("reports", 0.2, None, False)
    (starving, other_share) = measured_shares.keys
    assert (starving.fairness_key, starving.weight, starving.started, starving.received) == ("7", 4, 1, 0.25)
    assert (starving.due_share, starving.is_starving, other_share.due_share, other_share.is_starving) == (
        0.8,
        True,
        0.2,
        False,
    )
    assert (starving.waiting_for or timedelta(0)) >= timedelta(seconds=30)
    assert not measured_shares.is_partial
    page = re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", client.page("/queue/limits")))
    assert re.search("mail 7 4 1 25% 80% [^P]* less than half Pause… Settings mail 8 1 3 75% 20%", page), page
    page = re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", client.page("/queue/limits?key=MAIL 8")))
    assert "mail 8 1 3 75%" in page
    assert "mail 7 4" not in page


@pytest.mark.parametrize(
    "settings",
    [{"global_concurrency": 1}, {"rate_limit": 1, "rate_period": timedelta(hours=1)}, {"paused": True}, {"served": False}],
    ids=str,
)
def test_what_a_limit_a_pause_or_no_worker_holds_back_is_not_said_to_starve(
    session: Session, jobs: Jobs, settings: dict[str, Any]
) -> None:
    jobs.add_worker(queues=["reports", "mail"] if settings.get("served", True) else ["reports"])
    limits = {name: value for name, value in settings.items() if name not in {"served", "paused"}}
    operations.upsert_queue(session, QueueSettings(name="mail", **limits))
    if "paused" in settings:
        operations.pause_queues(session, ["mail"])
    session.commit()
    for queue in ("mail", "reports"):
        jobs.add_many(3, queue=queue)
    for _ in range(9):
        jobs.add(JobStatus.COMPLETED, queue="reports")
    share_by_queue = {share.queue: share for share in shares(session).queues}
    assert (share_by_queue["mail"].due_share, share_by_queue["mail"].is_starving) == (None, False)
    assert share_by_queue["reports"].due_share == 1.0


def test_job_types_without_a_handler_are_on_their_page_with_the_oldest_job(client: Client, jobs: Jobs) -> None:
    jobs.add_worker(job_types=["send_mail"])
    oldest, *_ = jobs.add_many(15, type_name="send_fax", scheduled_at=func.now() - timedelta(minutes=2))
    page = client.page("/queue/job-types")
    text = re.sub(r"\s+", " ", re.sub("<[^>]*>", "", page))
    assert "15 send_fax wait in queue default, no worker of which has a handler for it: the oldest has been due" in text
    assert f"/queue/job?id={oldest}" in page


def test_deleting_a_schedule_twice_reports_that_it_was_deleted(
    client: Client, engine: Engine, session: Session, jobs: Jobs
) -> None:
    operations.sync_schedules(session, [NIGHTLY])
    operations.upsert_schedule(session, Schedule(name="weekly", type_name="report", cron="0 3 * * 1"))
    (job_id,) = operations.run_schedule(session, "weekly")
    session.commit()
    reader = Client(dashboard(engine, operator=engine, authorize=lambda request: Access(user="eve")))
    assert reader.post("delete-schedules", {"name": "weekly"}, confirmed="1").status_code == 403
    assert "delete-schedules" not in reader.page("/queue/schedules")
    assert client.page("/queue/schedules?name=weekly").count(' action="/admin/jobs/queue/acts/delete-schedules"') == 1
    preview = client.post("delete-schedules", {"name": "weekly"}).text
    assert "<strong>1</strong> row would change" in preview
    assert "Code declares" not in preview
    assert "Code declares nightly" in client.post("delete-schedules", {"name": "nightly"}).text
    operations.delete_schedules(session, ["weekly"], by="bob")  # between the preview and the act
    session.commit()
    late = client.post("delete-schedules", {"name": "weekly"}, confirmed="1")
    assert late.status_code == 404
    assert "weekly" in late.text
    assert [record.done_by for record in operations.list_audit(session)] == ["bob"]
    assert "<strong>1</strong> deleted." in client.post("delete-schedules", {"name": "nightly"}, confirmed="1").text
    session.rollback()
    assert operations.list_schedules(session).items == []
    assert jobs.status(job_id) is JobStatus.PENDING


def test_storage_names_the_session_whose_lock_workers_wait_for(
    client: Client, engine: Engine, database_url: str, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    update, row = text("UPDATE job SET priority = priority WHERE id = :id"), {"id": jobs.add()}
    worker = create_engine(database_url, connect_args={"application_name": "sa_jobqueue worker"})

    def wait() -> None:
        with worker.begin() as connection:
            connection.execute(update, row)

    with ThreadPoolExecutor(1) as thread, engine.connect() as holder:
        pid = holder.execute(select(func.pg_backend_pid())).scalar_one()
        holder.execute(update, row)
        waiting = thread.submit(wait)
        wait_until(lambda: "Locks that workers wait for" in client.page("/queue/storage"), description="the lock")
        assert "pg_terminate_backend" not in client.page("/queue/storage")
        monkeypatch.setattr(operations.lock_holders, "MIN_LOCKED", timedelta(0))  # as if it were older
        assert f"to end it: SELECT pg_terminate_backend({pid})" in client.page("/queue/storage")
        holder.rollback()
        waiting.result()
    worker.dispose()


def test_overview_and_storage_name_the_job_holding_back_the_xmin_horizon(client: Client, engine: Engine, jobs: Jobs) -> None:
    other_id, job_id = (jobs.add(JobStatus.RUNNING, type_name="slow") for _ in range(2))
    with engine.connect() as holder:
        holder.execute(text("SELECT set_config('application_name', :name, false)"), {"name": session_name(job_id)})
        holder.execute(text("SELECT pg_current_xact_id()"))
        with engine.connect() as later:  # holds it back as well, but less
            later.execute(text("SELECT set_config('application_name', :name, false)"), {"name": session_name(other_id)})
            jobs.add()
            later.execute(text("SELECT pg_current_xact_id()"))
            page = client.page("/queue/storage")
            overview = client.page("/queue/overview")
    assert "dead_letter" in page
    assert "pk_job" in page
    (row,) = re.findall(r'(?s)<tr><th[^>]*>[^<]*handler of slow[^<]*<a href="[^"]*/job\?id=([^"]+)">', page)[:1]
    assert row == str(job_id)
    (figure,) = re.findall(r"(?s)<dt>xmin horizon</dt>.*?</dd>", overview)
    assert re.findall(r'/job\?id=([^"]+)"', figure) == [str(job_id)]
    assert re.search(r"handler of slow.*, for [\d.]+ s", re.sub("<[^>]*>", "", figure)), figure


def test_attempts_link_their_traces(engine: Engine, jobs: Jobs) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    job_id = jobs.add(trace_context=f"00-{trace}-b7ad6b7169203331-01")
    at = datetime.now(UTC)
    for number, (worker, seconds, fingerprint) in enumerate([("one", 1, "a"), ("two", 9, "a"), ("two", 9, "a")], 1):
        error = {"type": "ValueError", "message": "wrong", "trace_context": f"00-{number:032x}-b7ad6b7169203331-01"}
        row = {"job_id": job_id, "attempt": number, "outcome": "failed", "worker_id": worker, "error": error}
        row |= {"started_at": at - timedelta(seconds=seconds), "ended_at": at, "error_fingerprint": fingerprint}
        write(engine, insert(Job.Attempt).values(row))
    url = "https://traces.example/{trace_id}?span={span_id}"
    page = Client(dashboard(engine, authorize=everyone, trace_url=url)).page(f"/queue/job?id={job_id}")
    links = re.findall(r'href="https://traces.example/([0-9a-f]+)\?span=b7ad6b7169203331" rel="noreferrer"', page)
    assert links == [trace, *(f"{number:032x}" for number in (3, 2, 1))]
    assert "traces.example" not in Client(dashboard(engine, authorize=everyone)).page(f"/queue/job?id={job_id}")
    for wrong in ("javascript:alert({trace_id})", "https://traces.example/"):
        with pytest.raises(InvalidOptionError, match="trace_url"):
            dashboard(engine, trace_url=wrong)


def test_a_job_shows_its_steps_with_times_and_results(client: Client, engine: Engine, jobs: Jobs) -> None:
    job_id = jobs.add()
    with Session(engine) as session, session.begin():
        minute = {"attempt": 1, "started_at": func.now() - timedelta(minutes=1)}
        step = {"kind": "step", "completed_at": func.now(), "output": {"text": "hello"}}
        session.execute(insert(Job.Step).values({"job_id": job_id, "name": "draft", "key": "7"} | step | minute))
        waits = {"kind": "wait", "event": "approved:7", "deadline": func.now() + timedelta(days=1)}
        session.execute(insert(Job.Step).values({"job_id": job_id, "name": "approval"} | waits | minute))
    page = client.page(f"/queue/job?id={job_id}")
    assert "draft 7" in page
    assert "hello" in page
    assert "wait for approved:7" in page


def test_the_url_of_the_next_page_contains_the_filters(client: Client, jobs: Jobs) -> None:
    jobs.add_many(3)
    page = client.page("/queue/jobs?queue=default&limit=2")
    (following,) = re.findall(r'href="([^"]+)" rel="next"', page)
    assert "queue=default&amp;limit=2&amp;after=" in following


def test_the_audit_screen_lists_operations_by_actor(client: Client, session: Session, jobs: Jobs) -> None:
    operations.pause_queues(session, ["default"], by="bob")
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
    "pause-queues": {"name": "default"},
    "resume-queues": {"name": "mail"},
    "pause-job-types": {"name": "test"},
    "resume-job-types": {"name": "test"},
    "upsert-queue": {"name": "mail", "weight": "3", "rate_limit": "5", "rate_period": "1m"},
    "delete-queues": {"name": "paid"},
    "upsert-job-type": {"name": "test", "global_concurrency": "2"},
    "delete-job-types": {"name": "paid"},
    "cancel-chains": {"id": "pending"},
    "delete-chains": {"id": "pending"},
    "pause-schedules": {"name": "nightly"},
    "resume-schedules": {"name": "nightly"},
    "run-schedule": {"name": "nightly"},
    "upsert-schedule": {"name": "weekly", "cron": "0 3 * * 1", "type_name": "report"},
    "delete-schedules": {"name": "nightly"},
    "drain-workers": {"id": WORKER},
    "resize-workers": {"id": WORKER},
    "send-event": {"name": "approved:7", "input": "1"},
    "delete-event": {"name": "approved:7"},
}


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
def test_each_action_writes_one_audit_record_and_a_preview_none(
    client: Client, session: Session, jobs: Jobs, act: str
) -> None:
    jobs.add_worker(WORKER)
    operations.sync_schedules(session, [NIGHTLY])
    operations.upsert_queue(session, QueueSettings(name="paid", weight=2))
    operations.upsert_job_type(session, TypeSettings(type_name="paid", global_concurrency=2))
    session.commit()
    ids = {"pending": str(jobs.add(due_in=3600)), "dead": str(jobs.add(JobStatus.DEAD))}
    form_fields = {name: ids.get(value, value) for name, value in ASKED[act].items()}
    assert client.post(act, form_fields).status_code == 200
    assert operations.list_audit(session).items == []
    session.rollback()
    response = client.post(act, form_fields, confirmed="1")
    assert response.status_code == 200, response.text
    (record,) = operations.list_audit(session)
    assert (record.done_by, record.operation) == ("ann", ACTS[act].permission.value)


def test_jobs_behind_a_dead_chain_are_redriven_and_a_job_that_waits_too_long_is_cancelled_from_the_finding(
    client: Client, engine: Engine, jobs: Jobs
) -> None:
    jobs.add_worker(concurrency=9)
    unhealthy = UnhealthyQueue(engine, jobs)
    blocked_by_dead(unhealthy)
    awaiting_event_of_another_name(unhealthy)
    page = client.page("/queue/overview").partition('id="findings"')[2].partition("</section>")[0]
    assert "2 jobs are blocked by 1 dead chain</strong>" in page
    assert "Meanwhile event &#39;aproved-7&#39; was sent: compare the names." in page
    for act in ("redrive-dead-letters", "cancel-jobs"):
        [arguments] = forms(page, act)
        assert "<strong>1</strong>" in confirmed(client, client.post(act, arguments).text)
    assert sorted(jobs.statuses().values()) == ["blocked", "blocked", "cancelled", "pending"]


def test_the_menu_and_the_title_count_findings_and_dead_letters(client: Client, jobs: Jobs) -> None:
    assert "<title>Audit · Job queue</title>" in client.page("/queue/audit")  # no report yet, and none is made for it
    jobs.add(due_in=-1200)
    jobs.add(JobStatus.DEAD)
    page = client.page("/queue/overview")
    assert "<title>1 critical · Overview · Job queue</title>" in page
    assert re.search(r'<link rel="icon"[^>]* href="[^"]*/icon-critical\.', page)
    assert 'Overview <span class="count critical">1<span class="visually-hidden"> critical</span></span></a>' in page
    assert 'Dead letters <span class="count unresolved">1<' in client.page("/queue/audit")
    fragment = client.page("/queue/overview", headers={"HX-Request": "true"})
    assert fragment.startswith("<title>1 critical · Overview · Job queue</title>")


def test_queues_and_types_are_listed_the_worst_first_and_idle_ones_are_folded(
    client: Client, session: Session, jobs: Jobs
) -> None:
    jobs.add_worker(queues=["mail", "news", "idle", "paused"], job_types=["mail", "idle"], concurrency=9)
    for name in ("idle", "mail", "news", "paused"):
        operations.upsert_queue(session, QueueSettings(name=name))
    for name in ("idle", "mail"):
        operations.upsert_job_type(session, TypeSettings(type_name=name))
    operations.pause_queues(session, ["paused"])
    session.commit()
    jobs.add(queue="mail", type_name="mail", due_in=-60)
    jobs.add(queue="news", type_name="mail", due_in=-120)
    client.page("/queue/overview")
    busy, _, idle = client.page("/queue/queues").partition('<details class="idle">')
    names = re.findall(r'<th scope="row"><a [^>]*title="(\w+)"', busy)
    assert names == ["news", "mail", "paused"]
    assert "1 idle queue or key</summary>" in idle
    assert re.findall(r'<th scope="row"><a [^>]*title="(\w+)"', idle) == ["idle"]
    busy, _, idle = client.page("/queue/job-types").partition('<details class="idle">')
    assert ('title="mail"' in busy + idle, 'title="idle"' in busy, 'title="idle"' in idle) == (True, False, True)


def test_findings_have_the_acts_that_the_user_may_do_and_errors_that_he_may_see(
    client: Client, engine: Engine, session: Session, jobs: Jobs
) -> None:
    jobs.add_worker(concurrency=9)
    jobs.add(
        JobStatus.DEAD, type_name="refund", error={"type": "ValueError", "message": "of card 4711 0815"}, fingerprint="f"
    )
    jobs.add(JobStatus.DEAD, type_name="charge", error={"type": "KeyError", "message": "another"}, fingerprint="g")
    operations.upsert_queue(session, QueueSettings(name="mail"))
    operations.pause_queues(session, ["mail"])
    session.commit()

    def findings(viewer_client: Client) -> str:
        return viewer_client.page("/queue/overview").partition('id="findings"')[2].partition("</section>")[0]

    findings_page = findings(client)
    assert "Jobs of refund died: ValueError: of card 4711 0815 1 dead letter (exhausted)" in words(f"<h1>{findings_page}")
    assert {
        act for act in ("resume-queues", "redrive-dead-letters", "dismiss-dead-letters") if f"/acts/{act}" in findings_page
    } == {
        "resume-queues",
        "redrive-dead-letters",
        "dismiss-dead-letters",
    }
    viewer = Client(dashboard(engine, operator=engine, authorize=lambda request: Access(user="eve")))
    findings_page = findings(viewer)
    assert "Jobs of refund died: ValueError: (redacted) 1 dead letter (exhausted)" in words(f"<h1>{findings_page}")
    assert "4711 0815" not in findings_page
    assert "/acts/" not in findings_page
    [arguments] = [form for form in forms(findings(client), "dismiss-dead-letters") if form["type"] == "refund"]
    assert "<strong>1</strong>" in confirmed(client, client.post("dismiss-dead-letters", arguments).text)
    assert [letter.type_name for letter in call(engine, operations.list_dead_letters)] == ["charge"]


def test_a_job_names_the_objects_that_it_refers_to(client: Client, jobs: Jobs) -> None:
    job_id = jobs.add(input={"order": {"$class": "Order", "id": 7}})
    assert "<p>order: Order 7</p>" in client.page(f"/queue/job?id={job_id}")
