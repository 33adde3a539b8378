"""From the commit that enqueued a job to the start of its handler, in another process, beside the other systems."""

from __future__ import annotations

import time
from typing import Any, Final

from benchmarks import systems
from benchmarks.harness import Scenario, percentile
from benchmarks.meter import Stopwatch
from benchmarks.peers import running
from benchmarks.peers.catalogue import System
from benchmarks.place import Place

RATE: Final = 100
_MOST: Final = 600
_SETTLING_SECONDS: Final = 1.0


def scenario() -> Scenario:
    """Return the cases."""
    return Scenario(
        name="latency beside peers",
        says=f"{RATE} jobs/s, each committed separately; from the return of that call to the first line of the handler, "
        "but for the jobs of the first second, when statements are prepared",
        cases=systems.cases(_steady, most=lambda system: _MOST, rated=False, figure="p50_ms"),
    )


def _steady(system: System, place: Place, watch: Stopwatch, jobs: int) -> int:
    # One more: the producer sends a first, unmeasured job to connect.
    with (
        running.working(system, place, jobs=jobs + 1, stamps=True) as worker,
        running.start(system, place, do="produce", jobs=jobs, rate=RATE) as producer,
    ):
        producer.expect("ready")
        time.sleep(_SETTLING_SECONDS)  # for the worker to fall idle
        watch.beside = lambda: [worker.pid, producer.pid]
        watch.round_trips = None
        with watch:
            producer.send("go")
            worker.expect("end")
        started, committed = (stamps(process.expect("told")) for process in (worker, producer))
    first = min(RATE, jobs // 2)
    waits = [(started[number] - committed[number]) * 1000 for number in range(first, jobs)]
    watch.figures = {f"p{percent}_ms": percentile(waits, percent) for percent in (50, 95, 99)} | {"max_ms": max(waits)}
    return jobs


def stamps(message: dict[str, Any]) -> dict[int, float]:
    """Return the moment of each job's number: of the first start, where one was started twice."""
    return dict(reversed(message["stamps"]))
