"""Waiting, simulated: it agrees with the theory where there is one, and the worker's planner keeps its bounds in it."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa_jobqueue.worker.claim.stride import Ageing

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
    waits = [one.waited for one in simulate(workload, arrivals(workload, 3))]

    likely = erlang_c(8, load)
    assert len(waits) > 25_000
    assert sum(wait > 1e-9 for wait in waits) / len(waits) == pytest.approx(likely, rel=0.08)
    assert sum(waits) / len(waits) == pytest.approx(likely / (8 - load), rel=0.1)


@given(st.lists(st.integers(1, 4), min_size=2, max_size=3), st.integers(1, 4), st.integers(1, 12), st.integers(0, 10**6))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_queues_with_backlogs_start_in_proportion_to_within_a_claim_of_each_worker(
    weights: list[int], workers: int, slots: int, seed: int
) -> None:
    from benchmarks.simulation.model import Costs, simulate
    from benchmarks.simulation.workload import Kind, Workload, arrivals

    kinds = [Kind(name=f"q{n}", queue=f"q{n}", weight=weight, burst=300, seconds=1) for n, weight in enumerate(weights)]
    workload = Workload(kinds=kinds, seconds=1, workers=workers, slots=slots)
    started: Counter[str] = Counter()
    for one in simulate(workload, arrivals(workload, seed), Costs()):
        started[one.arrival.kind.name] += 1
        if max(started.values()) == 300:
            return  # from here on one of them has none waiting
        if sum(started.values()) % slots == 0:
            for a in kinds:
                for b in kinds:
                    apart = abs(started[a.name] / a.weight - started[b.name] / b.weight)
                    # Each worker is fair to within a job a queue between its claims; within one it goes queue by queue.
                    # What ageing gives, a sixteenth and less than any share here, is counted, and made good by the next.
                    assert apart <= workers * (slots + 2) * (1 / a.weight + 1 / b.weight)


@pytest.mark.parametrize(("full", "other"), [("flood", "few"), ("all\x1fflood", "all\x1ffew")], ids=["queues", "fair keys"])
@given(st.integers(1, 5), st.integers(2, 20), st.integers(0, 10**6))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_ten_jobs_beside_a_flood_get_the_first_free_slots(
    full: str, other: str, workers: int, slots: int, seed: int
) -> None:
    from benchmarks.simulation.model import simulate
    from benchmarks.simulation.workload import Kind, Workload, arrivals

    flood = Kind(name="flood", queue=full, burst=500, seconds=1)
    few = Kind(name="few", queue=other, burst=10, burst_at=5, seconds=1)
    workload = Workload(kinds=[flood, few], seconds=10, workers=workers, slots=slots)
    started = simulate(workload, arrivals(workload, seed))
    after = [one for one in started if one.at >= 5]

    # Each worker gives what was idle its share of its next claim, and after that they take turns, to within a job of each.
    # Ageing comes before that: a sixteenth of what starts goes to the longest wait, its backlog of credit at once.
    assert "few" in [one.arrival.kind.name for one in after[: workers + 1]]
    turns = (2 * (10 + workers) + workers) * Ageing.SHARE // (Ageing.SHARE - 1) + 1
    assert [one.arrival.kind.name for one in after[:turns]].count("few") == 10


def test_a_simulation_is_reproducible_and_starts_every_job_once() -> None:
    from benchmarks.simulation.model import Costs, simulate
    from benchmarks.simulation.workload import MIXED, arrivals

    coming = arrivals(MIXED, 7)
    started = simulate(MIXED, coming, Costs())
    assert started == simulate(MIXED, arrivals(MIXED, 7), Costs())
    assert Counter(id(one.arrival) for one in started) == Counter(map(id, coming))
    assert all(one.waited >= 0 for one in started)
