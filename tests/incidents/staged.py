"""The incidents: how each is staged, its text on the overview, and its remedy."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import func
from sqlalchemy.orm import Session

from sa_jobqueue import Job
from sa_jobqueue.operations import cancel_jobs, pause_queues, upsert_queue
from sa_jobqueue.settings import QueueSettings
from tests.fixtures.transactions import call
from tests.incidents.world import ShownFinding, World

DUE: Final = 57
"""Seconds for which jobs have been due when they are staged, so that no test waits for the minute that a finding takes."""


@dataclass(frozen=True)
class Staged:
    """An incident under way."""

    shows: str
    """The subject of the page behind the finding's link: the job, worker or schedule in trouble."""
    act: Callable[[ShownFinding], None] | None = None
    """The remedy that the finding or that page offers; None where the queue mends itself."""
    since: float = 0
    """Seconds since it began, when it was staged."""


@dataclass(frozen=True)
class Incident:
    """One kind of trouble."""

    name: str
    says: str
    """The cause, as a pattern of the finding's sentence."""
    threshold: float
    """Seconds from its beginning to the finding, besides the time of a worker's search and the overview's next report."""
    stage: Callable[[World], Staged]


INCIDENTS: list[Incident] = []


def incident(*, says: str, threshold: float) -> Callable[[Callable[[World], Staged]], Callable[[World], Staged]]:
    """Add an incident; its first line of documentation is its name."""

    def add(stage: Callable[[World], Staged]) -> Callable[[World], Staged]:
        INCIDENTS.append(Incident((stage.__doc__ or "").split("\n")[0].rstrip("."), says, threshold, stage))
        return stage

    return add


def due(type_name: str, queue: str, payload: Any = None, **columns: Any) -> Job:
    """Return a job that has been due for nearly a minute."""
    at = func.now() - timedelta(seconds=DUE)
    return Job(type_name, payload or {}, queue=queue, _handler=None, scheduled_at=at, **columns)


def bad_refund() -> Job:
    """Return a job whose only attempt fails."""
    return Job("refund", {"card": "expired"}, queue="refunds", _handler=None, max_attempts=1)


@incident(says=r"Jobs of refund died: ValueError.*6\d dead letters", threshold=0)
def poison_type(world: World) -> Staged:
    """Every job of a type dies."""
    ids = world.enqueue(
        *(Job("refund", {"card": "expired"}, queue="refunds", _handler=None, max_attempts=1) for _ in range(60))
    )
    world.until(lambda: world.sql("SELECT count(*) = 60 FROM dead_letter WHERE type_name = 'refund'"), "dead letters")
    return Staged(str(ids[0])[:8], lambda finding: world.press(finding, "dismiss-dead-letters"))


@incident(says=r"Queue 'imports': [\d,]+ jobs wait, ([\d,]+|all) of them of fairness key 'stark'", threshold=20)
def flood_of_a_tenant(world: World) -> Staged:
    """A tenant floods a queue."""
    world.enqueue(*(due("import_row", "imports", fairness_key="stark") for _ in range(6000)))
    world.enqueue(*(due("import_row", "imports", fairness_key="wayne") for _ in range(50)))
    return Staged("stark", lambda finding: world.press(finding, "pause-queues"), DUE)


def _running_on(world: World, name: str) -> str:
    (job_id,) = world.enqueue(Job("thumbnail", {"seconds": 300}, queue="pictures", _handler=None))
    world.until(lambda: world.sql("SELECT status = 'running' FROM job WHERE id = :id", id=job_id), "the start")
    return str(world.sql("SELECT id FROM worker WHERE name = :name", name=name))


@incident(says=r"no heartbeat.*killed|killed:\S+ on \S+ has had no heartbeat", threshold=15)
def killed_worker(world: World) -> Staged:
    """A worker is killed."""
    process = world.worker("killed", "pictures")
    worker_id = _running_on(world, "killed")
    process.kill()
    return Staged(worker_id)


@incident(says=r"no heartbeat.*frozen:|frozen:\S+ on \S+ has had no heartbeat", threshold=15)
def frozen_worker(world: World) -> Staged:
    """A worker is frozen."""
    process = world.worker("frozen", "pictures")
    worker_id = _running_on(world, "frozen")
    process.send_signal(signal.SIGSTOP)
    return Staged(worker_id)


@incident(says=r"psql of the dba.*idle in transaction.*held back the xmin horizon", threshold=2)
def long_transaction(world: World) -> Staged:
    """A transaction stays open."""
    world.session_of_a_dba("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM job")
    return Staged("psql of the dba", lambda finding: world.run_advice(finding, r"SELECT pg_terminate_backend\(\d+\)"))


@incident(says=r"Queue 'news' has been paused for .* by carol", threshold=0)
def forgotten_pause(world: World) -> Staged:
    """An operator paused a queue, and forgot."""
    with Session(world.engine) as session, session.begin():
        upsert_queue(session, QueueSettings(name="news"))
        pause_queues(session, ["news"], by="carol")
    world.enqueue(*(due("newsletter", "news") for _ in range(6)))
    return Staged("carol", lambda finding: world.press(finding, "resume-queues"))


@incident(says=r"Queue 'billing' runs \d jobs?, its limit is 1.*3\d jobs wait", threshold=20)
def global_limit(world: World) -> Staged:
    """A queue runs one job at a time."""
    call(world.engine, upsert_queue, QueueSettings(name="billing", global_concurrency=1))
    (first,) = world.enqueue(Job("charge_card", {"seconds": 300}, queue="billing", _handler=None))
    world.until(lambda: world.sql("SELECT status = 'running' FROM job WHERE id = :id", id=first), "the start")
    world.enqueue(*(due("charge_card", "billing", {"seconds": 300}) for _ in range(37)))
    return Staged(str(first), lambda finding: world.press(finding, "upsert-queue", global_concurrency=""), DUE)


@incident(says=r"has (no|a) handler for 'send_fax'.*'mail': 15 jobs wait", threshold=20)
def type_without_a_handler(world: World) -> Staged:
    """No worker has the handler of a type."""
    ids = world.enqueue(*(due("send_fax", "mail") for _ in range(15)))
    return Staged(str(ids[0])[:8], None, DUE)


def _schedule(world: World, name: str, cron: str, policy: str = "one") -> None:
    world.sql(
        "INSERT INTO schedule (name, type_name, input, cron, misfire_policy, grace, next_fire_at) VALUES "
        "(:name, 'report', '{}', :cron, :policy, '10 s', date_trunc('minute', now()) - interval '3 min')",
        **{"name": name, "cron": cron, "policy": policy},
    )
    world.sql("SELECT pg_notify(:channel, '')", channel=Job.__jobqueue__.channel("rules"))  # as operations on schedules do


@incident(says=r"Worker weak:\S+ keeps failing: \w+: .*permission denied for table job", threshold=60)
def worker_without_a_privilege(world: World) -> Staged:
    """The role of a worker lacks a privilege."""
    world.sql("DO $$ BEGIN CREATE ROLE weak; EXCEPTION WHEN duplicate_object THEN END $$")
    world.sql("GRANT ALL ON ALL TABLES IN SCHEMA public TO weak")
    world.sql("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO weak")
    world.sql("REVOKE UPDATE ON job FROM weak")
    world.worker("weak", "pictures", role="weak")
    world.enqueue(*(due("thumbnail", "pictures", {"seconds": 0}) for _ in range(2)))
    return Staged("weak", lambda finding: world.sql("GRANT UPDATE ON job TO weak"), DUE)


@incident(says=r"At least 30 jobs of send_text failed: ConnectionError.*They are due again in \d+ min", threshold=0)
def long_backoff(world: World) -> Staged:
    """After an outage, jobs are due again in a long time."""
    soon = func.now() + timedelta(minutes=30)
    world.enqueue(*(Job("send_text", {}, queue="texts", _handler=None, scheduled_at=soon) for _ in range(30)))
    world.sql("""UPDATE job SET attempt = 1, last_error = '{"type": "ConnectionError"}' WHERE type_name = 'send_text'""")
    return Staged("send_text", lambda finding: world.press(finding, "trigger-jobs"))


@incident(says=r"Schedule 'broken' cannot fire: .*cron", threshold=0)
def broken_schedule(world: World) -> Staged:
    """The row of a schedule is wrong."""
    _schedule(world, "broken", "61 * * * *")
    return Staged("cannot be read", lambda finding: world.press(finding, "upsert-schedule", cron="1 * * * *"))


@incident(says=r"Schedule 'skipped' left out .*no worker fired", threshold=0)
def skipped_schedule(world: World) -> Staged:
    """No worker was there at the times of a schedule, which skips missed times."""
    _schedule(world, "skipped", "* * * * *", "skip")
    return Staged("skipped", lambda finding: world.press(finding, "run-schedule"))


@incident(says=r"3 jobs are blocked by 1 dead chain", threshold=0)
def dead_blocker(world: World) -> Staged:
    """Jobs wait for a chain that is dead."""
    with Session(world.engine) as session, session.begin():
        bad = bad_refund()
        session.add(bad)
        session.flush()
        session.add_all(Job("report", {}, queue="reports", _handler=None, blockers=[bad]) for _ in range(3))
        blocker = bad.id
    world.until(lambda: world.sql("SELECT count(*) FROM dead_letter WHERE job_id = :id", id=blocker), "the dead letter")

    def redrive(finding: ShownFinding) -> None:
        world.sql("UPDATE job SET input = '{}' WHERE id = :id", id=blocker)
        world.press(finding, "redrive-dead-letters")

    return Staged(str(blocker), redrive)


@incident(says=r"2 jobs are blocked by 1 cancelled chain", threshold=0)
def cancelled_blocker(world: World) -> Staged:
    """Jobs wait for a chain that was cancelled."""
    with Session(world.engine) as session, session.begin():
        blocker = Job("thumbnail", {"seconds": 300}, queue="later", _handler=None)
        session.add(blocker)
        session.add_all(Job("report", {}, queue="reports", _handler=None, blockers=[blocker]) for _ in range(2))
        session.flush()
        cancel_jobs(session, [blocker.id])
    return Staged("report", lambda finding: world.press(finding, "cancel-jobs"))


@incident(says=r"1 job waits for 1 event.* 'approved:7' .*'aproved:7' was sent", threshold=20)
def wrong_event(world: World) -> Staged:
    """An event is sent under a wrong name."""
    (job_id,) = world.enqueue(Job("approval", {"event": "approved:7"}, queue="reports", _handler=None))
    world.until(lambda: world.sql("SELECT count(*) FROM job_step WHERE job_id = :id", id=job_id), "the wait")
    world.sql("UPDATE job_step SET started_at = started_at - interval '57 s' WHERE job_id = :id", id=job_id)
    world.sql("SELECT job_send_event('aproved:7', 'null', interval '1 day')")
    return Staged(str(job_id), lambda finding: world.press(finding, "send-event"), DUE)


@incident(says=r"Session \d+ 'psql of the dba'.* has locked its row.*'reports'", threshold=20)
def locked_row(world: World) -> Staged:
    """A session has locked the row of a job."""
    job_id = world.sql(
        "INSERT INTO job (id, chain_id, type_name, chain_type_name, queue, input, scheduled_at) "
        "SELECT id, id, 'report', 'report', 'reports', '{}', now() + '3 s' FROM (SELECT gen_random_uuid() AS id) "
        "AS made RETURNING id"
    )
    world.session_of_a_dba(f"UPDATE job SET scheduled_at = scheduled_at WHERE id = '{job_id}'")
    return Staged(str(job_id), lambda finding: world.run_advice(finding, r"SELECT pg_terminate_backend\(\d+\)"))


@incident(says=r"Jobs of sync_contact died: .*input_version: is 1 and sync_contact has no upcaster from 1", threshold=0)
def missing_upcaster(world: World) -> Staged:
    """A job has a payload of an older version, which the handler cannot read."""
    (job_id,) = world.enqueue(Job("sync_contact", {}, queue="mail", input_version=1, _handler=None))
    world.until(lambda: world.sql("SELECT count(*) FROM dead_letter WHERE job_id = :id", id=job_id), "the dead letter")

    def dismiss(finding: ShownFinding) -> None:
        world.press(finding, "dismiss-dead-letters")

    return Staged(str(job_id)[:8], dismiss)


@incident(says=r"'texts' starts no more jobs by its rate limit", threshold=20)
def rate_limit(world: World) -> Staged:
    """A rate limit is too low for what arrives."""
    with Session(world.engine) as session, session.begin():
        settings = QueueSettings(name="texts", rate_limit=1, rate_period=timedelta(minutes=1), rate_burst=1)
        upsert_queue(session, settings)
    world.enqueue(*(due("send_text", "texts") for _ in range(200)))
    gone = {"rate_limit": "", "rate_period": "", "rate_burst": ""}
    return Staged("send_text", lambda finding: world.press(finding, "upsert-queue", **gone), DUE)


@incident(says=r"crunch \S+ of queue 'numbers' has been running for 3 h", threshold=0)
def long_job(world: World) -> Staged:
    """A job has been running for three hours."""
    (job_id,) = world.enqueue(Job("crunch", {"seconds": 300}, queue="numbers", _handler=None))
    world.until(lambda: world.sql("SELECT status = 'running' FROM job WHERE id = :id", id=job_id), "the start")
    world.sql("UPDATE job SET started_at = started_at - interval '3 h' WHERE id = :id", id=job_id)
    return Staged(str(job_id), lambda finding: world.press(finding, "cancel-jobs"))


@incident(says=r"About .* bloat.*ix_job_claim", threshold=0)
def bloat(world: World) -> Staged:
    """An index is bloated."""
    world.sql(
        "INSERT INTO job (id, chain_id, type_name, chain_type_name, scheduled_at) SELECT id, id, 't', 't', now() + '1 day' "
        "FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, 20000)) AS made"
    )
    world.sql("DELETE FROM job WHERE type_name = 't' AND id > '10000000-0000-0000-0000-000000000000'")
    world.sql("SELECT pg_stat_force_next_flush()")
    world.sql("VACUUM ANALYZE job")
    return Staged("ix_job_claim", lambda finding: world.run_advice(finding, r"VACUUM FULL"))


FIRST: Final = (locked_row, long_transaction, rate_limit)
"""The incidents that are ended before the others, in this order: a session that locks a row also holds the horizon back,
both hold back the remedies of others, and one of these puts other jobs before those that wait for the limit."""
