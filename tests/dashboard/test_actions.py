"""The effect, the preview and the record of each act, and two operators at the same time."""

from __future__ import annotations

import html
import json
import logging
import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, insert, update
from sqlalchemy.orm import Session

from sa_jobqueue import JobStatus
from sa_jobqueue.dashboard import ALL_PERMISSIONS, Access, Permission, dashboard
from sa_jobqueue.operations import list_audit, list_job_types, list_queues
from tests.dashboard.conftest import Client
from tests.dashboard.pages import confirmed, forms
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import call, write

ERROR = {"type": "ValueError", "message": "no such order", "traceback": "Traceback\n  line 1"}


def operator(engine: Engine, name: str) -> Client:
    access = Access(user=name, permissions=ALL_PERMISSIONS, payload_types=["*"])
    return Client(dashboard(engine, operator=engine, authorize=lambda request: access))


def test_an_action_previews_its_row_count_before_changing_anything(client: Client, jobs: Jobs) -> None:
    pending = jobs.add(last_error=ERROR)
    running, completed_id = jobs.add(JobStatus.RUNNING), jobs.add(JobStatus.COMPLETED)
    arguments = {"id": [str(job_id) for job_id in (pending, running, completed_id)]}
    preview = client.post("cancel-jobs", arguments).text
    assert "<strong>2</strong> rows would change" in preview
    assert "1 of the selected jobs stays as it is: completed" in preview
    assert f"test {pending} (pending) ValueError: no such order" in preview
    assert jobs.status(pending) is JobStatus.PENDING
    page = confirmed(client, preview)
    assert "<strong>2</strong> cancelled" in page
    assert "1 of the selected jobs stays as it is: completed" in page
    assert {jobs.status(pending), jobs.status(running)} == {JobStatus.CANCELLED}
    again = client.post("cancel-jobs", arguments).text
    assert "<strong>0</strong> rows would change" in again
    assert "will not run again" not in again


def test_cancelling_by_filter_excludes_jobs_enqueued_after_the_preview(
    client: Client, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.dashboard.screens.jobs.MAX_VALUES", 4)
    old = jobs.add_many(6, type_name="mail")
    other_id = jobs.add(type_name="pay")
    jobs.add(JobStatus.COMPLETED, type_name="mail")
    [arguments] = forms(client.page("/queue/jobs?type=mail"), "cancel-jobs")[-1:]
    later = jobs.add(type_name="mail")
    preview = client.post("cancel-jobs", arguments).text
    assert "<strong>4 or more</strong> rows would change" in preview
    first = confirmed(client, preview)
    assert "<strong>4</strong> cancelled. There are more" in first
    second = confirmed(client, first)
    assert "<strong>2</strong> cancelled." in second
    assert "There are more" not in second
    statuses = jobs.statuses()
    assert {statuses[job_id] for job_id in old} == {JobStatus.CANCELLED}
    assert {statuses[job_id] for job_id in (other_id, later)} == {JobStatus.PENDING}


def test_jobs_can_be_triggered_and_reprioritised(client: Client, jobs: Jobs) -> None:
    later = jobs.add(due_in=3600)
    arguments = {"id": str(later)}
    assert "<strong>1</strong> made due now" in confirmed(client, client.post("trigger-jobs", arguments).text)
    preview = client.post("set-priority", arguments, priority="7").text
    assert "<strong>1</strong> set to the new priority" in confirmed(client, preview)
    assert jobs.get(later)["priority"] == 7
    assert client.post("set-priority", arguments, priority="10").status_code == 400


def test_dead_letters_are_redriven_by_group_and_a_second_operator_sees_the_first(engine: Engine, jobs: Jobs) -> None:
    ids = [jobs.add(JobStatus.DEAD, fingerprint="f1", error=ERROR, input={}) for _ in range(3)]
    other_id = jobs.add(JobStatus.DEAD, fingerprint="f2", error=ERROR, input={})
    ann, bob = operator(engine, "ann"), operator(engine, "bob")
    page = ann.page("/queue/dead-letters?within=24h")
    group = next(form for form in forms(page, "redrive-dead-letters") if form.get("fingerprint") == "f1")
    assert "died_after" in group
    anns, bobs = (client.post("redrive-dead-letters", group).text for client in (ann, bob))
    assert "<strong>3</strong> rows would change" in anns
    assert "<strong>3</strong> redriven" in confirmed(ann, anns)
    assert {jobs.status(job_id) for job_id in ids} == {JobStatus.PENDING}
    assert jobs.status(other_id) is JobStatus.DEAD
    assert {row["resolved_by"] for row in jobs.dead_letters(ids[0])} == {"ann"}
    late = confirmed(bob, bobs)
    assert "<strong>0</strong> redriven" in late
    assert f"job {ids[0]} was already redriven at" in late
    assert "UTC by ann" in late


def test_a_redrive_names_the_jobs_whose_key_is_taken(client: Client, jobs: Jobs) -> None:
    free, taken_id = (jobs.add(JobStatus.DEAD, deduplication_key=key) for key in (None, "k"))
    jobs.add(deduplication_key="k")
    page = confirmed(client, client.post("redrive-dead-letters", {"job": [str(free), str(taken_id)]}).text)
    assert f"job {taken_id} stays dead: " in page
    assert (jobs.status(free), jobs.status(taken_id)) == (JobStatus.PENDING, JobStatus.DEAD)


def test_dead_letter_counts_per_time_window_match_their_links(client: Client, engine: Engine, jobs: Jobs) -> None:
    dead_letters = jobs.model.DeadLetter.__table__
    for hours in (0, 2, 12, 48, 100, 400):
        job_id = jobs.add(JobStatus.DEAD, fingerprint="f", error=ERROR, input={})
        with engine.begin() as connection:
            at = func.now() - timedelta(hours=hours)
            connection.execute(update(dead_letters).where(dead_letters.c.job_id == job_id).values(died_at=at))
    for window, count in {"1h": 1, "3h": 2, "24h": 3, "3d": 4, "7d": 5, "all": 6}.items():
        page = client.page(f"/queue/dead-letters?within={window}")
        [link] = re.findall(r'<a href="[^"]*?(/queue/dead-letters[^"]*fingerprint=f[^"]*)">([\d,]+)</a>', page)
        assert int(link[1]) == count
        assert client.page(html.unescape(link[0])).count('name="ids"') == count


def test_a_dismissed_job_stays_dead_and_can_be_redriven(client: Client, jobs: Jobs) -> None:
    job_id = jobs.add(JobStatus.DEAD, fingerprint="f", error=ERROR, input={})
    page = client.page(f"/queue/job?id={job_id}")
    [arguments] = forms(page, "dismiss-dead-letters")
    assert "<strong>1</strong> dismissed" in confirmed(client, client.post("dismiss-dead-letters", arguments).text)
    assert jobs.dead_letters(job_id)[0]["resolved_by"] == "ann"
    [again] = forms(client.page(f"/queue/job?id={job_id}"), "redrive-dead-letters")
    assert "<strong>1</strong> redriven" in confirmed(client, client.post("redrive-dead-letters", again).text)
    assert jobs.status(job_id) is JobStatus.PENDING


@pytest.mark.parametrize("kind", ["queue", "type"])
def test_queues_can_be_paused_and_resumed(client: Client, engine: Engine, jobs: Jobs, kind: str) -> None:
    jobs.add_worker()
    jobs.add()
    screen, noun, name = ("queues", "queues", "default") if kind == "queue" else ("job-types", "job-types", "test")

    def paused_by() -> str | None:
        with Session(engine) as session:
            rows = list_queues(session) if kind == "queue" else list_job_types(session)
            return next((row.paused_by for row in rows if row.paused_at is not None), None)

    [arguments] = forms(client.page(f"/queue/{screen}"), f"pause-{noun}")
    preview = client.post(f"pause-{noun}", arguments).text
    assert name in preview
    assert paused_by() is None
    assert "<strong>1</strong> paused" in confirmed(client, preview)
    assert paused_by() == "ann"
    assert "already paused, by ann" in client.post(f"pause-{noun}", arguments).text
    page = client.page("/queue/job?id=" + str(jobs.add()))
    assert f"sa-jobqueue {kind}s resume" in page
    assert f"/queue/{screen.removesuffix('s')}?name={name}" in page  # a link to what ends the cause
    [arguments] = forms(client.page(f"/queue/{screen}"), f"resume-{noun}")
    assert "<strong>1</strong> resumed" in confirmed(client, client.post(f"resume-{noun}", arguments).text)
    assert paused_by() is None


def test_each_action_writes_one_log_line(client: Client, jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sa_jobqueue.dashboard")
    job_id = jobs.add()
    client.post("cancel-jobs", {"id": str(job_id)})
    assert not caplog.records  # a preview is no act
    client.post("cancel-jobs", {"id": str(job_id)}, confirmed="1")
    [record] = caplog.records
    fields = record.__dict__["dashboard_act"]
    assert (fields["user"], fields["act"], fields["source"], fields["count"]) == ("ann", "cancel-jobs", "queue", 1)
    assert fields["ids"] == [str(job_id)]
    caplog.clear()
    client.post("cancel-jobs", {"id": "00000000-0000-7000-8000-000000000000"}, confirmed="1")
    assert "\n" not in caplog.records[0].getMessage()


def test_a_job_shows_its_payload_exactly_and_its_attempts(client: Client, engine: Engine, jobs: Jobs) -> None:
    document = {"big": 12345678901234567890123, "": {"null": None}, "text": "NaN 1e400 \U0001f600 \x1b[0m", "deep": [[None]]}
    job_id = jobs.add(JobStatus.DEAD, attempt=3, input=document, error=ERROR, fingerprint="f", last_error=ERROR)
    attempt = {"job_id": job_id, "outcome": "failed", "error": ERROR, "worker_id": "w1", "error_fingerprint": "f"}
    with engine.begin() as connection:
        for number in (1, 2, 3):
            row = attempt | {"attempt": number, "worker_id": "w1" if number < 3 else "w2"}
            connection.execute(insert(jobs.model.Attempt.__table__).values(row))
    page = html.unescape(client.page(f"/queue/job?id={job_id}"))
    assert "12345678901234567890123" in page
    assert '"": {' in page
    assert "\U0001f600 \\u001b[0m" in page
    assert page.count("Traceback\n  line 1") == 3
    saved = client.get(f"/queue/payload?id={job_id}&what=input")
    assert json.loads(saved.text) == document
    assert saved.headers["content-disposition"].startswith("attachment")


def test_a_large_payload_and_many_attempts_are_truncated(client: Client, engine: Engine, jobs: Jobs) -> None:
    job_id = jobs.add(JobStatus.RUNNING, attempt=1, input={"text": "x" * 4_000_000})
    rows = [{"job_id": job_id, "attempt": number, "outcome": "failed", "error": ERROR} for number in range(1, 1001)]
    write(engine, insert(jobs.model.Attempt.__table__), rows)
    page = client.page(f"/queue/job?id={job_id}")
    assert len(page) < 100_000
    assert "more characters" in page
    assert page.count('id="attempt-') == 20
    older = re.findall(r'href="[^"]*?(/queue/job\?[^"#]*attempts_after[^"#]*)', page)[0]
    assert "Attempt 980 failed" in client.page(html.unescape(older))
    assert len(client.get(f"/queue/payload?id={job_id}&what=input").content) > 4_000_000


def test_redacted_payloads_appear_in_no_page_or_download(engine: Engine, jobs: Jobs) -> None:
    error = {"type": "CardError", "message": "card 4111 1111", "traceback": "card 4111 1111"}
    columns: dict[str, Any] = {"type_name": "pay", "input": {"card": "4111 1111"}, "last_error": error}
    job_id = jobs.add(JobStatus.DEAD, error=error, fingerprint="f", **columns)
    with engine.begin() as connection:
        row = {"job_id": job_id, "attempt": 1, "outcome": "failed", "error": error}
        connection.execute(insert(jobs.model.Attempt.__table__).values(row))
    access = Access(user="eve", payload_types=["mail*"])
    client = Client(dashboard(engine, authorize=lambda request: access))
    for path in (
        f"job?id={job_id}",
        "jobs",
        "overview",
        "dead-letters",
        f"payload?id={job_id}",
        f"payload?id={job_id}&what=last_error",
    ):
        assert "4111 1111" not in client.page(f"/queue/{path}"), path


def test_a_running_job_shows_its_progress_message_only_with_payload_permission(engine: Engine, jobs: Jobs) -> None:
    job_id = jobs.add(JobStatus.RUNNING, attempt=1)
    progress = {str(job_id): {"attempt": 1, "done": 40, "total": 100, "message": "<b>resizing"}}
    jobs.add_worker(progress=progress)
    page = operator(engine, "ann").page(f"/queue/job?id={job_id}")
    assert '<progress max="1" value="0.4">' in page
    assert "40 of 100 (40%): &lt;b&gt;resizing" in page
    access = Access(user="bob", payload_types=())
    page = Client(dashboard(engine, authorize=lambda request: access)).page(f"/queue/job?id={job_id}")
    assert "40 of 100 (40%)" in page
    assert "resizing" not in page


def test_a_reason_is_in_the_audit_and_a_pause_can_be_undone_without_scripts(
    client: Client, engine: Engine, jobs: Jobs
) -> None:
    jobs.add_worker(queues=["mail", "pay"])
    preview = client.post("pause-queues", {"name": ["mail", "pay"]}).text
    assert "<h1>Pause queues: mail, pay</h1>" in preview
    assert 'name="why"' in preview
    result = client.post("pause-queues", {"name": ["mail", "pay"]}, confirmed="1", why="provider down").text
    assert "provider down" in client.page("/queue/audit")
    (arguments,) = forms(result, "resume-queues")
    assert list(arguments["name"]) == ["mail", "pay"]
    assert "2</strong> resumed." in client.post("resume-queues", arguments, confirmed="1").text
    assert "Undo" not in client.post("resume-queues", arguments, confirmed="1").text
    assert client.post("pause-queues", {"name": "mail"}, confirmed="1", why="x" * 201).status_code == 400
    assert [record.arguments.get("reason") for record in call(engine, list_audit)] == [None, None, "provider down"]
    permissions = ALL_PERMISSIONS - {Permission.RESUME_QUEUES}
    access = Access(user="eve", permissions=permissions)
    other_client = Client(dashboard(engine, operator=engine, authorize=lambda request: access))
    assert "Undo" not in other_client.post("pause-queues", {"name": "mail"}, confirmed="1").text
