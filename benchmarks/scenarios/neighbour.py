"""What enqueueing costs the rest of a database: commits of producers, and those of an application beside them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from typing import Final

from sqlalchemy import text

from benchmarks import systems
from benchmarks.harness import Case, Comparison, Scenario, percentile
from benchmarks.meter import Stopwatch
from benchmarks.peers import environments, places, running
from benchmarks.peers.catalogue import APPLICATION, System
from benchmarks.place import Place

_PRODUCERS: Final = (1, 4, 16)
_SECONDS: Final = 4.0
_RATE: Final = 50.0
"""Commits a second of each of the application's two processes: with NOTIFY, and without."""
_PATIENCE: Final = 180.0
"""Seconds in which 18 processes start beside each other."""
_MODES: Final = {"off": "no notifications", "always": "a notification a commit", "built": "as built"}
_PEERS: Final = ("pgqueuer, psycopg", "procrastinate")


def scenario() -> Scenario:
    """Return the cases."""
    cases: list[Case] = []
    ours, *others = environments.installed()
    for count in _PRODUCERS:
        quiet = f"{count} producers, {_MODES['off']}"
        cases += [
            _case(ours, f"{count} producers, {label}", count, mode, None if mode == "off" else quiet)
            for mode, label in _MODES.items()
        ]
        cases += [_case(one, f"{count} producers, {one.name}", count, "", None) for one in others if one.name in _PEERS]
    return Scenario(
        name="neighbour",
        says=f"producers commit a job at a time for {_SECONDS:.0f} s, one worker runs them; beside them an application "
        f"commits {_RATE:.0f} rows a second with NOTIFY, and as many without",
        cases=cases,
    )


def _case(system: System, name: str, producers: int, mode: str, against: str | None) -> Case:
    return Case(
        name=name,
        run=partial(_run, system, (producers, mode)),
        prepare=partial(systems.empty, system),
        open_place=partial(places.open_for, system),
        against=Comparison(case=against) if against else None,
    )


def _run(system: System, load: tuple[int, str], place: Place, watch: Stopwatch, jobs: int) -> int:
    producers, mode = load
    place.run("CREATE TABLE application_row (number integer)")
    with ExitStack() as stack:
        if mode == "always":  # as if a worker were idle all the time
            idle = stack.enter_context(place.engine().connect())
            idle.execute(text("SELECT pg_advisory_lock_shared(job_idle_lock('default'))"))
        # It polls so often that it runs the jobs of every case, also where no notification is sent.
        stack.enter_context(running.working(system, place, jobs=10**9, poll_seconds=0.02))
        start = partial(running.start, do="flood", jobs=0)
        given = [stack.enter_context(start(system, place, notify=mode)) for _ in range(producers)]
        plain, notifying = (
            stack.enter_context(start(APPLICATION, place, rate=_RATE, notify=how)) for how in ("off", "always")
        )
        everybody = [*given, plain, notifying]
        for process in everybody:
            process.expect("ready", _PATIENCE)
        watch.beside = lambda: [process.pid for process in given]
        watch.round_trips = None
        with watch:
            for process in everybody:
                process.send("go")
            time.sleep(_SECONDS * jobs / 10_000)
            for process in everybody:
                process.send("stop")
        found = [process.expect("told", _PATIENCE)["latencies"] for process in everybody]
    of_producers = [one for of in found[:-2] for one in of]
    for name, latencies in (("producers", of_producers), ("plain", found[-2]), ("notifying", found[-1])):
        for percent in (50, 99):
            watch.figures[f"{name}_p{percent}_ms"] = percentile(latencies, percent) * 1000
    return len(of_producers)
