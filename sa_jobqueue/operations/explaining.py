"""Explain why a job is not running, or its state: a cause, a sentence, and evidence; for blocked jobs down to the root."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final, cast

from sqlalchemy import RowMapping, func, select
from sqlalchemy.orm import Session

from sa_jobqueue.display.printable import shortened, span
from sa_jobqueue.display.redaction import redacted_error
from sa_jobqueue.errors import NotFoundError
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.operations.dead_letters import DeadLetterFilter, list_dead_letters
from sa_jobqueue.operations.jobs import get_job, list_attempts
from sa_jobqueue.operations.queues import QueueStatus, TypeStatus, list_job_types, list_queues
from sa_jobqueue.operations.schedules import schedule_of
from sa_jobqueue.operations.steps import list_steps
from sa_jobqueue.operations.workers import WorkerStatus, list_workers
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.policies.rates import Rate, RateAlgorithm
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
    DRAINING = "draining"
    """Every worker that could run it is draining."""
    EXPIRED = "expired"
    """It did not start by `expires_at`, and is about to be cancelled."""
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
    READY = "ready"
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
    status: JobStatus
    """Its status."""
    cause: Cause
    """Why it has this status, or why a pending job does not run."""
    sentence: str
    """The explanation as text, with what to do, if anything."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """Facts by name: counts, instants, durations, ids, errors."""
    blockers: tuple[Explanation, ...] = ()
    """For a blocked job: explanations of the last jobs of the chains it waits for; those that need action first."""

    @property
    def roots(self) -> tuple[Explanation, ...]:
        """The explanations without blockers: the root causes. For a job that is not blocked, the explanation itself."""
        if not self.blockers:
            return (self,)
        found = {root.job_id: root for blocker in self.blockers for root in blocker.roots}
        return tuple(sorted(found.values(), key=lambda one: _URGENCY.index(one.cause)))


def explain_job(
    session: Session, job_id: JobId, *, heartbeat_timeout: timedelta = timedelta(seconds=15), model: JobClass = Job
) -> Explanation:
    """Return why a job is not running, or its state: a cause, a sentence, and evidence; for blocked jobs down to the root.

    `heartbeat_timeout`: the workers' setting. Expected times are estimates from the last minute. At most 20 chains per
    job and 50 levels of blockers are followed.
    Raises: NotFoundError.
    """
    job = get_job(session, job_id, model=model)
    return Explainer(session, model, heartbeat_timeout).explain(job)


def holder_of(row: Mapping[Any, Any]) -> str:
    """Describe the session or prepared transaction of a row that names who holds a lock."""
    called = f" {row['name']!r}" if row["name"] else ""
    user = f" of {row['user']}" if row["user"] else ""
    if not row["pid"]:
        return f"the prepared transaction{called}{user}" if called else "a prepared transaction"
    doing = f", {row['state']}, in a transaction for {span(row['locked_for'])}" if row["locked_for"] is not None else ""
    query = shortened(row["query"])
    return f"session {row['pid']}{called}{user}{doing}" + (f" (its last statement: {query})" if query else "")


def end_of(row: Mapping[Any, Any]) -> str:
    """Return the SQL that ends it."""
    if row["pid"]:
        return f"SELECT pg_terminate_backend({row['pid']})"
    if row["name"]:
        return "ROLLBACK PREPARED '{}', or COMMIT PREPARED".format(row["name"].replace("'", "''"))
    return "COMMIT PREPARED or ROLLBACK PREPARED one of pg_prepared_xacts"


class Explainer:
    """Explains jobs and their blockers, by the workers and the database's clock of the moment when it was made."""

    def __init__(self, session: Session, model: JobClass, ttl: timedelta) -> None:
        workers = list_workers(session, model=model).items
        self.session = session
        self.model = model
        self.now: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
        self.workers = {worker.id: worker for worker in workers}
        self.ttl = ttl
        self.live = [worker for worker in workers if worker.silent_for <= ttl]

    def explain(self, job: Any, above: frozenset[Any] = frozenset()) -> Explanation:
        """Return the explanation of a job. `above`: the jobs that wait for it, up to the one that was asked for."""
        evidence: dict[str, Any] = {}
        blockers: list[Explanation] = []
        cause, sentence = self._answer(job, evidence, blockers, above)
        if (made := schedule_of(self.session, job, self.model)) is not None:
            evidence |= {"schedule": made[0], "fired_for": made[1]}
            sentence += f" It was created by the schedule {made[0]!r}."
        return Explanation(
            job_id=job.id,
            type_name=job.type_name,
            queue=job.queue,
            fairness_key=job.fairness_key,
            status=job.status,
            cause=cause,
            sentence=sentence,
            evidence=evidence,
            blockers=tuple(blockers),
        )

    def _answer(
        self, job: Any, evidence: dict[str, Any], blockers: list[Explanation], above: frozenset[Any]
    ) -> tuple[Cause, str]:
        """Return the cause and the sentence; fill in the evidence, and the explanations of a job's blockers."""
        if job.status in ENDED:
            return self._ended(job, evidence)
        given = {"subjects": [str(job.id)], "limit": 1}
        if (refused := self.session.execute(quarantine.page(self.model), given).mappings().first()) is not None:
            return self._quarantined(refused, evidence)
        if job.status is JobStatus.RUNNING:
            return self._running(job, evidence)
        if job.status is JobStatus.BLOCKED:
            return self._blocked(job, evidence, blockers, above)
        return self._pending(job, evidence)

    def _ended(self, job: Any, evidence: dict[str, Any]) -> tuple[Cause, str]:
        evidence |= {"completed_at": job.completed_at, "attempts": job.attempt}
        if job.status is JobStatus.COMPLETED:
            by = f"by worker {job.completed_by}" if job.completed_by else "without a worker"
            return Cause.COMPLETED, f"It completed {self._ago(job.completed_at)} ago, {by}."
        if job.status is JobStatus.CANCELLED:
            why = f": {_error(job.type_name, job.last_error)}" if job.last_error else ""
            sentence = f"It was cancelled {self._ago(job.completed_at)} ago and will not run{why}."
            return Cause.CANCELLED, sentence
        where = DeadLetterFilter(job_ids=[job.id], resolved=None)
        dead_letters = list_dead_letters(self.session, where=where, limit=1, model=self.model).items
        reason = dead_letters[0].reason if dead_letters else "no dead letter found"
        decided = dead_letters[0].resolution if dead_letters else None
        evidence |= {"reason": reason, "error": redacted_error(job.type_name, job.last_error), "resolution": decided}
        what = f"It died {self._ago(job.completed_at)} ago ({reason}) after {_times(job.attempt, 'attempt')}"
        error = f": {_error(job.type_name, job.last_error)}" if job.last_error else ""
        todo = "it was dismissed" if decided else f"redrive it: sa-jobqueue dead-letters redrive, or jobs retry {job.id}"
        return Cause.DEAD, f"{what}{error}. It will not run again automatically; {todo}."

    def _quarantined(self, refused: RowMapping, evidence: dict[str, Any]) -> tuple[Cause, str]:
        names = ("statement", "error", "sqlstate", "failures", "first_failed_at", "retry_at")
        evidence |= {name: refused[name] for name in names} | {"worker": refused["worker_id"]}
        _noun, what = REFUSED[RefusedWrite(refused["statement"])]
        since = self._ago(refused["first_failed_at"])
        sentence = (
            f"{what}, but the database has rejected the write for {since} ({_times(refused['failures'], 'failure')}): "
            f"{refused['error']}. Correct the row, or the constraint or trigger that rejects it; the write is retried."
        )
        return Cause.QUARANTINED, sentence

    def _running(self, job: Any, evidence: dict[str, Any]) -> tuple[Cause, str]:
        worker = self.workers.get(job.leased_by)
        evidence |= {
            "worker": job.leased_by,
            "started_at": job.started_at,
            "attempt": job.attempt,
            "max_attempts": job.max_attempts,
            "times_out_at": job.leased_until,
            "silent": worker.silent_for if worker else None,
        }
        number = f"attempt {job.attempt} of {job.max_attempts}"
        if worker is None or worker.silent_for > self.ttl:
            silence = f"has had no heartbeat for {span(worker.silent_for)}" if worker else "is no longer registered"
            who = "a worker that serves the queue will rescue it within seconds"
            if not self.live:
                who = "no worker is alive to rescue it: start one (sa-jobqueue worker)"
            return Cause.WORKER_SILENT, f"Its worker {job.leased_by} {silence} ({number}); {who}."
        for step in list_steps(self.session, job.id, limit=1, model=self.model):
            evidence |= {"last_step": step.name}
            number += f", last recorded step {step.name!r}"
        until = f"; it times out in {span(job.leased_until - self.now)}" if job.leased_until else ""
        if job.leased_until and job.leased_until < self.now:
            until = f"; its timeout passed {self._ago(job.leased_until)} ago, and its handler has not stopped"
        where = f"{job.leased_by} (process {worker.pid} on {worker.host})"
        return Cause.RUNNING, f"It has been running for {self._ago(job.started_at)} on {where}, {number}{until}."

    def _blocked(
        self, job: Any, evidence: dict[str, Any], blockers: list[Explanation], above: frozenset[Any]
    ) -> tuple[Cause, str]:
        waits = self.session.execute(explaining.waited_for(self.model), {"job_id": job.id, "limit": _WIDE}).all()
        evidence |= {"open_blockers": job.open_blockers, "waits_for": [wait.chain_id for wait in waits]}
        if all(wait.outcome is JobStatus.COMPLETED for wait in waits):
            sentence = "All its blockers have ended; a worker is about to unblock it."
            if not self.live:
                sentence = (
                    "All its blockers have ended, and no worker is alive to unblock it: start one (sa-jobqueue worker)."
                )
            return Cause.UNBLOCKING, sentence
        below = above | {job.id}
        if len(above) < _DEEP:
            for wait in waits:
                if wait.outcome is not JobStatus.COMPLETED and wait.last_job_id not in below:
                    last = get_job(self.session, wait.last_job_id, model=self.model)
                    blockers.append(self.explain(last, below))
        blockers.sort(key=lambda one: _URGENCY.index(one.cause))
        sentence = f"It waits for {_times(job.open_blockers, 'chain')}"
        root = blockers[0].roots[0] if blockers else None
        if root is not None and root.cause is Cause.BLOCKED:
            # The end of the search, not of the chains.
            sentence += (
                f". The search for the cause ended at {root.type_name} {root.job_id}, which waits as well: "
                f"sa-jobqueue explain {root.job_id}."
            )
        elif root is not None:
            sentence += f"; the root cause is {root.type_name} {root.job_id}. {root.sentence}"
        else:
            sentence += "."
        return Cause.BLOCKED, sentence

    def _pending(self, job: Any, evidence: dict[str, Any]) -> tuple[Cause, str]:
        evidence |= {name: getattr(job, name) for name in ("scheduled_at", "attempt", "max_attempts")}
        if job.scheduled_at > self.now:
            due = f"in {span(job.scheduled_at - self.now)}"
            attempts = list_attempts(self.session, job.id, limit=1, newest_first=True, model=self.model).items
            if not attempts:
                return Cause.SCHEDULED, f"It is scheduled for later: due {due}."
            last = attempts[0]
            if last.outcome == AttemptOutcome.SNOOZED and (step := self._suspended(job, evidence)) is not None:
                return step
            error = redacted_error(job.type_name, last.error)
            evidence |= {"outcome": last.outcome, "error": error, "worker": last.worker_id}
            error_text = f" with {_error(job.type_name, last.error)}" if last.error else ""
            what = f"Attempt {last.attempt} {last.outcome.replace('_', ' ')}{error_text}"
            return Cause.RETRYING, f"{what}; attempt {job.attempt + 1} of {job.max_attempts} is due {due}."
        return self._due(job, evidence)

    def _suspended(self, job: Any, evidence: dict[str, Any]) -> tuple[Cause, str] | None:
        """Return the explanation of a job that sleeps or waits for an event, else None."""
        for step in list_steps(self.session, job.id, limit=1, model=self.model):
            where = f"in step {step.name!r}" + (f" with key {step.key!r}" if step.key else "")
            due = f"in {span(job.scheduled_at - self.now)}"
            if step.completed_at is None:
                evidence |= {"step": step.name, "event": step.event, "times_out_at": step.deadline}
                evidence |= {"similar_event": self._similar_event(step.event or "", step.started_at)}
                todo = f"it times out {due}. To send it: sa-jobqueue events send {shlex.quote(step.event or '')}"
                sentence = f"It has waited for event {step.event!r} for {self._ago(step.started_at)} {where}; {todo}."
                if evidence["similar_event"]:
                    sentence += f" Meanwhile event {evidence['similar_event']!r} was sent: compare the names."
                return Cause.WAITING_FOR_EVENT, sentence
            if step.completed_at > self.now and step.kind == StepKind.SLEEP:
                evidence |= {"step": step.name}
                return Cause.SLEEPING, f"It sleeps {where}; it is due {due}."
        return None

    def _similar_event(self, event: str, since: datetime) -> str | None:
        """Return the name of an event that was sent since then, with the same numbers and a similar spelling."""
        given = {"limit": _EVENTS, "since": since}
        digits = _NUMBER.findall(event)
        names = [name for name in self.session.scalars(steps.sent_lately(self.model), given) if name != event]
        return next(
            iter(get_close_matches(event, [name for name in names if _NUMBER.findall(name) == digits], 1, 0.7)), None
        )

    def _due(self, job: Any, evidence: dict[str, Any]) -> tuple[Cause, str]:
        since = f"It has been due for {self._ago(job.scheduled_at)}"
        serving = [worker for worker in self.live if job.queue in worker.queues]
        able = [worker for worker in serving if job.type_name in worker.job_types]
        ready = [worker for worker in able if worker.state == WorkerState.RUNNING]
        evidence |= {"live_workers": len(self.live), "serving_queue": len(serving), "knowing_type": len(able)}
        settings = self._settings(job)
        if (paused := self._paused(settings, since, evidence)) is not None:
            return paused
        if not self.live:
            start = "start one (sa-jobqueue worker)"
            if self.session.execute(storage.server()).one().read_only_by is not None:
                start = "the database is read-only, so that none can work: default_transaction_read_only"
            return Cause.NO_WORKER, f"{since}, and no worker is alive: {start}."
        if not serving:
            serves = f"none of {len(self.live):,} live workers serves"
            if len(self.live) == 1:
                serves = "the only live worker does not serve"
            elsewhere = self._elsewhere(job, settings, evidence)
            return Cause.QUEUE_UNSERVED, f"{since}, and {serves} queue {job.queue!r}{elsewhere}."
        if not able:
            has = f"none of {len(serving):,} workers of {job.queue!r} has a handler"
            if len(serving) == 1:
                has = f"the only worker of {job.queue!r} has no handler"
            return Cause.TYPE_UNKNOWN, f"{since}, and {has} for {job.type_name!r}{self._elsewhere(job, settings, evidence)}."
        if not ready:
            who = ", ".join(worker.id for worker in able[:_NAMED]) + (" and others" if len(able) > _NAMED else "")
            todo = "they start no more jobs; start another (sa-jobqueue worker)"
            return Cause.DRAINING, f"{since}, and every worker that could run it is draining ({who}): {todo}."
        if (held := self._held_back(job, settings, since, evidence)) is not None:
            return held
        is_late = self.now > job.scheduled_at + _CLAIMED_WITHIN
        if is_late and (locked := self._locked(job, evidence)):
            return Cause.LOCKED, f"{since}, but {locked}."
        if is_late and not any(worker.is_claiming for worker in ready):
            evidence |= {"worker": ready[0].id, "failure": ready[0].failure}
            failing = f"{since}, but every worker that could run it keeps failing ({ready[0].id}: {ready[0].failure})"
            return Cause.WORKER_FAILING, f"{failing}. Correct the cause; they try again every few seconds."
        slots, running = sum(worker.concurrency for worker in ready), sum(worker.used for worker in ready)
        if taken := self._type_slots_in_use(job, ready, evidence):
            return Cause.BUSY, f"{since}, but {taken}."
        before = self._ahead(job)
        evidence |= {"ahead": before, "slots": slots, "running": running}
        asked = running >= slots or self.now > job.scheduled_at + _SOON
        if asked and (decided := _delayed_by_selector(job, ready, evidence, ahead=before, is_full=running >= slots)):
            return decided[0], f"{since}, {decided[1]}."
        if before == 0 and running < slots:
            then = "it starts within 5 s"
            if is_late:
                then = (
                    "it should have started by now. If the workers' poll interval is longer than that, its notification was "
                    f"lost; otherwise the worker does not claim: see the log and /readyz of {ready[0].id}"
                )
            return Cause.READY, f"{since}, it is next and a worker has a free slot: {then}."
        noun = QueueKey(job.queue, job.fairness_key).named
        if before == 0:
            stuck = sum(worker.stuck_threads for worker in ready)
            evidence |= {"stuck_threads": stuck}
            threads = f", {stuck} of them by threads of ended attempts that have not returned" if stuck else ""
            in_use = f"all {_times(slots, 'slot')} of {_times(len(ready), 'worker')} are in use{threads}"
            return Cause.BUSY, f"{since} and is next, but {in_use}{self._used_by(ready, evidence)}."
        return (
            Cause.QUEUED,
            f"{since}, behind {_many(before)} of {noun}{self._expected(job, before, evidence)}.",
        )

    def _used_by(self, workers: Sequence[WorkerStatus], evidence: dict[str, Any]) -> str:
        """Return the job type that has most of the slots of workers, and its longest running job."""
        given = {"queue": None, "fairness_key": None, "type_name": None}
        ids = {worker.id for worker in workers}
        rows = [row for row in self.session.execute(explaining.holders(self.model), given) if row.worker_id in ids]
        running = Counter[str]()
        for row in rows:
            running[row.type_name] += row.n
        for type_name, n in running.most_common(1):
            first = next(row for row in rows if row.type_name == type_name)
            evidence |= {"held_by": [first.job_id], "mostly": type_name}
            return f"; {n:,} of them by {type_name}, the longest for {self._ago(first.started_at)} (job {first.job_id})"
        return ""

    def _ahead(self, job: Any) -> int:
        """Count the due jobs of its fairness key that are before it."""
        place = {name: getattr(job, name) for name in ("queue", "fairness_key", "priority", "scheduled_at", "id")}
        count: int = self.session.execute(explaining.ahead(self.model), place | {"limit": COUNTED}).scalar_one()
        return count

    def _elsewhere(self, job: Any, settings: _Settings, evidence: dict[str, Any]) -> str:
        """Return in which queue its type is served, and how to move the waiting jobs there, if any worker handles it."""
        recorded = next((kind.queue for kind in settings[-1][2] if isinstance(kind, TypeStatus)), None)
        served = sorted({queue for one in self.live if job.type_name in one.job_types for queue in one.queues})
        # Where several queues serve it, none is the one that was meant.
        queue = recorded if recorded in served or not served else served[0] if len(served) == 1 else None
        if queue is None or job.queue in (queue, recorded):
            return ""
        is_served = "served" if served else "declared"
        values = (queue, job.queue, job.type_name)
        to, of, kind = ("'{}'".format(value.replace("'", "''")) for value in values)
        table = self.model.__jobqueue__.qualified("job")
        move = f"UPDATE {table} SET queue = {to} WHERE status = 'pending' AND queue = {of} AND type_name = {kind}"
        evidence |= {"served_in": queue, "move": move}
        return f"; its type is {is_served} in queue {queue!r}, to move the waiting jobs there: {move}"

    def _locked(self, job: Any, evidence: dict[str, Any]) -> str:
        """Describe the session that has locked the job's row, or that the workers' statements wait for, if there is one."""
        row = self.session.execute(explaining.locked_by(self.model), {"job_id": job.id}).mappings().first()
        what = "has locked its row"
        if row is None:
            held = self.session.execute(storage.lock_holders(self.model)).mappings().all()
            row = next((one for one in held if one["waited_for"] > _CLAIMED_WITHIN), None)
            what = "holds a lock that workers wait for"
        if row is None:
            return ""
        evidence |= {"locked_by": row["pid"] or None, "locked_for": row["locked_for"], "query": shortened(row["query"])}
        return f"{holder_of(row)} {what}; to end it: {end_of(row)}"

    def _settings(self, job: Any) -> _Settings:
        """Return the settings of its queue, of its fairness key if it has one, and of its type."""
        keys = dict.fromkeys(("", job.fairness_key))
        found = {key: list_queues(self.session, names=[job.queue], fairness_key=key, model=self.model) for key in keys}
        return (
            *(("queue", QueueKey(job.queue, key), page.items) for key, page in found.items()),
            ("type", QueueKey(job.type_name), list_job_types(self.session, names=[job.type_name], model=self.model).items),
        )

    def _paused(self, settings: _Settings, since: str, evidence: dict[str, Any]) -> tuple[Cause, str] | None:
        """Return the explanation if its queue or type is paused, else None."""
        for what, key, found in settings:
            cause = Cause.TYPE_PAUSED if what == "type" else Cause.QUEUE_PAUSED
            since_when, by = (found[0].paused_at, found[0].paused_by) if found else (None, None)
            if since_when is not None:
                evidence |= {"paused_at": since_when, "paused_by": by}
                who = f" by {by}" if by else ""
                todo = f"sa-jobqueue {what}s resume {key.arguments}"
                paused = f"its {_what(what, key)} was paused {self._ago(since_when)} ago{who}"
                return cause, f"{since}, but {paused}: {todo}."
        return None

    def _held_back(self, job: Any, settings: _Settings, since: str, evidence: dict[str, Any]) -> tuple[Cause, str] | None:
        """Return the explanation if its deadline, its ordering key or a limit across workers delays it, else None."""
        if job.expires_at is not None and job.expires_at <= self.now:
            evidence |= {"expires_at": job.expires_at}
            return (
                Cause.EXPIRED,
                f"{since}, but it did not start in time: it expired {self._ago(job.expires_at)} ago, and workers cancel it.",
            )
        if job.ordering_key is not None:
            key = {"ordering_key": job.ordering_key}
            first = self.session.execute(explaining.before_in_order(self.model), key).first()
            if first is not None and first.id != job.id:
                evidence |= key | {"waits_for": first.id}
                what = f"job {first.id} of its ordering key {job.ordering_key!r}, which is {first.status}"
                sentence = f"{since}, and waits for {what}."
                with suppress(NotFoundError):
                    one = self.explain(get_job(self.session, first.id, model=self.model))
                    if one.cause is not Cause.WAITING_FOR_ORDERING_KEY:
                        sentence = f"{sentence.removesuffix('.')}. Of that job: {one.sentence}"
                return Cause.WAITING_FOR_ORDERING_KEY, sentence
        most = [found[0].global_concurrency if found else None for _, _, found in settings]
        if len(settings) > 2 and most[1] is None and settings[0][2]:
            most[1] = cast("QueueStatus", settings[0][2][0]).concurrency_per_key
        if any(most):
            names = {"queue": job.queue, "type_name": job.type_name}
            counts = list(self.session.execute(limits.running(self.model), names).one()[:2])
            if len(settings) > 2:
                rows = self.session.execute(limits.running_by_fairness_key(self.model), names)
                counts[1:1] = [sum(row.n for row in rows if row.fairness_key == job.fairness_key)]
            for (what, of, _), limit, count in zip(settings, most, counts, strict=True):
                if limit is not None and count >= limit:
                    evidence |= {"global_concurrency": limit, "running": count, "limit_of": (what, *of)}
                    todo = f"sa-jobqueue {what}s set {of.arguments} --global-concurrency"
                    words = self._longest_running(what, of, evidence)
                    holder = self.workers.get(evidence.get("longest_on", ""))
                    if holder is not None and holder.silent_for > self.ttl:
                        words += f", which has had no heartbeat for {span(holder.silent_for)}"
                    runs = f"its {_what(what, of)} runs {_times(count, 'job')}, its limit is {limit}{words}"
                    return Cause.LIMITED, f"{since}, but {runs}: {todo}."
        if rate := self._delayed_by_rate(job, evidence):
            if before := self._ahead(job):
                turn = evidence["next_start"] + timedelta(seconds=before * evidence["weight"] / evidence["per_second"])
                evidence |= {"ahead": before, "expected_wait": turn}
                at_least = "at least " if before >= COUNTED else ""
                since = f"{since}, {_many(before)} are before it and its turn comes in {at_least}{span(turn)}"
            return Cause.RATE_LIMITED, f"{since}, but {rate}."
        return None

    def _expected(self, job: Any, before: int, evidence: dict[str, Any]) -> str:
        """Estimate when it starts, by the jobs ahead and the rate of the last minute."""
        window = {
            "queue": job.queue,
            "fairness_key": job.fairness_key,
            "window": _WINDOW,
            "transactions": _TRANSACTIONS,
            "limit": COUNTED,
        }
        done, seconds = self.session.execute(explaining.recently_ended(self.model), window).one()
        if not done:
            evidence |= {"per_second": 0.0}
            return "; no job of the queue completed in the last minute"
        rate = done / max(float(seconds), 1.0)
        wait = timedelta(seconds=before / rate)
        evidence |= {"per_second": rate, "expected_wait": wait}
        at_least = "at least " if before >= COUNTED else ""
        return f"; at {rate:,.1f} jobs per second it starts in {at_least}{span(wait)}"

    def _longest_running(self, what: str, of: QueueKey, evidence: dict[str, Any]) -> str:
        """Describe the longest running job of a queue, fairness key or type; the evidence has one job per worker.

        The description is empty if none is running.
        """
        queue, type_name = (of.queue, None) if what == "queue" else (None, of.queue)
        # For a queue: the jobs of all of its keys.
        given = {"queue": queue, "fairness_key": of.fairness_key or None, "type_name": type_name}
        rows = self.session.execute(explaining.holders(self.model), given).all()
        evidence["held_by"] = [row.job_id for row in rows]
        if not rows:
            return ""
        first = rows[0]
        evidence["longest_on"] = first.worker_id
        return f"; the longest running is job {first.job_id}, for {self._ago(first.started_at)}, on {first.worker_id}"

    def _type_slots_in_use(self, job: Any, ready: Sequence[WorkerStatus], evidence: dict[str, Any]) -> str:
        """Return the explanation if all slots of a job's type are in use in the workers that could run it."""
        slots = {worker.id: worker.type_slots.get(job.type_name) for worker in ready}
        if None in slots.values():
            return ""
        given = {"queue": None, "fairness_key": None, "type_name": job.type_name}
        rows = self.session.execute(explaining.holders(self.model), given).all()
        running = {row.worker_id: row.n for row in rows}
        if any(running.get(worker_id, 0) < (most or 0) for worker_id, most in slots.items()):
            return ""
        words = self._longest_running("type", QueueKey(job.type_name), evidence)
        total = sum(most or 0 for most in slots.values())
        evidence |= {"slots_of_type": total, "running_of_type": sum(running.values())}
        where = "1 worker" if len(ready) == 1 else f"{len(ready):,} workers"
        return f"all {total:,} slots of type {job.type_name!r} in {where} are in use{words}"

    def _delayed_by_rate(self, job: Any, evidence: dict[str, Any]) -> str:
        """Describe the rate limit of the queue, fairness key or type that delays a job, if there is one."""
        weight = max(job.rate_cost or 1, 1)
        asked = {"queue": job.queue, "fairness_keys": ["", job.fairness_key], "type_name": job.type_name}
        for row in self.session.execute(explaining.rates(self.model), asked):
            rate = Rate.of(row)
            if rate is None or rate.fitting([weight]):
                continue
            wait = rate.wait(weight)
            evidence |= {"per_second": rate.per_second, "next_start": wait, "algorithm": rate.algorithm, "weight": weight}
            evidence |= {"limit_of": (row.what, row.name, row.fairness_key)}
            what = "no more jobs by its rate limit" if weight == 1 else f"no jobs of rate_cost {weight:,} by its rate limit"
            if rate.algorithm is RateAlgorithm.SLIDING_WINDOW:
                what += f" of {rate.limit:,} in any {span(rate.period)}"
            todo = f"sa-jobqueue {row.what}s set {QueueKey(row.name, row.fairness_key).arguments} --rate-limit"
            return f"its {_limit(row)} starts {what}; the next in {span(wait)}: {todo}"
        return ""

    def _ago(self, instant: datetime) -> str:
        return span(self.now - instant)


REFUSED: Final = {
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
    RefusedWrite.PRUNE: ("chain or dead letter", "It is to be deleted"),
    RefusedWrite.ARCHIVE: ("chain", "It is to be deleted from the tables"),
}
"""The kind of row that each write concerns, and how far that row has come."""


def _what(what: str, of: QueueKey) -> str:
    return of.named if what == "queue" else f"{what} {of.queue!r}"


def _times(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _many(count: int) -> str:
    return f"{COUNTED:,} others or more" if count >= COUNTED else _times(count, "other")


_Settings = tuple[tuple[str, QueueKey, Sequence[QueueStatus | TypeStatus]], ...]
"""For a job's queue and type: the kind, the name, and the status if there is a row."""


def _error(type_name: str, error: Any) -> str:
    error = redacted_error(type_name, error)
    message = next(iter(str(error.get("message") or "").strip().splitlines()), "") if isinstance(error, dict) else ""
    kind = error.get("type", "an error") if isinstance(error, dict) else "an error"
    return f"{kind}: {message}"[:200] if message else str(kind)


def _limit(row: Any) -> str:
    return _what(row.what, QueueKey(row.name, row.fairness_key))


def _delayed_by_selector(
    job: Any, ready: Sequence[WorkerStatus], evidence: dict[str, Any], *, ahead: int, is_full: bool
) -> tuple[Cause, str] | None:
    """Return the explanation if a selector did not select a due job, or has yet to decide, else None.

    `ready`: the workers that could run it. `ahead`: how many due jobs of its queue are before it in the default order.
    None if one of those workers uses the default order, or the job is not within a window of candidates.
    """
    queue = job.queue
    selectors = {worker.id: worker.selectors[queue] for worker in ready if queue in worker.selectors}
    if len(selectors) < len(ready) or all(ahead >= one["window"] for one in selectors.values()):
        return None
    worker_id, one = max(selectors.items(), key=lambda item: int(item[1]["window"]))
    which = f"the selector {one['function']} of queue {queue!r} (worker {worker_id})"
    longest = None if one["max_wait"] is None else timedelta(seconds=one["max_wait"])
    evidence |= {"selector": one["function"], "chosen_by": sorted(selectors), "window": one["window"], "max_wait": longest}
    if is_full:
        return Cause.BUSY, f"all slots are in use, and {which} decides which job is next"
    bound = "it has no max_wait, so a job that it never selects never starts"
    if longest is not None:
        bound = f"the job starts without it once it has been a candidate for the max_wait of {span(longest)}"
    return Cause.NOT_SELECTED, f"and workers have free slots, but {which} did not select it; {bound}"
