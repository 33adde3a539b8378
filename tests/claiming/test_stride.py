"""Fair shares: the bounds that stride scheduling promises, over arbitrary courses of events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa_jobqueue.worker.claim.stride import STRIDE, Ageing, Sharer, Stride, quotas

WEIGHTS = st.lists(st.integers(1, 100), min_size=2, max_size=6)
FREE = st.lists(st.integers(1, 40), min_size=10, max_size=60)


class World:
    """Sharers and their backlogs. `weights`: 1 where it is not named."""

    def __init__(self, weights: Mapping[str, int] | None = None, most: int = 64) -> None:
        self.weights = dict(weights or {})
        self.stride: Stride[str] = Stride(lambda name: self.weights.get(name, 1))
        self.waiting: Counter[str] = Counter()
        self.most = most

    def add(self, name: str, count: int = 10**6) -> None:
        if count:
            self.waiting[name] += count
            self.stride.open(name)

    def claim(self, free: int, capacities: Mapping[str, int] | None = None) -> Counter[str]:
        """Start what one claim does: each up to its quota."""
        sharers = self.stride.next(self.most)
        most = [min(self.waiting[sharer.name], (capacities or {}).get(sharer.name, free)) for sharer in sharers]
        started = Counter(dict(zip([sharer.name for sharer in sharers], quotas(sharers, free, most), strict=True)))
        self.stride.charge(started)
        self.waiting -= started
        for sharer in sharers:
            if not self.waiting[sharer.name]:
                self.stride.close(sharer.name)
        return +started


@given(WEIGHTS, FREE)
@settings(max_examples=50)
def test_backlogged_queues_start_jobs_in_proportion_to_weight_within_one_job(weights: list[int], course: list[int]) -> None:
    weight_by_name = {f"q{place}": weight for place, weight in enumerate(weights)}
    world, started = World(weight_by_name), Counter[str]()
    for name in weight_by_name:
        world.add(name)
    for free in course:
        started += world.claim(free)
        for name, weight in weight_by_name.items():
            for other_name, other_weight in weight_by_name.items():
                # Waldspurger and Weihl's bound for a pair: one quantum each.
                assert (
                    abs(started[name] / weight - started[other_name] / other_weight) <= 1 / weight + 1 / other_weight + 1e-6
                )


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 3 * STRIDE), st.integers(0, 9)), max_size=6), st.integers(0, 40)
)
@settings(max_examples=200)
def test_each_slot_goes_to_the_queue_with_the_lowest_pass_value(given_: list[tuple[int, int, int]], free: int) -> None:
    sharers = [Sharer(str(order), weight, pass_value, order) for order, (weight, pass_value, _) in enumerate(given_)]
    sharers.sort(key=lambda sharer: (sharer.pass_value, sharer.order))
    capacities = [given_[sharer.order][2] for sharer in sharers]
    expected = [0] * len(sharers)
    for _ in range(free):
        able = [place for place, capacity in enumerate(capacities) if expected[place] < capacity]
        if able:
            costs = [sharer.pass_value + expected[place] * (STRIDE // sharer.weight) for place, sharer in enumerate(sharers)]
            expected[min(able, key=lambda place: (costs[place], place))] += 1
    assert quotas(sharers, free, capacities) == expected


@given(st.integers(1, 6), st.integers(0, 40))
def test_equal_weights_differ_by_at_most_one_job(count: int, free: int) -> None:
    sharers = [Sharer(str(order), 1, STRIDE, order) for order in range(count)]
    given_ = quotas(sharers, free, [free + 1] * count)
    assert sum(given_) == free
    assert max(given_) - min(given_) <= 1
    assert given_ == sorted(given_, reverse=True)


@given(WEIGHTS, st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5), st.integers(0, 60)), min_size=5, max_size=40))
@settings(max_examples=50)
def test_no_slot_stays_free_while_a_job_waits(weights: list[int], course: list[tuple[int, int, int]]) -> None:
    world = World({f"q{place}": weight for place, weight in enumerate(weights)})
    for free, place, arrivals in course:
        world.add(f"q{place}", arrivals)
        had = world.waiting.total()
        assert world.claim(free).total() == min(free, had)


NAMES = [str(number) for number in range(6)]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 30), st.integers(1, 12)), max_size=30), st.integers(1, 8))
@settings(max_examples=80)
def test_a_new_queue_waits_for_at_most_one_job_of_each_other_queue(course: list[tuple[str, int, int]], free: int) -> None:
    world = World()
    for name, count, slots in course:
        world.add(name, count)
        world.claim(slots)
    other_names = set(world.stride.sharers)
    world.add("new", 1)
    before = Counter[str]()
    while not (started := world.claim(free))["new"]:
        assert started  # started in one claim is started at once
        before += started
    assert set(before) <= other_names
    assert all(count <= 1 for count in before.values())


def test_ten_jobs_beside_a_million_start_with_the_next_claim() -> None:
    world = World()
    world.add("flood")
    for _ in range(3):
        world.claim(20)
    world.add("few", 10)
    assert world.claim(20) == {"few": 10, "flood": 10}


def test_an_idle_queue_earns_no_credit() -> None:
    world = World()
    world.add("busy")
    for _ in range(100):
        world.claim(10)
    world.add("rested")
    started = sum((world.claim(10) for _ in range(10)), Counter[str]())
    assert abs(started["busy"] - started["rested"]) <= 1


def test_jobs_started_without_competition_cause_no_deficit() -> None:
    world = World()
    for _ in range(1000):
        world.add("lone", 1)
        world.claim(10)
    world.add("lone")
    world.add("other")
    started = sum((world.claim(10) for _ in range(10)), Counter[str]())
    assert abs(started["lone"] - started["other"]) <= 1


def test_jobs_started_beyond_a_share_are_repaid_after_an_idle_period() -> None:
    world = World()
    world.add("a", 10)
    world.add("b")
    world.claim(11, capacities={"b": 1})  # it took 10, and is empty
    world.add("a")
    started = world.claim(20)
    assert abs((started["b"] + 1) - (started["a"] + 10)) <= 1


def test_saved_pass_values_are_dropped_once_repaid() -> None:
    world = World()
    world.add("steady")
    for key in range(1000):
        world.add(f"once-{key}", 3)
        world.claim(6)
    assert len(world.stride._saved_passes) <= 200
    assert len(world.stride._heap) <= 10


@given(WEIGHTS, FREE, st.integers(0, 5))
@settings(max_examples=50)
def test_no_queue_gets_more_slots_than_its_capacity(weights: list[int], course: list[int], capacity: int) -> None:
    world = World({f"q{place}": weight for place, weight in enumerate(weights)})
    for name in world.weights:
        world.add(name)
    for free in course:
        started = world.claim(free, {"q0": capacity})
        assert started["q0"] <= capacity
        assert started.total() == free


def test_a_bounded_number_of_queues_is_planned_and_none_starves() -> None:
    world = World(most=8)
    for number in range(24):
        world.add(str(number), 2)
    assert len(world.stride.next(8)) == 8
    firsts = [name for _ in range(6) for name in world.claim(4)]
    assert len(set(firsts)) == len(firsts) == 24


def test_the_same_queues_are_planned_until_charged_or_closed() -> None:
    world = World()
    for name in "abc":
        world.add(name, 5)
    sharers = world.stride.next(2)
    assert world.stride.next(2) == sharers
    world.stride.close("a")
    assert [sharer.name for sharer in world.stride.next(2)] == ["b", "c"]


def test_ageing_reserves_a_sixteenth_while_claims_reach_their_limit() -> None:
    ageing = Ageing()
    ageing.started(1000, full=True)
    assert ageing.due() == 62
    assert ageing.due() == 0
    ageing.started(8, full=True)  # what is left of a sixteenth counts on
    assert ageing.due() == 1
    ageing.started(500, full=True)
    ageing.started(3, full=False)  # it has read every lane to its end: nothing waits
    assert ageing.due() == 0
