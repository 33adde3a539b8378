"""Settings of queues, job types and schedules that are set in a form, chains that are deleted, acts on several rows."""

from __future__ import annotations

import html
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, Schedule, operations
from sa_jobqueue.dashboard import ALL_PERMISSIONS, Access, dashboard
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.settings import QueueSettings
from tests.dashboard.conftest import Client
from tests.dashboard.pages import confirmed, forms
from tests.fixtures.jobs import Jobs

HOURLY = Schedule(name="hourly", type_name="report", cron="0 * * * *", input={"n": 1})


def fields(page: str, act: str) -> dict[str, Any]:
    """Return the fields of the form of an act as a browser would send them, unchanged."""
    (form,) = re.findall(rf'(?s)<form method="post" action="[^"]*/acts/{act}".*?</form>', page)
    values: dict[str, Any] = {
        name: html.unescape(value) for name, value in re.findall(r'<input name="(\w+)" value="([^"]*)"', form)
    }
    values |= dict(re.findall(r'<input type="checkbox" name="(\w+)" value="(1)" checked', form))
    values |= {name: html.unescape(text) for name, text in re.findall(r'<textarea name="(\w+)"[^>]*>([^<]*)<', form)}
    for name, options in re.findall(r'(?s)<select name="(\w+)">(.*?)</select>', form):
        values[name] = next(iter(re.findall(r'value="(\w*)" selected', options)), "")
    return values


def test_the_settings_of_a_queue_can_be_edited_in_a_form(client: Client, session: Session) -> None:
    page = client.page("/queue/queue?name=mail")
    [target] = forms(page, "upsert-queue")
    entered = fields(page, "upsert-queue") | {
        **{"weight": "3", "global_concurrency": "20", "concurrency_per_key": "2", "rate_limit": "100"},
        **{"rate_period": "1m30s", "rate_burst": "7"},
        **{"retry_base": "500ms", "retry_cap": "2h", "retain_completed": "30d"},
    }
    preview = client.post("upsert-queue", target, **entered).text
    assert "<strong>1</strong> row would change" in preview
    for line in ("weight: 1 → 3", "rate period: none → 1m30s", "retry base: none → 0.5s", "retain completed: none → 30d"):
        assert line in preview
    assert operations.list_queues(session).items == []
    assert "<strong>1</strong> set" in confirmed(client, preview)
    session.rollback()
    settings = operations.get_queue(session, "mail").settings
    expected = QueueSettings(
        name="mail",
        weight=3,
        global_concurrency=20,
        concurrency_per_key=2,
        rate_limit=100,
        rate_period=timedelta(seconds=90),
        rate_burst=7,
        retry=Backoff(base=timedelta(seconds=0.5), cap=timedelta(hours=2)),
        retention=settings.retention,
    )
    assert settings == expected
    assert settings.retention.completed == timedelta(days=30)
    # An unchanged form changes nothing.
    page = client.page("/queue/queue?name=mail")
    [target] = forms(page, "upsert-queue")
    assert "<strong>0</strong> rows would change" in client.post("upsert-queue", target, **fields(page, "upsert-queue")).text
    # An emptied field is no limit; a form that was opened before another change is refused.
    entered = fields(page, "upsert-queue") | {"global_concurrency": ""}
    preview = client.post("upsert-queue", target, **entered).text
    assert "global concurrency: 20 → none" in preview
    operations.upsert_queue(session, QueueSettings(name="mail", weight=5), by="bob")
    session.commit()
    late = client.post("upsert-queue", target, confirmed="1", **entered)
    assert late.status_code == 409
    assert "after this form was opened" in late.text
    session.rollback()
    assert [(record.operation, record.done_by) for record in operations.list_audit(session)] == [
        ("upsert_queue", "bob"),
        ("upsert_queue", "ann"),
    ]
    assert operations.get_queue(session, "mail").weight == 5


def test_the_settings_of_a_fairness_key_can_be_set_and_deleted(client: Client, session: Session) -> None:
    page = client.page("/queue/queue?name=mail&fairness_key=42")
    [target] = forms(page, "upsert-queue")
    assert "concurrency_per_key" not in fields(page, "upsert-queue")
    confirmed(client, client.post("upsert-queue", target, weight="9").text)
    assert operations.get_queue(session, "mail", fairness_key="42").weight == 9
    [target] = forms(client.page("/queue/queue?name=mail&fairness_key=42"), "delete-queues")
    assert "<strong>1</strong> deleted" in confirmed(client, client.post("delete-queues", target).text)
    session.rollback()
    assert operations.list_queues(session).items == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields_entered", "field"),
    [
        ({"weight": "101"}, "weight"),
        ({"weight": "x"}, "weight"),
        ({"rate_limit": "5"}, "rate_period"),
        ({"rate_limit": "5", "rate_period": "60"}, "add a unit: 60s"),
        ({"retry_factor": "2"}, "retry_base"),
        ({"retry_base": "1s", "retry_factor": "nan"}, "retry_factor"),
        ({"retry_base": "1s", "retry_cap": "0"}, "cap"),
        ({"name": "a b"}, "name"),
    ],
)
def test_invalid_settings_are_reported_by_field(client: Client, fields_entered: dict[str, Any], field: str) -> None:
    response = client.post("upsert-queue", **({"name": "mail"} | fields_entered))
    assert response.status_code in {400, 409}
    assert field in html.unescape(response.text)


def test_the_limits_of_a_job_type_can_be_set_and_deleted(client: Client, session: Session) -> None:
    page = client.page("/queue/job-type?name=pay")
    [target] = forms(page, "upsert-job-type")
    preview = client.post("upsert-job-type", target, **fields(page, "upsert-job-type") | {"global_concurrency": "4"}).text
    assert "global concurrency: none → 4" in preview
    confirmed(client, preview)
    assert operations.get_job_type(session, "pay").global_concurrency == 4
    assert client.post("upsert-job-type", target, confirmed="1").status_code == 409  # it was opened before there was a row
    [target] = forms(client.page("/queue/job-type?name=pay"), "delete-job-types")
    assert "<strong>1</strong> deleted" in confirmed(client, client.post("delete-job-types", target).text)
    assert "<strong>0</strong> rows would change" in client.post("delete-job-types", target).text


def test_a_schedule_can_be_created_and_changed_in_a_form(client: Client, session: Session) -> None:
    page = client.page("/queue/schedules")
    entered = fields(page, "upsert-schedule") | {"name": "weekly", "cron": "0 3 * * 1", "type_name": "report"}
    entered |= {"time_zone": "Europe/Berlin", "input": '{"big": 12345678901234567890123}', "timeout": "5m"}
    preview = client.post("upsert-schedule", **entered).text
    assert "At 03:00" in preview
    assert len(re.findall(r"Mon \d{4}-\d\d-\d\d 03:00 CES?T", preview)) == 5
    assert "<strong>1</strong> set" in confirmed(client, preview)
    schedule = operations.get_schedule(session, "weekly")
    assert (schedule.input, schedule.source, schedule.overlap) == ({"big": 12345678901234567890123}, "table", True)
    assert schedule.timeout == timedelta(minutes=5)
    assert client.post("upsert-schedule", confirmed="1", **entered).status_code == 409  # there is one of that name now
    page = client.page("/queue/schedules?name=weekly")
    [target] = forms(page, "upsert-schedule")
    same = fields(page, "upsert-schedule")
    assert "<strong>0</strong> rows would change" in client.post("upsert-schedule", target, **same).text
    preview = client.post("upsert-schedule", target, **same | {"cron": "30 4 * * *", "input": "[1]", "overlap": ""}).text
    for line in ("cron: 0 3 * * 1 → 30 4 * * *", "input: changed", "overlap: yes → no"):
        assert line in preview
    confirmed(client, preview)
    session.rollback()
    session.expire_all()
    assert (operations.get_schedule(session, "weekly").cron, operations.get_schedule(session, "weekly").input) == (
        "30 4 * * *",
        [1],
    )
    wrong: dict[str, Any] = {
        "cron": "99 * * * *",
        "time_zone": "Nowhere/There",
        "input": "{",
        "type_name": "",
        "misfire_policy": "x",
    }
    for name, value in wrong.items():
        [target] = forms(client.page("/queue/schedules?name=weekly"), "upsert-schedule")
        assert client.post("upsert-schedule", target, **same | {name: value}).status_code in {400, 409}, name


def test_a_schedule_declared_in_code_cannot_be_edited(client: Client, session: Session) -> None:
    operations.sync_schedules(session, [HOURLY])
    session.commit()
    page = client.page("/queue/schedules?name=hourly")
    assert "upsert-schedule" not in page
    entered: dict[str, Any] = {"cron": "0 3 * * *", "type_name": "report"}
    assert client.post("upsert-schedule", {"name": "hourly"}, **entered).status_code == 409
    assert "declared in code" in client.post("upsert-schedule", {"name": "hourly"}, **entered).text


def test_a_redacted_schedule_input_is_kept_and_not_shown(engine: Engine, session: Session) -> None:
    operations.upsert_schedule(
        session, Schedule(name="secret", type_name="pay", cron="0 * * * *", input={"card": "4111 1111"})
    )
    session.commit()
    access = Access(user="eve", permissions=ALL_PERMISSIONS, payload_types=["mail*"])
    client = Client(dashboard(engine, operator=engine, authorize=lambda request: access))
    page = client.page("/queue/schedules?name=secret")
    assert "4111 1111" not in page
    [target] = forms(page, "upsert-schedule")
    same = fields(page, "upsert-schedule")
    confirmed(client, client.post("upsert-schedule", target, **same | {"cron": "5 * * * *"}).text)
    assert operations.get_schedule(session, "secret").input == {"card": "4111 1111"}
    [target] = forms(client.page("/queue/schedules?name=secret"), "upsert-schedule")
    same = fields(client.page("/queue/schedules?name=secret"), "upsert-schedule")
    for card in ("4111 1111", "0"):  # a guess that is right looks like one that is wrong
        entered = same | {"input": json.dumps({"card": card})}
        assert "<strong>1</strong> row" in client.post("upsert-schedule", target, **entered).text
    moved = client.post("upsert-schedule", target, confirmed="1", **same | {"type_name": "mail"})
    assert moved.status_code == 400
    assert "which you may not see" in moved.text


def test_missed_times_of_a_period_can_be_run(client: Client, session: Session) -> None:
    operations.upsert_schedule(session, HOURLY)
    first = datetime(2026, 3, 1, tzinfo=UTC)
    operations.run_schedule(session, "hourly", since=first, until=first)
    session.commit()
    [target] = forms(client.page("/queue/schedules?name=hourly"), "run-schedule")[:1]
    period: dict[str, Any] = {"since": "2026-03-01", "until": "2026-03-01T05:00"}
    preview = client.post("run-schedule", target, **period).text
    assert "<strong>5</strong> rows would change" in preview
    assert "times from 2026-03-01 01:00 UTC to 2026-03-01 05:00 UTC" in preview
    assert len(operations.list_jobs(session).items) == 1
    assert "<strong>5</strong> enqueued" in confirmed(client, preview)
    assert "<strong>0</strong> rows would change" in client.post("run-schedule", target, **period).text
    session.rollback()
    assert len(operations.list_jobs(session).items) == 6
    assert client.post("run-schedule", target, since="2026-03-01").status_code == 409
    assert client.post("run-schedule", target, since="2000-01-01", until="2026-01-01").status_code == 409


def test_actions_apply_to_several_schedules_queues_or_job_types(client: Client, session: Session) -> None:
    for name in ("a", "b", "c"):
        operations.upsert_schedule(session, Schedule(name=name, type_name="report", cron="0 * * * *"))
        operations.upsert_queue(session, QueueSettings(name=name))
    operations.pause_schedules(session, ["a"], by="bob")
    operations.pause_queues(session, ["a"], by="bob")
    session.commit()
    page = client.page("/queue/schedules")
    boxes = [json.loads(html.unescape(box)) for box in re.findall(r'name="ids" form="selection" value="([^"]*)"', page)]
    assert boxes == [{"name": name} for name in ("a", "b", "c")]
    for button in ("pause-schedules", "resume-schedules", "run-schedule", "delete-schedules"):
        assert re.search(rf'formaction="[^"]*/acts/{button}"', page), button
    every: Any = {"name": ["a", "b", "c"]}
    for noun in ("schedules", "queues"):
        preview = client.post(f"pause-{noun}", every).text
        assert "<strong>2</strong> rows would change" in preview
        assert re.search("a'? is already paused, by bob", html.unescape(preview))
        assert "<strong>2</strong> paused" in confirmed(client, preview)
        assert "<strong>3</strong> resumed" in confirmed(client, client.post(f"resume-{noun}", every).text)
    assert "<strong>3</strong> enqueued" in confirmed(client, client.post("run-schedule", every).text)
    assert "<strong>3</strong> deleted" in confirmed(client, client.post("delete-schedules", every).text)
    session.rollback()
    assert operations.list_schedules(session).items == []
    assert len(operations.list_jobs(session).items) == 3
    assert client.post("pause-schedules", {"name": [str(number) for number in range(201)]}).status_code == 400


def test_chains_are_deleted_with_their_blockers_but_not_while_others_wait_for_them(
    client: Client, session: Session, jobs: Jobs
) -> None:
    first = Job(type_name="first")
    last = Job(type_name="last", blockers=[first])
    session.add_all([first, last])
    session.commit()
    alone = jobs.add(JobStatus.RUNNING)
    refused = client.post("delete-chains", {"id": [str(first.id)]})
    assert refused.status_code == 409
    assert str(last.id) in refused.text
    [target] = forms(client.page(f"/queue/chain?id={last.id}"), "delete-chains")
    preview = client.post("delete-chains", {"id": [target["id"], str(alone)]}, cascade="1").text
    assert "<strong>3</strong> rows would change" in preview
    assert "1 of them are chains" in preview
    assert f"first {first.id} (pending)" in preview
    session.rollback()
    assert len(operations.list_jobs(session).items) == 3
    assert "<strong>3</strong> deleted" in confirmed(client, preview)
    session.rollback()
    session.expire_all()
    assert operations.list_jobs(session).items == []
    (record,) = operations.list_audit(session)
    assert (record.operation, record.done_by, record.changed) == ("delete_chains", "ann", 3)
    assert client.post("delete-chains", target).status_code == 404
