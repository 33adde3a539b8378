"""Cases of one question for every system at hand: ours first, then those peers that are installed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.harness import Case, Comparison
from benchmarks.meter import Stopwatch
from benchmarks.peers import environments, places, running
from benchmarks.peers.catalogue import OURS, System
from benchmarks.place import Place
from benchmarks.statements import counting, enable

Run = Callable[[System, Place, Stopwatch, int], int]
Prepare = Callable[[System, Place, int], None]


def empty(system: System, place: Place, jobs: int) -> None:
    """Begin with empty tables: those of a place that was just opened."""
    _count_statements(place)


def cases(
    run: Run,
    *,
    prepare: Prepare = empty,
    most: Callable[[System], int] = lambda system: system.most,
    rated: bool = True,
    rounds: int = 1_000,
    is_measured: Callable[[System], bool] = lambda system: True,
    figure: str | None = None,
    more_systems: Iterable[System] = (),
) -> list[Case]:
    """Return a case a system, each in its own database and divided by ours, by the rate or a figure.

    `most`: jobs in a round. `rounds`: most of them. `others`: cases of this question alone.
    """
    compared = rated or figure is not None
    ours, *peers = environments.installed()
    return [
        Case(
            name=system.name,
            run=partial(run, system),
            prepare=partial(prepare, system),
            open_place=partial(places.open_for, system),
            against=Comparison(case=OURS.name, figure=figure) if compared and system is not OURS else None,
            most=most(system),
            rated=rated,
            most_rounds=rounds,
        )
        for system in (ours, *more_systems, *peers)
        if is_measured(system)
    ]


def fill(system: System, place: Place, jobs: int) -> None:
    """Enqueue a backlog by the system's own means, and leave it as after a vacuum; no page is logged whole after that."""
    with running.start(system, place, do="fill", jobs=jobs) as process:
        process.expect("ready")
        process.send("go")
        process.expect("gone")
    _count_statements(place)
    place.run("VACUUM")


def _count_statements(place: Place) -> None:
    if place.broker is None:
        enable(place)  # before the case: its WAL does not count
        place.checkpoint()


@contextmanager
def counting_round_trips(place: Place, watch: Stopwatch) -> Iterator[None]:
    """Count the statements of a case as its round trips; nothing for jobs of another broker.

    They are what pg_stat_statements counts, `BEGIN` and `COMMIT` included: the same for every driver. A batch that a driver
    pipelines counts as many as it has.
    """
    if place.broker is not None:
        yield
        return
    with counting(place) as statements:
        before = statements.read().count if statements else 0.0
        yield
        watch.round_trips = None if statements is None else round(statements.read().count - before)


def clock(watch: Stopwatch, processes: Iterable[running.Running]) -> None:
    """Measure from the first `begin` to the first `end` of processes that answer together, which are the client."""
    pids = [process.pid for process in processes]
    watch.beside = lambda: pids
    watch.round_trips = None  # those of another process are not seen here
    first = next(iter(processes))
    began = first.expect("begin")
    with watch:
        ended = first.expect("end", patience=300.0)
    # What they say themselves is exact; when it arrives here is not.
    watch.seconds = ended["at"] - began["at"]
    if len(pids) == 1:
        watch.client_cpu = ended["cpu"] - began["cpu"]
