"""The memory of a worker after a million jobs, beside that after a tenth of them."""

from __future__ import annotations

from functools import partial

from benchmarks import rows, systems
from benchmarks.harness import Case, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.peers import places, running
from benchmarks.peers.catalogue import OURS
from benchmarks.place import Place


def scenario() -> Scenario:
    """Return the case."""
    case = Case(
        name="one worker process",
        run=_drain,
        prepare=rows.fill,
        open_place=partial(places.open_for, OURS),
        most_rounds=1,
    )
    return Scenario(
        name="memory",
        says="resident memory of a worker that drains a backlog, after a tenth of the jobs and after all",
        cases=[case],
        jobs=1_000_000,
    )


def _drain(place: Place, watch: Stopwatch, jobs: int) -> int:
    with running.working(OURS, place, jobs=jobs) as worker:
        systems.clock(watch, [worker])
        memory = worker.expect("told")["memory"]
    watch.figures["MiB_at_a_tenth"] = memory["at_tenth_kib"] / 1024
    watch.figures["MiB_at_the_end"] = memory["at_end_kib"] / 1024
    watch.figures["growth_percent"] = (memory["at_end_kib"] / memory["at_tenth_kib"] - 1) * 100
    return jobs
