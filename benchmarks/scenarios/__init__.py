"""The questions the benchmark asks, one a module; each has a function `scenario` that returns its cases."""

from __future__ import annotations

from importlib.util import find_spec

from benchmarks.harness import Scenario
from benchmarks.scenarios import (
    drain,
    events,
    execution,
    horizon,
    idle,
    neighbour,
    peers_drain,
    peers_enqueue,
    peers_latency,
    pipeline_read,
    pipeline_write,
    policy,
    single_enqueue,
    steps,
    transaction,
)

_MODULES = (
    single_enqueue,
    drain,
    execution,
    steps,
    events,
    horizon,
    policy,
)
_PIPELINE = (pipeline_write, pipeline_read)


def all_scenarios() -> list[Scenario]:
    """Return every scenario, in the order the report shows them: those of the pipeline where Spark is installed."""
    modules = _MODULES + _PIPELINE if find_spec("pyspark") else _MODULES
    return [transaction.scenario(), transaction.bulk(), *(module.scenario() for module in modules), *beside_peers()]


def beside_peers() -> list[Scenario]:
    """Return those that ask the same of every system at hand, each in a separate process and database."""
    return [
        peers_enqueue.single(),
        peers_enqueue.bulk(),
        peers_drain.scenario(),
        peers_drain.two_workers(),
        peers_latency.scenario(),
        idle.scenario(),
        neighbour.scenario(),
        neighbour.application(),
    ]
