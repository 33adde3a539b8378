"""Trace context: which span of OpenTelemetry a job is enqueued in, as the W3C `traceparent` that its row carries.

Spans are made above (`sa_jobqueue.observe.telemetry`); here is what the layers between need of them, and who wants to know
of jobs that are enqueued.
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
    """Return the current span as a W3C `traceparent`, such as `00-<trace>-<span>-01`; None where there is none.

    Nothing is imported for it: where the application has not loaded OpenTelemetry no span can be current, and this is one
    look into a dict (40 ns; 0.5 us without a current span, 3 us with one, where making a job takes 25 us). A span that is
    not sampled counts as well: its flags say so.
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


def of_new_chain(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the trace columns of a job that begins a chain: the current span's, unless `given` says otherwise."""
    own = given["trace_context"] if "trace_context" in given else current_traceparent()
    # Not even None where there is none: what is not set is not part of the INSERT.
    return {} if own is None else {"trace_context": own, "chain_trace_context": own}


class LinkKind(StrEnum):
    """Why a span of an attempt is linked to another."""

    CREATION = "creation"
    """That its job was enqueued in: its parent as well."""
    CHAIN = "chain"
    """That its chain's first job was enqueued in."""
    FAILED_ATTEMPT = "failed_attempt"
    """The last attempt of its job that failed."""
    BLOCKER = "blocker"
    """That a chain was enqueued in that its job waited for."""


LINK_KIND: Final = "messaging.sa_jobqueue.link.kind"
"""The attribute of a link that says it."""


def enter_span(traceparent: str | None) -> None:
    """Make a span of another process the current one of this task, or none; where OpenTelemetry is not loaded, nothing."""
    if "opentelemetry.trace" in sys.modules and (api := _opentelemetry()) is not None:
        from opentelemetry.context import attach

        attach(api[2](traceparent or ""))


def is_recording() -> bool:
    """Return whether the current span is recorded: not without OpenTelemetry, nor in a trace that is not sampled."""
    if "opentelemetry.trace" not in sys.modules or (api := _opentelemetry()) is None:
        return False
    return api[0]().is_recording()


def link(traceparent: str | None, kind: str) -> None:
    """Link the current span to another; one that is None, or none, is left out."""
    if (api := _opentelemetry()) is not None and (context := context_of(traceparent)) is not None:
        api[0]().add_link(context, {LINK_KIND: kind})


@functools.lru_cache(1000)  # the jobs of one bulk call have the same
def context_of(traceparent: str | None) -> SpanContext | None:
    """Read a W3C `traceparent`. None for one that is None or malformed: rows may come from anybody."""
    if traceparent is None or (api := _opentelemetry()) is None:
        return None
    found = api[0](api[2](traceparent)).get_span_context()
    return found if found.is_valid else None


class Producer(Protocol):
    """Who wants to know of jobs that are enqueued."""

    def __call__(self, session: Any, jobs: Sequence[Any]) -> None:
        """Hear which jobs a session is about to write, all of one class."""

    def alike(self, session: Any, job: Any) -> Callable[[int], None]:
        """Hear that a session is about to write jobs that are all like one; return what is told how many they were."""


_producers: list[Producer] = []


def on_enqueue(producer: Producer) -> Callable[[], None]:
    """Call `producer` whenever a session is about to insert jobs; return the function that ends it."""
    _producers.append(producer)
    return lambda: _producers.remove(producer)


def announce(session: Any, jobs: Sequence[Any]) -> None:
    """Tell that a session is about to insert jobs."""
    for producer in _producers:
        producer(session, jobs)


def announce_alike(session: Any, job: Any) -> Callable[[int], None]:
    """Tell that a session is about to insert jobs that are all like one; return what is to be told how many were."""
    written = [producer.alike(session, job) for producer in _producers]

    def tell(count: int) -> None:
        for one in written:
            one(count)

    return tell


def is_announced() -> bool:
    """Return whether anybody asked to be told."""
    return bool(_producers)


@functools.cache
def _opentelemetry() -> tuple[Callable[..., Span], Callable[[dict[str, str]], None], Callable[[str], Context]] | None:
    try:
        from opentelemetry.context import Context
        from opentelemetry.trace import get_current_span
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:  # a version that is none of ours
        return None
    propagator = TraceContextTextMapPropagator()

    def extracted(traceparent: str) -> Context:
        return propagator.extract({"traceparent": traceparent}, context=Context())

    return get_current_span, propagator.inject, extracted
