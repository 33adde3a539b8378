"""A backlog of jobs that do nothing, drained by one worker, beside pgbench claiming and completing the same jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import pgbench, rows, workers
from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from sa_jobqueue import JobQueue

_ONE = "pgbench, 1 connection"


def scenario() -> Scenario:
    """Return the cases."""
    limit = Comparison(case=_ONE)

    async def asynchronous(order: Any) -> None:
        return None

    def synchronous(order: Any) -> None:
        return None

    return Scenario(
        name="drain",
        says=f"jobs that do nothing, {pgbench.BATCH} a claim, one worker process; pgbench runs the same claim and complete",
        cases=(
            Case(name=_ONE, run=pgbench_run(1), prepare=rows.fill),
            Case(name="pgbench, 2 connections", run=pgbench_run(2), prepare=rows.fill, against=limit),
            Case(name="async handler", run=_worker(asynchronous), prepare=rows.fill, against=limit),
            Case(name="sync handler", run=_worker(synchronous), prepare=rows.fill, against=limit),
        ),
    )


def _worker(function: Callable[[Any], Any]) -> Callable[[Place, Stopwatch, int], int]:
    queue = JobQueue()
    queue.handler(rows.JOB_TYPE)(function)

    def run(place: Place, watch: Stopwatch, jobs: int) -> int:
        return workers.drain(place, watch, jobs, queue, concurrency=pgbench.BATCH)

    return run


def pgbench_run(clients: int) -> Callable[[Place, Stopwatch, int], int]:
    """Return what drains with `pgbench`, our claim and completion, a hundred a batch."""

    def run(place: Place, watch: Stopwatch, jobs: int) -> int:
        transactions = -(-jobs // (pgbench.BATCH * clients))
        pgbench.run(place, watch, pgbench.claim() + pgbench.complete(), transactions=transactions, clients=clients)
        return pgbench.completed(place)

    return run
