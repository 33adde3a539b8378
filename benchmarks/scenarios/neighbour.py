"""What enqueueing costs the rest of a database: commits of producers, and those of an application beside them."""

from __future__ import annotations

import time
from collections.abc import Sequence
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
_JOBS: Final = (0, 100, 500, 1000)
"""Jobs a second, of four producers, beside the application."""
_PATIENCE: Final = 180.0
"""Seconds in which 18 processes start beside each other."""
_MODES: Final = {"off": "no notifications", "always": "a notification a commit", "built": "as built"}
_PEERS: Final = ("pgqueuer, psycopg", "procrastinate")


def scenario() -> Scenario:
    """Return the cases."""
    cases: list[Case] = []
    ours, *peers = environments.installed()
    for count in _PRODUCERS:
        quiet = f"{count} producers, {_MODES['off']}"
        cases += [
            _case(ours, f"{count} producers, {label}", count, mode, None if mode == "off" else quiet)
            for mode, label in _MODES.items()
        ]
        cases += [
            _case(system, f"{count} producers, {system.name}", count, "", None) for system in peers if system.name in _PEERS
        ]
    return Scenario(
        name="neighbour",
        says=f"producers commit a job at a time for {_SECONDS:.0f} s, one worker runs them; beside them an application "
        f"commits {_RATE:.0f} rows a second with NOTIFY, and as many without",
        cases=cases,
    )


def application() -> Scenario:
    """Return the cases of an application beside a growing number of jobs."""
    ours = environments.installed()[0]
    return Scenario(
        name="application",
        says=f"an application commits {2 * _RATE:.0f} rows a second for {_SECONDS:.0f} s, half of them with NOTIFY, beside "
        "four producers at a given rate together and one worker; then VACUUM",
        cases=[
            Case(
                name=f"{rate:,} jobs/s",
                run=partial(_beside, ours, rate),
                prepare=partial(systems.empty, ours),
                open_place=partial(places.open_for, ours),
                rated=False,
            )
            for rate in _JOBS
        ],
    )


def _beside(system: System, rate: int, place: Place, watch: Stopwatch, jobs: int) -> int:
    watch.is_divided = False
    began = place.scalar(_WAL)
    latencies = _load(system, ([rate / 4] * 4 if rate else [], "built"), place, watch, jobs)
    watch.figures["jobs_per_s"] = len(latencies[0]) / watch.seconds
    watch.figures["wal_mb_per_s"] = float(place.scalar(_WAL) - began) / watch.seconds / 1e6
    watch.figures["dead_rows"] = float(place.scalar(_DEAD))
    start = time.perf_counter()
    place.run("VACUUM")
    watch.figures["vacuum_ms"] = (time.perf_counter() - start) * 1000
    return len(latencies[1]) + len(latencies[2])


_WAL: Final = "SELECT pg_current_wal_insert_lsn() - '0/0'"
_DEAD: Final = "SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables"


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
    return len(_load(system, ([None] * producers, mode), place, watch, jobs)[0])


def _load(
    system: System, load: tuple[Sequence[float | None], str], place: Place, watch: Stopwatch, jobs: int
) -> list[list[float]]:
    """Run producers, each at a rate or as fast as it can, beside an application; return the latencies of their commits."""
    rates, mode = load
    place.run("CREATE TABLE application_row (number integer)")
    with ExitStack() as stack:
        if mode == "always":  # as if a worker were idle all the time
            idle = stack.enter_context(place.engine().connect())
            idle.execute(text("SELECT pg_advisory_lock_shared(job_idle_lock('default'))"))
        # It polls so often that it runs the jobs of every case, also where no notification is sent.
        stack.enter_context(running.working(system, place, jobs=10**9, poll_seconds=0.02))
        start = partial(running.start, do="flood", jobs=0)
        producers = [stack.enter_context(start(system, place, notify=mode, rate=rate)) for rate in rates]
        plain, notifying = (
            stack.enter_context(start(APPLICATION, place, rate=_RATE, notify=how)) for how in ("off", "always")
        )
        everybody = [*producers, plain, notifying]
        for process in everybody:
            process.expect("ready", _PATIENCE)
        watch.beside = lambda: [process.pid for process in producers]
        watch.round_trips = None
        with watch:
            for process in everybody:
                process.send("go")
            time.sleep(_SECONDS * jobs / 10_000)
            for process in everybody:
                process.send("stop")
        latencies_by_process = [process.expect("told", _PATIENCE)["latencies"] for process in everybody]
    latencies_by_kind = [
        [latency for producer_latencies in latencies_by_process[:-2] for latency in producer_latencies],
        *latencies_by_process[-2:],
    ]
    for name, latencies in zip(("producers", "plain", "notifying"), latencies_by_kind, strict=True):
        for percent in (50, 99):
            watch.figures[f"{name}_p{percent}_ms"] = percentile(latencies or [0.0], percent) * 1000
    return latencies_by_kind
