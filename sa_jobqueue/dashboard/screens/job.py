"""One job: its explanation, input and output, attempts with tracebacks, and dependants."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from sa_jobqueue import operations
from sa_jobqueue.dashboard.charts import Span, bar
from sa_jobqueue.dashboard.parameters import ParameterError
from sa_jobqueue.dashboard.rendering import SHOWN, as_json, short
from sa_jobqueue.dashboard.screens.base import Context, Download, Screen
from sa_jobqueue.dashboard.screens.chains import waiting_types
from sa_jobqueue.display.objects import objects_in
from sa_jobqueue.operations.explaining import Cause, Explanation
from sa_jobqueue.types import ENDED, INITIAL, JobId, JobStatus, Progress

_OF_WORKERS: Final = {
    *(
        Cause.NO_WORKER,
        Cause.QUEUE_UNSERVED,
        Cause.TYPE_UNKNOWN,
        Cause.VERSION_UNKNOWN,
        Cause.DRAINING,
        Cause.BUSY,
        Cause.WORKER_FAILING,
    ),
    *(Cause.WORKER_SILENT, Cause.WORKER_FAILING),
}
ATTEMPTS: Final = 20
"""Number of attempts on one page; the others are linked."""
STEPS: Final = 100
"""Number of recorded steps on the page, the last ones."""
_RELATED: Final = 50
_BLOCKERS: Final = 500
_EARLIER: Final = 5
_SCANNED: Final = 500
"""Maximum number of jobs that are read to find earlier ones of the type."""
_FIELDS: Final = (
    *("attempt", "max_attempts", "priority", "scheduled_at", "completed_by", "leased_by", "leased_until", "timeout"),
    *("expires_at", "deadline", "ordering_key", "deduplication_key", "rate_cost", "input_version", "trace_context"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a job's way, and how long it took since the one before."""

    name: str
    at: datetime
    after: timedelta | None
    is_bad: bool = False


def view(context: Context) -> dict[str, Any]:
    """Return a job with everything that is known of it."""
    job_id, after = _job_id(context), context.params.number("attempts_after", low=1, high=2**31 - 1, default=0)
    model = context.model
    with context.read() as session:
        job: Any = operations.get_job(session, job_id, model=model)
        heartbeat_timeout = context.source.heartbeat_timeout
        explanation = operations.explain_job(session, job_id, heartbeat_timeout=heartbeat_timeout, model=model)
        attempts = operations.list_attempts(
            session, job_id, after=after or None, limit=ATTEMPTS, newest_first=True, model=model
        )
        dead_letters = operations.list_dead_letters(
            session, where=operations.DeadLetterFilter(job_ids=[job_id], resolved=None), limit=_RELATED, model=model
        )
        chain = operations.get_chain(session, job.chain_id, model=model)
        blockers = operations.list_blockers(session, job_id, limit=_BLOCKERS, model=model)
        blocked = waiting_types(context, session, job.chain_id)
        recorded = operations.list_steps(session, job_id, limit=STEPS, model=model)
        earlier = operations.list_jobs(
            session,
            where=operations.JobFilter(types=[job.type_name]),
            columns=["id", "status", "attempt", "started_at", "completed_at"],
            after=job_id,
            limit=_EARLIER,
            scan_limit=_SCANNED,
            model=model,
        )
        steps = _steps(job, list(attempts))
        # Read here: the objects belong to the session.
        return {
            "heading": f"Job {job.type_name} {short(job.id)}",
            "job": job,
            "progress": _progress(context, job, operations.get_progress(session, job_id, model=model)),
            "fields": [(name, getattr(job, name)) for name in _FIELDS if getattr(job, name, None) not in (None, "")],
            "payloads": list(_payloads(context, job)),
            "objects": objects_in(context.payload(job.type_name, job.input)),
            "explanations": list(_explained(context, explanation)),
            "attempts": [
                (attempt, context.error(job.type_name, attempt.error), _trace(context, attempt.error))
                for attempt in attempts
            ],
            "trace": context.trace(job.trace_context),
            "older_attempts": attempts.next,
            "steps": steps,
            "bar": bar(_spans(job, steps, context.source.now()), _step_spans(recorded, context.source.now())),
            "earlier": list(earlier),
            "recorded": [(step, _result(context, job, step)) for step in recorded],
            "letters": list(dead_letters),
            "chain": chain,
            "blockers": _folded(blockers),
            "blocked": blocked,
            "last_error": context.error(job.type_name, job.last_error),
            "rehearsal": f"sa-jobqueue jobs rehearse {job.id}" if job.status in {JobStatus.PENDING, JobStatus.DEAD} else "",
            "can_cancel": job.status not in ENDED and context.may("cancel_jobs"),
            # One that is due already would not start sooner.
            "can_trigger": job.status is JobStatus.PENDING
            and job.scheduled_at > context.source.now()
            and context.may("trigger_jobs"),
            "can_set_priority": job.status in INITIAL and context.may("set_priority"),
            "can_redrive": job.status is JobStatus.DEAD and context.may("redrive_dead_letters"),
            "can_dismiss": any(letter.resolution is None for letter in dead_letters) and context.may("dismiss_dead_letters"),
        }


def _folded(blockers: Iterable[Any]) -> list[tuple[Any, int]]:
    """Return the first blocker of each type, status and state, with how many there are."""
    groups: dict[tuple[str, JobStatus, bool], list[Any]] = {}
    for blocker in blockers:
        groups.setdefault((blocker.chain.type_name, blocker.chain.status, blocker.is_resolved), []).append(blocker)
    return [(group[0], len(group)) for group in groups.values()]


def _result(context: Context, job: Any, step: Any) -> str:
    """Return the result of a recorded step as JSON; empty if it has none."""
    value = context.payload(job.type_name, step.output)
    return "" if value is None else as_json(value)


def _progress(context: Context, job: Any, progress: Progress | None) -> Progress | None:
    """Return the progress, without the handler's message for those who may not see its payloads."""
    if progress is None or context.access.may_see(job.type_name):
        return progress
    return replace(progress, message=None)


def _job_id(context: Context) -> JobId:
    job_id: JobId | None = context.params.job_id("id", context.model)
    if job_id is None:
        raise ParameterError("id", "is missing: the id of a job")
    return job_id


def _payloads(context: Context, job: Any) -> Iterator[tuple[str, str, bool]]:
    """Yield the name, the text and whether it is cut, of each payload that there is."""
    for name in ("input", "output"):
        value = context.payload(job.type_name, getattr(job, name))
        if value is not None or name == "input":
            text = as_json(value)
            yield name, text, len(text) > SHOWN


def _explained(context: Context, explanation: Explanation) -> Iterator[tuple[Explanation, str, str | None, str | None]]:
    """Yield the root causes, or the explanation without any: each with its sentence, and the link that ends the cause."""
    roots = [cause for cause in explanation.roots if cause.job_id != explanation.job_id]
    hidden = not all(context.access.may_see(cause.type_name) for cause in (explanation, *roots))
    for cause in roots or [explanation]:  # a blocked job's own sentence repeats that of its root cause
        # Sentences quote errors, also those of the jobs that it waits for.
        quotes = hidden and cause.cause in {Cause.DEAD, Cause.RETRYING, Cause.QUARANTINED, Cause.BLOCKED}
        sentence = "The explanation quotes an error that you may not see." if quotes else cause.sentence
        yield cause, sentence, *_remedy(context, cause)


def _remedy(context: Context, explanation: Explanation) -> tuple[str | None, str | None]:
    match explanation.cause:
        case Cause.QUEUE_PAUSED | Cause.LIMITED | Cause.RATE_LIMITED:
            return context.url("queue", name=explanation.queue), f"Open queue {explanation.queue}"
        case Cause.TYPE_PAUSED:
            return context.url("job-type", name=explanation.type_name), f"Open job type {explanation.type_name}"
        case Cause.DEAD:
            return context.url("dead-letters", job=explanation.job_id, resolved="any"), "Open its dead letter"
        case Cause.WAITING_FOR_EVENT:
            return context.url("events", name=explanation.evidence["event"]), "Open the event, to send it"
        case Cause.WAITING_FOR_CHILD:
            return context.url("job", id=explanation.evidence["waits_for"]), "Open the job that it waits for"
        case Cause.WAITING_FOR_ORDERING_KEY:
            return context.url("job", id=explanation.evidence.get("waits_for")), "Open the job that is first"
        case cause if cause in _OF_WORKERS:
            return context.url("workers"), "See the workers"
        case Cause.LOCKED:
            return context.url("storage"), "See the sessions"
        case Cause.QUEUED | Cause.NOT_SELECTED | Cause.READY:
            return context.url(
                "jobs", queue=explanation.queue, status="pending", order="oldest"
            ), "See the queue's pending jobs"
    return None, None


def _trace(context: Context, error: Any) -> str | None:
    return context.trace(error.get("trace_context")) if isinstance(error, dict) else None


def _steps(job: Any, attempts: list[Any]) -> list[Step]:
    """Return the instants of a job's way in their order, of its attempts those of the page."""
    steps: list[tuple[datetime, str, bool]] = [(job.created_at, "enqueued", False)]
    for attempt in reversed(attempts):
        if attempt.started_at is not None:
            steps.append((attempt.started_at, f"attempt {attempt.attempt} started", False))
        steps.append(
            (
                attempt.ended_at,
                f"attempt {attempt.attempt} {attempt.outcome.replace('_', ' ')}",
                attempt.outcome != "snoozed",
            )
        )
    is_known = any(attempt.attempt == job.attempt for attempt in attempts)
    if job.started_at is not None and not is_known and job.status not in INITIAL:
        steps.append((job.started_at, f"attempt {job.attempt} started", False))
    if job.completed_at is not None:
        steps.append((job.completed_at, job.status, job.status is JobStatus.DEAD))
    elif job.status in INITIAL:
        steps.append((job.scheduled_at, "due", False))
    steps.sort(key=lambda step: step[0])
    before = [None, *(step[0] for step in steps)]
    return [
        Step(name, at, None if earlier is None else at - earlier, is_bad)
        for (at, name, is_bad), earlier in zip(steps, before, strict=False)
    ]


def _spans(job: Any, steps: list[Step], now: datetime) -> list[Span]:
    """Return the times that a job waited, ran, and waited for a retry, from the instants of its way."""
    spans = []
    if job.status not in ENDED and steps[-1].at < now:
        steps = [*steps, Step("now", now, now - steps[-1].at)]
    for before, step in itertools.pairwise(steps):
        kind = "run" if before.name.endswith(" started") else "wait" if before.name in {"enqueued", "due"} else "retry"
        spans.append(Span(f"bad {kind}" if step.is_bad and kind == "run" else kind, step.name, before.at, step.at))
    return spans


def _step_spans(recorded: list[Any], now: datetime) -> list[Span]:
    return [Span("step", f"step {step.name}", step.started_at, step.completed_at or now) for step in recorded]


def _download(context: Context) -> Download:
    """Return a whole payload, or the last error, as JSON."""
    column = context.params.choice("what", ("input", "output", "last_error"))
    with context.read() as session:
        job: Any = operations.get_job(session, _job_id(context), model=context.model)
    value = getattr(job, column)
    visible_value = context.error(job.type_name, value) if column == "last_error" else context.payload(job.type_name, value)
    name = re.sub("[^A-Za-z0-9-]", "_", str(job.id))[:80]
    return Download(f"{name}.{column}.json", as_json(visible_value))


SCREEN = Screen(name="job", title="Job", view=view, part_of="jobs", downloads={"payload": _download})
