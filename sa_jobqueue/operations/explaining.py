"""Explain why a job is not running, or its state: a cause, a sentence, and evidence; for blocked jobs down to the root."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, TypeAlias

from sqlalchemy import RowMapping, func, select
from sqlalchemy.orm import Session

from sa_jobqueue.db.sessions import application_name
from sa_jobqueue.display.objects import objects_in
from sa_jobqueue.display.printable import span
from sa_jobqueue.display.redaction import redacted, redacted_error
from sa_jobqueue.errors import NotFoundError
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.operations.bounded import BoundedReads
from sa_jobqueue.operations.dead_letters import DeadLetterFilter, list_dead_letters
from sa_jobqueue.operations.jobs import get_job, list_attempts
from sa_jobqueue.operations.lock_holders import LockHolder, list_lock_holders
from sa_jobqueue.operations.queues import QueueStatus, TypeStatus, list_job_types, list_queues
from sa_jobqueue.operations.row_security import HiddenRows, hidden_rows, in_words
from sa_jobqueue.operations.schedules import schedule_of
from sa_jobqueue.operations.silence import Silence, list_silent
from sa_jobqueue.operations.steps import list_steps
from sa_jobqueue.operations.workers import WorkerStatus, list_workers
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.policies.rates import Rate
from sa_jobqueue.statements import explaining, limits, quarantine, steps, storage
from sa_jobqueue.types import ENDED, AttemptOutcome, JobId, JobStatus, RefusedWrite, StepKind, WorkerState


class Cause(StrEnum):
    """Why a job is in its current state; the first cause that applies.

    Causes that need action come before those that resolve automatically.
    """

    QUARANTINED = "quarantined"
    """The database rejects a write for it; the write is retried."""
    WORKER_FAILING = "worker_failing"
    """The claimer of every worker that could run it fails again and again."""
    LOCKED = "locked"
    """Another session has locked its row, so that no worker can claim it."""
    DEAD = "dead"
    CANCELLED = "cancelled"
    QUEUE_PAUSED = "queue_paused"
    TYPE_PAUSED = "type_paused"
    NO_WORKER = "no_worker"
    QUEUE_UNSERVED = "queue_unserved"
    TYPE_UNKNOWN = "type_unknown"
    """Workers serve its queue, but none has a handler for its type."""
    VERSION_UNKNOWN = "version_unknown"
    """Workers have a handler for its type, but all of an older version than that of its payload."""
    DRAINING = "draining"
    """Every worker that could run it is draining."""
    EXPIRED = "expired"
    """It did not start by `expires_at`, or end by its deadline, and is about to be cancelled."""
    NOT_SELECTED = "not_selected"
    """The selector of its queue has not selected it."""
    LIMITED = "limited"
    """The global concurrency of its queue or type is reached."""
    RATE_LIMITED = "rate_limited"
    """The rate limit of its queue or type is reached."""
    WAITING_FOR_ORDERING_KEY = "waiting_for_ordering_key"
    """Another job of its ordering key is first."""
    WAITING_FOR_EVENT = "waiting_for_event"
    """It waits in a step for an event that was not sent."""
    WAITING_FOR_CHILD = "waiting_for_child"
    """It waits in a step for the result of another job."""
    WORKER_SILENT = "worker_silent"
    """Its worker had no heartbeat within the timeout; another worker will rescue the job."""
    RETRYING = "retrying"
    """Its last attempt failed and the next one is not due yet."""
    SLEEPING = "sleeping"
    """It sleeps in a step."""
    SCHEDULED = "scheduled"
    BUSY = "busy"
    """Every worker that could run it has no free slot, in total or for its type."""
    QUEUED = "queued"
    """Other jobs of its queue are first."""
    BLOCKED = "blocked"
    RUNNING = "running"
    ROWS_HIDDEN = "rows_hidden"
    """Row-level security may hide workers from the role that asks: the cause is not known."""
    NOT_MEASURED = "not_measured"
    """Its cause could not be read: a statement was cancelled, or a replica does not show it."""
    READY = "ready"
    STATUS_UNKNOWN = "status_unknown"
    """A later release of the library gave it a status that this one does not know."""
    UNBLOCKING = "unblocking"
    """Its blockers have ended, and a worker is about to unblock it."""
    COMPLETED = "completed"


COUNTED: Final = 10_000
"""Limit of the count of jobs ahead."""
_DEEP: Final = 50
_WIDE: Final = 20
_SOON: Final = timedelta(seconds=1)
_CLAIMED_WITHIN: Final = timedelta(seconds=5)
"""How soon a worker with a free slot claims the next job: its default poll interval."""
_WINDOW: Final = timedelta(minutes=1)
_SERVED_WITHIN: Final = timedelta(days=1)
"""Time within which jobs of a queue ran, so that it is not one that no worker was to serve."""
_NAMED: Final = 5
"""Number of workers that are named in a sentence."""
_EVENTS: Final = 200
"""Number of sent events among which a similar name is searched."""
_NUMBER: Final = re.compile("[0-9]+")
_TRANSACTIONS: Final = 100_000
_URGENCY: Final = tuple(Cause)
"""By urgency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explanation of one job."""

    job_id: Any
    """Id of the job."""
    type_name: str
    """The job type."""
    queue: str
    """Its queue."""
    fairness_key: str
    """Its fairness key; empty for none."""
    status: JobStatus | None
    """Its status; None if its row could not be read in time."""
    cause: Cause
    """Why it has this status, or why a pending job does not run."""
    sentence: str
    """The explanation as text, with what to do, if anything."""
    reason: str = ""
    """Of a due job, the part of the sentence that says why it waits, as a clause; empty for others."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """Facts by name: counts, instants, durations, ids, errors."""
    blockers: tuple[Explanation, ...] = ()
    """For a blocked job: explanations of the last jobs of the chains it waits for; those that need action first."""

    @property
    def roots(self) -> tuple[Explanation, ...]:
        """The explanations without blockers: the root causes. For a job that is not blocked, the explanation itself."""
        if not self.blockers:
            return (self,)
        root_by_id = {root.job_id: root for blocker in self.blockers for root in blocker.roots}
        return tuple(sorted(root_by_id.values(), key=lambda explanation: _URGENCY.index(explanation.cause)))


def explain_job(
    session: Session,
    job_id: JobId,
    *,
    heartbeat_timeout: timedelta = timedelta(seconds=15),
    timeout: timedelta | None = None,
    model: JobClass = Job,
) -> Explanation:
    """Return why a job is not running, or its state: a cause, a sentence, and evidence; for blocked jobs down to the root.

    `heartbeat_timeout`: the workers' setting. `timeout`: of each statement, in a savepoint; facts whose statement takes
    longer are left out and named in the sentence and as `missing` in the evidence, and after the first the others have a
    tenth of the time each. Without it there is no limit. Expected times are estimates from the last minute. At most 20
    chains per job and 50 levels of blockers are followed. On a replica, the causes that follow from workers, sessions and
    locks of its primary are left out.
    Raises: NotFoundError.
    """
    reads = BoundedReads(session, timeout)
    with reads.limited():
        job: Any = None
        with reads.part(f"job {job_id}"):
            job = get_job(session, job_id, model=model)
        if job is None:
            sentence = f"Its row could not be read.{reads.reason(model)}"
            names: dict[str, Any] = {"type_name": "", "queue": "", "fairness_key": "", "status": None}
            names |= {"evidence": {"missing": reads.missing}}
            return Explanation(job_id=job_id, **names, cause=Cause.NOT_MEASURED, sentence=sentence)
        explanation = Explainer(session, model, heartbeat_timeout, reads).explain(job)
        if objects := objects_in(redacted(job.type_name, job.input)):
            explanation = replace(explanation, evidence={"objects": objects} | explanation.evidence)
        if reads.missing:
            evidence = explanation.evidence | {"missing": reads.missing}
            sentence = explanation.sentence + reads.reason(model)
            explanation = replace(explanation, sentence=sentence, evidence=evidence)
        return explanation


class Explainer:
    """Explains jobs and their blockers, by the workers and the database's clock of the moment when it was made."""

    def __init__(self, session: Session, model: JobClass, ttl: timedelta, reads: BoundedReads | None = None) -> None:
        self.session = session
        self.model = model
        self.reads = reads or BoundedReads(session, None)
        server = select(func.clock_timestamp(), func.pg_is_in_recovery(), func.pg_last_xact_replay_timestamp())
        self.now: datetime
        self.is_replica: bool
        self.now, self.is_replica, self.replayed_at = session.execute(server).one()
        self.has_workers = False
        """Whether the workers could be read."""
        workers: Sequence[WorkerStatus] = ()
        self.hidden: Sequence[HiddenRows] = ()
        with self.reads.part("workers"):
            workers = list_workers(session, model=model).items
            self.hidden = hidden_rows(session, commands=["SELECT"], model=model)
            self.has_workers = True
        self.workers = {worker.id: worker for worker in workers}
        self.ttl = ttl
        self.live = [worker for worker in workers if worker.silent_for <= ttl]

    @cached_property
    def silences(self) -> list[Silence]:
        """The workers without a heartbeat, and the visible state of their sessions."""
        return list_silent(self.session, list(self.workers.values()), self.ttl)

    @cached_property
    def lock_holders(self) -> list[LockHolder]:
        """Whose locks sessions wait for, asked once."""
        return list_lock_holders(self.session, self.model)

    def explain(self, job: Any, above: frozenset[Any] = frozenset()) -> Explanation:
        """Return the explanation of a job. `above`: the jobs that wait for it, up to the one that was asked for."""
        return _Case(self, job, above).explanation()


Verdict: TypeAlias = tuple[Cause, str]
"""A cause and its sentence; from the functions of `_reasons`, a clause."""


def _knows(worker: WorkerStatus, job: Any) -> bool:
    """Return whether a worker has reported no version of the job's type, or at least that of its payload."""
    return bool(job.input_version <= worker.type_versions.get(job.type_name, job.input_version))


class _Case:
    """One job, and the facts about it: the evidence, and the explanations of its blockers."""

    def __init__(self, explainer: Explainer, job: Any, above: frozenset[Any]) -> None:
        self.explainer, self.job, self.above = explainer, job, above
        self.session, self.model, self.now = explainer.session, explainer.model, explainer.now
        self.reads = explainer.reads
        self.serving = [worker for worker in explainer.live if job.queue in worker.queues]
        self.handling = [worker for worker in self.serving if job.type_name in worker.job_types]
        self.able = [worker for worker in self.handling if _knows(worker, job)]
        self.ready = [worker for worker in self.able if worker.state == WorkerState.RUNNING]
        self.slots = sum(worker.concurrency for worker in self.ready)
        self.used = sum(worker.used for worker in self.ready)
        self.is_late = self.now > job.scheduled_at + _CLAIMED_WITHIN
        self.evidence: dict[str, Any] = {}
        self.blockers: list[Explanation] = []
        self.reason = ""

    def explanation(self) -> Explanation:
        job = self.job
        cause, sentence = Cause.NOT_MEASURED, f"It is {job.status}."
        with self.reads.part(f"cause of {job.type_name} {job.id}"):
            cause, sentence = self._answer()
        if job.status in ENDED:
            with self.reads.part("quarantine"):
                sentence += self._undeletable()
        elif self.explainer.hidden and cause is not Cause.ROWS_HIDDEN:
            self.evidence |= {"hidden": [rows.table for rows in self.explainer.hidden]}
            sentence += f" {in_words(self.explainer.hidden)}: this is about the rows that it sees."
        with self.reads.part("schedule"):
            if (schedule_run := schedule_of(self.session, job, self.model)) is not None:
                self.evidence |= {"schedule": schedule_run[0], "fired_for": schedule_run[1]}
                sentence += f" It was created by the schedule {schedule_run[0]!r}."
        if job.deadline is not None and job.status not in ENDED:
            self._add_columns("deadline")
            sentence += f" Its deadline is in {span(job.deadline - self.now)}." if job.deadline > self.now else ""
        if self.explainer.is_replica and job.status not in ENDED and not self.above:
            sentence += self._on_replica()
        columns = {name: getattr(job, name) for name in ("type_name", "queue", "fairness_key", "status")}
        parts: dict[str, Any] = {"evidence": self.evidence, "blockers": tuple(self.blockers)}
        return Explanation(job_id=job.id, **columns, cause=cause, sentence=sentence, reason=self.reason, **parts)

    def _answer(self) -> Verdict:
        if self.job.status in ENDED:
            return self._ended()
        with self.reads.part("quarantine"):
            parameters = {"subjects": [str(self.job.id)], "limit": 1}
            if (refused := self.session.execute(quarantine.page(self.model), parameters).mappings().first()) is not None:
                return self._quarantined(refused)
        is_later = self.job.status is JobStatus.PENDING and self.job.scheduled_at > self.now
        if not is_later and any(rows.noun == "worker" for rows in self.explainer.hidden):
            return self._without_workers()
        if self.job.status is JobStatus.RUNNING:
            return self._running() if self.explainer.has_workers and not self.explainer.is_replica else self._started()
        if self.job.status is JobStatus.BLOCKED:
            return self._blocked()
        if self.job.status is not JobStatus.PENDING:
            sentence = f"Its status is {self.job.status!r}, which this release of sa-jobqueue does not know"
            return (
                Cause.STATUS_UNKNOWN,
                f"{sentence}: explain it with the release that the tables are of, or upgrade this one.",
            )
        return self._later() if self.job.scheduled_at > self.now else self._due()

    def _on_replica(self) -> str:
        """Return how old the rows are that a replica shows."""
        replayed_at = self.explainer.replayed_at
        self.evidence |= {"is_replica": True, "replayed_at": replayed_at}
        ago = f", which replayed its last transaction {self._ago(replayed_at)} ago" if replayed_at else ""
        return f" This is what a replica shows{ago}: explain it on the primary."

    def _started(self) -> Verdict:
        """Explain a running job whose worker is not known."""
        self._add_columns("started_at", "attempt", "max_attempts")
        self.evidence |= {"worker": self.job.leased_by}
        number = f"attempt {self.job.attempt} of {self.job.max_attempts}"
        return Cause.RUNNING, f"It has been running for {self._ago(self.job.started_at)} on {self.job.leased_by}, {number}."

    def _ended(self) -> Verdict:
        job = self.job
        self.evidence |= {"completed_at": job.completed_at, "attempts": job.attempt}
        ago = f"{self._ago(job.completed_at)} ago"
        if job.status is JobStatus.COMPLETED:
            by = f"by worker {job.completed_by}" if job.completed_by else "without a worker"
            return Cause.COMPLETED, f"It completed {ago}, {by}."
        error = f": {_error(job.type_name, job.last_error)}" if job.last_error else ""
        if job.status is JobStatus.CANCELLED:
            return Cause.CANCELLED, f"It was cancelled {ago} and will not run{error}."
        where = DeadLetterFilter(job_ids=[job.id], resolved=None)
        dead_letters = list_dead_letters(self.session, where=where, limit=1, model=self.model).items
        reason = dead_letters[0].reason if dead_letters else "no dead letter found"
        decided = dead_letters[0].resolution if dead_letters else None
        self.evidence |= {"reason": reason, "error": redacted_error(job.type_name, job.last_error), "resolution": decided}
        sentence = f"It died {ago} ({reason}) after {_times(job.attempt, 'attempt')}{error}"
        todo = "it was dismissed" if decided else f"redrive it: sa-jobqueue dead-letters redrive, or jobs retry {job.id}"
        return Cause.DEAD, f"{sentence}. It will not run again automatically; {todo}."

    def _undeletable(self) -> str:
        """Return the sentence of an ended job whose chain cannot be deleted; empty for any other."""
        parameters = {"subjects": [str(self.job.chain_id)], "limit": _NAMED}
        for refused in self.session.execute(quarantine.page(self.model), parameters).mappings():
            if refused["statement"] in _DELETIONS:
                self.evidence |= {name: refused[name] for name in ("statement", "sqlstate", "failures", "retry_at")}
                self.evidence |= {"deletion_error": refused["error"]}
                since = self._ago(refused["first_failed_at"])
                return f" Its chain is to be deleted, but the database has rejected that for {since}: {refused['error']}."
        return ""

    def _quarantined(self, refused: RowMapping) -> Verdict:
        names = ("statement", "error", "sqlstate", "failures", "first_failed_at", "retry_at")
        self.evidence |= {name: refused[name] for name in names} | {"worker": refused["worker_id"]}
        _noun, progress = refused_write(refused["statement"])
        since = self._ago(refused["first_failed_at"])
        sentence = (
            f"{progress}, but the database has rejected the write for {since} ({_times(refused['failures'], 'failure')}): "
            f"{refused['error']}. Correct the row, or the constraint or trigger that rejects it; the write is retried."
        )
        return Cause.QUARANTINED, sentence

    def _without_workers(self) -> Verdict:
        """Explain a job whose worker may be hidden: that none is seen proves nothing."""
        self._add_columns("scheduled_at", "attempt", "max_attempts")
        self.evidence |= {"hidden": [rows.table for rows in self.explainer.hidden]}
        role = self.explainer.hidden[0].role
        sentence = f"It is {self.job.status}. {in_words(self.explainer.hidden)}, so it is not known which workers serve it: "
        return Cause.ROWS_HIDDEN, f"{sentence}explain it as a role that sees all rows, such as {role!r} with BYPASSRLS."

    def _running(self) -> Verdict:
        job = self.job
        worker = self.explainer.workers.get(job.leased_by)
        self._add_columns("started_at", "attempt", "max_attempts")
        silent = worker.silent_for if worker else None
        self.evidence |= {"worker": job.leased_by, "times_out_at": job.leased_until, "silent": silent}
        number = f"attempt {job.attempt} of {job.max_attempts}"
        if worker is None or worker.silent_for > self.explainer.ttl:
            silence = f"has had no heartbeat for {span(worker.silent_for)}" if worker else "is no longer registered"
            who = "a worker that serves the queue will rescue it within seconds"
            if not self.explainer.live:
                who = "no worker with a recent heartbeat can rescue it: start one (sa-jobqueue worker)"
            return Cause.WORKER_SILENT, f"Its worker {job.leased_by} {silence} ({number}); {who}."
        with self.reads.part("steps"):
            for step in list_steps(self.session, job.id, limit=1, model=self.model):
                self.evidence |= {"last_step": step.name}
                number += f", last recorded step {step.name!r}"
        until = f"; it times out in {span(job.leased_until - self.now)}" if job.leased_until else ""
        if job.leased_until and job.leased_until < self.now:
            until = f"; its timeout passed {self._ago(job.leased_until)} ago, and its handler has not stopped"
        where = f"{job.leased_by} (process {worker.pid} on {worker.host})"
        return Cause.RUNNING, f"It has been running for {self._ago(job.started_at)} on {where}, {number}{until}."

    def _blocked(self) -> Verdict:
        job = self.job
        waits = self.session.execute(explaining.waited_for(self.model), {"job_id": job.id, "limit": _WIDE}).all()
        self.evidence |= {"open_blockers": job.open_blockers, "waits_for": [wait.chain_id for wait in waits]}
        if all(wait.outcome is JobStatus.COMPLETED for wait in waits):
            who = "; a worker is about to unblock it"
            if self.explainer.is_replica or not self.explainer.has_workers:
                who = ", and it is not unblocked yet"
            elif not self.explainer.live:
                who = f", and {self._no_worker()} to unblock it: start one (sa-jobqueue worker)"
            return Cause.UNBLOCKING, f"All its blockers have ended{who}."
        below = self.above | {job.id}
        for wait in waits if len(self.above) < _DEEP else ():
            if wait.outcome is not JobStatus.COMPLETED and wait.last_job_id not in below:
                with suppress(NotFoundError):  # row-level security may hide it
                    last = get_job(self.session, wait.last_job_id, model=self.model)
                    self.blockers.append(self.explainer.explain(last, below))
        self.blockers.sort(key=lambda blocker: _URGENCY.index(blocker.cause))
        sentence = f"It waits for {_times(job.open_blockers, 'chain')}"
        if not self.blockers:
            return Cause.BLOCKED, f"{sentence}."
        root = self.blockers[0].roots[0]
        if root.cause is not Cause.BLOCKED:
            return Cause.BLOCKED, f"{sentence}; the root cause is {root.type_name} {root.job_id}. {root.sentence}"
        # The end of the search, not of the chains.
        where = f"The search for the cause ended at {root.type_name} {root.job_id}, which waits as well"
        return Cause.BLOCKED, f"{sentence}. {where}: sa-jobqueue explain {root.job_id}."

    def _later(self) -> Verdict:
        """Explain a job that is not due yet."""
        job, due = self.job, f"in {span(self.job.scheduled_at - self.now)}"
        self._add_columns("scheduled_at", "attempt", "max_attempts")
        attempts = list_attempts(self.session, job.id, limit=1, newest_first=True, model=self.model).items
        if not attempts:
            return Cause.SCHEDULED, f"It is scheduled for later: due {due}."
        last = attempts[0]
        if last.outcome == AttemptOutcome.SNOOZED and (step := self._suspended(due)) is not None:
            return step
        self.evidence |= {"outcome": last.outcome, "error": redacted_error(job.type_name, last.error)}
        self.evidence |= {"worker": last.worker_id}
        error = f" with {_error(job.type_name, last.error)}" if last.error else ""
        sentence = f"Attempt {last.attempt} {last.outcome.replace('_', ' ')}{error}"
        return Cause.RETRYING, f"{sentence}; attempt {job.attempt + 1} of {job.max_attempts} is due {due}."

    def _suspended(self, due: str) -> Verdict | None:
        """Return the explanation of a job that sleeps or waits for an event, else None."""
        for step in list_steps(self.session, self.job.id, limit=1, model=self.model):
            if step.completed_at is None and step.kind == StepKind.RUN:
                return self._waiting_for_child(step)
            where = _in_step(step)
            if step.completed_at is None:
                event = step.event or ""
                similar = self._similar_event(event, step.started_at)
                self.evidence |= {"step": step.name, "event": step.event, "times_out_at": step.deadline}
                self.evidence |= {"similar_event": similar}
                todo = f"it times out {due}. To send it: sa-jobqueue events send {shlex.quote(event)}"
                sentence = f"It has waited for event {step.event!r} for {self._ago(step.started_at)} {where}; {todo}."
                if similar:
                    sentence += f" Meanwhile event {similar!r} was sent: compare the names."
                return Cause.WAITING_FOR_EVENT, sentence
            if step.completed_at > self.now and step.kind == StepKind.RETRY:
                self.evidence |= {"step": step.name}
                return Cause.RETRYING, f"It failed {where}, which is called again {due}."
            if step.completed_at > self.now and step.kind == StepKind.SLEEP:
                self.evidence |= {"step": step.name}
                return Cause.SLEEPING, f"It sleeps {where}; it is due {due}."
        return None

    def _waiting_for_child(self, last: Any) -> Verdict:
        """Explain a job that waits for others, by one that has not ended, else by its last step."""
        parameters = {"job_id": self.job.id, "ids": None}
        step = self.session.execute(steps.open_child(self.model), parameters).first() or last
        self.evidence |= {"step": step.name, "waits_for": step.child_chain_id}
        child = f"job {step.child_chain_id} for {self._ago(step.started_at)} {_in_step(step)}"
        todo = f"explain that one: sa-jobqueue explain {step.child_chain_id}"
        return Cause.WAITING_FOR_CHILD, f"It has waited for the result of {child}; {todo}."

    def _similar_event(self, event: str, since: datetime) -> str | None:
        """Return the name of an event that was sent since then, with the same numbers and a similar spelling."""
        digits = _NUMBER.findall(event)
        sent = self.session.scalars(steps.sent_lately(self.model), {"limit": _EVENTS, "since": since})
        names = [name for name in sent if name != event and _NUMBER.findall(name) == digits]
        return next(iter(get_close_matches(event, names, 1, 0.7)), None)

    def _due(self) -> Verdict:
        """Explain a job that is due, by the first reason that holds."""
        self._add_columns("scheduled_at", "attempt", "max_attempts")
        has_workers = self.explainer.has_workers and not self.explainer.is_replica
        if has_workers:
            counts = {"live_workers": self.explainer.live, "serving_queue": self.serving, "knowing_type": self.able}
            self.evidence |= {name: len(workers) for name, workers in counts.items()}
            self.evidence |= {"workers": sorted(worker.id for worker in self.ready)}
        cause, self.reason = Cause.NOT_MEASURED, "the cause was not found"
        if self.explainer.is_replica:
            self.reason = "a replica does not show the workers, sessions and locks of its primary"
        for name, reason, is_of_workers in self._reasons():
            if is_of_workers and not has_workers:
                continue
            with self.reads.part(name):
                if (verdict := reason()) is not None:
                    cause, self.reason = verdict
                    break
        return cause, f"It has been due for {self._ago(self.job.scheduled_at)}; {self.reason}."

    def _reasons(self) -> Sequence[tuple[str, Callable[[], Verdict | None], bool]]:
        """Return the possible causes of a wait, in order: its name, its function, and whether workers are needed."""
        return (
            ("pauses", self._paused, False),
            ("earlier workers", self._without_worker, True),
            ("expiry", self._expired, False),
            ("jobs of its ordering key", self._behind_in_order, False),
            ("limits", self._limited, False),
            ("rate limits", self._limited_by_rate, False),
            ("lock of its row", self._locked, True),
            ("failures of workers", self._failing, True),
            ("slots of its type", self._type_slots_in_use, True),
            ("jobs before it", self._not_selected, True),
            ("slots", self._busy, True),
            ("rate of its queue", self._queued, True),
        )

    def _add_columns(self, *names: str) -> None:
        self.evidence |= {name: getattr(self.job, name) for name in names}

    @cached_property
    def _settings(self) -> list[tuple[str, QueueKey, QueueStatus | TypeStatus | None]]:
        """Its queue, its fairness key if it has one, and its type, each with its kind, and its settings if it has any."""
        job = self.job
        settings: list[tuple[str, QueueKey, QueueStatus | TypeStatus | None]] = []
        for key in dict.fromkeys(("", job.fairness_key)):
            queues = list_queues(self.session, names=[job.queue], fairness_key=key, model=self.model).items
            settings.append(("queue", QueueKey(job.queue, key), next(iter(queues), None)))
        types = list_job_types(self.session, names=[job.type_name], model=self.model).items
        return [*settings, ("type", QueueKey(job.type_name), next(iter(types), None))]

    def _paused(self) -> Verdict | None:
        for kind, key, settings in self._settings:
            if settings is not None and settings.paused_at is not None:
                self.evidence |= {"paused_at": settings.paused_at, "paused_by": settings.paused_by}
                cause = Cause.TYPE_PAUSED if kind == "type" else Cause.QUEUE_PAUSED
                ago = f"{self._ago(settings.paused_at)} ago" + (f" by {settings.paused_by}" if settings.paused_by else "")
                return cause, f"{_named(kind, key)} was paused {ago}: sa-jobqueue {kind}s resume {key.arguments}"
        return None

    def _without_worker(self) -> Verdict | None:
        live, serving, queue = self.explainer.live, self.serving, self.job.queue
        if not live:
            start = "start one (sa-jobqueue worker)"
            if self.session.execute(storage.server()).one().read_only_by is not None:
                start = "the database is read-only, so that none can work: default_transaction_read_only"
            elif failing := [silence for silence in self.explainer.silences if silence.is_failing]:
                worker = failing[0].worker
                self.evidence |= {"worker": worker.id, "silent": worker.silent_for}
                words = f"no worker has a recent heartbeat: {worker.id} is {failing[0].description}"
                return Cause.NO_WORKER, f"{words}; see the error in its log, or at its /readyz"
            return Cause.NO_WORKER, f"{self._no_worker()}: {start}"
        if not serving:
            serves = (
                "the only live worker does not serve" if len(live) == 1 else f"none of {len(live):,} live workers serves"
            )
            return Cause.QUEUE_UNSERVED, f"{serves} queue {queue!r}{self._served_before() or self._elsewhere()}"
        if self.handling and not self.able:
            latest = max(worker.type_versions[self.job.type_name] for worker in self.handling)
            version = self.job.input_version
            self.evidence |= {"input_version": version, "known_version": latest}
            todo = f"it waits for a deployment with version {version} (sa-jobqueue worker)"
            return Cause.VERSION_UNKNOWN, (
                f"its payload has version {version} of {self.job.type_name!r}, while {len(self.handling):,} "
                f"{'worker knows' if len(self.handling) == 1 else 'workers know'} up to version {latest}: {todo}"
            )
        if not self.able:
            has = f"none of {len(serving):,} workers of {queue!r} has a handler"
            if len(serving) == 1:
                has = f"the only worker of {queue!r} has no handler"
            name = self.job.type_name
            handled = {type_name for worker in serving for type_name in worker.job_types}
            similar = get_close_matches(name, sorted(handled - {name}), 1, 0.7)
            hint = f"; a similar name that they have one for is {similar[0]!r}" if similar else ""
            self.evidence |= {"similar_type": next(iter(similar), None)}
            return Cause.TYPE_UNKNOWN, f"{has} for {name!r}{self._served_before(name) or self._elsewhere()}{hint}"
        if not self.ready:
            who = ", ".join(worker.id for worker in self.able[:_NAMED]) + (" and others" if len(self.able) > _NAMED else "")
            todo = "they start no more jobs; start another (sa-jobqueue worker)"
            return Cause.DRAINING, f"every worker that could run it is draining ({who}): {todo}"
        return None

    def _no_worker(self) -> str:
        """Return that no worker is there, as far as it is visible."""
        if not (silences := self.explainer.silences):
            return "no worker is registered"
        last = min(silences, key=lambda silence: silence.worker.silent_for)
        self.evidence |= {"worker": last.worker.id, "silent": last.worker.silent_for}
        since = f"{last.worker.id}, {span(last.worker.silent_for)} ago; {last.description}"
        return f"no worker has a recent heartbeat (the last was of {since})"

    def _served_before(self, type_name: str | None = None) -> str:
        """Return who served its queue, or its type there, and until when; empty if neither is recorded."""
        queue, types = self.job.queue, {type_name} - {None}
        served = [
            worker for worker in self.explainer.workers.values() if queue in worker.queues and types <= {*worker.job_types}
        ]
        if silent := [worker for worker in served if worker.silent_for > self.explainer.ttl]:
            last = min(silent, key=lambda worker: worker.silent_for)
            self.evidence |= {"served_by": last.id, "silent": last.silent_for}
            return f"; worker {last.id} did until its last heartbeat {span(last.silent_for)} ago"
        parameters = {"queue": queue, "type_name": type_name, "within": _SERVED_WITHIN}
        last_minute = self.session.scalar(explaining.last_served(self.model), parameters)
        if last_minute is None:
            return ""
        self.evidence |= {"served_until": last_minute}
        return f"; some worker did until {self._ago(last_minute)} ago"

    def _elsewhere(self) -> str:
        """Return the choice to move its waiting jobs to the queue where workers handle their type, if there is one."""
        job, kind = self.job, self._settings[-1][2]
        recorded = kind.queue if isinstance(kind, TypeStatus) else None
        served = sorted(
            {queue for worker in self.explainer.live if job.type_name in worker.job_types for queue in worker.queues}
        )
        # Where several queues serve it, none is the one that was meant.
        queue = recorded if recorded in served else served[0] if len(served) == 1 else None
        if queue is None or job.queue in (queue, recorded):
            return ""
        names = {"queue": job.queue, "type_name": job.type_name}
        count: int = self.session.execute(explaining.pending_of(self.model), names | {"limit": COUNTED}).scalar_one()
        target_literal, queue_literal, type_literal = (
            "'{}'".format(value.replace("'", "''")) for value in (queue, job.queue, job.type_name)
        )
        table = self.model.__jobqueue__.qualified("job")
        waiting = f"status = 'pending' AND queue = {queue_literal} AND type_name = {type_literal}"
        move = f"UPDATE {table} SET queue = {target_literal} WHERE {waiting}"
        self.evidence |= {"served_in": queue, "waiting": count, "move": move}
        jobs = f"{_times(count, 'waiting job')}{' or more' if count >= COUNTED else ''}"
        choice = f"Only if its {jobs} should run in queue {queue!r}, whose workers handle the type"
        return f"; start a worker that serves it (sa-jobqueue worker --queues {shlex.quote(job.queue)}). {choice}: {move}"

    def _expired(self) -> Verdict | None:
        expires_at = self.job.expires_at
        if expires_at is None or expires_at > self.now:
            return None
        self.evidence |= {"expires_at": expires_at}
        ago = self._ago(expires_at)
        if self.job.deadline == expires_at:
            return Cause.EXPIRED, f"its deadline passed {ago} ago, and workers cancel it"
        return Cause.EXPIRED, f"it did not start in time: it expired {ago} ago, and workers cancel it"

    def _behind_in_order(self) -> Verdict | None:
        if self.job.ordering_key is None:
            return None
        key = {"ordering_key": self.job.ordering_key}
        first = self.session.execute(explaining.before_in_order(self.model), key).first()
        if first is None or first.id == self.job.id:
            return None
        self.evidence |= key | {"waits_for": first.id}
        words = f"it waits for job {first.id} of its ordering key {self.job.ordering_key!r}, which is {first.status}"
        with suppress(NotFoundError):
            explanation = self.explainer.explain(get_job(self.session, first.id, model=self.model))
            if explanation.cause is not Cause.WAITING_FOR_ORDERING_KEY:
                words += f". Of that job: {explanation.sentence.removesuffix('.')}"
        return Cause.WAITING_FOR_ORDERING_KEY, words

    def _limited(self) -> Verdict | None:
        """Return the explanation if a limit of running jobs across all workers is reached."""
        limits_of = [settings.global_concurrency if settings else None for _, _, settings in self._settings]
        queue = self._settings[0][2]
        of_key = len(limits_of) > 2
        if of_key and limits_of[1] is None and isinstance(queue, QueueStatus):
            limits_of[1] = queue.concurrency_per_key
        if not any(limits_of):
            return None
        names = {"queue": self.job.queue, "type_name": self.job.type_name}
        counts = list(self.session.execute(limits.running(self.model), names).one()[:2])
        if of_key:
            rows = self.session.execute(limits.running_by_fairness_key(self.model), names)
            counts[1:1] = [sum(row.n for row in rows if row.fairness_key == self.job.fairness_key)]
        for (kind_name, queue_key, _), limit, count in zip(self._settings, limits_of, counts, strict=True):
            if limit is not None and count >= limit:
                self.evidence |= {"global_concurrency": limit, "running": count, "limit_of": (kind_name, *queue_key)}
                # For a queue: the jobs of all of its keys.
                is_queue = kind_name == "queue"
                kind = (
                    {"queue": queue_key.queue, "fairness_key": queue_key.fairness_key or None}
                    if is_queue
                    else {"type_name": queue_key.queue}
                )
                runs = f"runs {_times(count, 'job')}, its limit is {limit}{self._longest(self._holders(**kind))}"
                todo = f"sa-jobqueue {kind_name}s set {queue_key.arguments} --global-concurrency"
                return Cause.LIMITED, f"{_named(kind_name, queue_key)} {runs}: {todo}"
        return None

    def _limited_by_rate(self) -> Verdict | None:
        job, weight = self.job, max(self.job.rate_cost or 1, 1)
        parameters = {"queue": job.queue, "fairness_keys": ["", job.fairness_key], "type_name": job.type_name}
        for row in self.session.execute(explaining.rates(self.model), parameters):
            rate = Rate.of(row)
            if rate is None or rate.fitting([weight]):
                continue
            wait, queue_key, behind = rate.wait(weight), QueueKey(row.name, row.fairness_key), ""
            self.evidence |= {"per_second": rate.per_second, "next_start": wait}
            self.evidence |= {"weight": weight, "limit_of": (row.what, *queue_key)}
            started_jobs = (
                "no more jobs by its rate limit" if weight == 1 else f"no jobs of rate_cost {weight:,} by its rate limit"
            )
            if self._ahead:
                turn = self._expected(wait + timedelta(seconds=self._ahead * weight / rate.per_second))
                behind = f"; {_many(self._ahead)} are before it, and its turn comes in {turn}"
            todo = f"sa-jobqueue {row.what}s set {queue_key.arguments} --rate-limit"
            starts = f"{_named(row.what, queue_key)} starts {started_jobs}"
            return Cause.RATE_LIMITED, f"{starts}; the next in {span(wait)}: {todo}{behind}"
        return None

    def _locked(self) -> Verdict | None:
        """Return the explanation if a session has locked the job's row, or holds a lock that the workers wait for."""
        if not self.is_late:
            return None
        row = self.session.execute(explaining.locked_by(self.model), {"job_id": self.job.id}).mappings().first()
        holder, verb = None if row is None else LockHolder.of_row(row), "has locked its row"
        if holder is None or not holder.is_old:
            # A lock that handlers of other jobs wait for does not keep workers from claiming this one.
            names = {application_name(worker.name) for worker in self.ready}
            waited_for = (
                holder
                for holder in self.explainer.lock_holders
                if holder.is_old and holder.waited_for > _CLAIMED_WITHIN and not names.isdisjoint(holder.waiter_names)
            )
            holder, verb = next(waited_for, None), "holds a lock that workers wait for"
        if holder is None:
            return None
        self.evidence |= {"locked_by": holder.pid, "locked_for": holder.locked_for, "query": holder.query}
        through = f", {holder.through} first" if holder.is_queue else ""
        return Cause.LOCKED, f"{holder.description} {verb}{through}; {holder.remedy()}"

    def _failing(self) -> Verdict | None:
        if not self.is_late or any(worker.is_claiming for worker in self.ready):
            return None
        first_worker = self.ready[0]
        self.evidence |= {"worker": first_worker.id, "failure": first_worker.failure}
        todo = "Correct the cause; they try again every few seconds"
        return (
            Cause.WORKER_FAILING,
            f"every worker that could run it keeps failing ({first_worker.id}: {first_worker.failure}). {todo}",
        )

    def _type_slots_in_use(self) -> Verdict | None:
        """Return the explanation if all slots of its type are in use in the workers that could run it."""
        name = self.job.type_name
        slots = {worker.id: worker.type_slots[name] for worker in self.ready if name in worker.type_slots}
        if len(slots) < len(self.ready):
            return None
        rows = self._holders(type_name=name)
        running = {row.worker_id: row.n for row in rows}
        if any(running.get(worker_id, 0) < most for worker_id, most in slots.items()):
            return None
        total = sum(slots.values())
        self.evidence |= {"slots_of_type": total, "running_of_type": sum(running.values())}
        where = _times(len(self.ready), "worker") if len(self.ready) > 1 else self.ready[0].id
        total_text = f"all {total:,} slots of type {name!r} in {where} are"
        if total == 1:
            total_text = f"the only slot of type {name!r} in {where} is"
        return Cause.BUSY, f"{total_text} in use{self._longest(rows)}"

    def _not_selected(self) -> Verdict | None:
        """Return the explanation if a selector did not select a due job, or has yet to decide.

        None if a worker that could run it uses the default order, or the job is not within a window of candidates.
        """
        self.evidence |= {"ahead": self._ahead, "slots": self.slots, "running": self.used}
        is_full, queue = self.used >= self.slots, self.job.queue
        selectors = {worker.id: worker.selectors[queue] for worker in self.ready if queue in worker.selectors}
        if not is_full and self.now <= self.job.scheduled_at + _SOON:
            return None
        if len(selectors) < len(self.ready) or all(self._ahead >= selector["window"] for selector in selectors.values()):
            return None
        worker_id, selector_options = max(selectors.items(), key=lambda item: int(item[1]["window"]))
        selector_text = f"the selector {selector_options['function']} of queue {queue!r} (worker {worker_id})"
        longest = None if selector_options["max_wait"] is None else timedelta(seconds=selector_options["max_wait"])
        self.evidence |= {
            "selector": selector_options["function"],
            "chosen_by": sorted(selectors),
            "window": selector_options["window"],
        }
        self.evidence |= {"max_wait": longest}
        if is_full:
            return Cause.BUSY, f"all slots are in use, and {selector_text} decides which job is next"
        bound = "it has no max_wait, so a job that it never selects never starts"
        if longest is not None:
            bound = f"the job starts without it once it has been a candidate for the max_wait of {span(longest)}"
        return Cause.NOT_SELECTED, f"workers have free slots, but {selector_text} did not select it; {bound}"

    def _busy(self) -> Verdict | None:
        """Return the explanation of the next job of its queue: a slot is free, or it waits for one."""
        if self._ahead:
            return None
        if self.used < self.slots:
            then = "it starts within 5 s"
            if self.is_late:
                lately = {"queue": self.job.queue, "within": _CLAIMED_WITHIN}
                if self.session.execute(explaining.started_lately(self.model), lately).scalar_one():
                    then = f"jobs of its queue started within the last {span(_CLAIMED_WITHIN)}, and its turn is next"
                else:
                    then = (
                        f"no job of its queue started within the last {span(_CLAIMED_WITHIN)}, and the cause was not "
                        f"found: see the log and /readyz of {self.ready[0].id}, and its poll interval"
                    )
            return Cause.READY, f"a worker has a free slot, and it is next: {then}"
        stuck = sum(worker.stuck_threads for worker in self.ready)
        self.evidence |= {"stuck_threads": stuck}
        threads = f", {stuck} of them by threads of ended attempts that have not returned" if stuck else ""
        if len(self.ready) == 1:
            only = self.ready[0].id
            slots = f"all {self.slots:,} slots of {only} are" if self.slots > 1 else f"the only slot of {only} is"
        else:
            slots = f"all {self.slots:,} slots of {len(self.ready):,} workers are"
        return Cause.BUSY, f"{slots} in use{threads}{self._used_by()}"

    def _used_by(self) -> str:
        """Return the job type that has most of the slots of workers, and its longest running job."""
        ids = {worker.id for worker in self.ready}
        rows = [row for row in self._holders() if row.worker_id in ids]
        running = Counter[str]()
        for row in rows:
            running[row.type_name] += row.n
        for type_name, n in running.most_common(1):
            first = next(row for row in rows if row.type_name == type_name)
            self.evidence |= {"held_by": [first.job_id], "mostly": type_name}
            who = f"{n:,} of them by {type_name}" if self.slots > 1 else f"it is used by {type_name}"
            return f"; {who}, the longest for {self._ago(first.started_at)} (job {first.job_id})"
        return ""

    def _queued(self) -> Verdict:
        """Estimate when it starts, by the jobs ahead and the rate of the last minute."""
        job = self.job
        are = "is" if self._ahead == 1 else "are"
        behind = f"{_many(self._ahead)} of {QueueKey(job.queue, job.fairness_key).named} {are} before it"
        window = {"window": _WINDOW, "transactions": _TRANSACTIONS, "limit": COUNTED}
        window |= {"queue": job.queue, "fairness_key": job.fairness_key}
        completed_count, seconds = self.session.execute(explaining.recently_ended(self.model), window).one()
        rate = completed_count / max(float(seconds), 1.0) if completed_count else 0.0
        self.evidence |= {"per_second": rate}
        if not completed_count:
            return Cause.QUEUED, f"{behind}; no job of the queue completed in the last minute"
        starts = self._expected(timedelta(seconds=self._ahead / rate))
        return Cause.QUEUED, f"{behind}; at {rate:,.1f} jobs per second it starts in {starts}"

    def _expected(self, wait: timedelta) -> str:
        self.evidence |= {"ahead": self._ahead, "expected_wait": wait}
        return f"at least {span(wait)}" if self._ahead >= COUNTED else span(wait)

    @cached_property
    def _ahead(self) -> int:
        """The number of due jobs of its fairness key that are before it."""
        place = {name: getattr(self.job, name) for name in ("queue", "fairness_key", "priority", "scheduled_at", "id")}
        count: int = self.session.execute(explaining.ahead(self.model), place | {"limit": COUNTED}).scalar_one()
        return count

    def _holders(self, **names: str | None) -> Sequence[Any]:
        """Return which workers run jobs of a `queue`, of its `fairness_key` or of a `type_name`, the longest first."""
        parameters = {"queue": None, "fairness_key": None, "type_name": None} | names
        return self.session.execute(explaining.holders(self.model), parameters).all()

    def _longest(self, rows: Sequence[Any]) -> str:
        """Describe the longest running job; the evidence has one job per worker. Empty if none is running."""
        self.evidence["held_by"] = [row.job_id for row in rows]
        if not rows:
            return ""
        first = rows[0]
        self.evidence["longest_on"] = first.worker_id
        words = f"; the longest running is job {first.job_id}, for {self._ago(first.started_at)}, on {first.worker_id}"
        worker = self.explainer.workers.get(first.worker_id)
        if worker is not None and worker.silent_for > self.explainer.ttl and not self.explainer.is_replica:
            words += f", which has had no heartbeat for {span(worker.silent_for)}"
        return words

    def _ago(self, instant: datetime) -> str:
        return span(self.now - instant)


def refused_write(statement: str) -> tuple[str, str]:
    """Return the kind of row that a `RefusedWrite` concerns, and how far that row has come."""
    return _REFUSED.get(statement, ("row", f"A write ({statement}) of a later release is to be made for it"))


_REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    RefusedWrite.COMPLETE: ("job", "Its handler has returned and its completion is to be written"),
    RefusedWrite.FINISH: ("job", "Its attempt has ended and that is to be written"),
    RefusedWrite.RESCUE: ("job", "Its worker is dead and it is to be rescued"),
    RefusedWrite.UNBLOCK: ("job or chain", "Its blockers have ended and it is to be unblocked"),
    RefusedWrite.EXPIRE: ("job", "It was not started in time and is to be cancelled"),
    RefusedWrite.FIRE: ("schedule", "Its schedule is to be fired"),
    RefusedWrite.DECLARE: ("schedule", "Its schedule is to be written"),
    RefusedWrite.DECLARE_QUEUE: ("queue", "The settings of its queue are to be written"),
    RefusedWrite.RECORD_TYPE: ("job type", "What its handler declares is to be recorded"),
    RefusedWrite.START: ("job", "It is due and an attempt is to be started"),
    RefusedWrite.CLAIM: ("limit", "It is to be claimed"),
    RefusedWrite.PRUNE: ("chain, dead letter, audit record or event", "It is to be deleted"),
    RefusedWrite.ARCHIVE: ("chain", "It is to be deleted from the tables"),
}

_DELETIONS: Final = frozenset({RefusedWrite.PRUNE.value, RefusedWrite.ARCHIVE.value})


def _named(kind: str, queue_key: QueueKey) -> str:
    return queue_key.named if kind == "queue" else f"{kind} {queue_key.queue!r}"


def _times(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _many(count: int) -> str:
    return f"{COUNTED:,} others or more" if count >= COUNTED else _times(count, "other")


def _in_step(step: Any) -> str:
    return f"in step {step.name!r}" + (f" with key {step.key!r}" if step.key else "")


def _error(type_name: str, error: Any) -> str:
    error = redacted_error(type_name, error)
    message = next(iter(str(error.get("message") or "").strip().splitlines()), "") if isinstance(error, dict) else ""
    kind = error.get("type", "an error") if isinstance(error, dict) else "an error"
    return f"{kind}: {message}"[:200] if message else str(kind)
