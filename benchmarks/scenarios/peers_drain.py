"""A backlog of jobs that do nothing, drained by one worker process or two, beside the other systems and `pgbench`."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks import rows, systems
from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.peers import environments, places, running
from benchmarks.peers.catalogue import OURS, System
from benchmarks.place import Place
from benchmarks.scenarios import drain

_IN_TWO = {OURS.name, "pgqueuer, asyncpg"}


def scenario() -> Scenario:
    """Return the cases of one worker process, and of `pgbench` with our SQL."""
    limit = Case(
        name="pgbench, our SQL",
        run=drain.pgbench_run(1),
        prepare=rows.fill,
        open_place=partial(places.open_for, OURS),
        against=Comparison(case=OURS.name),
        most=10_000,
    )
    return Scenario(
        name="drain beside peers",
        says="jobs that do nothing, one worker process; from the first handler's start to the last's, ours to its end",
        cases=[*systems.cases(_drain(1), prepare=systems.fill), limit],
    )


def two_workers() -> Scenario:
    """Return the cases of two worker processes, beside one of the same system."""
    cases = []
    for system in (installed for installed in environments.installed() if installed.name in _IN_TWO):
        single = f"{system.name}, one"
        for processes, name in ((1, single), (2, f"{system.name}, two")):
            case = Case(
                name=name,
                run=partial(_drain(processes), system),
                prepare=partial(systems.fill, system),
                open_place=partial(places.open_for, system),
                against=Comparison(case=single) if processes == 2 else None,
                most=20_000,
            )
            cases.append(case)
    return Scenario(
        name="two workers",
        says="the same backlog drained by one worker process and by two",
        cases=cases,
        jobs=20_000,
    )


def _drain(processes: int) -> systems.Run:
    def run(system: System, place: Place, watch: Stopwatch, jobs: int) -> int:
        with ExitStack() as stack, tempfile.NamedTemporaryFile() as counters:
            stack.enter_context(systems.counting_round_trips(place, watch))
            counters.write(bytes(8 * processes))
            counters.flush()
            shared: dict[str, Any] = {"counters": counters.name} if processes > 1 else {}
            inbox = running.Inbox()
            workers = [
                stack.enter_context(running.start(system, place, inbox=inbox, do="work", jobs=jobs, slot=slot, **shared))
                for slot in range(processes)
            ]
            for worker in workers:
                worker.expect("ready")
            for worker in workers:
                worker.send("go")
            systems.clock(watch, workers)
            for worker in workers:
                worker.send("stop")
            for worker in workers:
                worker.expect("gone")
        return jobs

    return run
