"""The cost of a worker that has nothing to do."""

from __future__ import annotations

import time
from typing import Final

from benchmarks import systems
from benchmarks.harness import Scenario
from benchmarks.meter import Stopwatch
from benchmarks.peers import running
from benchmarks.peers.catalogue import System
from benchmarks.place import Place
from benchmarks.statements import counting

_SETTLING_SECONDS: Final = 5.0
_SECONDS: Final = 20.0
_LEFT_OUT: Final = {"pgqueuer, psycopg"}
"""It sends its statements over asyncpg."""


def scenario() -> Scenario:
    """Return the cases."""
    return Scenario(
        name="idle worker",
        says=f"{_SECONDS:.0f} s of one worker process on an empty queue; BEGIN and COMMIT are statements, too",
        cases=systems.cases(_rest, most=lambda system: 10_000, rated=False, rounds=1, is_measured=_is_wanted),
    )


def _is_wanted(system: System) -> bool:
    return not system.is_elsewhere and system.name not in _LEFT_OUT


def _rest(system: System, place: Place, watch: Stopwatch, jobs: int) -> int:
    seconds = _SECONDS * jobs / 10_000
    with counting(place) as statements, running.working(system, place, jobs=10**9) as worker:
        time.sleep(_SETTLING_SECONDS)
        watch.beside = lambda: [worker.pid]
        watch.round_trips, watch.is_divided = None, False
        before = statements.read().count if statements else 0.0
        with watch:
            time.sleep(seconds)
        after = statements.read().count if statements else 0.0
    if statements:
        watch.figures["statements_a_second"] = (after - before) / seconds
    watch.figures["client_core_percent"] = watch.client_cpu / watch.seconds * 100
    watch.figures["server_core_percent"] = watch.server_cpu / watch.seconds * 100
    return 1
