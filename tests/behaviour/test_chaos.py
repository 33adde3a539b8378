"""Faults of every kind, one after the other, on real workers and a real server: nothing is lost, nothing is done twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from sa_jobqueue.testing.binaries import binary_dirs
from tests.chaos.application import Recorder
from tests.chaos.faults import FAULTS, in_order
from tests.fixtures.tallies import tally
from tests.fixtures.transactions import scalars

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_chaos_run_with_every_fault_violates_no_invariant(request: pytest.FixtureRequest) -> None:
    if not binary_dirs():
        pytest.skip("no PostgreSQL programs at hand to start a server that may crash")
    command = [sys.executable, "-m", "tests.chaos", "--minutes", "1", "--seed", "4"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=590)
    assert process.stdout, process.stderr
    report: dict[str, Any] = json.loads(process.stdout)
    for row in report["faults"]:
        tally(request.config, f"survived: {row['fault']} (recovery {row['recovery_worst_s']} s at worst)", row["survived"])
    print(process.stderr, process.stdout)  # pytest shows it when the test failed
    assert report["violations"] == []
    assert process.returncode == 0
    assert all(row["injected"] == row["survived"] for row in report["faults"]), report["faults"]
    assert {row["fault"] for row in report["faults"]} == {fault.name for fault in FAULTS}
    assert report["jobs"]["completed"] > 100


def test_a_seed_determines_the_order_and_probabilities_of_faults() -> None:
    def first(seed: int) -> list[tuple[str, float]]:
        order = in_order(seed, FAULTS)
        return [(fault.name, chance.random()) for fault, chance in (next(order) for _ in range(2 * len(FAULTS)))]

    assert first(7) == first(7)
    assert first(7) != first(8)
    assert {name for name, _ in first(7)[: len(FAULTS)]} == {fault.name for fault in FAULTS}


def test_evidence_is_recorded_although_the_server_has_ended_the_session(engine: Engine) -> None:
    recorder = Recorder(engine.url.set(drivername="postgresql").render_as_string(hide_password=False))
    assert recorder.write("SELECT 1")
    ended = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'chaos recorder'"
    assert scalars(engine, ended) == [True]

    assert recorder.write("SELECT 1")

    assert not recorder.write("SELECT FROM nowhere")
