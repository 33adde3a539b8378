"""Turning it on, and off again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from sa_jobqueue import tracing
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.events import EventBus
from sa_jobqueue.observe.health import Health
from sa_jobqueue.observe.metrics.figures import of_report
from sa_jobqueue.observe.telemetry.names import SCHEMA_URL, SCOPE
from sa_jobqueue.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

_instrumented: list[Callable[[], None]] = []


class MissingOpenTelemetryExtraError(JobQueueError, ImportError):
    """Traces need opentelemetry-api, which is not installed: pip install "sa-jobqueue[otel]"."""

    def __init__(self) -> None:
        super().__init__('opentelemetry-api is not installed: pip install "sa-jobqueue[otel]"')


class NoTelemetrySdkError(JobQueueError):
    """Nobody has set up OpenTelemetry's SDK in this process, so whatever is told goes nowhere."""

    def __init__(self) -> None:
        super().__init__(
            "no OpenTelemetry SDK is set up in this process: name with --app the module that does, or run it under "
            "opentelemetry-instrument (pip install opentelemetry-distro opentelemetry-exporter-otlp)"
        )


def check_sdk() -> None:
    """Check that metrics go somewhere. Raises: MissingOpenTelemetryExtraError, NoTelemetrySdkError."""
    try:
        from opentelemetry.metrics import get_meter_provider
    except ModuleNotFoundError as error:
        raise MissingOpenTelemetryExtraError from error
    # Until one is set the API gives a stand-in of its own, which has no public name.
    if type(get_meter_provider()).__module__.startswith("opentelemetry.metrics"):
        raise NoTelemetrySdkError


def instrument(
    *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> Callable[[], None]:
    """Make a span of what sessions of this process enqueue from now on; return the function that ends it.

    `tracer_provider`, `meter_provider`: OpenTelemetry's global ones unless given. A second call takes the place of the
    first. One span for the jobs of one type that one flush or `enqueue_many` writes; they carry its context. What is
    rolled back is never told, that of a savepoint neither.
    Raises: MissingOpenTelemetryExtraError.
    """
    tracer, meter = _tracer(tracer_provider), _meter(meter_provider)
    from sa_jobqueue.observe.telemetry.metrics import EnqueueMetrics
    from sa_jobqueue.observe.telemetry.producers import EnqueueSpans

    while _instrumented:
        _instrumented.pop()()
    end = tracing.on_enqueue(EnqueueSpans(tracer, EnqueueMetrics(meter)))
    _instrumented.append(end)

    def uninstrument() -> None:
        if end in _instrumented:
            _instrumented.remove(end)
            end()

    return uninstrument


def subscribe(
    events: EventBus,
    *,
    types: Iterable[str],
    running: Callable[[], Mapping[str, int]],
    slots: int,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Make a span of each attempt of a worker, and metrics of what it does, from now on.

    `types`, `running`, `slots`: as `metrics.workers.subscribe` takes them. `tracer_provider`, `meter_provider`:
    OpenTelemetry's global ones unless given.
    Raises: MissingOpenTelemetryExtraError.
    """
    tracer, meter = _tracer(tracer_provider), _meter(meter_provider)
    from sa_jobqueue.observe.telemetry.attempts import AttemptSpans
    from sa_jobqueue.observe.telemetry.metrics import WorkerMetrics

    spans = AttemptSpans(tracer)
    events.on_attempt_start(spans.begin)
    events.subscribe(spans.hear, kinds=spans.heard)
    WorkerMetrics(meter, types=types, running=running, slots=slots).follow(events)


def observe_database(read: Callable[[], Health], *, meter_provider: MeterProvider | None = None) -> None:
    """Observe what the database knows of a queue: the figures that `sa-jobqueue exporter` serves, read anew an export.

    `read`: such as `lambda: health(engine)`; called once at once, and then from the SDK's thread. In one process a
    database. `meter_provider`: OpenTelemetry's global one unless given.
    Raises: MissingOpenTelemetryExtraError; what `read` raises, when it is called here.
    """
    meter = _meter(meter_provider)
    from sa_jobqueue.observe.telemetry.database import DatabaseMetrics

    DatabaseMetrics(meter, read, of_report(read()))


def _tracer(provider: TracerProvider | None) -> Tracer:
    try:
        from opentelemetry.trace import get_tracer
    except ModuleNotFoundError as error:
        raise MissingOpenTelemetryExtraError from error
    return get_tracer(SCOPE, __version__, tracer_provider=provider, schema_url=SCHEMA_URL)


def _meter(provider: MeterProvider | None) -> Meter:
    try:
        from opentelemetry.metrics import get_meter
    except ModuleNotFoundError as error:
        raise MissingOpenTelemetryExtraError from error
    return get_meter(SCOPE, __version__, meter_provider=provider, schema_url=SCHEMA_URL)
