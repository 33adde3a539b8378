"""Trace context: the OpenTelemetry span in which a job is enqueued, stored in its row as a W3C `traceparent`.

Spans are made in `sa_jobqueue.observe.telemetry`; this module has the parts that the layers below need, and the hook for
instrumentation of enqueueing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext


def current_traceparent() -> str | None:
    """Return the current span as a W3C `traceparent`, such as `00-<trace>-<span>-01`; None without a span.

    Imports nothing: unless the application has loaded OpenTelemetry, no span can be current, and this is one dict lookup. A
    span that is not sampled is returned too; its flags show it.
    Source: W3C Trace Context, section 3.2, as OpenTelemetry's own propagator writes it.
    """
    if "opentelemetry.trace" not in sys.modules or (api := _opentelemetry()) is None:
        return None
    current_span, inject, _ = api
    if not current_span().get_span_context().is_valid:
        return None
    carrier: dict[str, str] = {}
    inject(carrier)
    return carrier.get("traceparent")


def of_new_chain(columns: Mapping[str, Any]) -> dict[str, str]:
    """Return the trace columns of a chain's first job: from `columns` if set there, otherwise from the current span."""
    traceparent = columns["trace_context"] if "trace_context" in columns else current_traceparent()
    # Without a span the keys are left out, so that the columns are not part of the INSERT.
    return {} if traceparent is None else {"trace_context": traceparent, "chain_trace_context": traceparent}


class LinkKind(StrEnum):
    """Kind of a link from an attempt's span to another span."""

    CREATION = "creation"
    """The span in which its job was enqueued; also its parent."""
    CHAIN = "chain"
    """The span in which the first job of its chain was enqueued."""
    FAILED_ATTEMPT = "failed_attempt"
    """The span of the job's last failed attempt."""
    BLOCKER = "blocker"
    """The span in which a chain was enqueued that its job waited for."""


LINK_KIND: Final = "messaging.sa_jobqueue.link.kind"
"""The link attribute that has the kind."""


def enter_span(traceparent: str | None) -> None:
    """Make a span of another process, or no span, the current one of this task. Does nothing without OpenTelemetry."""
    if "opentelemetry.trace" in sys.modules and (api := _opentelemetry()) is not None:
        from opentelemetry.context import attach

        attach(api[2](traceparent or ""))


def is_recording() -> bool:
    """Return whether the current span is recorded: False without OpenTelemetry and in a trace that is not sampled."""
    if "opentelemetry.trace" not in sys.modules or (api := _opentelemetry()) is None:
        return False
    return api[0]().is_recording()


def link(traceparent: str | None, kind: str) -> None:
    """Link the current span to another; None or a malformed value is ignored."""
    if (api := _opentelemetry()) is not None and (context := context_of(traceparent)) is not None:
        api[0]().add_link(context, {LINK_KIND: kind})


@functools.lru_cache(1000)  # the jobs of one bulk call share a context
def context_of(traceparent: str | None) -> SpanContext | None:
    """Read a W3C `traceparent`. Return None if it is None or malformed: rows may be written by other programs."""
    if traceparent is None or (api := _opentelemetry()) is None:
        return None
    span_context = api[0](api[2](traceparent)).get_span_context()
    return span_context if span_context.is_valid else None


class Producer(Protocol):
    """A callback for jobs that are enqueued."""

    def __call__(self, session: Any, jobs: Sequence[Any]) -> None:
        """Receive the jobs that a session is about to write, all of one class."""

    def of_bulk(self, session: Any, job: Any) -> Callable[[int], None]:
        """Receive one of the equal jobs that a session is about to write.

        Returns a function that receives their number.
        """


_producers: list[Producer] = []
"""At most one."""


def on_enqueue(producer: Producer) -> Callable[[], None]:
    """Call `producer` whenever a session is about to insert jobs, in place of the one before.

    Returns a function that ends it.
    """
    _producers[:] = [producer]

    def end() -> None:
        if producer in _producers:
            _producers.clear()

    return end


def announce(session: Any, jobs: Sequence[Any]) -> None:
    """Notify the producer that a session is about to insert jobs."""
    for producer in _producers:
        producer(session, jobs)


def announce_bulk(session: Any, job: Any) -> Callable[[int], None]:
    """Notify the producer that a session is about to insert jobs like `job`; return a function to call with their number."""
    return _producers[0].of_bulk(session, job) if _producers else lambda count: None


def is_announced() -> bool:
    """Return whether there is a producer."""
    return bool(_producers)


@functools.cache
def _opentelemetry() -> tuple[Callable[..., Span], Callable[[dict[str, str]], None], Callable[[str], Context]] | None:
    try:
        from opentelemetry.context import Context
        from opentelemetry.trace import get_current_span
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:  # an incompatible version
        return None
    propagator = TraceContextTextMapPropagator()

    def extracted(traceparent: str) -> Context:
        return propagator.extract({"traceparent": traceparent}, context=Context())

    return get_current_span, propagator.inject, extracted
