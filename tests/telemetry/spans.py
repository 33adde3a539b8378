"""The spans and metrics that OpenTelemetry's real SDK receives, kept in memory."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from sa_jobqueue import JobQueue, Worker
from sa_jobqueue.observe.telemetry import instrument, subscribe

Points = dict[tuple[str, frozenset[tuple[str, Any]]], Any]


class Telemetry:
    """A test's own providers, and what they received. Sessions of this process are instrumented until `close`."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(sampler=sampler)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.tracer = self.tracers.get_tracer("application")
        self._uninstrument = instrument(tracer_provider=self.tracers, meter_provider=self.meters)

    def close(self) -> None:
        """Uninstrument, and shut the providers down."""
        self._uninstrument()
        self.tracers.shutdown()
        self.meters.shutdown()

    def watch(self, worker: Worker, jobs: JobQueue[Any]) -> None:
        """Follow a worker."""
        subscribe(
            worker.events,
            types=jobs.registry.names,
            running=lambda: worker.running_by_type,
            slots=7,
            tracer_provider=self.tracers,
            meter_provider=self.meters,
        )

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        """Return the spans that have ended, in the order they began."""
        spans = sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)
        return [span for span in spans if name is None or span.name == name]

    def span(self, name: str) -> ReadableSpan:
        """Return the one span of a name."""
        (span,) = self.spans(name)
        return span

    def points(self) -> Points:
        """Return every figure by its name and attributes."""
        data: Any = self.reader.get_metrics_data()
        return {
            (metric.name, frozenset(point.attributes.items())): point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        }


def written(span: ReadableSpan) -> str:
    """Return a span's traceparent, put together by hand."""
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    """Return whether a span is within another, of the same trace."""
    context, above = span.get_span_context(), parent.get_span_context()
    assert context is not None
    assert above is not None
    return span.parent is not None and (span.parent.span_id, context.trace_id) == (above.span_id, above.trace_id)


def links(span: ReadableSpan) -> dict[str, list[int]]:
    """Return the spans that a span is linked to, by why."""
    spans_by_link: dict[str, list[int]] = {}
    for link in span.links:
        spans_by_link.setdefault(str((link.attributes or {})["messaging.sa_jobqueue.link.kind"]), []).append(
            link.context.span_id
        )
    return spans_by_link


def id_of(span: ReadableSpan) -> int:
    """Return a span's id."""
    context = span.get_span_context()
    assert context is not None
    return context.span_id
