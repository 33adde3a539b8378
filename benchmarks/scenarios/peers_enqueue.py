"""The cost of enqueueing a job, beside the other systems: one a transaction, and all at once."""

from __future__ import annotations

from benchmarks import systems
from benchmarks.harness import Scenario
from benchmarks.meter import Stopwatch
from benchmarks.peers import running
from benchmarks.peers.catalogue import CONNECTION, OBJECTS, System
from benchmarks.place import Place

_SINGLE = 1_000


def single() -> Scenario:
    """Return the cases of one job a transaction."""
    return Scenario(
        name="single enqueue beside peers",
        says="one job at a time, each committed, by one process on one connection",
        cases=systems.cases(_enqueue("enqueue"), most=lambda system: _SINGLE, more_systems=[OBJECTS, CONNECTION]),
    )


def bulk() -> Scenario:
    """Return the cases of many jobs in a call."""
    return Scenario(
        name="bulk enqueue beside peers",
        says="10,000 jobs by the fastest call a system has; making the objects is part of the time",
        cases=systems.cases(_enqueue("fill"), more_systems=[OBJECTS]),
    )


def _enqueue(verb: str) -> systems.Run:
    def run(system: System, place: Place, watch: Stopwatch, jobs: int) -> int:
        with (
            systems.counting_round_trips(place, watch),
            running.start(system, place, do=verb, jobs=jobs) as process,
        ):
            process.expect("ready")
            process.send("go")
            systems.clock(watch, [process])
            process.expect("gone")
        return jobs

    return run
