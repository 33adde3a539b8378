"""The audit: each operation that is given an actor leaves one record, in its transaction; others leave none."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, event, func, update
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus, Schedule, operations
from sa_jobqueue.errors import InvalidOptionError, NotFoundError
from sa_jobqueue.operations import AuditFilter, DeadLetterFilter, JobFilter, WorkerFilter, list_audit
from sa_jobqueue.operations.audit import by_command
from sa_jobqueue.operations.pages import MAX_PAGE
from sa_jobqueue.policies.retention import Retention, RetentionRules
from sa_jobqueue.settings import QueueSettings, TypeSettings
from tests.fixtures.commands import Run, document
from tests.fixtures.jobs import WORKER, Jobs

Act = Callable[..., Any]
EVERY = WorkerFilter()
NIGHTLY = Schedule(name="nightly", type_name="test", cron="0 3 * * *", input={"secret": "hunter2"})


def _delete_event(session: Session, ids: dict[str, Any], **by: Any) -> None:
    operations.send_event(session, "approved")
    operations.delete_event(session, "approved", **by)


def acts() -> dict[str, tuple[Act, int]]:
    """Return a call of every operation that takes `by`, and how many rows it changes; `found` has ids by status."""
    return {
        "cancel_jobs": (lambda s, ids, **by: operations.cancel_jobs(s, [ids["pending"], ids["dead"]], **by), 1),
        "reschedule_jobs": (
            lambda s, ids, **by: operations.reschedule_jobs(s, [ids["pending"]], delay=timedelta(hours=1), **by),
            1,
        ),
        "rerun_job": (lambda s, ids, **by: operations.rerun_job(s, ids["completed"], **by), 1),
        "trigger_jobs": (lambda s, ids, **by: operations.trigger_jobs(s, [ids["pending"]], **by), 1),
        "set_priority": (
            lambda s, ids, **by: operations.set_priority(
                s,
                7,
                where=JobFilter(queues=["default"]),
                matching=Job.input["card"].as_string().is_distinct_from("4111 1111"),
                **by,
            ),
            1,
        ),
        "cancel_chains": (lambda s, ids, **by: operations.cancel_chains(s, [ids["pending"]], **by), 1),
        "delete_chains": (lambda s, ids, **by: operations.delete_chains(s, [ids["completed"]], **by), 1),
        "redrive_dead_letters": (
            lambda s, ids, **by: operations.redrive_dead_letters(s, where=DeadLetterFilter(job_ids=[ids["dead"]]), **by),
            1,
        ),
        "dismiss_dead_letters": (
            lambda s, ids, by=None: operations.dismiss_dead_letters(s, where=DeadLetterFilter(job_ids=[ids["dead"]]), by=by),
            1,
        ),
        "upsert_queue": (lambda s, ids, **by: operations.upsert_queue(s, QueueSettings(name="mail", weight=3), **by), 1),
        "upsert_job_type": (
            lambda s, ids, **by: operations.upsert_job_type(s, TypeSettings(type_name="test", global_concurrency=2), **by),
            1,
        ),
        "delete_queues": (lambda s, ids, **by: operations.delete_queues(s, ["mail"], **by), 0),
        "delete_job_types": (lambda s, ids, **by: operations.delete_job_types(s, ["test"], **by), 0),
        "pause_queues": (lambda s, ids, **by: operations.pause_queues(s, ["default"], fairness_key="42", **by), 1),
        "resume_queues": (lambda s, ids, **by: operations.resume_queues(s, ["mail"], **by), 0),
        "pause_job_types": (lambda s, ids, **by: operations.pause_job_types(s, ["test"], **by), 1),
        "resume_job_types": (lambda s, ids, **by: operations.resume_job_types(s, ["test"], **by), 0),
        "sync_queues": (lambda s, ids, **by: operations.sync_queues(s, [QueueSettings(name="mail")], **by), 1),
        "sync_schedules": (lambda s, ids, **by: operations.sync_schedules(s, [NIGHTLY], **by), 0),
        "upsert_schedule": (
            lambda s, ids, **by: operations.upsert_schedule(
                s, Schedule(name="hourly", type_name="test", cron="0 * * * *", input={"secret": "hunter2"}), **by
            ),
            1,
        ),
        "pause_schedules": (lambda s, ids, **by: operations.pause_schedules(s, ["nightly"], **by), 1),
        "resume_schedules": (lambda s, ids, **by: operations.resume_schedules(s, ["nightly"], **by), 0),
        "run_schedule": (lambda s, ids, **by: operations.run_schedule(s, "nightly", **by), 1),
        "delete_schedules": (lambda s, ids, **by: operations.delete_schedules(s, ["nightly"], **by), 1),
        "delete_event": (_delete_event, 1),
        "send_event": (lambda s, ids, **by: operations.send_event(s, "approved", **by), 1),
        "drain_workers": (lambda s, ids, **by: operations.drain_workers(s, where=EVERY, **by), 1),
        "resize_workers": (lambda s, ids, **by: operations.resize_workers(s, 3, where=EVERY, **by), 1),
    }


@pytest.fixture
def found(jobs: Jobs, session: Session) -> dict[str, Any]:
    """Write a job in some states, a worker and a schedule; return the ids of the jobs."""
    jobs.add_worker(WORKER, queues=["default"])
    operations.sync_schedules(session, [NIGHTLY])
    session.commit()
    states = (JobStatus.PENDING, JobStatus.DEAD, JobStatus.COMPLETED)
    return {status.value: jobs.add(status) for status in states}


def test_every_operation_with_an_actor_is_audited() -> None:
    takes = {name for name in operations.__all__ if "by" in _parameters(getattr(operations, name))}
    assert takes - {"prune"} == set(acts())


def _parameters(operation: Any) -> set[str]:
    return set(inspect.signature(operation).parameters) if inspect.isfunction(operation) else set()


@pytest.mark.slow
@pytest.mark.parametrize("operation", acts())
def test_an_operation_with_an_actor_writes_one_audit_record(
    session: Session, found: dict[str, Any], operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    act, changed = acts()[operation]
    act(session, found)
    assert list_audit(session).items == []
    session.rollback()
    with caplog.at_level(logging.INFO, "sa_jobqueue.audit"):
        act(session, found, by="ann")
        assert not caplog.messages
        session.commit()
    (record,) = list_audit(session)
    assert (record.operation, record.done_by, record.changed) == (operation, "ann", changed)
    assert record.matched >= record.changed == len(record.ids)
    assert abs(record.done_at - datetime.now(UTC)) < timedelta(minutes=1)
    (line,) = caplog.messages
    assert line.startswith(f"{operation} by=ann changed={changed} ")
    # No payload: neither that of a schedule, nor one in a condition.
    assert not [text for text in ("hunter2", "4111 1111", "secret") if text in f"{record.arguments} {record.ids} {line}"]


@pytest.mark.slow
@pytest.mark.parametrize("operation", acts())
def test_an_unprintable_actor_is_refused_before_writing(session: Session, found: dict[str, Any], operation: str) -> None:
    for wrong in ("", "a\x1b[2J", "x" * 201):
        with pytest.raises(InvalidOptionError, match="by"):
            acts()[operation][0](session, found, by=wrong)
    assert not session.new
    assert session.query(Job.Audit).count() == 0


def test_an_operation_that_matches_nothing_writes_no_audit_record(session: Session) -> None:
    operations.drain_workers(session, where=EVERY, by="ann")
    operations.redrive_dead_letters(session, by="ann")
    operations.set_priority(session, 5, by="ann")
    assert list_audit(session).items == []


def test_an_audit_record_is_rolled_back_with_its_transaction(
    session: Session, found: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "sa_jobqueue.audit"):
        operations.cancel_jobs(session, [found["pending"]], by="ann")
        session.rollback()
    assert list_audit(session).items == []
    assert not caplog.messages


def test_an_audit_record_keeps_at_most_a_hundred_ids(session: Session, jobs: Jobs) -> None:
    ids = jobs.add_many(150)
    jobs.add()
    operations.cancel_jobs(session, ids, by="ann")
    operations.set_priority(session, 3, where=JobFilter(queues=["default"], statuses=[JobStatus.PENDING]), by="bob")
    newest, oldest = list_audit(session)
    assert (oldest.changed, oldest.matched, len(oldest.ids), len(oldest.arguments["jobs"])) == (150, 150, 100, 100)
    assert oldest.ids == [str(job_id) for job_id in ids[:100]]
    assert newest.arguments == {"where": {"statuses": ["pending"], "queues": ["default"]}, "priority": 3}


def test_the_audit_is_listed_by_actor_operation_and_time_a_page_at_a_time(session: Session) -> None:
    for number in range(5):
        operations.pause_queues(session, ["default"], by=["ann", "bob"][number % 2])
        operations.resume_queues(session, ["default"], by="ann")
    page = list_audit(session, limit=4)
    later_records = list_audit(session, after=page.next, limit=100)
    assert [len(page.items), len(later_records.items), later_records.next] == [4, 6, None]
    assert [record.id for record in list_audit(session, newest_first=False)] == [
        record.id for record in (*page, *later_records)
    ][::-1]
    assert len(list_audit(session, where=AuditFilter(done_by=["bob"])).items) == 2
    assert len(list_audit(session, where=AuditFilter(operations=["pause_queues"], done_by=["ann"])).items) == 3
    now = datetime.now(UTC)
    assert not list_audit(session, where=AuditFilter(done_before=now - timedelta(hours=1))).items
    assert len(list_audit(session, where=AuditFilter(done_after=now - timedelta(hours=1))).items) == 10
    # A search reads so many records a call, and returns where it goes on.
    short = list_audit(session, where=AuditFilter(done_by=["nobody"]), scan_limit=4)
    assert short.items == []
    assert short.next == page.next
    for wrong in ({"limit": 0}, {"after": "x"}, {"scan_limit": 0}):
        with pytest.raises(InvalidOptionError):
            list_audit(session, **wrong)
    with pytest.raises(InvalidOptionError, match="done_by"):
        AuditFilter(done_by="ann")


def test_audit_records_past_retention_are_deleted_oldest_first(session: Session) -> None:
    for _ in range(3):
        operations.pause_queues(session, ["default"], by="ann")
    oldest = list_audit(session, newest_first=False).items[0].id
    session.execute(update(Job.Audit).where(Job.Audit.id == oldest).values(done_at=func.now() - timedelta(days=91)))
    rules = RetentionRules(default=Retention(audit=timedelta(days=90)))
    assert operations.prune(session, rules, dry_run=True) == operations.Pruned(audit=1, scanned=3)
    first = operations.prune(session, rules, scan=1)
    assert (first.audit, first.next) == (1, operations.PruneCursor("audit", oldest))
    assert operations.prune(session, rules, cursor=first.next) == operations.Pruned(scanned=2)
    assert oldest not in {record.id for record in list_audit(session)}
    assert len(list_audit(session).items) == 2


DRY: dict[str, Act] = {
    "cancel_jobs": operations.cancel_jobs,
    "reschedule_jobs": operations.reschedule_jobs,
    "trigger_jobs": operations.trigger_jobs,
    "set_priority": lambda s, ids, **o: operations.set_priority(s, 5, where=JobFilter(ids=ids), **o),
    "cancel_chains": operations.cancel_chains,
    "drain_workers": lambda s, ids, **o: operations.drain_workers(s, where=EVERY, **o),
    "resize_workers": lambda s, ids, **o: operations.resize_workers(s, 3, where=EVERY, **o),
}


@pytest.mark.parametrize("operation", DRY)
def test_a_dry_run_reports_the_changes_and_only_reads(session: Session, engine: Engine, jobs: Jobs, operation: str) -> None:
    jobs.add_worker(WORKER)
    ids = [jobs.add(), jobs.add()]
    statements: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def watch(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FOR NO KEY UPDATE" in statement or "FOR UPDATE" in statement or not statement.startswith(("SELECT", "WITH")):
            statements.append(statement)

    would = DRY[operation](session, ids, dry_run=True, by="ann")
    event.remove(engine, "before_cursor_execute", watch)
    session.rollback()
    assert not statements
    assert list_audit(session).items == []
    did = DRY[operation](session, ids, by="ann")
    assert (would.ids, would.matched) == (did.ids, did.matched)


def test_a_dry_run_raises_for_unknown_ids_like_the_operation(session: Session) -> None:
    with pytest.raises(NotFoundError):
        operations.cancel_jobs(session, [uuid4()], dry_run=True)
    with pytest.raises(NotFoundError):
        operations.cancel_chains(session, [uuid4()], dry_run=True)


def test_audit_retention_is_configured_on_the_registry() -> None:
    jobs = JobQueue(retention=Retention(audit=timedelta(days=365)))
    assert jobs.retention_rules.default.audit == timedelta(days=365)


def test_the_transactions_of_a_command_are_one_row_with_its_reason(session: Session, jobs: Jobs, run: Run) -> None:
    jobs.add_many(MAX_PAGE + 500)
    jobs.add(type_name="other")
    run("jobs", "cancel", "--type", "other", "--by", "ann", "--yes")
    why = "the customer closed the account"
    run("jobs", "cancel", "--type", "test", "--by", "ann", "--why", why, "--yes")
    last, first, other = list_audit(session)
    assert (last.changed, first.changed, other.changed) == (500, MAX_PAGE, 1)
    assert first.arguments["command"] == last.arguments["command"] != other.arguments["command"]
    assert first.arguments["reason"] == last.arguments["reason"] == why
    command, single = by_command(list_audit(session))
    assert (command.changed, command.matched, command.records, command.id) == (MAX_PAGE + 500, MAX_PAGE + 500, 2, first.id)
    assert (single.changed, single.records) == (1, 1)
    rows = [line for line in run("audit", "list").output.splitlines() if "cancel_jobs" in line]
    assert [str(MAX_PAGE + 500) in row for row in rows] == [True, False]
    assert len(document(run("audit", "list", "--json"))["audit"]) == 3
    run("jobs", "cancel", "--type", "test", "--why", "x" * 201, "--yes", status=2)
