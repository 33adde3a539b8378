"""What each queue may start next: the bounds that the planner promises, over arbitrary courses of events."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sa_jobqueue.worker.claim.planning import Ageing, Planner, Share

WEIGHTS = st.lists(st.integers(1, 100), min_size=2, max_size=6)
FREE = st.lists(st.integers(1, 40), min_size=10, max_size=60)


def claim(shares: list[Share], waiting: dict[str, int], free: int) -> dict[str, int]:
    """Start what the statement would: queue after queue, each up to its quota, until no slot is free."""
    started: dict[str, int] = {}
    for share in shares:
        started[share.queue] = min(share.quota, waiting[share.queue], free)
        waiting[share.queue] -= started[share.queue]
        free -= started[share.queue]
    return started


def planner_of(weights: list[int]) -> tuple[Planner, dict[str, int]]:
    named = {f"q{place}": weight for place, weight in enumerate(weights)}
    planner = Planner(named)
    planner.reweigh(named)
    return planner, named


@given(WEIGHTS, FREE)
@settings(max_examples=50)
def test_busy_queues_start_in_proportion_to_their_weights_to_within_a_job(weights: list[int], course: list[int]) -> None:
    planner, named = planner_of(weights)
    waiting, started = dict.fromkeys(named, 10**6), dict.fromkeys(named, 0)
    for free in course:
        shares = planner.plan(free)
        got = claim(shares, waiting, free)
        planner.take(shares, got, free=free)
        for name, count in got.items():
            started[name] += count
        for one, weight in named.items():
            for other, others in named.items():
                # Waldspurger and Weihl's bound for a pair: one quantum each.
                assert abs(started[one] / weight - started[other] / others) <= 1 / weight + 1 / others + 1e-6


@given(WEIGHTS, st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5), st.integers(0, 60)), min_size=5, max_size=40))
@settings(max_examples=50)
def test_no_slot_stays_free_that_a_queue_has_a_job_for(weights: list[int], course: list[tuple[int, int, int]]) -> None:
    planner, named = planner_of(weights)
    waiting = dict.fromkeys(named, 0)
    for free, place, arrivals in course:
        waiting[f"q{place % len(weights)}"] += arrivals
        left = free
        # The worker claims again at once while there are slots and the claim before brought something.
        while left > 0:
            shares = planner.plan(left)
            got = claim(shares, waiting, left)
            planner.take(shares, got, free=left)
            left -= sum(got.values())
            if not sum(got.values()):
                break
        assert left == 0 or not any(waiting.values())


@given(WEIGHTS, st.integers(1, 40), st.integers(1, 60))  # one claim at least: before it none is known to be idle
@settings(max_examples=50)
def test_what_comes_into_an_idle_queue_has_its_share_of_the_very_next_claim(
    weights: list[int], free: int, before: int
) -> None:
    planner, named = planner_of(weights)
    late = "q0"
    waiting = dict.fromkeys(named, 10**6) | {late: 0}
    for _ in range(before):
        shares = planner.plan(free)
        planner.take(shares, claim(shares, waiting, free), free=free)
    waiting[late] = 10
    entitled = free * named[late] // sum(named.values())
    got = claim(planner.plan(free), waiting, free)
    assert got.get(late, 0) >= min(10, entitled)


def test_a_rest_earns_no_credit() -> None:
    planner, _ = planner_of([1, 1])
    waiting = {"q0": 10**6, "q1": 0}
    for _ in range(100):
        shares = planner.plan(10)
        planner.take(shares, claim(shares, waiting, 10), free=10)
    waiting["q1"] = 10**6
    started = {"q0": 0, "q1": 0}
    for _ in range(10):
        shares = planner.plan(10)
        got = claim(shares, waiting, 10)
        planner.take(shares, got, free=10)
        started = {name: started[name] + got.get(name, 0) for name in started}
    assert abs(started["q0"] - started["q1"]) <= 10


def test_what_a_queue_started_while_no_other_waited_is_no_debt() -> None:
    planner, _ = planner_of([1, 1])
    waiting = {"q0": 0, "q1": 0}
    for _ in range(1000):
        waiting["q0"] = 1
        shares = planner.plan(10)
        planner.take(shares, claim(shares, waiting, 10), free=10)
    waiting = {"q0": 10**6, "q1": 10**6}
    started = {"q0": 0, "q1": 0}
    for _ in range(10):
        shares = planner.plan(10)
        got = claim(shares, waiting, 10)
        planner.take(shares, got, free=10)
        started = {name: started[name] + got.get(name, 0) for name in started}
    assert abs(started["q0"] - started["q1"]) <= 10


def test_ten_beside_a_million_start_with_the_next_claim() -> None:
    planner, _ = planner_of([1, 1])
    waiting = {"q0": 10**6, "q1": 0}
    for _ in range(3):
        shares = planner.plan(20)
        planner.take(shares, claim(shares, waiting, 20), free=20)
    waiting["q1"] = 10
    assert claim(planner.plan(20), waiting, 20) == {"q1": 10, "q0": 10}


@given(WEIGHTS, FREE, st.integers(0, 5))
@settings(max_examples=50)
def test_a_queue_is_never_given_more_than_it_has_room_for(weights: list[int], course: list[int], room: int) -> None:
    planner, named = planner_of(weights)
    waiting = dict.fromkeys(named, 10**6)
    for free in course:
        shares = planner.plan(free, {"q0": room})
        got = claim(shares, waiting, free)
        planner.take(shares, got, free=free)
        assert got.get("q0", 0) <= room
        assert sum(got.values()) == free


def test_a_sixteenth_goes_to_the_longest_waiting_while_claims_come_back_full() -> None:
    ageing = Ageing()
    ageing.started(1000, full=True)
    assert ageing.due(0.5) == 0  # not within a second of the last time
    assert ageing.due(1.0) == 62
    assert ageing.due(2.0) == 0
    ageing.started(500, full=True)
    ageing.started(3, full=False)  # it has read every lane to its end: nothing waits
    assert ageing.due(3.0) == 0
