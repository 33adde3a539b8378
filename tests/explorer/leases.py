"""Three workers and one job, for scenarios: a worker's steps, their notes, and the invariants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, delete, func, insert, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.db.sessions import GUARDS
from sa_jobqueue.ids import uuid7
from sa_jobqueue.operations import DeadLetterFilter, redrive_dead_letters
from sa_jobqueue.operations.workers import rescue as rescue_lost
from sa_jobqueue.policies.retry import immediately
from sa_jobqueue.statements import completions, leases
from sa_jobqueue.statements._parts import table
from sa_jobqueue.types import ENDED
from tests.explorer.scenario import Operation, Outcomes, Steps
from tests.explorer.statements import by_locks
from tests.explorer.workers import SessionWorker
from tests.statements.cases import heartbeat_parameters

WORKERS = 3
_SILENT = timedelta(hours=1)
_PATIENCE = timedelta(minutes=1)
"""So far from each other, and from the time of a schedule, that no real time passes for a heartbeat or for silence."""


class Lost(Exception):  # noqa: N818 - a signal: the attempt is not this worker's any more
    """The error that rolls a handler's transaction back when its completion was fenced off."""


class LogEntry(NamedTuple):
    """A worker's step, its attempt (None: it found nothing to do), and whether its write counted."""

    action: str
    worker: int
    attempt: int | None = None
    accepted: bool = True


class Held(NamedTuple):
    """The attempt that the first worker has when a schedule begins."""

    id: UUID
    attempt: int
    table_oid: int


@dataclass
class Given:
    """One job in a queue that only this schedule has, and the workers that know of it."""

    job_id: UUID
    most: int
    queue: str
    table_oid: int
    log: list[LogEntry] = field(default_factory=list)
    """In the order in which the database answered."""

    def worker(self, number: int) -> str:
        return f"{self.queue}:{number}"


class SimulatedWorker:
    """The steps of one worker, on the session of an operation; it acts on its last knowledge."""

    def __init__(self, session: Session, setup: Given, number: int) -> None:
        self.session = session
        self.given = setup
        self.number = number
        self.manual_worker = SessionWorker(session, setup.worker(number), queues=(setup.queue,))
        self.holds: Any = None

    def claim(self) -> None:
        claimed = [] if self.holds else self.manual_worker.claim()
        self.holds = claimed[0] if claimed else self.holds
        self._note("claim", claimed[0].attempt if claimed else None)

    def heartbeat(self) -> None:
        self.session.execute(leases.heartbeat(Job), heartbeat_parameters(self.manual_worker.worker_id))
        self._note("heartbeat")

    def fall_silent(self) -> None:
        fall_silent(self.session, self.manual_worker.worker_id)
        self._note("fall silent")

    def rescue(self) -> None:
        rescued = rescue(self.session, self.given.most)
        self._note("rescue", rescued[0].attempt if rescued else None)

    def complete(self) -> None:
        attempt, self.holds = self.holds, None
        if attempt is not None:
            self._note("complete", attempt.attempt, accepted=bool(self.manual_worker.complete(attempt)))

    def complete_in_session(self) -> None:
        """Complete in the transaction of the handler's own writes, which waits for a lock on the row."""
        attempt, self.holds = self.holds, None
        parameters = {
            "job_id": attempt.id,
            "job_attempt": attempt.attempt,
            "job_output": "1",
            "worker_id": self.manual_worker.worker_id,
            "table_oid": attempt.table_oid,
        }
        if not self.session.scalars(completions.complete_one(Job), parameters).all():
            raise Lost
        self._note("complete", attempt.attempt)

    def _note(self, action: str, attempt: int | None = None, *, accepted: bool = True) -> None:
        self.given.log.append(LogEntry(action, self.number, attempt, accepted))


def fall_silent(session: Session, *worker_ids: str) -> None:
    """Set the last heartbeat of workers to long ago."""
    chosen = update(table(Job.Worker)).where(Job.Worker.id.in_(worker_ids))
    session.execute(chosen.values(heartbeat_at=func.now() - _SILENT))


def rescue(session: Session, most: int) -> list[Any]:
    """Rescue, as a worker does whose heartbeat timeout is a minute; rescued jobs are due at once."""
    return list(rescue_lost(session.connection(), Job, {"ttl": _PATIENCE, "limit": 10}, immediately))


def one_job(session: Session, *, most: int = 2, is_leased: bool = False) -> Given:
    """Make a job and three workers that live; what earlier schedules left goes. `is_leased`: by the first,
    which is silent."""
    for model in (Job.DeadLetter, Job.Attempt, Job.Worker, Job):
        session.execute(delete(table(model)))
    job_id = uuid7()
    table_oid: int = session.execute(text("SELECT CAST(CAST('job' AS regclass) AS oid)")).scalar_one()
    setup = Given(job_id, most, f"q{job_id.hex}", table_oid)
    job = {"id": job_id, "chain_id": job_id, "queue": setup.queue, "type_name": "test", "chain_type_name": "test"}
    session.execute(insert(table(Job)).values(**job, input=None, max_attempts=most))
    for number in range(WORKERS):
        session.execute(leases.heartbeat(Job), heartbeat_parameters(setup.worker(number)))
    if is_leased:
        first = SimulatedWorker(session, setup, 0)
        first.claim()
        first.fall_silent()
    return setup


def worker_operation(
    number: int, *actions: Callable[[SimulatedWorker], None], autocommit: bool = True, has_the_job: bool = False
) -> Operation[Given]:
    """Return a worker that does one thing after the other, each a statement and, unless set otherwise, a transaction."""

    def run(session: Session, setup: Given) -> Steps:
        life = SimulatedWorker(session, setup, number)
        if has_the_job:
            life.holds = Held(setup.job_id, 1, setup.table_oid)
        for place, action in enumerate(actions):
            action(life)
            if place < len(actions) - 1:
                yield action.__name__.replace("_", "-")

    return Operation(f"worker-{number}", run, autocommit=autocommit, may_raise=(Lost,), settings=GUARDS)


def commit(life: SimulatedWorker) -> None:
    """End the transaction of the step before."""
    life.session.commit()


def complete_and_commit(life: SimulatedWorker) -> None:
    """Complete in a transaction of its own, as the worker's own statements do."""
    life.complete()
    life.session.commit()


def redrives() -> Operation[Given]:
    """An operator puts the job back if it is dead, in steps by its locks."""

    def act(session: Session, setup: Given) -> None:
        redriven = redrive_dead_letters(session, where=DeadLetterFilter(job_ids=[setup.job_id])).ids
        setup.log.append(LogEntry("redrive", 0, None, bool(redriven)))

    return Operation("operator", by_locks(act))


def keeps_the_promises(connection: Connection, setup: Given, outcomes: Outcomes) -> str:
    """Check that no attempt had two owners or two ends, and that a remaining worker brings the job to its end."""
    row = _row(connection, setup)
    claimed = [entry for entry in setup.log if entry.action == "claim" and entry.attempt]
    assert [entry.attempt for entry in claimed] == list(range(1, row.attempt + 1)), (
        "attempts are claimed one after the other"
    )
    ends = [entry for entry in setup.log if entry.accepted and entry.attempt and entry.action in {"complete", "rescue"}]
    ended = [entry.attempt for entry in ends]
    assert len(set(ended)) == len(ended), "an attempt ends once"
    for entry in claimed[1:]:
        before = setup.log[: setup.log.index(entry)]
        assert any(end.attempt == (entry.attempt or 0) - 1 for end in ends if end in before), "an attempt has one owner"
    for entry in ends:
        if entry.action == "complete":
            assert entry.worker == claimed[(entry.attempt or 0) - 1].worker, "who completes an attempt has claimed it"
            assert (row.status, row.completed_by) == (JobStatus.COMPLETED, setup.worker(entry.worker))
    history = list(connection.scalars(select(Job.Attempt.attempt).where(Job.Attempt.job_id == setup.job_id)))
    lost = {entry.attempt for entry in ends if entry.action == "rescue"}
    assert (len(history), set(history)) == (len(lost), lost), "history has each lost one"
    _run_out(connection, setup)
    return str(row.status.value)


def _row(connection: Connection, setup: Given) -> Any:
    return connection.execute(select(Job.__table__).where(Job.id == setup.job_id)).one()


def _run_out(connection: Connection, setup: Given) -> None:
    """Let all workers be gone and a new one come: it brings the job to its end. Its writes are rolled back."""
    with Session(connection) as session:
        fall_silent(session, *map(setup.worker, range(WORKERS)))
        rescue(session, setup.most)
        manual_worker = SessionWorker(session, setup.worker(WORKERS), queues=(setup.queue,))
        for claimed in manual_worker.claim():
            assert manual_worker.complete(claimed)
        assert _row(session.connection(), setup).status in ENDED, "no job is stuck"
