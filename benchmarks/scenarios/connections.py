"""The same backlog drained by 1, 10 and 100 connections, each claiming as a worker with ten slots does."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import pgbench, rows
from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place

_SLOTS = 10


def scenario() -> Scenario:
    """Return the cases."""
    one = "1 worker"
    cases = [Case(name=one, run=_run(1), prepare=rows.fill)]
    for workers in (10, 100):
        case = Case(name=f"{workers} workers", run=_run(workers), prepare=rows.fill, against=Comparison(case=one))
        cases.append(case)
    return Scenario(
        name="workers as connections",
        says=f"pgbench claims {_SLOTS} jobs and completes them, on as many connections as there are workers",
        cases=cases,
        jobs=20_000,
    )


def _run(workers: int) -> Callable[[Place, Stopwatch, int], int]:
    def run(place: Place, watch: Stopwatch, jobs: int) -> int:
        transactions = max(1, jobs // (_SLOTS * workers))
        script = pgbench.claim() + pgbench.complete()
        pgbench.run(place, watch, script, transactions=transactions, batch=_SLOTS, clients=workers)
        return pgbench.completed(place)

    return run
