"""The same backlog drained by 1, 10 and 100 connections, each claiming as a worker with ten slots does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from benchmarks import pgbench, rows
from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place

_SLOTS: Final = 10
_CLAIMS: Final = 5
"""Fewest of each worker."""


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
        # No more than the server takes, nor than there are jobs for.
        clients = max(1, min(workers, place.free_connections, jobs // (_SLOTS * _CLAIMS)))
        transactions = max(1, jobs // (_SLOTS * clients))
        script = pgbench.claim() + pgbench.complete()
        pgbench.run(place, watch, script, transactions=transactions, batch=_SLOTS, clients=clients)
        watch.figures["workers"] = clients
        return pgbench.completed(place)

    return run
