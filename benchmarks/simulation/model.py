"""Simulated workers: slots, claims that take time, notifications; the worker's own planner decides which job is next."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final, NamedTuple, cast

import simpy

from benchmarks.simulation.workload import Arrival, Workload
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.worker.claim.backlog import Backlog
from sa_jobqueue.worker.claim.cursors import START, Cursors, Lane, Plan
from sa_jobqueue.worker.claim.partitions import Partition, Partitions, Queue
from sa_jobqueue.worker.claim.planner import Planner
from sa_jobqueue.worker.run.executor import Executor

Steps = Generator[simpy.Event, Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The time of the queue itself, in seconds."""

    claim: float = 0.002
    """From asking for jobs to the start of their handlers."""
    end: float = 0.001
    """From the end of a handler until its slot is seen to be free."""
    wake: float = 0.001
    """From a commit until a sleeping worker receives the notification."""
    pace: float = 0.004
    """Between two claims while slots become free one by one: `claimer._DEBOUNCE`."""


FREE_OF_COST: Final = Costs(claim=0, end=0, wake=0, pace=0)


@dataclass(frozen=True, slots=True)
class Started:
    """One job that was started."""

    arrival: Arrival
    at: float
    worker: int

    @property
    def waited(self) -> float:
        """Seconds from its arrival."""
        return self.at - self.arrival.at


@dataclass(slots=True)
class _Lanes:
    """The jobs that wait: by queue and priority, in the order in which they came."""

    jobs: dict[str, dict[int, deque[Arrival]]] = field(default_factory=dict)

    def put(self, arrival: Arrival) -> None:
        lanes = self.jobs.setdefault(arrival.kind.queue, {})
        if arrival.kind.priority not in lanes:
            lanes[arrival.kind.priority] = deque()
            self.jobs[arrival.kind.queue] = dict(sorted(lanes.items(), reverse=True))
        self.jobs[arrival.kind.queue][arrival.kind.priority].append(arrival)

    def take(self, plan: Plan) -> list[_Taken]:
        """Take the jobs that a claim of this plan finds."""
        jobs: list[_Taken] = []
        for segment in plan.segments:
            of_segment = min(len(jobs) + segment.quota, plan.limit)
            for lane in segment.lanes:
                waiting = self.jobs.get(QueueKey(lane.queue, lane.fairness_key).text, {}).get(lane.priority, deque())
                while waiting and len(jobs) < of_segment:
                    jobs.append(_Taken(lane, waiting.popleft(), next(_IDS)))
        return jobs


_EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
_IDS: Final = count(1)


def _instant(seconds: float) -> datetime:
    return _EPOCH + timedelta(seconds=seconds)


class _Taken(NamedTuple):
    """A job as a claim returns it."""

    lane: Lane
    arrival: Arrival
    id: int

    @property
    def queue(self) -> str:
        return self.lane.queue

    @property
    def fairness_key(self) -> str:
        return self.lane.fairness_key

    @property
    def priority(self) -> int:
        return self.lane.priority

    @property
    def type_name(self) -> str:
        return ""

    @property
    def scheduled_at(self) -> datetime:
        return _instant(self.arrival.at)


class _OnePartition:
    """All queues in one partition, which only the free slots limit."""

    def __init__(self) -> None:
        no_slots = cast("Executor", None)  # it is asked for those of a queue or type with its own capacity
        self._one = Partition(types=["simulated"], queue=None, own_type=None, executor=no_slots, limits=None, selection=None)

    def of(self, _queue: Queue) -> Partition:
        return self._one


class _Worker:
    """One worker: a claim for the free slots, then the next, and sleep when there is nothing."""

    def __init__(self, model: _Model, number: int, slots: int, weights: dict[str, int]) -> None:
        self._model = model
        self._number = number
        self._slots = self._free = slots
        queues = {QueueKey.of_text(queue): weight for queue, weight in weights.items()}
        self._cursors = Cursors((), 0)
        partitions = cast("Partitions", _OnePartition())
        self._planner = Planner(partitions, self._cursors, fair=True, weight=lambda key: queues.get(key, 1))
        self._backlog = Backlog(self._cursors, self._planner.open, self._planner.close)
        self._changed = model.world.event()
        self._woken = model.world.event()

    def wake(self, lanes: Iterable[Lane]) -> None:
        now = self._model.world.now
        for lane in lanes:
            if lane not in self._cursors.of_lane:
                self._cursors.lower(lane, START)
            self._backlog.found(lane, now, now)
        if not self._woken.triggered:
            self._woken.succeed()

    def run(self) -> Steps:
        world, costs = self._model.world, self._model.costs
        while True:
            if self._free == 0:
                self._changed = world.event()
                yield self._changed
                continue
            # Replaced before polling: what comes from here on ends the sleep that may follow.
            self._woken = world.event()
            yield world.timeout(costs.claim)
            if not self._claim():
                yield self._woken
            elif 0 < self._free < self._slots // 2:
                yield world.timeout(costs.pace)

    def _claim(self) -> int:
        now, claimed_jobs = self._model.world.now, list[_Taken]()
        self._backlog.wake(now)
        while self._backlog.open and not claimed_jobs:  # lanes that others have emptied make way
            shares = self._planner.share(self._free, now)
            plan = self._planner.plan(shares, self._free)
            claimed_jobs = self._model.lanes.take(plan)
            ended, started = self._cursors.claimed(plan, claimed_jobs, _instant(now))
            self._planner.charge(shares, started)
            self._backlog.read_to_end(ended, now)
            self._backlog.answered(self._backlog.asks())
            self._planner.charge_queues(Counter((job.queue, "") for job in claimed_jobs))
        self._free -= len(claimed_jobs)
        for job in claimed_jobs:
            self._model.started.append(Started(job.arrival, now, self._number))
            self._model.world.process(self._handle(job.arrival))
        return len(claimed_jobs)

    def _handle(self, arrival: Arrival) -> Steps:
        yield self._model.world.timeout(arrival.seconds + self._model.costs.end)
        self._free += 1
        if not self._changed.triggered:
            self._changed.succeed()


class _Model:
    def __init__(self, workload: Workload, costs: Costs) -> None:
        self.world = simpy.Environment()
        self.costs = costs
        self.lanes = _Lanes()
        self.started: list[Started] = []
        self.workers = [_Worker(self, number, workload.slots, workload.weights) for number in range(workload.workers)]

    def produce(self, coming: Sequence[Arrival]) -> Steps:
        lanes: set[Lane] = set()
        for number, arrival in enumerate(coming):
            if arrival.at > self.world.now:
                yield self.world.timeout(arrival.at - self.world.now)
            self.lanes.put(arrival)
            lanes.add(Lane(*QueueKey.of_text(arrival.kind.queue), arrival.kind.priority))
            if number + 1 == len(coming) or coming[number + 1].at > arrival.at:
                self.world.process(self._notify(lanes))
                lanes = set()

    def _notify(self, lanes: set[Lane]) -> Steps:
        yield self.world.timeout(self.costs.wake)
        for worker in self.workers:
            worker.wake(lanes)


def simulate(workload: Workload, coming: Sequence[Arrival], costs: Costs = FREE_OF_COST) -> list[Started]:
    """Return when each job was started, in that order, by workers that share one queue; nothing random is left."""
    model = _Model(workload, costs)
    for worker in model.workers:
        model.world.process(worker.run())
    model.world.process(model.produce(coming))
    model.world.run()  # until nothing is left but workers that sleep
    return model.started
