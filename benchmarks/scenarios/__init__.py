"""The questions the benchmark asks, one a module; each has a function `scenario` that returns its cases."""

from __future__ import annotations

from benchmarks.harness import Scenario
from benchmarks.scenarios import (
    bulk_enqueue,
    chains,
    drain,
    guards,
    horizon,
    indexes,
    latency,
    life,
    session_handler,
    single_enqueue,
)

_MODULES = (single_enqueue, bulk_enqueue, drain, session_handler, chains, latency, life, guards, indexes, horizon)


def all_scenarios() -> list[Scenario]:
    """Return every scenario, in the order the report shows them."""
    return [module.scenario() for module in _MODULES]
