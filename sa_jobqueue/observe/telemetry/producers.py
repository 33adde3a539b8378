"""A span for the jobs that a transaction enqueues, exported after its commit."""

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

OnCommit = Callable[[str, int, float], None]
"""Called after a commit, with a job type, its number of jobs, and the seconds from the first write to the commit."""

_PARENT = "_sa_jobqueue_made_in"
_MOST_LINKS = 100


class EnqueueSpans:
    """Creates one span for the jobs of one type and queue that one flush or bulk call writes within one parent span.

    The span starts before the rows are written, as they contain its context, and ends with the commit. The span of a
    transaction that is rolled back is never ended, so it is not exported. Continuations have no span, as their parent is
    the attempt that they continue.
    """

    def __init__(self, tracer: Tracer, on_commit: OnCommit) -> None:
        self._tracer = tracer
        self._on_commit = on_commit

    def __call__(self, session: Any, jobs: Sequence[JobMixin[Any]]) -> None:
        """Start the spans of jobs that are about to be written, and store their contexts in the jobs."""
        groups: dict[tuple[str | None, str, str | None], list[JobMixin[Any]]] = {}
        for job in jobs:
            if job.chain_index == 0:
                # The parent, also if the job is flushed again after a rollback, when the first span is lost.
                made_in = job.__dict__.setdefault(_PARENT, job.__dict__.get("trace_context", ""))
                if made_in is not None:  # explicitly None: do not trace it
                    groups.setdefault((made_in or None, job.type_name, job.queue), []).append(job)
        waiting: list[tuple[Span, JobMixin[Any]]] = []
        for (made_in, type_name, _), group in groups.items():
            began = time.time_ns()
            span = self._begin(made_in, group, _named(group))
            after_commit(session, self._end, span, began, type_name, len(group))
            waiting += [(span, job) for job in group if job._blockers]
        for span, job in waiting:  # after their blockers have spans, too
            _link(span, job)

    def of_bulk(self, session: Any, job: JobMixin[Any]) -> Callable[[int], None]:
        """Start one span for identical jobs, and store its context in the first; it ends with the commit."""
        began, made_in = time.time_ns(), job.__dict__.get("trace_context", "")
        if made_in is None:  # explicitly None: do not trace them
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
            # Without a handler in this process the queue may be known only when the job is written.
            attributes=names.ENQUEUE
            | {names.JOB_TYPE: type_name}
            | ({names.DESTINATION: group[0].queue} if group[0].queue else {})
            | more,
        )
        if (span_context := span.get_span_context()).is_valid:
            traceparent = traceparent_of(span_context)
            for job in group:
                if job.__dict__.get("chain_trace_context") in {made_in, job.__dict__.get("trace_context")}:
                    job.chain_trace_context = traceparent
                job.trace_context = traceparent
        return span

    def _end(self, span: Span, began: int, type_name: str, count: int) -> None:
        ended = time.time_ns()
        span.end(ended)
        self._on_commit(type_name, count, (ended - began) / 1e9)


def _named(group: Sequence[JobMixin[Any]]) -> dict[str, Any]:
    if len(group) > 1:
        return {names.MESSAGE_COUNT: len(group)}
    return {names.MESSAGE_ID: str(group[0].id), names.CONVERSATION_ID: str(group[0].chain_id)}


def _link(span: Span, job: JobMixin[Any]) -> None:
    """Link a span to the enqueue spans of a job's blockers, as far as these are loaded as jobs."""
    for blocker in job._blockers[:_MOST_LINKS]:
        if isinstance(blocker.chain, JobMixin):
            context = tracing.context_of(blocker.chain.__dict__.get("trace_context"))
            if context is not None:
                span.add_link(context, {tracing.LINK_KIND: tracing.LinkKind.BLOCKER.value})


def context_within(parent: SpanContext | None) -> Context:
    """Return a context with only this span as the parent."""
    return Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())


def traceparent_of(context: SpanContext) -> str:
    """Return a span's context as a W3C `traceparent`."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
