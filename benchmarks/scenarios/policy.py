"""What each scheduling policy costs: the same drain of jobs that do nothing, with the policy on and off, in the same rounds.

A policy is measured where it delays nothing, so that delays are not taken for costs: limits are
higher than the worker's concurrency, and there are more ordering keys than slots. A limit of as many as there are slots does
delay: ended jobs count until their completion is committed, so that claims and completions take turns. It has its own case.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

from sqlalchemy.orm import Session

from benchmarks import rows, workers
from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from sa_jobqueue import JobQueue
from sa_jobqueue.ids import uuid7
from sa_jobqueue.operations import upsert_queue
from sa_jobqueue.registry import Candidate
from sa_jobqueue.settings import QueueSettings
from sa_jobqueue.types import MAX_PRIORITY, MIN_PRIORITY

CONCURRENCY: Final = 100
NAME: Final = "policy"
_COLUMNS: Final = (*rows.COLUMNS, "queue", "fairness_key", "priority", "ordering_key")
_SECOND_TYPE: Final = "no_op_too"
_TYPES: Final = tuple(f"no_op_{number}" for number in range(100))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Jobs that are there when the worker starts, and how it is set up."""

    queues: int = 1
    types: Sequence[str] = (rows.JOB_TYPE,)
    priorities: Sequence[int] = (0,)
    keys: int = 0
    """Of their order; none of them has one unless given."""
    fairness_keys: int = 0
    """Parts of each queue; none of them lies in one unless given."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """At most so many at once of a type, in the worker."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of each of the queues, as its row has them."""
    fair: bool = True
    window: int | None = None
    """How many candidates a function is offered that chooses what of each queue starts; none chooses unless given."""

    @property
    def names(self) -> list[str]:
        """The queues."""
        return [f"q{number}" for number in range(self.queues)]


LOADS: Final[Mapping[str, Load]] = {
    "one queue": Load(),
    "4 queues, priorities over all": Load(queues=4, fair=False),
    "4 queues that share": Load(queues=4),
    "20 queues, priorities over all": Load(queues=20, fair=False),
    "20 queues that share": Load(queues=20),
    "100 queues that share": Load(queues=100),
    "every priority": Load(priorities=range(MIN_PRIORITY, MAX_PRIORITY + 1)),
    "two types": Load(types=(rows.JOB_TYPE, _SECOND_TYPE)),
    "two types, slots for one": Load(types=(rows.JOB_TYPE, _SECOND_TYPE), slots={_SECOND_TYPE: CONCURRENCY - 1}),
    "100 types": Load(types=_TYPES),
    "100 types, slots for each": Load(types=_TYPES, slots=dict.fromkeys(_TYPES, CONCURRENCY)),
    "100 types, a tenth of the slots for each": Load(types=_TYPES, slots=dict.fromkeys(_TYPES, CONCURRENCY // 10)),
    "global_concurrency": Load(settings={"global_concurrency": 2 * CONCURRENCY}),
    "global_concurrency, as many as slots": Load(settings={"global_concurrency": CONCURRENCY}),
    "rate": Load(settings={"rate_limit": 1_000_000, "rate_period": timedelta(seconds=1)}),
    "10 fair keys": Load(fairness_keys=10),
    "10 fair keys, global_concurrency of each": Load(fairness_keys=10, settings={"concurrency_per_key": CONCURRENCY}),
    "1,000 fair keys": Load(fairness_keys=1_000),
    "1,000 ordering keys": Load(keys=1_000),
    "a selector": Load(window=200),
}

_AGAINST: Final[Mapping[str, str]] = {
    "4 queues that share": "4 queues, priorities over all",
    "20 queues that share": "20 queues, priorities over all",
    "two types, slots for one": "two types",
    "100 types, slots for each": "100 types",
    "100 types, a tenth of the slots for each": "100 types",
    "10 fair keys, global_concurrency of each": "10 fair keys",
} | dict.fromkeys(
    (
        "100 queues that share",
        "every priority",
        "global_concurrency",
        "global_concurrency, as many as slots",
        "rate",
        "10 fair keys",
        "1,000 fair keys",
        "1,000 ordering keys",
        "a selector",
    ),
    "one queue",
)


def scenario() -> Scenario:
    """Return the cases."""
    return Scenario(
        name=NAME,
        says=f"jobs that do nothing, {CONCURRENCY} at once, one worker; with a policy, and without it",
        cases=[
            Case(
                name=name,
                run=partial(_drain, load),
                prepare=partial(fill, load),
                against=Comparison(case=_AGAINST[name]) if name in _AGAINST else None,
            )
            for name, load in LOADS.items()
        ],
    )


def fill(load: Load, place: Place, jobs: int) -> None:
    """Empty the queue, put so many due jobs into it, their queues, types, priorities and keys in turn, and vacuum it."""
    place.clear()
    put(load, place, jobs)
    place.run("VACUUM job")


def put(load: Load, place: Place, jobs: int) -> None:
    """Write the settings of the queues, and COPY so many due jobs into them."""
    with Session(place.engine()) as session, session.begin():
        for name in load.names if load.settings else ():
            upsert_queue(session, QueueSettings(name=name, **load.settings))
    with place.begin() as connection:
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor, cursor.copy(f"COPY job ({', '.join(_COLUMNS)}) FROM STDIN") as into:
            for number in range(jobs):
                job_id, kind = uuid7(), load.types[number % len(load.types)]
                # Counters that advance in step would be correlated: divide by how often the others have gone round.
                priority = load.priorities[number // load.queues % len(load.priorities)]
                key = f"key {number % load.keys}" if load.keys else None
                queue = f"q{number // len(load.types) % load.queues}"
                fairness_key = str(number % load.fairness_keys) if load.fairness_keys else ""
                payload = json.dumps(rows.payload(number))
                into.write_row((job_id, kind, job_id, kind, payload, queue, fairness_key, priority, key))


def drain(load: Load, place: Place, watch: Stopwatch, jobs: int, *, concurrency: int = CONCURRENCY) -> int:
    """Drain them by one worker in this process; return how many were done."""
    queue = JobQueue()
    for kind in load.types:
        queue.handler(kind, concurrency=load.slots.get(kind))(_nothing)
    if load.window is not None:
        for name in load.names:
            queue.selector(name, window=load.window)(_last_first)
    return workers.drain(place, watch, jobs, queue, concurrency=concurrency, queues=load.names, fair=load.fair)


def _drain(load: Load, place: Place, watch: Stopwatch, jobs: int) -> int:
    job_count = drain(load, place, watch, jobs)
    watch.figures["cpu_us"] = (watch.client_cpu + watch.server_cpu) / job_count * 1e6
    return job_count


def _last_first(candidates: Sequence[Candidate], free: int) -> Sequence[Candidate]:
    return candidates[::-1]


async def _nothing(order: Any) -> None:
    return None
