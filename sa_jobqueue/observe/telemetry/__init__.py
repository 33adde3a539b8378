"""OpenTelemetry traces and metrics of enqueued jobs (`instrument`) and of attempts (`subscribe`).

The application configures the SDK, its exporters and its sampling; without an SDK this does nothing. Names follow the
semantic conventions for messaging, which are still in development: a queue is a destination, a job a message, its chain a
conversation. Spans are named by the job's type, `enqueue send_receipt` and `process send_receipt`, as most applications
have one queue. A job's trace begins where it was enqueued; an attempt is a child of that span and linked to its causes,
and a continuation is a child of the attempt that it continues.
Requires the extra `otel`.
Source: OpenTelemetry semantic conventions 1.43, messaging spans and messaging metrics.
"""

from sa_jobqueue.observe.telemetry.setup import (
    NoTelemetrySdkError,
    check_sdk,
    instrument,
    observe_database,
    subscribe,
)

__all__ = [
    "NoTelemetrySdkError",
    "check_sdk",
    "instrument",
    "observe_database",
    "subscribe",
]
