"""Set up OpenTelemetry instrumentation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from sa_jobqueue import tracing
from sa_jobqueue.errors import JobQueueError, MissingExtraError
from sa_jobqueue.events import EventBus
from sa_jobqueue.observe.health import Health
from sa_jobqueue.observe.metrics.samples import of_report
from sa_jobqueue.observe.telemetry.names import SCHEMA_URL, SCOPE
from sa_jobqueue.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider


class NoTelemetrySdkError(JobQueueError):
    """No OpenTelemetry SDK is configured in this process, so nothing would be exported."""

    def __init__(self) -> None:
        super().__init__(
            "no OpenTelemetry SDK is configured in this process: pass --app with a module that configures it, or run under "
            "opentelemetry-instrument (pip install opentelemetry-distro opentelemetry-exporter-otlp)"
        )


def check_sdk() -> None:
    """Check that an SDK is configured. Raises: MissingExtraError, NoTelemetrySdkError."""
    _check_extra()
    from opentelemetry.metrics import get_meter_provider

    # Until an SDK is configured, the API returns a proxy provider, which has no public name.
    if type(get_meter_provider()).__module__.startswith("opentelemetry.metrics"):
        raise NoTelemetrySdkError


def instrument(
    *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> Callable[[], None]:
    """Create spans and metrics for jobs that this process enqueues; return a function that stops it.

    `tracer_provider`, `meter_provider`: by default OpenTelemetry's global ones. A second call replaces the first. There is
    one span for the jobs of one type that a flush or `enqueue_many` writes. Spans of a transaction or savepoint that is
    rolled back are not exported.
    Raises: MissingExtraError.
    """
    tracer, meter = _tracer(tracer_provider), _meter(meter_provider)
    from sa_jobqueue.observe.telemetry.metrics import EnqueueMetrics
    from sa_jobqueue.observe.telemetry.producers import EnqueueSpans

    return tracing.on_enqueue(EnqueueSpans(tracer, EnqueueMetrics(meter)))


def subscribe(
    events: EventBus,
    *,
    types: Iterable[str],
    running: Callable[[], Mapping[str, int]],
    slots: int,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Create spans for the attempts of a worker, and metrics of its events.

    `events`: the worker's `events`. `types`, `running`, `slots`: as in `metrics.workers.subscribe`. `tracer_provider`,
    `meter_provider`: as in `instrument`.
    Raises: MissingExtraError.
    """
    tracer, meter = _tracer(tracer_provider), _meter(meter_provider)
    from sa_jobqueue.observe.telemetry.attempts import AttemptSpans
    from sa_jobqueue.observe.telemetry.metrics import WorkerMetrics

    spans = AttemptSpans(tracer)
    events.on_attempt_start(spans.begin)
    events.subscribe(spans.handle, kinds=spans.kinds)
    WorkerMetrics(meter, types=types, running=running, slots=slots).subscribe_to(events)


def observe_database(read: Callable[[], Health], *, meter_provider: MeterProvider | None = None) -> None:
    """Export the figures of a health report, as `sa-jobqueue exporter` serves them, measured for each export.

    `read`: such as `lambda: health(engine)`; called once now, and then from the SDK's thread. Use it in one process per
    database. `meter_provider`: as in `instrument`.
    Raises: MissingExtraError; exceptions of the first call of `read`.
    """
    meter = _meter(meter_provider)
    from sa_jobqueue.observe.telemetry.database import DatabaseMetrics

    DatabaseMetrics(meter, read, of_report(read()))


def _check_extra() -> None:
    try:
        import opentelemetry.metrics
        import opentelemetry.trace  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError("opentelemetry-api", "otel") from error


def _tracer(provider: TracerProvider | None) -> Tracer:
    _check_extra()
    from opentelemetry.trace import get_tracer

    return get_tracer(SCOPE, __version__, tracer_provider=provider, schema_url=SCHEMA_URL)


def _meter(provider: MeterProvider | None) -> Meter:
    _check_extra()
    from opentelemetry.metrics import get_meter

    return get_meter(SCOPE, __version__, meter_provider=provider, schema_url=SCHEMA_URL)
