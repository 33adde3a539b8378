"""A span for what a transaction enqueues, told once that has committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Tracer, set_span_in_context

from sa_jobqueue import tracing
from sa_jobqueue.models import JobMixin
from sa_jobqueue.observe.telemetry import names
from sa_jobqueue.operations.hooks import after_commit

Told = Callable[[str, int, float], None]
"""Called once a transaction has committed, with a job type, how many jobs of it, and the seconds that it took."""

_MADE_IN = "_sa_jobqueue_made_in"
_MOST_LINKS = 100


class EnqueueSpans:
    """Makes one span for the jobs of one type and queue that one flush, or one bulk call, writes from one place.

    The span begins before the rows are written, for they carry its context, and ends with the commit. One whose
    transaction is rolled back is never ended, and so never exported. A continuation has none: the attempt that it
    continues is where it comes from.
    """

    def __init__(self, tracer: Tracer, told: Told) -> None:
        self._tracer = tracer
        self._told = told

    def __call__(self, session: Any, jobs: Sequence[JobMixin[Any]]) -> None:
        """Begin the spans of jobs that are about to be written, and write their contexts into the jobs."""
        groups: dict[tuple[str | None, str, str], list[JobMixin[Any]]] = {}
        for job in jobs:
            if job.chain_index == 0:
                # What it was made in, also when it is flushed again after a rollback: the span of that time is gone.
                made_in = job.__dict__.setdefault(_MADE_IN, job.__dict__.get("trace_context", ""))
                if made_in is not None:  # None was given: it is not to be traced
                    groups.setdefault((made_in or None, job.type_name, job.queue), []).append(job)
        waiting: list[tuple[Span, JobMixin[Any]]] = []
        for (made_in, type_name, _), group in groups.items():
            began = time.time_ns()
            span = self._begin(made_in, group, _named(group))
            after_commit(session, self._end, span, began, type_name, len(group))
            waiting += [(span, job) for job in group if job._blockers]
        for span, job in waiting:  # now that what they wait for has its own span too
            _link(span, job)

    def alike(self, session: Any, job: JobMixin[Any]) -> Callable[[int], None]:
        """Begin the span of jobs that are all like one, and write its context into that; it ends as others do."""
        began, made_in = time.time_ns(), job.__dict__.get("trace_context", "")
        if made_in is None:  # as was given: they are not to be traced
            return lambda count: None
        span = self._begin(made_in or None, [job], {})

        def written(count: int) -> None:
            span.set_attribute(names.MESSAGE_COUNT, count)
            after_commit(session, self._end, span, began, job.type_name, count)

        return written

    def _begin(self, made_in: str | None, group: list[JobMixin[Any]], more: dict[str, Any]) -> Span:
        type_name = group[0].type_name
        span = self._tracer.start_span(
            f"enqueue {type_name}",
            context=context_within(tracing.context_of(made_in)),
            kind=SpanKind.PRODUCER,
            attributes=names.ENQUEUE | {names.JOB_TYPE: type_name, names.DESTINATION: group[0].queue} | more,
        )
        if (own := span.get_span_context()).is_valid:
            traceparent = traceparent_of(own)
            for job in group:
                if job.__dict__.get("chain_trace_context") in {made_in, job.__dict__.get("trace_context")}:
                    job.chain_trace_context = traceparent
                job.trace_context = traceparent
        return span

    def _end(self, span: Span, began: int, type_name: str, count: int) -> None:
        ended = time.time_ns()
        span.end(ended)
        self._told(type_name, count, (ended - began) / 1e9)


def _named(group: Sequence[JobMixin[Any]]) -> dict[str, Any]:
    if len(group) > 1:
        return {names.MESSAGE_COUNT: len(group)}
    return {names.MESSAGE_ID: str(group[0].id), names.CONVERSATION_ID: str(group[0].chain_id)}


def _link(span: Span, job: JobMixin[Any]) -> None:
    """Link a span to where the chains were enqueued that a job waits for, as far as they are at hand as jobs."""
    for one in job._blockers[:_MOST_LINKS]:
        if isinstance(one.chain, JobMixin):
            context = tracing.context_of(one.chain.__dict__.get("trace_context"))
            if context is not None:
                span.add_link(context, {tracing.LINK_KIND: tracing.LinkKind.BLOCKER.value})


def context_within(parent: SpanContext | None) -> Context:
    """Return the context of what happens within a span, and within nothing else."""
    return Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())


def traceparent_of(context: SpanContext) -> str:
    """Return a span's context as a W3C `traceparent`."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
