"""Waiting, simulated: it agrees with the theory where there is one, and the worker's planner keeps its bounds in it."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _benchmarks_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)


def erlang_c(servers: int, load: float) -> float:
    """Return how likely a customer of M/M/c has to wait; `load`: arrivals a second times seconds of service."""
    waiting = load**servers / math.factorial(servers) * servers / (servers - load)
    return waiting / (sum(load**n / math.factorial(n) for n in range(servers)) + waiting)


@pytest.mark.long
@pytest.mark.parametrize(("workers", "slots"), [(1, 8), (4, 2)])
def test_simulated_waiting_times_agree_with_erlang_c(workers: int, slots: int) -> None:
    from benchmarks.simulation.model import simulate
    from benchmarks.simulation.workload import Kind, Workload, arrivals

    load = 5.6
    kinds = [Kind(name=name, queue=name, seconds=1.0, rate=load / 2) for name in ("a", "b")]
    workload = Workload(kinds=kinds, seconds=5_000, workers=workers, slots=slots)
    waits = [start.waited for start in simulate(workload, arrivals(workload, 3))]

    likely = erlang_c(8, load)
    assert len(waits) > 25_000
    assert sum(wait > 1e-9 for wait in waits) / len(waits) == pytest.approx(likely, rel=0.08)
    assert sum(waits) / len(waits) == pytest.approx(likely / (8 - load), rel=0.1)


@pytest.mark.slow
def test_a_simulation_is_reproducible_and_starts_every_job_once() -> None:
    from benchmarks.simulation.model import Costs, simulate
    from benchmarks.simulation.workload import MIXED, arrivals

    coming = arrivals(MIXED, 7)
    started = simulate(MIXED, coming, Costs())
    assert started == simulate(MIXED, arrivals(MIXED, 7), Costs())
    assert Counter(id(start.arrival) for start in started) == Counter(map(id, coming))
    assert all(start.waited >= 0 for start in started)
