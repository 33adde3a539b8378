"""The cost of observability: the same drain without any, and with logs, metrics and traces in turn.

Jobs that do nothing are the worst case, since their observation is then most of the work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased
from prometheus_client import CollectorRegistry

from benchmarks import rows, workers
from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from sa_jobqueue import JobQueue, Worker
from sa_jobqueue.observe import telemetry
from sa_jobqueue.observe.log_lines import JsonFormatter, bind, capture
from sa_jobqueue.observe.metrics import workers as prometheus

_NOBODY = "nobody looks"
_CONCURRENCY = 100


def scenario() -> Scenario:
    """Return the cases."""
    limit = Comparison(case=_NOBODY, figure="client_us")
    watching = {
        "logs at INFO, as JSON": _log,
        "metrics for Prometheus": _count,
        "logs, metrics, captured lines": lambda worker, queue: [f(worker, queue) for f in (_log, _count, _capture)],
        "OpenTelemetry, 1 % of traces": _trace(ParentBased(TraceIdRatioBased(0.01))),
        "OpenTelemetry, every trace": _trace(ALWAYS_ON),
    }
    return Scenario(
        name="observed",
        says=f"jobs that do nothing, {_CONCURRENCY} at once, and who watches; the ratio is of this process's CPU time",
        cases=(
            Case(name=_NOBODY, run=_worker(lambda worker, queue: None), prepare=rows.fill),
            *(Case(name=name, run=_worker(watch), prepare=rows.fill, against=limit) for name, watch in watching.items()),
        ),
    )


def _worker(observe: Callable[[Worker, JobQueue], Any]) -> Callable[[Place, Stopwatch, int], int]:
    queue = JobQueue()

    @queue.handler(rows.JOB_TYPE)
    async def nothing(order: Any) -> None:
        return None

    def run(place: Place, watch: Stopwatch, jobs: int) -> int:
        root, level = logging.getLogger(), logging.getLogger().level
        before = list(root.handlers)
        try:
            done = workers.drain(
                place, watch, jobs, queue, concurrency=_CONCURRENCY, observe=lambda worker: observe(worker, queue)
            )
        finally:
            root.handlers[:] = before
            root.setLevel(level)
        watch.figures["client_us"] = watch.client_cpu / done * 1e6
        return done

    return run


def _log(worker: Worker, queue: JobQueue) -> None:
    handler = logging.NullHandler()
    handler.setFormatter(JsonFormatter())
    bind(handler)
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)


def _count(worker: Worker, queue: JobQueue) -> None:
    names = queue.registry.names
    prometheus.subscribe(worker.events, CollectorRegistry(), types=names, running=dict, slots=_CONCURRENCY)


def _capture(worker: Worker, queue: JobQueue) -> None:
    capture(50)


def _trace(sampler: Sampler) -> Callable[[Worker, JobQueue], None]:
    def observe(worker: Worker, queue: JobQueue) -> None:
        telemetry.subscribe(
            worker.events,
            types=queue.registry.names,
            running=dict,
            slots=_CONCURRENCY,
            # Spans are made and thrown away: what an exporter costs is the exporter's business.
            tracer_provider=TracerProvider(sampler=sampler),
            meter_provider=MeterProvider([InMemoryMetricReader()]),
        )

    return observe
