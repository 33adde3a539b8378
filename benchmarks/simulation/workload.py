"""What comes when and how long it runs: drawn once from a seed, so that a simulation and a real run have the same jobs."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from benchmarks.harness import percentile
from sa_jobqueue.policies.fairness import QueueKey

PERCENTS: Final = (50, 90, 99)


class Service(StrEnum):
    """How the time that a job runs is spread about its mean."""

    EXPONENTIAL = "exponential"
    LOGNORMAL = "lognormal"
    """With a standard deviation of 1 in its logarithm: a few take ten times as long as most."""
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A class of jobs."""

    name: str
    queue: str
    seconds: float
    """For which one of them runs, on average."""
    rate: float = 0.0
    """How many come each second, one by one and independently of each other (Poisson)."""
    burst: int = 0
    """How many come at once."""
    burst_at: float = 0.0
    """When, in seconds from the beginning."""
    service: Service = Service.EXPONENTIAL
    priority: int = 0
    weight: int = 1
    """Of its queue; the same for all kinds of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Kinds of jobs, and who works on them."""

    kinds: Sequence[Kind]
    seconds: float
    """For which jobs come; all of them are finished."""
    workers: int
    slots: int
    """Of each worker."""

    @property
    def weights(self) -> dict[str, int]:
        """The queues and their weights."""
        return {kind.queue: kind.weight for kind in self.kinds}

    @property
    def load(self) -> float:
        """How many slots are busy on average, while jobs come, if none of them has to wait."""
        return sum((kind.rate + kind.burst / self.seconds) * kind.seconds for kind in self.kinds)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One job."""

    at: float
    """Seconds from the beginning."""
    kind: Kind
    seconds: float
    """For which it runs."""


@dataclass(frozen=True, slots=True)
class Waits:
    """How long the jobs of a kind waited for a slot, in seconds."""

    kind: str
    count: int
    mean: float
    percentiles: dict[int, float]
    longest: float


def arrivals(workload: Workload, seed: int) -> list[Arrival]:
    """Return every job in the order in which they come: the same for the same seed."""
    drawn = random.Random(seed)
    jobs: list[Arrival] = []
    for kind in workload.kinds:
        jobs += [Arrival(kind.burst_at, kind, _service(kind, drawn)) for _ in range(kind.burst)]
        at = drawn.expovariate(kind.rate) if kind.rate else math.inf
        while at < workload.seconds:
            jobs.append(Arrival(at, kind, _service(kind, drawn)))
            at += drawn.expovariate(kind.rate)
    return sorted(jobs, key=_at)


def summarise(waits: Sequence[tuple[str, float]]) -> list[Waits]:
    """Boil down what each job of a kind waited; in the order of the kinds' first jobs."""
    by_kind: dict[str, list[float]] = {}
    for kind, seconds in waits:
        by_kind.setdefault(kind, []).append(max(0.0, seconds))
    return [
        Waits(
            kind=kind,
            count=len(kind_waits),
            mean=sum(kind_waits) / len(kind_waits),
            percentiles={percent: percentile(kind_waits, percent) for percent in PERCENTS},
            longest=max(kind_waits),
        )
        for kind, kind_waits in by_kind.items()
    ]


def _service(kind: Kind, drawn: random.Random) -> float:
    match kind.service:
        case Service.EXPONENTIAL:
            return drawn.expovariate(1 / kind.seconds)
        case Service.LOGNORMAL:
            # Of a standard deviation of 1 in the logarithm, the mean lies e^(1/2) above the median.
            return drawn.lognormvariate(math.log(kind.seconds) - 0.5, 1.0)
        case Service.CONSTANT:
            return kind.seconds


def _at(arrival: Arrival) -> float:
    return arrival.at


MIXED: Final = Workload(
    kinds=(
        Kind(name="urgent mail", queue="mail", priority=5, rate=5, seconds=0.02, weight=3),
        Kind(name="mail", queue="mail", rate=30, seconds=0.06, weight=3),
        Kind(name="report", queue="reports", rate=2.5, seconds=1.0, service=Service.LOGNORMAL),
        Kind(name="import, 600 at once", queue="imports", burst=600, burst_at=5, seconds=0.15),
        Kind(name="low, behind the imports", queue="imports", priority=-5, rate=1, seconds=0.05),
    ),
    seconds=35,
    workers=2,
    slots=5,
)
"""Small enough to be run for real in a minute: ten slots, of which seven are busy on average, and a flood."""


def fleet(*, workers: int, slots: int, tenants: int, seconds: float, shared: bool = True) -> Workload:
    """Return a load for many workers: tenants that keep half of the slots busy, and one of them that floods the others.

    Each tenant is a fair key of one queue; without, where the queue is not `shared` fairly.
    """
    busy = workers * slots / 2

    def queue(number: int) -> str:
        return QueueKey("tenants", str(number)).text if shared else "tenants"

    steady = [
        Kind(name="the others", queue=queue(number), rate=busy / (tenants - 1) / 0.5, seconds=0.5)
        for number in range(1, tenants)
    ]
    # As many as all the slots that are left over can do in half of the time.
    flood = Kind(name="flood", queue=queue(0), burst=int(busy * seconds), burst_at=seconds / 8, seconds=0.5)
    return Workload(kinds=[flood, *steady], seconds=seconds, workers=workers, slots=slots)
