"""Faults of every kind, one after the other, on real workers and a real server: nothing is lost, nothing is done twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sa_jobqueue.testing.binaries import binary_dirs
from tests.chaos.faults import FAULTS, in_order
from tests.fixtures.tallies import tally

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_chaos_run_with_every_fault_violates_no_invariant(request: pytest.FixtureRequest) -> None:
    if not binary_dirs():
        pytest.skip("no PostgreSQL programs at hand to start a server that may crash")
    command = [sys.executable, "-m", "tests.chaos", "--minutes", "3", "--seed", "4", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=590)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    for row in found["faults"]:
        tally(request.config, f"survived: {row['fault']} (recovery {row['recovery_worst_s']} s at worst)", row["survived"])
    print(done.stderr, done.stdout)  # pytest shows it when the test failed
    assert found["violations"] == []
    assert done.returncode == 0
    assert all(row["injected"] == row["survived"] for row in found["faults"]), found["faults"]
    assert len(found["faults"]) >= 15
    assert found["jobs"]["completed"] > 100


def test_a_seed_determines_the_order_and_probabilities_of_faults() -> None:
    def first(seed: int) -> list[tuple[str, float]]:
        order = in_order(seed, FAULTS)
        return [(fault.name, chance.random()) for fault, chance in (next(order) for _ in range(2 * len(FAULTS)))]

    assert first(7) == first(7)
    assert first(7) != first(8)
    assert {name for name, _ in first(7)[: len(FAULTS)]} == {fault.name for fault in FAULTS}
