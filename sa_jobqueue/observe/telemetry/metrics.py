"""Figures through OpenTelemetry's metrics: those of the conventions for messaging, and the worker's own counters.

The counters are those that Prometheus is served (`sa_jobqueue.observe.metrics.counting`), under the same names with dots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from sa_jobqueue import events as told
from sa_jobqueue.observe.metrics.counting import ALL, OTHER, counts
from sa_jobqueue.observe.telemetry import names
from sa_jobqueue.observe.telemetry.attempts import error_type
from sa_jobqueue.types import AttemptOutcome

_ATTRIBUTES: Final = {
    "job_type": names.JOB_TYPE,
    "outcome": names.OUTCOME,
    "reason": names.REASON,
    "component": "sa_jobqueue.component",
}
_SENDING: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PROCESSING: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_MOST_TYPES: Final = 200
"""Job types with figures of their own in a process that enqueues: there anything may be given as a type."""
_MOST_ERRORS: Final = 100


class EnqueueMetrics:
    """Counts what was enqueued and committed."""

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
        """Count jobs of one type, and how long it took from the first write to the commit."""
        attributes = names.ENQUEUE | {names.JOB_TYPE: self._known(type_name)}
        self._sent.add(count, attributes)
        self._seconds.record(seconds, attributes)


class WorkerMetrics:
    """Counts a worker's events. `types`: those with figures of their own. `running`: asked at every export."""

    def __init__(self, meter: Meter, *, types: Iterable[str], running: Callable[[], int], slots: int) -> None:
        self._known = frozenset(types)
        self._counters = {
            counted: meter.create_counter(f"sa_jobqueue.{counted.name}", counted.unit, counted.words) for counted in ALL
        }
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Number of messages that were delivered to the application."
        )
        self._seconds = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of processing operation.",
            explicit_bucket_boundaries_advisory=_PROCESSING,
        )
        self._errors = names.Bounded(_MOST_ERRORS, "_OTHER")

        def observe_running(options: CallbackOptions) -> Iterable[Observation]:
            return [Observation(running())]

        def observe_slots(options: CallbackOptions) -> Iterable[Observation]:
            return [Observation(slots)]

        meter.create_observable_up_down_counter(
            "sa_jobqueue.worker.running_jobs", [observe_running], "{job}", "Jobs that run in this worker."
        )
        meter.create_observable_up_down_counter(
            "sa_jobqueue.worker.slots", [observe_slots], "{job}", "Jobs it may run at once."
        )

    def __call__(self, event: told.Event) -> None:
        """Count an event."""
        for counted, labels in counts(event, self._known):
            named = {_ATTRIBUTES[name]: value for name, value in zip(counted.labels, labels, strict=True)}
            self._counters[counted].add(1, named)
        match event:
            case told.JobStarted():
                self._consumed.add(1, self._of(event))
            case told.JobCompleted() | told.JobCancelled():
                self._observe(event, event.ran, {})
            case told.JobPutBack():
                failed = event.outcome in {AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT}
                self._observe(event, event.ran, self._error(event.error) if failed else {})
            case told.JobDied():
                self._observe(event, event.ran, self._error(event.error))

    def _observe(self, event: told.AttemptEvent, ran: timedelta | None, more: dict[str, Any]) -> None:
        if ran is not None:
            self._seconds.record(ran.total_seconds(), self._of(event) | more)

    def _of(self, event: told.AttemptEvent) -> dict[str, Any]:
        return names.PROCESS | {names.JOB_TYPE: event.type_name if event.type_name in self._known else OTHER}

    def _error(self, error: Any) -> dict[str, Any]:
        return {names.ERROR_TYPE: self._errors(error_type(error))}
