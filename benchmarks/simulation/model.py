"""Simulated workers: slots, claims that take time, notifications; the worker's own planner decides which job is next."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import simpy

from benchmarks.simulation.workload import Arrival, Workload
from sa_jobqueue.policies.fairness import SEPARATOR, whole
from sa_jobqueue.worker.claim.floors import Floors, Lane
from sa_jobqueue.worker.claim.parts import Parts
from sa_jobqueue.worker.claim.planning import Ageing, Planner, Share

Steps = Generator[simpy.Event, Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What the queue itself takes, in seconds."""

    claim: float = 0.002
    """From asking for jobs to the start of their handlers."""
    end: float = 0.001
    """From the end of a handler until its slot is seen to be free."""
    wake: float = 0.001
    """From a commit until a sleeping worker receives the notification."""
    pace: float = 0.004
    """Between two claims while slots become free one by one: `claimer._PACE`."""


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

    def take(self, queue: str, most: int) -> list[Arrival]:
        taken: list[Arrival] = []
        for lane in self.jobs.get(queue, {}).values():
            while lane and len(taken) < most:
                taken.append(lane.popleft())
        return taken

    def ended(self, queue: str) -> list[Lane]:
        return [Lane(queue, priority) for priority, lane in self.jobs.get(queue, {}).items() if not lane]

    def take_longest_waiting(self, most: int) -> list[Arrival]:
        lanes = [lane for lanes in self.jobs.values() for lane in lanes.values() if lane]
        lane = min(lanes, key=lambda one: one[0].at, default=deque[Arrival]())
        return [lane.popleft() for _ in range(min(most, len(lane)))]


class _Ends:
    """What `Parts` asks of the floors: there is nothing to scan in a simulation, but lanes come to their ends."""

    def __init__(self) -> None:
        self.lanes: list[Lane] = []

    def open(self, lane: Lane) -> None: ...

    def forget(self, lane: Lane) -> None: ...

    def read_to_end(self) -> list[Lane]:
        lanes, self.lanes = self.lanes, []
        return lanes


class _Worker:
    """One worker: a claim for the free slots, then the next, and sleep when there is nothing."""

    def __init__(self, model: _Model, number: int, slots: int, weights: dict[str, int]) -> None:
        self._model = model
        self._number = number
        self._slots = self._free = slots
        queues = {whole(queue): weight for queue, weight in weights.items()}
        self._planner = Planner(queues)
        self._planner.reweigh(queues)
        self._ends = _Ends()
        self._parts = Parts(queues, cast("Floors", self._ends))
        self._ageing = Ageing()
        self._changed = model.world.event()
        self._woken = model.world.event()

    def wake(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            self._parts.learn(lane, self._model.world.now)
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
        free, lanes = self._free, self._model.lanes
        self._parts.wake(self._model.world.now)
        owed = min(self._ageing.due(self._model.world.now), free)
        shares: list[Share] = []
        taken = lanes.take_longest_waiting(owed) if owed else []
        if not taken:
            shares = self._planner.plan(free)
            for share in self._parts.divide(shares, free, {}) if self._parts.is_ready else shares:
                if len(taken) == free:
                    break
                taken += lanes.take(share.queue, min(share.quota, free - len(taken)))
                if SEPARATOR in share.queue:
                    self._ends.lanes += lanes.ended(share.queue)
        started = Counter(whole(one.kind.queue) for one in taken)
        self._planner.take(shares, started, free=free if shares else owed)
        if shares:
            full = len(taken) >= free or any(started[share.queue] >= share.quota for share in shares)
            self._ageing.started(len(taken), full=full)
        self._parts.take(Counter(one.kind.queue for one in taken))
        self._free -= len(taken)
        for arrival in taken:
            self._model.started.append(Started(arrival, self._model.world.now, self._number))
            self._model.world.process(self._handle(arrival))
        return len(taken)

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
            if SEPARATOR in arrival.kind.queue:
                lanes.add(Lane(arrival.kind.queue, arrival.kind.priority))
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
