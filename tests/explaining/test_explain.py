"""Why is this job not running? Each cause by a job that waits for that reason alone, and its sentence."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, insert, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, get_chain, get_job
from sa_jobqueue.errors import NotFoundError
from sa_jobqueue.ids import uuid7
from sa_jobqueue.operations import (
    Cause,
    cancel_jobs,
    dismiss_dead_letters,
    explain_job,
    explain_schedule,
    list_job_types,
    list_queues,
    list_workers,
    upsert_job_type,
    upsert_queue,
)
from sa_jobqueue.settings import QueueSettings, TypeSettings
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.transactions import call, write

pytestmark = both_servers

DEAD, PENDING, RUNNING = JobStatus.DEAD, JobStatus.PENDING, JobStatus.RUNNING


def test_explain_reports_that_no_worker_can_run_a_job(session: Session, jobs: Jobs) -> None:
    job = jobs.add(due_in=-7290)
    explanation = explain_job(session, job)
    assert explanation.cause is Cause.NO_WORKER
    assert explanation.sentence == "It has been due for 2 h 1 min; no worker is registered: start one (sa-jobqueue worker)."

    jobs.add_worker("silent:1", silent_for=60)
    assert explain_job(session, job).cause is Cause.NO_WORKER
    assert explain_job(session, job, heartbeat_timeout=timedelta(minutes=2)).cause is Cause.READY

    jobs.add_worker("other:1", queues=["mail"])
    assert explain_job(session, job).cause is Cause.QUEUE_UNSERVED
    jobs.add_worker("stranger:1", job_types=["another"])
    explanation = explain_job(session, job)
    assert explanation.cause is Cause.TYPE_UNKNOWN
    assert "the only worker of 'default' has no handler for 'test'" in explanation.sentence
    jobs.add_worker("leaving:1", state="draining")
    assert explain_job(session, job).cause is Cause.DRAINING
    jobs.add_worker("ready:1")
    explanation = explain_job(session, job)
    assert explanation.cause is Cause.READY
    assert explanation.evidence["live_workers"] == 4


def test_explain_counts_the_jobs_ahead_and_estimates_the_wait(session: Session, jobs: Jobs, engine: Engine) -> None:
    jobs.add_worker()
    earlier = jobs.add_many(40)
    job = jobs.add()
    jobs.add(priority=-5)  # these do not go before it
    jobs.add(due_in=3600)
    jobs.add_many(3, queue="mail")
    explanation = explain_job(session, job)
    assert (explanation.cause, explanation.evidence["ahead"]) == (Cause.QUEUED, 40)
    assert (
        "40 others of queue 'default' are before it; no job of the queue completed in the last minute"
        in explanation.sentence
    )
    for _ in range(10):
        jobs.add(JobStatus.COMPLETED)
    write(
        engine, update(Job).where(Job.status == JobStatus.COMPLETED).values(completed_at=func.now() - timedelta(seconds=5))
    )
    session.rollback()
    explanation = explain_job(session, job)
    per_second = explanation.evidence["per_second"]
    assert 10 / 60 < per_second <= 10 / 5
    assert explanation.evidence["expected_wait"] / timedelta(seconds=1) == pytest.approx(40 / per_second)
    assert "jobs per second it starts in " in explanation.sentence
    assert explain_job(session, earlier[0]).cause is Cause.READY
    urgent = jobs.add(priority=9)
    session.rollback()
    assert explain_job(session, urgent).evidence["ahead"] == 0
    assert explain_job(session, job).evidence["ahead"] == 41


def test_explain_reports_that_all_slots_are_in_use(session: Session, jobs: Jobs) -> None:
    jobs.add_worker(concurrency=1)
    jobs.add(RUNNING)
    explanation = explain_job(session, jobs.add())
    assert explanation.cause is Cause.BUSY
    assert "; the only slot of tester:1 is in use; it is used by test" in explanation.sentence


def test_explain_reports_that_all_slots_of_a_type_are_in_use(session: Session, jobs: Jobs) -> None:
    jobs.add_worker("w:1", concurrency=9, type_slots={"test": 1, "other": 5})
    assert explain_job(session, jobs.add()).cause is Cause.READY
    holder = jobs.add(RUNNING, worker_id="w:1", queue="elsewhere")
    explanation = explain_job(session, jobs.add())
    assert (explanation.cause, explanation.evidence["held_by"]) == (Cause.BUSY, [holder])
    assert f"the only slot of type 'test' in w:1 is in use; the longest running is job {holder}, for" in explanation.sentence
    assert explain_job(session, jobs.add(type_name="other")).cause is Cause.TYPE_UNKNOWN
    jobs.add_worker("w:2", concurrency=9, type_slots={"test": 2})
    assert explain_job(session, jobs.add()).cause is Cause.QUEUED  # one of those above
    jobs.add_worker("w:3", concurrency=9, state="draining")
    for _ in range(2):
        jobs.add(RUNNING, worker_id="w:2", queue="elsewhere")
    explanation = explain_job(session, jobs.add())
    assert (explanation.cause, len(explanation.evidence["held_by"])) == (Cause.BUSY, 2)
    jobs.add_worker("w:4", concurrency=9)  # has as many as it has slots, or did not tell
    assert explain_job(session, jobs.add()).cause is Cause.QUEUED


def test_explain_names_the_longest_running_jobs_under_a_limit(session: Session, jobs: Jobs) -> None:
    jobs.add_worker(concurrency=9)
    upsert_queue(session, QueueSettings(name="default", global_concurrency=2, concurrency_per_key=1))
    upsert_job_type(session, TypeSettings(type_name="test", global_concurrency=3))
    session.commit()
    first = jobs.add(RUNNING, queue="default", fairness_key="a")
    second = jobs.add(RUNNING, queue="default", fairness_key="b", worker_id="other:1")
    explanation = explain_job(session, jobs.add())
    assert (explanation.cause, explanation.evidence["held_by"]) == (Cause.LIMITED, [first, second])
    assert f"queue 'default' runs 2 jobs, its limit is 2; the longest running is job {first}, for" in explanation.sentence
    upsert_queue(session, QueueSettings(name="default", global_concurrency=9, concurrency_per_key=1))
    session.commit()
    assert explain_job(session, jobs.add(queue="default", fairness_key="b")).evidence["held_by"] == [second]
    third = jobs.add(RUNNING, queue="third")
    explanation = explain_job(session, jobs.add(queue="default", fairness_key="c"))
    assert (explanation.evidence["global_concurrency"], set(explanation.evidence["held_by"])) == (3, {first, second})
    assert third not in explanation.evidence["held_by"]  # of each worker one


def test_explain_reports_that_a_selector_did_not_select_a_job(
    session: Session, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = jobs.add(due_in=-90, queue="default", fairness_key="7")
    selector = {"function": "shop:pick", "window": 2, "max_wait": None}
    jobs.add_worker("w:1", selectors={"default": selector, "mail": selector})
    explanation = explain_job(session, job)
    assert explanation.cause is Cause.NOT_SELECTED
    assert "the selector shop:pick of queue 'default' (worker w:1)" in explanation.sentence
    assert "never selects never starts" in explanation.sentence
    assert explanation.evidence["chosen_by"] == ["w:1"]

    jobs.add_worker("w:2", selectors={"default": selector | {"window": 3, "max_wait": 600.0}})
    explanation = explain_job(session, job)
    assert (explanation.cause, explanation.evidence["max_wait"]) == (Cause.NOT_SELECTED, timedelta(minutes=10))
    assert "once it has been a candidate for the max_wait of 10 min" in (explanation.sentence)
    with monkeypatch.context() as patch:
        patch.setattr("sa_jobqueue.operations.explaining._SOON", timedelta(minutes=5))
        new = jobs.add(due_in=0)
        assert explain_job(session, new).cause is Cause.READY  # no worker has had the time to claim it

    for _ in range(3):  # of its own part, so that it is behind a whole window
        jobs.add(due_in=-95, queue="default", fairness_key="7")
    assert explain_job(session, job).cause is Cause.QUEUED
    jobs.add_worker("w:3", selectors={"mail": selector})
    assert explain_job(session, jobs.add(due_in=-90, queue="default", fairness_key="8")).cause is Cause.READY


def test_explain_reports_a_job_scheduled_for_later(session: Session, jobs: Jobs, engine: Engine) -> None:
    jobs.add_worker()
    explanation = explain_job(session, jobs.add(due_in=7200))
    assert explanation.cause is Cause.SCHEDULED
    assert explanation.sentence.startswith("It is scheduled for later: due in 1 h 59 min") or "2 h" in explanation.sentence
    job = jobs.add(due_in=30, attempt=2)
    with engine.begin() as connection:
        error = {"type": "ValueError", "message": "no such page\nat all"}
        row = {"job_id": job, "attempt": 2, "outcome": "failed", "error": error, "worker_id": WORKER}
        connection.execute(insert(Job.Attempt).values(row))
    explanation = explain_job(session, job)
    assert explanation.cause is Cause.RETRYING
    assert explanation.sentence.startswith("Attempt 2 failed with ValueError: no such page; attempt 3 of 20 is due in ")


def test_explain_distinguishes_a_running_job_from_a_silent_worker(session: Session, jobs: Jobs, engine: Engine) -> None:
    job = jobs.add(RUNNING)
    explanation = explain_job(session, job)
    assert explanation.cause is Cause.WORKER_SILENT
    assert (
        "is no longer registered (attempt 1 of 20); no worker with a recent heartbeat can rescue it" in explanation.sentence
    )
    jobs.add_worker()
    explanation = explain_job(session, job)
    assert explanation.cause is Cause.RUNNING
    assert f"on {WORKER} (process 1 on here), attempt 1 of 20" in explanation.sentence
    write(engine, update(Job.Worker).values(heartbeat_at=func.now() - timedelta(hours=2)))
    session.rollback()
    jobs.add_worker("other:1")
    explanation = explain_job(session, job)
    assert explanation.cause is Cause.WORKER_SILENT
    assert "has had no heartbeat for 2 h" in explanation.sentence
    assert "will rescue it" in explanation.sentence


def test_explain_reports_how_a_job_ended(session: Session, jobs: Jobs) -> None:
    assert explain_job(session, jobs.add(JobStatus.COMPLETED)).cause is Cause.COMPLETED
    assert explain_job(session, jobs.add(JobStatus.CANCELLED)).cause is Cause.CANCELLED
    dead = jobs.add(DEAD)
    explanation = explain_job(session, dead)
    assert explanation.cause is Cause.DEAD
    assert "(exhausted) after 1 attempt" in explanation.sentence
    assert f"jobs retry {dead}" in explanation.sentence
    dismiss_dead_letters(session, by="me")
    assert "it was dismissed" in explain_job(session, dead).sentence
    with pytest.raises(NotFoundError):
        explain_job(session, uuid7())


def test_explain_names_the_root_causes_of_a_blocked_job(session: Session, jobs: Jobs) -> None:
    jobs.add_worker()
    dead, slow = jobs.add(DEAD, type_name="fetch"), jobs.add(due_in=3600)
    middle = Job("test", blockers=[dead, slow])
    top = Job("test", blockers=[middle, slow])
    session.add_all([middle, top])
    session.commit()
    explanation = explain_job(session, top.id)
    assert explanation.cause is Cause.BLOCKED
    assert [blocker.job_id for blocker in explanation.blockers] == [slow, middle.id]
    assert [(root.job_id, root.cause) for root in explanation.roots] == [(dead, Cause.DEAD), (slow, Cause.SCHEDULED)]
    assert f"It waits for 2 chains; the root cause is fetch {dead}. It died" in explain_job(session, middle.id).sentence


def test_explain_reports_an_ended_blocker_that_has_not_been_unblocked(session: Session, jobs: Jobs, engine: Engine) -> None:
    first = jobs.add()
    waiting = Job("test", blockers=[first])
    session.add(waiting)
    session.commit()
    with engine.begin() as connection:  # as a worker that dies between completing and unblocking leaves it
        ended = {"status": JobStatus.COMPLETED, "completed_at": func.now(), "chain_completed_at": func.now()}
        connection.execute(update(Job).where(Job.id == first).values(ended))
    explanation = explain_job(session, waiting.id)
    assert explanation.cause is Cause.UNBLOCKING
    assert "no worker is registered to unblock it" in explanation.sentence
    jobs.add_worker()
    assert "a worker is about to unblock it" in explain_job(session, waiting.id).sentence


@pytest.mark.long
def test_explain_of_thousands_of_blockers_lists_only_twenty(session: Session, jobs: Jobs) -> None:
    jobs.add_worker()
    many = jobs.add_many(3000)
    waiting = Job("test", blockers=many)
    session.add(waiting)
    session.commit()
    session.expire_all()
    explanation = explain_job(session, waiting.id)
    assert explanation.evidence["open_blockers"] == 3000
    assert len(explanation.blockers) == 20


def test_not_found_errors_of_reads_do_not_mention_changes(session: Session) -> None:
    unknown: Any = uuid7()
    for read in (explain_job, get_job, get_chain, explain_schedule):
        with pytest.raises(NotFoundError) as raised:
            read(session, unknown)
        assert "changed" not in str(raised.value)
        assert str(unknown) in str(raised.value)


def test_explain_names_the_session_that_has_locked_a_late_job(
    session: Session, engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.add_worker()
    job, young = jobs.add(due_in=-90), jobs.add(due_in=-1, priority=5)
    with engine.connect() as holder:
        pid = holder.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        holder.execute(select(Job.id).where(Job.id.in_([job, young])).with_for_update())
        assert explain_job(session, job).cause is not Cause.LOCKED  # as a transaction of milliseconds may be a claim
        monkeypatch.setattr("sa_jobqueue.operations.lock_holders.MIN_LOCKED", timedelta(0))
        explanation = explain_job(session, job)
        assert (explanation.cause, explanation.evidence["locked_by"]) == (Cause.LOCKED, pid)
        assert f"; session {pid}" in explanation.sentence
        assert "(its last statement: SELECT job.id" in explanation.sentence
        assert f"has locked its row; to end it: SELECT pg_terminate_backend({pid})" in explanation.sentence
        assert f"SELECT pg_terminate_backend({pid})" in explanation.sentence
        session.rollback()
        assert explain_job(session, young).cause is Cause.READY  # as a worker's claim does for an instant
    session.rollback()
    explanation = explain_job(session, job)
    assert explanation.cause is Cause.QUEUED


def test_explain_promises_no_start_once_it_is_late(session: Session, engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(concurrency=2)
    late = jobs.add(due_in=-26)
    explanation = explain_job(session, late)
    assert explanation.cause is Cause.READY
    assert "no job of its queue started within the last 5.0 s, and the cause was not found" in explanation.sentence
    assert "starts within" not in explanation.sentence
    running = jobs.add(RUNNING)
    write(engine, update(Job).where(Job.id == running).values(started_at=func.now()))
    assert "jobs of its queue started within the last 5.0 s, and its turn is next" in explain_job(session, late).sentence


def test_slots_of_threads_that_do_not_return_are_in_use(session: Session, jobs: Jobs) -> None:
    jobs.add_worker(concurrency=3, stuck_threads=2)
    jobs.add(RUNNING)
    explanation = explain_job(session, jobs.add(due_in=-30))
    assert explanation.cause is Cause.BUSY
    assert "all 3 slots of tester:1 are in use, 2 of them by threads of ended attempts" in explanation.sentence
    assert "; 1 of them by test, the longest for " in explanation.sentence
    (worker,) = list_workers(session)
    assert (worker.running, worker.stuck_threads, worker.used) == (1, 2, 3)


def test_a_worker_that_keeps_failing_is_the_cause_of_late_jobs(session: Session, jobs: Jobs) -> None:
    jobs.add_worker(failure="claimer: InsufficientPrivilege: permission denied for table job")
    late, young = jobs.add(due_in=-26), jobs.add()
    explanation = explain_job(session, late)
    assert explanation.cause is Cause.WORKER_FAILING
    assert f"({WORKER}: claimer: InsufficientPrivilege: permission denied for table job)" in explanation.sentence
    jobs.add_worker("well:1")
    assert explain_job(session, late).cause is Cause.READY
    assert explain_job(session, young).cause is Cause.QUEUED


def test_a_failing_part_without_which_jobs_start_is_not_the_cause(session: Session, jobs: Jobs) -> None:
    jobs.add_worker(failure="listener: OperationalError: no route to host")
    assert explain_job(session, jobs.add(due_in=-26)).cause is Cause.READY


@own_database
def test_without_a_worker_explain_asks_whether_the_database_is_read_only(engine: Engine, jobs: Jobs) -> None:
    job = jobs.add(due_in=-26)
    with engine.begin() as connection:
        database = connection.exec_driver_sql("SELECT current_database()").scalar_one()
        connection.exec_driver_sql(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    engine.dispose()
    explanation = call(engine, explain_job, job)
    assert explanation.cause is Cause.NO_WORKER
    assert explanation.sentence.endswith("the database is read-only, so that none can work: default_transaction_read_only.")


def test_explain_names_the_reason_of_a_cancelled_job(session: Session, jobs: Jobs) -> None:
    by_hand, late = jobs.add(), jobs.add(last_error={"type": "Expired", "message": "was to start by noon"})
    cancel_jobs(session, [by_hand, late])
    session.commit()
    assert explain_job(session, by_hand).sentence.endswith("ago and will not run.")
    assert explain_job(session, late).sentence.endswith("ago and will not run: Expired: was to start by noon.")


def test_a_prepared_transaction_that_locks_a_row_is_named(
    session: Session, jobs: Jobs, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.add_worker()
    monkeypatch.setattr("sa_jobqueue.operations.lock_holders.MIN_LOCKED", timedelta(0))
    job = jobs.add(due_in=-26)
    with engine.connect() as holder:
        holder.exec_driver_sql(f"UPDATE job SET priority = 1 WHERE id = '{job}'")
        holder.exec_driver_sql("PREPARE TRANSACTION 'order''s'")
    try:
        explanation = explain_job(session, job)
        session.rollback()
    finally:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ROLLBACK PREPARED 'order''s'")
    assert explanation.cause is Cause.LOCKED
    assert """; the prepared transaction "order's" of postgres, prepared 0.""" in explanation.sentence
    assert " s ago has locked its row" in explanation.sentence
    assert explanation.sentence.endswith("to end it: ROLLBACK PREPARED 'order''s', or COMMIT PREPARED.")


def test_the_end_of_a_search_is_not_called_the_root_cause(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sa_jobqueue.operations.explaining._DEEP", 3)
    first = Job("test")
    session.add(first)
    last = first
    for _ in range(5):
        last = Job("test", blockers=[last])
        session.add(last)
    session.commit()
    explanation = explain_job(session, last.id)
    assert explanation.cause is Cause.BLOCKED
    assert "root cause" not in explanation.sentence
    (root,) = explanation.roots
    assert f"The search for the cause ended at test {root.job_id}, which waits as well" in explanation.sentence
    assert "the root cause is test" in explain_job(session, root.job_id).sentence


def test_dead_workers_serve_no_queue_and_no_type(session: Session, jobs: Jobs) -> None:
    jobs.add_worker("dead:1", silent_for=60, queues=["gone", "kept"], job_types=["old", "test"])
    jobs.add_worker("live:1", queues=["kept"], job_types=["test"])
    assert {queue.name: queue.workers for queue in list_queues(session)} == {"kept": 1}
    assert {job_type.type_name: job_type.workers for job_type in list_job_types(session)} == {"test": 1}
    longer = timedelta(minutes=2)
    assert {queue.name: queue.workers for queue in list_queues(session, heartbeat_timeout=longer)} == {"gone": 1, "kept": 2}
    assert {job_type.type_name for job_type in list_job_types(session, heartbeat_timeout=longer)} == {"old", "test"}


def test_explain_shows_the_statement_of_a_locking_session_without_its_literals(
    session: Session, engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.add_worker()
    monkeypatch.setattr("sa_jobqueue.operations.lock_holders.MIN_LOCKED", timedelta(0))
    job = jobs.add(due_in=-90)
    with engine.connect() as holder:
        holder.exec_driver_sql(f"SELECT 'secret of a payload' FROM job WHERE id = '{job}' FOR UPDATE")
        explanation = explain_job(session, job)
    assert "(its last statement: SELECT ? FROM job WHERE id = ? FOR UPDATE)" in explanation.sentence
    assert "secret" not in str(explanation.evidence)


def test_explain_says_when_a_job_behind_a_rate_limit_has_its_own_turn(session: Session, engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(concurrency=99)
    upsert_queue(session, QueueSettings(name="default", rate_limit=1, rate_period=timedelta(minutes=1), rate_burst=1))
    with engine.begin() as connection:
        spent = {"is_type": False, "name": "default", "spent_at": func.now(), "tokens": 0}
        connection.execute(insert(Job.RateState).values(spent))
    session.commit()
    jobs.add_many(120)
    last = jobs.add()
    explanation = explain_job(session, last)
    assert (explanation.cause, explanation.evidence["ahead"]) == (Cause.RATE_LIMITED, 120)
    assert timedelta(hours=2) <= explanation.evidence["expected_wait"] <= timedelta(hours=2, minutes=1)
    assert "120 others are before it, and its turn comes in 2 h" in explanation.sentence


def test_a_job_behind_another_of_its_ordering_key_has_the_cause_of_that_one(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker()
    first = jobs.add(due_in=3600, attempt=1, ordering_key="a")
    with engine.begin() as connection:
        error = {"type": "ConnectionError", "message": "refused"}
        values = {"job_id": first, "attempt": 1, "worker_id": "w", "started_at": func.now(), "ended_at": func.now()}
        connection.execute(insert(Job.Attempt).values(**values, outcome="failed", error=error))
    explanation = call(engine, explain_job, jobs.add(due_in=-100, ordering_key="a"))
    assert explanation.cause is Cause.WAITING_FOR_ORDERING_KEY
    assert (
        "which is pending. Of that job: Attempt 1 failed with ConnectionError: refused; attempt 2 of "
        in explanation.sentence
    )


def test_sentences_of_what_has_passed_do_not_promise_it(engine: Engine, jobs: Jobs) -> None:
    """A timeout, an expiry, a limit that a dead worker holds, and workers that drain."""
    jobs.add_worker()
    jobs.add_worker("gone:1", silent_for=100)
    late = jobs.add(JobStatus.RUNNING)
    jobs.add(JobStatus.RUNNING, worker_id="gone:1", queue="one")
    expired = jobs.add(due_in=-100, expires_at=func.now() - timedelta(minutes=2))
    with Session(engine) as session, session.begin():
        upsert_queue(session, QueueSettings(name="one", global_concurrency=1))
        session.execute(update(Job).where(Job.id == late).values(leased_until=func.now() - timedelta(minutes=40)))
        session.execute(update(Job.Worker).values(queues=["default", "one"]))
    limited = jobs.add(due_in=-100, queue="one")
    with Session(engine) as session:
        sentences = [explain_job(session, job_id).sentence for job_id in (late, expired, limited)]
    assert sentences[0].endswith("; its timeout passed 40 min ago, and its handler has not stopped.")
    assert "; it did not start in time: it expired 2 min" in sentences[1]
    assert "on gone:1, which has had no heartbeat for 1 min" in sentences[2]
    with Session(engine) as session:
        session.execute(update(Job.Worker).values(state="draining"))
        explanation = explain_job(session, jobs.add(due_in=-100))
    assert "every worker that could run it is draining (" in explanation.sentence
