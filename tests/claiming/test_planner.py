"""The plan of a claim: the bounds that the planner promises, with cursors, backlog and partitions as a worker has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from sa_jobqueue import Job
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.worker.background.controls import Controls
from sa_jobqueue.worker.claim.backlog import Backlog
from sa_jobqueue.worker.claim.cursors import Cursors, Lane, Plan
from sa_jobqueue.worker.claim.partitions import Partitions
from sa_jobqueue.worker.claim.planner import MOST_KEYS, Planner

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


class Waiting(NamedTuple):
    """A due job."""

    scheduled_at: datetime
    id: int
    queue: str
    fairness_key: str
    priority: int
    type_name: str


class World:
    """The jobs of the queues, and one worker that catches up after every claim.

    `queues`: by name, its limit in this worker. `slots`: those of job types, by name. `weights`: 1 where not named.
    """

    def __init__(
        self,
        queues: Mapping[str, int | None] | None = None,
        slots: Mapping[str, int] | None = None,
        weights: Mapping[QueueKey, int] | None = None,
        *,
        fair: bool = True,
    ) -> None:
        self.queues = dict(queues or {"mail": None})
        self.slots = dict(slots or {})
        executor = SimpleNamespace(free_in=lambda name: self.queues[name] or 999, free_for=self.slots.__getitem__)
        self.partitions = Partitions(
            self.queues,
            ["test", *self.slots],
            self.slots,
            executor=cast("Any", executor),
            model=Job,
            controls=Controls(),
            selections={},
        )
        self.cursors = Cursors(self.partitions.own_types, 0)
        weight = (weights or {}).get
        self.planner = Planner(self.partitions, self.cursors, fair=fair, weight=lambda name: weight(name, 1))
        self.backlog = Backlog(self.cursors, self.planner.open, self.planner.close)
        self.jobs: dict[Lane, list[Waiting]] = {}
        self.now = 0.0
        self.made = 0

    def add(
        self, count: int = 1, queue: str = "mail", key: str = "", priority: int = 0, type_name: str = "test", ago: float = 0
    ) -> Lane:
        """Enqueue, and have it found."""
        lane = Lane(queue, key, priority, type_name if type_name in self.partitions.own_types else "")
        for _ in range(count):
            self.made += 1
            at = BEGAN + timedelta(seconds=self.now - ago, microseconds=self.made)
            job = Waiting(at, self.made, queue, key, priority, type_name)
            self.jobs.setdefault(lane, []).append(job)
            self.cursors.lower(lane, job.scheduled_at)
        if count:
            self.backlog.found(lane, 0.0, 0.0)
        return lane

    def plan(self, free: int) -> Plan:
        return self.planner.plan(self.planner.share(free, self.now), free)

    def claim(self, free: int) -> list[Waiting]:
        """Claim as the statement does; return what started, in order."""
        self.now += 1.0
        shares = self.planner.share(free, self.now)
        plan = self.planner.plan(shares, free)
        jobs = self._scan(plan)
        ended, started = self.cursors.claimed(plan, jobs, BEGAN + timedelta(seconds=self.now, milliseconds=500))
        self.planner.charge(shares, started)
        self.backlog.read_to_end(ended, self.now)
        self.planner.charge_queues(Counter((lane.queue, lane.type_name) for lane in started.elements()))
        for lane in self.backlog.asks():
            for job in self.jobs.get(lane, [])[:1]:  # what came meanwhile
                self.cursors.lower(lane, job.scheduled_at)
                self.backlog.found(lane, 0.0, 0.0)
        self.backlog.answered(self.backlog.asks())
        self.backlog.wake(self.now)
        return jobs

    def _scan(self, plan: Plan) -> list[Waiting]:
        claimed: list[Waiting] = []
        for segment in plan.segments:
            quota = min(segment.quota, plan.limit - len(claimed))
            for lane in segment.lanes:
                jobs, cursor = self.jobs.get(lane, []), self.cursors.of_lane[lane]
                ahead = [job for job in jobs if job[:2] > cursor]
                for job in sorted(ahead)[: max(quota, 0)]:
                    self.jobs[lane].remove(job)
                    claimed.append(job)
                    quota -= 1
        return claimed


def keys(jobs: Sequence[Waiting]) -> Counter[str]:
    return Counter(job.fairness_key for job in jobs)


def lanes_of(plan: Plan) -> list[Lane]:
    return [lane for segment in plan.segments for lane in segment.lanes]


# Keys and queues.


def test_slots_are_shared_by_weight_among_queues_then_among_fairness_keys() -> None:
    world = World({"mail": None, "report": None}, weights={QueueKey("report"): 2, QueueKey("mail", "2"): 3})
    for key in ("1", "2"):
        world.add(500, key=key)
    world.add(500, "report")
    started = [job for _ in range(10) for job in world.claim(24)]
    assert Counter(job.queue for job in started) == {"mail": 80, "report": 160}
    assert keys([job for job in started if job.queue == "mail"]) == {"1": 20, "2": 60}


def test_excluded_partitions_get_no_slots() -> None:
    world = World({"a": 9, "b": 9})
    for queue in "ab":
        world.add(100, queue)
    tried = world.partitions.of(("a", ""))
    assert tried is not None
    shares = world.planner.share(8, world.now, without=[tried])
    assert {partition.queue: sum(shares[partition].values()) for partition in shares} == {"b": 8}


def test_queues_with_limits_share_the_slots_of_a_type() -> None:
    world = World({"a": 9, "b": 9}, slots={"u": 4})
    for queue in "ab":
        world.add(100, queue, type_name="u")
    assert sum(segment.quota for segment in world.plan(16).segments) == 4
    assert Counter(job.type_name for job in world.claim(16)) == {"u": 4}


def test_late_arrivals_take_half_of_the_quota_of_each_queue() -> None:
    world = World({"a": None, "b": None})
    for queue in "ab":
        lane = world.add(100, queue)
        world.cursors.late[lane] = {f"{queue}{number}": "7" for number in range(9)}
    plan = world.plan(16)
    assert sorted(plan.late) == [f"{queue}{number}" for queue in "ab" for number in range(4)]
    assert [segment.quota for segment in plan.segments] == [4, 8]


NAMES = [str(number) for number in range(6)] + [""]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 30), st.integers(1, 12)), max_size=25), st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_the_first_job_of_a_fairness_key_waits_for_at_most_one_job_of_each_other(
    course: list[tuple[str, int, int]], free: int
) -> None:
    world = World()
    for key, count, slots in course:
        world.add(count, key=key)
        world.claim(slots)
    waiting_keys = {lane.fairness_key for lane, jobs in world.jobs.items() if jobs}
    world.add(key="new")
    before: list[str] = []
    while "new" not in before:
        started = world.claim(free)
        assert started
        before += [job.fairness_key for job in started]
    # Started in one claim is started at once.
    before = before[: (before.index("new") // free) * free]
    assert set(before) <= waiting_keys
    assert all(count <= 1 for count in Counter(before).values())


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 3), st.floats(0, 5)), min_size=1, max_size=40),
    st.integers(1, 6),
)
@settings(max_examples=40, deadline=None)
def test_the_planner_starts_every_job(course: list[tuple[str, int, float]], free: int) -> None:
    world = World()
    for key, count, late in course:
        world.add(count, key=key, ago=late)
        world.claim(free)
    while world.claim(free) or world.backlog.open:
        pass
    assert not any(world.jobs.values())
    assert not world.planner.waiting()


def test_a_claim_plans_a_bounded_number_of_fairness_keys_and_starves_none() -> None:
    world = World()
    for key in range(3 * MOST_KEYS):
        world.add(2, key=str(key))
    assert len(lanes_of(world.plan(1000))) == MOST_KEYS
    firsts = [job.fairness_key for _ in range(3 * MOST_KEYS // 16) for job in world.claim(16)]
    assert len(set(firsts)) == len(firsts) == 3 * MOST_KEYS


def test_unused_quota_goes_to_the_queue_that_used_its_whole_quota() -> None:
    world = World({"a": None, "b": None, "c": None})
    for queue in "abc":
        world.add(100 if queue == "a" else 5, queue)
    assert Counter(job.queue for job in world.claim(12)) == {"a": 4, "b": 4, "c": 4}
    assert Counter(job.queue for job in world.claim(12))["a"] >= 4
    for queue in "bc":
        world.add(1, queue)
    assert Counter(job.queue for job in world.claim(12)) == {"a": 10, "b": 1, "c": 1}


def test_slots_that_claims_under_limits_left_go_to_the_last_queue_of_the_same_plan() -> None:
    world = World()
    world.add(50)
    shares = {partition: dict.fromkeys(queues, 3) for partition, queues in world.planner.share(10, 0.0).items()}
    plan = world.planner.plan(shares, 10)
    assert (plan.limit, [segment.quota for segment in plan.segments]) == (10, [10])


def test_without_fair_shares_priorities_apply_across_all_queues() -> None:
    world = World({"a": None, "b": None}, fair=False)
    for queue, priority in (("a", 0), ("b", 9), ("a", 5)):
        world.add(3, queue, priority=priority)
    (segment,) = world.plan(20).segments
    assert [lane.priority for lane in segment.lanes] == [9, 5, 0]
    assert [job.priority for job in world.claim(5)] == [9] * 3 + [5] * 2


def test_without_fair_shares_between_queues_fairness_keys_still_share() -> None:
    world = World({"a": None}, fair=False)
    for key in "123":
        world.add(9, "a", key=key)
    assert Counter(job.fairness_key for job in world.claim(6)) == {"1": 2, "2": 2, "3": 2}


# Priorities and ageing.


def test_within_a_fairness_key_higher_priorities_start_first() -> None:
    world = World()
    for key in ("1", "2"):
        for priority in (0, 9):
            world.add(4, key=key, priority=priority)
    assert [(job.fairness_key, job.priority) for job in world.claim(8)] == [("1", 9)] * 4 + [("2", 9)] * 4


@given(st.integers(0, 12), st.sampled_from([4, 16, 40]))
@settings(max_examples=15, deadline=None)
def test_ageing_starts_a_job_with_n_before_it_after_about_16_n_others(before: int, free: int) -> None:
    """Beside a flood of a higher priority that does not end."""
    world = World()
    low = world.add(before + 1, priority=-9, ago=60)
    started = 0
    while world.jobs[low]:
        world.add(free + 1, priority=9)
        started += sum(job.priority == 9 for job in world.claim(free))
        assert started <= 16 * (before + 1) + 2 * free


def test_no_ageing_while_claims_stay_below_their_limit() -> None:
    world = World()
    for _ in range(20):
        world.add(3, priority=9)
        world.claim(8)
    world.add(8, priority=-9, ago=60)
    world.add(8, priority=9)
    assert [job.priority for job in world.claim(8)] == [9] * 8


# Late arrivals.


def test_late_arrivals_are_claimed_first_with_at_most_half_of_a_fairness_keys_quota() -> None:
    world = World()
    lane, high = world.add(50), world.add(50, priority=9)
    world.cursors.late = {lane: {-number: "7" for number in range(1, 4)}, high: {-number: "8" for number in range(4, 99)}}
    plan = world.plan(10)
    assert plan.late == {-number: "8" for number in range(4, 9)}
    assert [segment.quota for segment in plan.segments] == [5]
    assert plan.limit == 10


def test_a_single_free_slot_may_go_to_a_late_arrival() -> None:
    world = World()
    lane = world.add(5)
    world.cursors.late = {lane: {-1: "7"}}
    plan = world.plan(1)
    assert plan.late == {-1: "7"}
    assert [(segment.quota, list(segment.types)) for segment in plan.segments] == [(0, ["test"])]


def test_late_arrivals_of_lanes_without_capacity_are_not_claimed() -> None:
    world = World(slots={"own": 0})
    lane = world.add(5, type_name="own")
    world.add(5)
    world.cursors.late = {lane: {-1: "7"}}
    assert not world.plan(10).late


# Capacity.


def test_types_and_queues_never_exceed_their_own_capacity() -> None:
    world = World({"mail": None, "report": 3}, slots={"own": 2})
    world.add(50, type_name="own")
    for queue in ("mail", "report"):
        world.add(50, queue)
    started = Counter((job.queue, job.type_name) for job in world.claim(40))
    assert started == {("mail", "own"): 2, ("report", "test"): 3, ("mail", "test"): 35}


def test_lanes_without_capacity_are_not_scanned_and_use_no_quota() -> None:
    world = World(slots={"own": 0})
    lane = world.add(50, type_name="own")
    world.add(50)
    assert lane not in lanes_of(world.plan(10))
    assert Counter(job.type_name for job in world.claim(10)) == {"test": 10}
    assert world.backlog.open.keys() >= {lane}
    world.slots["own"] = 4
    assert Counter(job.type_name for job in world.claim(8)) == {"own": 4, "test": 4}


def test_a_partition_at_its_limit_is_skipped_until_its_backoff_ends() -> None:
    world = World()
    world.add(5)
    (partition,) = world.planner.waiting()
    partition.full_until = 5.0
    assert not world.planner.share(10, 4.9)
    assert world.planner.share(10, 5.0)


def test_under_limits_per_fairness_key_only_requested_keys_are_planned() -> None:
    world = World()
    for key in ("1", "2", "3", ""):
        world.add(50, key=key)
    shares = world.planner.share(20, 0.0)
    names = world.planner.names(shares)
    assert names == [QueueKey("mail", key) for key in ("1", "2", "3")]
    plan = world.planner.plan(shares, 20, {names[0]: 2, names[1]: 0})
    planned = {segment.lanes[0].fairness_key: segment.quota for segment in plan.segments}
    assert planned == {"1": 2, "": 18}
