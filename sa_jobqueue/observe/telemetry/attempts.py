"""A span for each attempt, until its result is committed, and one for each step that it completes."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, Final

from opentelemetry.context import attach
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from sa_jobqueue import events, tracing
from sa_jobqueue.context import AttemptContext
from sa_jobqueue.display.redaction import is_redacted, redacted_error
from sa_jobqueue.observe.telemetry import names
from sa_jobqueue.observe.telemetry.producers import context_within, traceparent_of
from sa_jobqueue.types import AttemptOutcome, JobId
from sa_jobqueue.worker.logs import error_line

_ENDS: Final = (events.JobCompleted, events.JobRescheduled, events.JobDied, events.JobCancelled, events.AttemptLost)


class AttemptSpans:
    """Creates a span for each attempt. It is the current span of the handler, so the handler's own spans are its children.

    It ends when the attempt's result is committed, with the outcome; its end time is when the handler ended. The open
    spans of a killed worker are lost.
    """

    kinds: Final = (*_ENDS, events.StepCompleted, events.MiddlewareFailed, events.WorkerStopped)

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: dict[tuple[JobId, int], tuple[Span, int]] = {}

    def begin(self, attempt: AttemptContext) -> None:
        """Start the span of an attempt, in the attempt's task."""
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

    def handle(self, event: events.Event) -> None:
        """End the span of an attempt that has ended; record failures of its middleware."""
        if isinstance(event, _ENDS):
            open_span = self._open.pop((event.job_id, event.attempt), None)
            if open_span is not None:
                span, began = open_span
                ran = _describe(span, event)
                span.end(None if ran is None else began + int(ran / timedelta(microseconds=1)) * 1000)
        elif isinstance(event, events.StepCompleted):
            if (event.job_id, event.attempt) in self._open:
                self._trace_step(event, self._open[event.job_id, event.attempt][0])
        elif isinstance(event, events.MiddlewareFailed):
            if (event.job_id, event.attempt) in self._open and not is_redacted(event.type_name):
                self._open[event.job_id, event.attempt][0].record_exception(event.error)
        elif isinstance(event, events.WorkerStopped):
            for span, _ in self._open.values():  # their results could not be written: other workers rescue the jobs
                span.set_attribute(names.OUTCOME, "unknown")
                span.end()
            self._open.clear()

    def _trace_step(self, event: events.StepCompleted, attempt: Span) -> None:
        ended = time.time_ns()
        attributes = {names.STEP: event.name, names.STEP_KIND: event.kind.value}
        attributes |= {names.STEP_KEY: event.key} if event.key else {}
        span = self._tracer.start_span(
            f"step {event.name}",
            context=set_span_in_context(attempt),
            attributes=attributes,
            start_time=ended - int(event.ran / timedelta(microseconds=1)) * 1000,
        )
        span.end(ended)


def _describe(span: Span, event: Any) -> timedelta | None:
    """Set the outcome of an attempt on its span; return how long it ran."""
    span.set_attribute(names.OUTCOME, event.outcome)
    match event:
        case events.AttemptLost():
            span.set_attribute(names.ERROR_TYPE, "lost")
            span.set_status(Status(StatusCode.ERROR, "the worker lost the lease of the job"))
            return None
        case events.JobDied():
            span.set_attribute(names.REASON, event.reason.value)
            _fail(span, redacted_error(event.type_name, event.error))
        case events.JobRescheduled(outcome=AttemptOutcome.FAILED | AttemptOutcome.TIMED_OUT):
            _fail(span, redacted_error(event.type_name, event.error))
    ran: timedelta | None = event.ran
    return ran


def _fail(span: Span, error: Any) -> None:
    kind = error_type(error)
    span.set_attribute(names.ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR, error_line(error)))
    if isinstance(error, dict):
        keys = {"type": "type", "message": "message", "stacktrace": "traceback"}
        attributes = {f"exception.{name}": str(error[key]) for name, key in keys.items() if error.get(key)}
        span.add_event("exception", attributes)


def error_type(error: Any) -> str:
    """Return the class of a stored error."""
    return str(error.get("type") or "_OTHER") if isinstance(error, dict) else "_OTHER"
