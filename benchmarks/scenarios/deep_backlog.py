"""A claim out of a million pending jobs of a hundred types and ten priorities, beside one out of a thousand alike."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final

from benchmarks import claiming, rows
from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.peers import places
from benchmarks.peers.catalogue import OURS
from benchmarks.place import Place
from sa_jobqueue.ids import uuid7

_TYPES: Final = [f"type_{number:02}" for number in range(100)]
_PRIORITIES: Final = 10
_SHALLOW: Final = "1,000 pending, 1 type, 1 priority"
_FEWEST: Final = 1_000
_COLUMNS: Final = (*rows.COLUMNS, "priority")


def scenario() -> Scenario:
    """Return the cases."""
    deep = Comparison(case=_SHALLOW, figure="p50_ms")
    opened: dict[str, Any] = {"open_place": partial(places.open_for, OURS), "rated": False, "most_rounds": 1}
    return Scenario(
        name="deep backlog",
        says="claims of one job, the worker knowing every type; their median time against that with a thousand pending",
        cases=(
            Case(name=_SHALLOW, run=_shallow, prepare=_fill_shallow, **opened),
            Case(name="100 types, 10 priorities, all pending", run=_deep, prepare=_fill_deep, against=deep, **opened),
        ),
        jobs=1_000_000,
    )


def _shallow(place: Place, watch: Stopwatch, jobs: int) -> int:
    return claiming.claim_one_at_a_time(place, watch)


def _deep(place: Place, watch: Stopwatch, jobs: int) -> int:
    watch.figures["pending"] = max(jobs, _FEWEST)
    return claiming.claim_one_at_a_time(place, watch, types=_TYPES)


def _fill_shallow(place: Place, jobs: int) -> None:
    rows.fill(place, _FEWEST)


def _fill_deep(place: Place, jobs: int) -> None:
    place.clear()
    with place.begin() as connection:
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor, cursor.copy(f"COPY job ({', '.join(_COLUMNS)}) FROM STDIN") as into:
            for number in range(max(jobs, _FEWEST)):
                job_id, kind = uuid7(), _TYPES[number % len(_TYPES)]
                priority = number // len(_TYPES) % _PRIORITIES - _PRIORITIES // 2
                into.write_row((job_id, kind, job_id, kind, json.dumps(rows.payload(number)), priority))
    place.run("VACUUM job")
