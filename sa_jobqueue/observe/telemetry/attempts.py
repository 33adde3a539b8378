"""A span for each attempt, from its beginning to the end that was committed for it."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, Final

from opentelemetry.context import attach
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from sa_jobqueue import events as told
from sa_jobqueue import tracing
from sa_jobqueue.context import AttemptContext
from sa_jobqueue.observe.logs import error_line
from sa_jobqueue.observe.telemetry import names
from sa_jobqueue.observe.telemetry.producers import context_within, traceparent_of
from sa_jobqueue.redaction import is_redacted, redacted_error
from sa_jobqueue.types import AttemptOutcome, JobId

_ENDS: Final = (told.JobCompleted, told.JobRescheduled, told.JobDied, told.JobCancelled, told.AttemptLost)


class AttemptSpans:
    """Makes them. A span is the current one of its handler, so what that does in spans of its own are its children.

    It ends when the attempt's end is committed, at the time that the handler had ended: so it says what became of it.
    A worker that is killed takes its open spans with it.
    """

    heard: Final = (*_ENDS, told.MiddlewareFailed, told.WorkerStopped)

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: dict[tuple[JobId, int], tuple[Span, int]] = {}

    def begin(self, attempt: AttemptContext) -> None:
        """Begin the span of an attempt, in the attempt's own task."""
        job, began = attempt.job, time.time_ns()
        creation = tracing.context_of(job.trace_context)
        within = context_within(creation)
        links = [] if creation is None else [Link(creation, {tracing.LINK_KIND: tracing.LinkKind.CREATION.value})]
        if job.chain_trace_context != job.trace_context:
            chain = tracing.context_of(job.chain_trace_context)
            if chain is not None:
                links.append(Link(chain, {tracing.LINK_KIND: tracing.LinkKind.CHAIN.value}))
        span = self._tracer.start_span(
            f"process {job.type_name}",
            context=within,
            kind=SpanKind.CONSUMER,
            attributes=names.PROCESS
            | {
                names.JOB_TYPE: job.type_name,
                names.ATTEMPT: job.attempt,
                names.DESTINATION: job.queue,
                names.MESSAGE_ID: str(job.id),
                names.CONVERSATION_ID: str(job.chain_id),
                names.CLIENT_ID: attempt.worker_id,
            },
            links=links,
            start_time=began,
        )
        # Never detached: the task's context ends with the attempt.
        attach(set_span_in_context(span, within))
        if span.is_recording():
            attempt.notes["trace_context"] = traceparent_of(span.get_span_context())
            self._open[job.id, job.attempt] = (span, began)

    def hear(self, event: told.Event) -> None:
        """End the span of an attempt that has ended; of the others there is something to be said at the most."""
        if isinstance(event, _ENDS):
            found = self._open.pop((event.job_id, event.attempt), None)
            if found is not None:
                span, began = found
                ran = _describe(span, event)
                span.end(None if ran is None else began + int(ran / timedelta(microseconds=1)) * 1000)
        elif isinstance(event, told.MiddlewareFailed):
            if (event.job_id, event.attempt) in self._open and not is_redacted(event.type_name):
                self._open[event.job_id, event.attempt][0].record_exception(event.error)
        elif isinstance(event, told.WorkerStopped):
            for span, _ in self._open.values():  # whose end could not be written any more: others take the jobs back
                span.set_attribute(names.OUTCOME, "unknown")
                span.end()
            self._open.clear()


def _describe(span: Span, event: told.Event) -> timedelta | None:
    """Say in a span how its attempt ended; return how long it ran."""
    match event:
        case told.JobCompleted():
            span.set_attribute(names.OUTCOME, "completed")
            return event.ran
        case told.JobRescheduled():
            span.set_attribute(names.OUTCOME, event.outcome.value)
            if event.outcome in {AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT}:
                _fail(span, redacted_error(event.type_name, event.error))
            return event.ran
        case told.JobDied():
            span.set_attributes({names.OUTCOME: "died", names.REASON: event.reason.value})
            _fail(span, redacted_error(event.type_name, event.error))
            return event.ran
        case told.JobCancelled():
            span.set_attribute(names.OUTCOME, AttemptOutcome.CANCELLED.value)
            return event.ran
        case told.AttemptLost():
            span.set_attributes({names.OUTCOME: "lost", names.ERROR_TYPE: "lost"})
            span.set_status(Status(StatusCode.ERROR, "the job was no longer this worker's"))
    return None


def _fail(span: Span, error: Any) -> None:
    kind = error_type(error)
    span.set_attribute(names.ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR, error_line(error)))
    if isinstance(error, dict):
        kept = {"type": "type", "message": "message", "stacktrace": "traceback"}
        told_of = {f"exception.{name}": str(error[key]) for name, key in kept.items() if error.get(key)}
        span.add_event("exception", told_of)


def error_type(error: Any) -> str:
    """Return the class of a stored error."""
    return str(error.get("type") or "_OTHER") if isinstance(error, dict) else "_OTHER"
