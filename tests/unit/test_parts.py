"""Keys share their queue: the bounds that `Parts` promises over any course of events, with floors as a worker has."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from sa_jobqueue.worker.claim.floors import Floors, Lane
from sa_jobqueue.worker.claim.parts import AFTER_FEW, MOST, Parts
from sa_jobqueue.worker.claim.planning import Share

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
Key = tuple[datetime, UUID]


class World:
    """What a queue holds, and one worker that looks after every claim."""

    def __init__(self, weights: dict[str, int] | None = None) -> None:
        self.floors = Floors([Lane("mail", 0)], UUID(int=0))
        self.parts = Parts(["mail"], self.floors)
        self.parts.reweigh(weights or {})
        self.jobs: dict[str, list[Key]] = {}
        self.now = 0.0
        self.made = 0
        self.locked: set[str] = set()
        self.was_filled = True

    def at(self, seconds: float) -> datetime:
        return BEGAN + timedelta(seconds=seconds)

    def add(self, name: str, count: int = 1, *, late: float = 0.0) -> None:
        """Enqueue, and poll: the worker gets the earliest."""
        for _ in range(count):
            self.made += 1
            self.jobs.setdefault(name, []).append((self.at(self.now - late), UUID(int=self.made)))
        if name != "mail":
            self.floors.track(Lane(name, 0), self.at(self.now - late))
            self.parts.learn(Lane(name, 0), self.now)

    def claim(self, free: int) -> list[str]:
        """Claim as the statement does; return the queues of what started, in order."""
        self.now += 1.0
        self.parts.wake(self.now)
        shares = [Share("mail", free)]
        if self.parts.is_ready:
            shares = self.parts.divide(shares, free)
        assert len(shares) <= (MOST if self.was_filled else AFTER_FEW) + 1
        reading = self.floors.blocks(shares)
        taken: list[tuple[str, int, datetime, UUID]] = []
        for share in shares:
            floor = self.floors.floor_of(Lane(share.queue, 0))
            ahead = sorted(key for key in self.jobs.get(share.queue, []) if key > floor and share.queue not in self.locked)
            for key in ahead[: min(share.quota, free - len(taken))]:
                self.jobs[share.queue].remove(key)
                taken.append((share.queue, 0, *key))
        snapshot: tuple[str, list[str]] = ("1", [])
        told = {"database_now": self.at(self.now), "snapshot": snapshot, "started": self.now, "now": self.now}
        self.floors.advance(taken, limit=free, changed=False, reading=reading, **told)  # type: ignore[arg-type]
        self.parts.take(Counter(queue for queue, *_ in taken))
        self.was_filled = len(taken) >= free
        self.parts.forget(self.parts.spent)
        return [queue for queue, *_ in taken]


NAMES = [f"mail\x1f{key}" for key in range(6)] + ["mail"]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 30), st.integers(1, 12)), max_size=30), st.integers(1, 8))
@settings(max_examples=80, deadline=None)
def test_the_first_job_of_a_key_waits_for_at_most_one_of_each_other(course: list[tuple[str, int, int]], free: int) -> None:
    world = World()
    for name, count, slots in course:
        world.add(name, count)
        world.claim(slots)
    others = {name for name, jobs in world.jobs.items() if jobs}
    world.add("mail\x1fnew")
    before: list[str] = []
    while "mail\x1fnew" not in before:
        started = world.claim(free)
        assert started
        before += started
    # Started in one claim is started at once.
    before = before[: (before.index("mail\x1fnew") // free) * free]
    assert len(before) <= len(others)
    assert all(count <= 1 for name, count in Counter(before).items() if name != "mail")


@given(st.lists(st.integers(1, 100), min_size=2, max_size=6), st.lists(st.integers(1, 40), min_size=10, max_size=40))
@settings(max_examples=15, deadline=None)  # each starts some thousands of jobs
def test_keys_with_backlogs_start_in_proportion_to_their_weights(weights: list[int], course: list[int]) -> None:
    named = {f"mail\x1f{place}": weight for place, weight in enumerate(weights)}
    world = World(named)
    for name in named:
        world.add(name, 1700)
    world.claim(1)  # the jobs without a key, of which there are none, are thought to be busy once
    started: Counter[str] = Counter()
    for free in course:
        started.update(world.claim(free))
    pairs = [(one, other) for one in named for other in named]
    for one, other in pairs:
        # The last of a claim gets what is left of it, a claim's worth; a quantum each beside.
        assert abs(started[one] / named[one] - started[other] / named[other]) <= 2 / named[one] + 2 / named[other] + 1e-6


@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES[:-1]), st.integers(0, 3), st.floats(0, 5), st.booleans()), min_size=1, max_size=40
    ),
    st.integers(1, 6),
)
@settings(max_examples=80, deadline=None)
def test_every_job_is_started_though_it_came_late_or_its_lane_was_held(
    course: list[tuple[str, int, float, bool]], free: int
) -> None:
    world = World()
    for name, count, late, held in course:
        world.add(name, count, late=late)
        world.locked = {name} if held else set()
        world.claim(free)
        if held:  # the worker that held them has started them
            world.jobs[name] = []
    world.locked = set()
    while world.claim(free):
        pass
    assert not any(world.jobs.values())
    assert not world.parts.is_ready


def test_a_claim_names_a_bounded_number_of_keys_and_each_has_its_turn() -> None:
    world = World()
    for key in range(3 * MOST):
        world.add(f"mail\x1f{key}", 2)
    firsts = [queue for _ in range(3 * MOST // 16) for queue in world.claim(16)]
    assert len(set(firsts)) == len(firsts) == 3 * MOST


def test_a_claim_that_found_few_jobs_is_followed_by_one_of_more_keys() -> None:
    world = World()
    for key in range(3 * MOST):
        world.add(f"mail\x1f{key}")
    assert [len(world.claim(100)) for _ in range(3)] == [MOST, 100, 3 * MOST - MOST - 100]
    for key in range(2 * AFTER_FEW):
        world.add(f"mail\x1f{key}")
    assert [len(world.claim(1000)) for _ in range(2)] == [MOST * 100 // 28, AFTER_FEW]


def test_what_a_key_started_while_no_other_waited_is_no_debt_nor_remembered() -> None:
    world = World()
    for _ in range(200):
        world.add("mail\x1f1")
        assert world.claim(8) == ["mail\x1f1"]
    for key in range(3 * MOST):
        world.add(f"mail\x1fonce-{key}")
        world.claim(8)
    assert len(world.parts._sharing["mail"]._debts) <= 2 * MOST
    world.add("mail\x1f1", 100)
    world.add("mail\x1f2", 100)
    started = Counter(queue for _ in range(10) for queue in world.claim(8))
    assert abs(started["mail\x1f1"] - started["mail\x1f2"]) <= 8


def test_a_key_that_had_no_room_and_has_no_jobs_any_more_is_forgotten() -> None:
    world = World()
    world.add("mail\x1f1")
    world.parts.wake(world.now)
    world.parts.put_off(dict.fromkeys(world.parts.names(), 0), world.now)
    assert world.parts.has_put_off
    world.jobs["mail\x1f1"] = []  # cancelled
    assert world.claim(4) == []
    assert not world.parts._put_off
    assert not world.parts.is_ready
