"""`python -m benchmarks`: the document has its shape, and the counts that no machine can change keep their budgets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

ROOT = Path(__file__).parents[2]
PER_JOB = {"commits", "round_trips", "wal_bytes", "row_versions", "dead_tuples", "client_cpu_us", "server_cpu_us"}
FIGURES = {
    "single enqueue": set(),
    "deep backlog": {"p50_ms", "p99_ms", "buffers"},
}
"""Reports of scenarios beside the common ones: one of each kind. All of them run every night: docs/releasing.md."""

PATIENCE = 850
"""Seconds that a benchmark may take beside other tests on a busy machine."""
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def _benchmarks_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    # They are part of the repository, not of what is installed.
    monkeypatch.syspath_prepend(ROOT)


def run_benchmarks(url: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks", "--url", url, "--rounds", "1", "--json", "-", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.long
def test_a_benchmark_scenario_reports_its_measurements(jobqueue_database_url: str) -> None:
    from benchmarks.scenarios import all_scenarios

    scenarios = [one for one in all_scenarios() if one.name in FIGURES]
    chosen = [word for one in scenarios for word in ("--scenario", one.name.replace(" ", "-"))]
    found = run_benchmarks(jobqueue_database_url, "--jobs", "200", *chosen)

    assert [one["name"] for one in found["scenarios"]] == [one.name for one in scenarios]
    expected = [(scenario.name, case) for scenario in scenarios for case in scenario.cases]
    assert [(one["scenario"], one["case"]) for one in found["results"]] == [(name, case.name) for name, case in expected]
    for result, (name, case) in zip(found["results"], expected, strict=True):
        assert 0 < result["jobs"] <= 200
        assert result["rounds"] == 1
        assert (result["rate"] is not None) is case.rated
        if case.rated:
            assert result["rate"]["median"] == result["rate"]["min"] == result["rate"]["max"] > 0
        assert set(result["per_job"]) == PER_JOB
        assert all(value is None or value >= 0 for value in result["per_job"].values())
        assert min(result["per_job"][count] for count in ("commits", "wal_bytes", "row_versions")) > 0
        assert set(result["figures"]) >= FIGURES[name]
        assert (result["ratio"] is None) is (case.against is None)
        assert result["ratio"] is None or result["ratio"] > 0
    assert found["machine"]["cpus"] > 0
    assert found["versions"]["postgresql"]
    assert found["server"]["settings"].keys() >= {"fsync", "synchronous_commit", "shared_buffers"}


def test_a_failing_system_is_reported_and_the_others_are_measured() -> None:
    from benchmarks import harness

    class Broken:
        def __enter__(self) -> Any:
            raise harness.CaseFailedError("it did not answer")

        def __exit__(self, *_: object) -> None: ...

    def run(*_: Any) -> int:
        raise AssertionError

    case = harness.Case(name="theirs", run=run, open_place=lambda server: Broken())
    scenario = harness.Scenario(name="drain", says="", cases=[case])
    failed: dict[str, str] = {}
    results = harness.run(cast("Any", None), [scenario], jobs=1, rounds=2, failed=failed)

    assert results == []
    assert failed == {"drain: theirs": "it did not answer"}


@pytest.mark.long
def test_drain_stays_within_its_budget_of_round_trips_commits_and_row_versions(jobqueue_database_url: str) -> None:
    found = run_benchmarks(jobqueue_database_url, "--jobs", "2000", "--scenario", "drain")

    [drained] = [one for one in found["results"] if one["case"] == "async handler"]
    assert drained["jobs"] == 2000
    assert drained["per_job"]["round_trips"] <= 0.2
    assert drained["per_job"]["commits"] <= 0.05
    # Two updates a job; the worker's own row is what little there is above that.
    assert 2 <= drained["per_job"]["row_versions"] <= 2.05
    assert drained["per_job"]["dead_tuples"] <= 2.05


def test_a_benchmark_run_replaces_the_previous_results_in_the_page() -> None:
    from benchmarks import markdown

    page = (ROOT / "docs/benchmarks.md").read_text()
    first = markdown.into_page(page, "| run 1 |\n")
    assert "| run 1 |" in first
    assert "### Beside other systems" not in first
    assert markdown.into_page(first, "| run 2 |") == first.replace("| run 1 |", "| run 2 |")
    with pytest.raises(ValueError, match="measured"):
        markdown.into_page("a page without a place for it", "| run 1 |")


@pytest.mark.long
def test_the_client_benchmark_reports_the_cost_of_claims_and_starts(jobqueue_database_url: str) -> None:
    command = [sys.executable, "-m", "benchmarks", "client", "--url", jobqueue_database_url, "--claims", "5"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=290).stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("worker's start, ms: ")
    assert all(line.startswith("claim, ") for line in lines[1:])
    figures = [float(figure.replace(",", "")) for line in lines for figure in line.rpartition(": ")[2].split(", ")]
    assert len(figures) == 5
    assert min(figures) > 0


@pytest.mark.parametrize(
    ("committed", "started", "expected"),
    [
        (1.0, 6.0, {"busy": 1.0, "wake": 2.0, "claim": 1.0, "start": 1.0}),  # a claim was under way, the next one found it
        (2.5, 6.0, {"busy": 0.0, "wake": 1.5, "claim": 1.0, "start": 1.0}),  # the worker was idle
        (4.5, 6.0, {"busy": 0.0, "wake": 0.0, "claim": 0.5, "start": 1.0}),  # committed before the claim's snapshot
        (1.0, 4.5, {"busy": 1.0, "wake": 2.0, "claim": 0.5, "start": 0.0}),  # started before the last lane was claimed
    ],
)
def test_latency_phases_of_a_job_add_up(committed: float, started: float, expected: dict[str, float]) -> None:
    from benchmarks.scenarios.latency import phases

    found = phases(committed, started, [(0.0, 2.0), (4.0, 5.0)])
    assert found == expected
    assert sum(found.values()) == started - committed
