"""The whole table: what to run, how often and how much of it, so that it ends within half an hour."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks import harness, report
from benchmarks.harness import Result, Scenario
from benchmarks.peers import environments
from benchmarks.peers.catalogue import SYSTEMS
from benchmarks.place import describe
from benchmarks.scenarios import all_scenarios
from sa_jobqueue.testing.servers import PostgresServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Scenarios that are interleaved with each other."""

    scenarios: Sequence[str]
    rounds: int
    jobs: int | None = None
    """Of a case in a round; what each scenario has unless given."""
    minutes: float
    """Rounds are left out rather than that it takes longer."""


PARTS: Final = (
    Part(scenarios=("drain beside peers", "single enqueue beside peers", "bulk enqueue beside peers"), rounds=3, minutes=11),
    Part(scenarios=("transaction", "bulk transaction"), rounds=9, minutes=3),
    Part(scenarios=("drain", "single enqueue", "two workers"), rounds=3, minutes=4),
    Part(scenarios=("latency beside peers",), rounds=2, minutes=2),
    Part(scenarios=("held-back horizon",), rounds=2, minutes=1.5),
    Part(scenarios=("idle worker",), rounds=1, minutes=1),
    Part(scenarios=("events",), rounds=1, jobs=200, minutes=1),
)

QUICK_JOBS: Final = 100
"""Of every case, where it is only to be seen that all of it runs."""
QUICK_PEERS: Final = 2
"""How many of the other systems are enough for that."""


def run(
    server: PostgresServer,
    *,
    is_quick: bool,
    tell: Callable[[str], None],
    keep: Callable[[dict[str, Any]], None],
    most_rounds: int | None = None,
) -> dict[str, Any]:
    """Run every part and return the document; `keep` is given it after each of them, in case the next is cut short.

    `most_rounds`: of each part, instead of its own where that is more.
    """
    scenario_by_name = {scenario.name: _few_peers(scenario) if is_quick else scenario for scenario in all_scenarios()}
    described = describe(server)
    failed: dict[str, str] = {}
    results: list[Result] = []
    chosen: list[Scenario] = []
    document: dict[str, Any] = {}
    load = os.getloadavg()[0]
    for part in PARTS:
        scenarios = [scenario_by_name[name] for name in part.scenarios]
        jobs, rounds = (QUICK_JOBS, 1) if is_quick else (part.jobs, min(part.rounds, most_rounds or part.rounds))
        results += harness.run(
            server, scenarios, jobs=jobs, rounds=rounds, tell=tell, failed=failed, most_seconds=part.minutes * 60
        )
        chosen += scenarios
        document = report.document(results, chosen, server=described, jobs=None, rounds=rounds)
        document |= {"systems": systems(), "failed": failed}
        document["machine"]["load_before"] = load
        keep(document)
    return document


def _few_peers(scenario: Scenario) -> Scenario:
    left_out = [system.name for system in environments.installed()[1 + QUICK_PEERS :]]
    return replace(scenario, cases=[case for case in scenario.cases if not case.name.startswith(tuple(left_out))])


def systems() -> list[dict[str, Any]]:
    """Return each system as it was measured, or why it was not."""
    return [
        {
            "name": system.name,
            "version": environments.release(system),
            "python": environments.interpreter_version(system),
            "settings": system.settings,
            "missing": environments.why_not(system),
            "promises": {name: getattr(system.promises, name) for name in system.promises.__slots__},
        }
        for system in SYSTEMS
    ]
