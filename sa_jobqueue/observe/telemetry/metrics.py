"""OpenTelemetry metrics: those of the semantic conventions for messaging, and the worker's counters.

The counters are those of Prometheus (`sa_jobqueue.observe.metrics.tally`), with dots in their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from sa_jobqueue import events
from sa_jobqueue.models.minute import BOUNDS
from sa_jobqueue.observe.metrics.tally import ALL, OTHER, Counted, Tally
from sa_jobqueue.observe.telemetry import names
from sa_jobqueue.observe.telemetry.attempts import error_type
from sa_jobqueue.types import AttemptOutcome

_ATTRIBUTES: Final = {
    "job_type": names.JOB_TYPE,
    "outcome": names.OUTCOME,
    "reason": names.REASON,
    "component": "sa_jobqueue.component",
    "statement": "sa_jobqueue.statement",
}
_SENDING: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_MOST_TYPES: Final = 200
"""Limit of job types with separate metrics in a process that enqueues, where the type can be any text."""
_MOST_ERRORS: Final = 100
_ENDS: Final = (events.JobCompleted, events.JobCancelled, events.JobRescheduled, events.JobDied)


class EnqueueMetrics:
    """Counts committed enqueues."""

    def __init__(self, meter: Meter) -> None:
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Number of messages producer attempted to send to the broker."
        )
        self._seconds = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=_SENDING,
        )
        self._known = names.Bounded(_MOST_TYPES)

    def __call__(self, type_name: str, count: int, seconds: float) -> None:
        """Count jobs of one type, and record the time from the first write to the commit."""
        attributes = names.ENQUEUE | {names.JOB_TYPE: self._known(type_name)}
        self._sent.add(count, attributes)
        self._seconds.record(seconds, attributes)


class WorkerMetrics:
    """Counts a worker's events. `types`: job types with separate metrics. `running`: called at every export."""

    def __init__(self, meter: Meter, *, types: Iterable[str], running: Callable[[], Mapping[str, int]], slots: int) -> None:
        # Counted here and observed at each export: incrementing a counter of the SDK takes about 10 µs.
        self._tally = Tally(types)
        self._known = self._tally.known
        self._consumed = dict.fromkeys(self._tally.completed, 0)
        self._seconds = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of processing operation.",
            explicit_bucket_boundaries_advisory=BOUNDS,
        )
        self._errors = names.Bounded(_MOST_ERRORS, "_OTHER")
        self._attributes = {kind: names.PROCESS | {names.JOB_TYPE: kind} for kind in self._consumed}

        def observe_consumed(options: CallbackOptions) -> Iterable[Observation]:
            return [Observation(total, self._attributes[kind]) for kind, total in self._consumed.items() if total]

        def observe_running(options: CallbackOptions) -> Iterable[Observation]:
            counted = self._tally.running(running())
            return [Observation(count, {names.JOB_TYPE: kind}) for kind, count in counted.items()]

        def observe_slots(options: CallbackOptions) -> Iterable[Observation]:
            return [Observation(slots)]

        for counted in ALL:
            name = f"sa_jobqueue.{counted.name}"
            meter.create_observable_counter(name, [partial(self._observe_total, counted)], counted.unit, counted.words)
        words = "Number of messages that were delivered to the application."
        meter.create_observable_counter("messaging.client.consumed.messages", [observe_consumed], "{message}", words)
        words = "Running jobs of this worker."
        meter.create_observable_up_down_counter("sa_jobqueue.worker.running_jobs", [observe_running], "{job}", words)
        words = "Maximum number of jobs to run at once."
        meter.create_observable_up_down_counter("sa_jobqueue.worker.slots", [observe_slots], "{job}", words)

    def _observe_total(self, counted: Counted, options: CallbackOptions) -> Iterable[Observation]:
        keys = [_ATTRIBUTES[name] for name in counted.labels]
        return [Observation(total, dict(zip(keys, labels, strict=True))) for labels, total in self._tally.of(counted)]

    def subscribe_to(self, bus: events.EventBus) -> None:
        """Subscribe to a worker's events."""
        self._tally.subscribe_to(bus)
        bus.subscribe(self, kinds=(events.JobStarted, *_ENDS))

    def __call__(self, event: events.Event) -> None:
        """Count an event that the tally does not count."""
        match event:
            case events.JobStarted():
                self._consumed[self._kind(event)] += 1
            case events.JobDied() | events.JobRescheduled(outcome=AttemptOutcome.FAILED | AttemptOutcome.TIMED_OUT):
                self._observe(event, event.ran, error_type(event.error))
            case events.JobCompleted() | events.JobCancelled() | events.JobRescheduled():
                self._observe(event, event.ran)

    def _observe(self, event: events.AttemptEvent, ran: timedelta | None, error: str | None = None) -> None:
        if ran is not None:
            attributes = self._attributes[self._kind(event)]
            if error is not None:
                attributes = attributes | {names.ERROR_TYPE: self._errors(error)}
            self._seconds.record(ran.total_seconds(), attributes)

    def _kind(self, event: events.AttemptEvent) -> str:
        return event.type_name if event.type_name in self._known else OTHER
