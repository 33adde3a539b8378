"""The cost of a job under each policy while a transaction elsewhere keeps vacuum from its work, and without one.

A worker with few slots drains few jobs, so that most of their cost is claims. The dead rows behind the transaction come from
a worker under the same policy: the rows that its counts and probes walk past are among them.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from benchmarks.scenarios import pins, policy

_DEAD: Final = 20_000
"""Drained under the policy first, which is most of the time of a case: with 100,000 a run took longer than anybody waits."""
_ROUNDS: Final = 3
_JOBS: Final = 1_000
_SLOTS: Final = 10
_POLICIES: Final = (
    "one queue",
    "20 queues that share",
    "every priority",
    "global_concurrency",
    "10 fair keys, global_concurrency of each",
    "rate",
    "1,000 fair keys",
    "1,000 ordering keys",
    "a selector",
)


def scenario() -> Scenario:
    """Return the cases: each policy without an open transaction, then with one."""
    cases = []
    for name in _POLICIES:
        calm = f"{name}, not held back"
        cases += [
            Case(name=calm, run=partial(_run, name, 0), rated=False, most=10_000, most_rounds=_ROUNDS),
            Case(
                name=f"{name}, {_DEAD:,} dead",
                run=partial(_run, name, _DEAD),
                against=Comparison(case=calm, figure="cpu_us"),
                rated=False,
                most=10_000,
                most_rounds=_ROUNDS,
            ),
        ]
    return Scenario(
        name="policy with a held-back horizon",
        says=f"{_JOBS:,} jobs, {_SLOTS} at once, behind {_DEAD:,} dead rows held back from vacuum; the ratio is of CPU time",
        cases=cases,
    )


def _run(name: str, dead: int, place: Place, watch: Stopwatch, jobs: int) -> int:
    load, scale = policy.LOADS[name], jobs / 10_000
    place.clear()
    with pins.reader(place):
        if dead:
            died = max(1, round(dead * scale))
            policy.put(load, place, died)
            policy.drain(load, place, Stopwatch(None), died)
            place.run("VACUUM job")  # which removes nothing while the transaction is open
        few = max(1, round(_JOBS * scale))
        policy.put(load, place, few)
        done = policy.drain(load, place, watch, few, concurrency=_SLOTS)
    watch.figures["cpu_us"] = (watch.client_cpu + watch.server_cpu) / done * 1e6
    return done
