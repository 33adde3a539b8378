"""`python -m benchmarks`: the document has its shape, and the counts that no machine can change keep their budgets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

ROOT = Path(__file__).parents[2]

PATIENCE = 850
"""Seconds that a benchmark may take beside other tests on a busy machine."""
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def _benchmarks_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    # They are part of the repository, not of what is installed.
    monkeypatch.syspath_prepend(ROOT)


def run_benchmarks(url: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks", "--url", url, "--rounds", "1", "--json", "-", *arguments]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert process.returncode == 0, process.stderr
    report: dict[str, Any] = json.loads(process.stdout)
    return report


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


@pytest.mark.parametrize(("beyond", "ratio"), [(None, 2.0), ("row", 4.0)])
def test_a_ratio_may_be_of_what_two_cases_add_to_a_third(
    beyond: str | None, ratio: float, jobqueue_database_url: str
) -> None:
    from benchmarks import harness
    from sa_jobqueue.testing.servers import open_server

    def case(name: str, cost: float, against: harness.Comparison | None = None) -> harness.Case:
        def run(place: Any, watch: Any, jobs: int) -> int:
            with watch:
                watch.figures["cost"] = cost
            return jobs

        return harness.Case(name=name, run=run, against=against)

    comparison = harness.Comparison(case="text", figure="cost", beyond=beyond)
    cases = [case("row", 4.0), case("text", 6.0), case("job", 12.0, comparison)]
    with open_server(jobqueue_database_url) as server:
        results = harness.run(server, [harness.Scenario(name="transaction", says="", cases=cases)], jobs=1, rounds=2)
    assert [result.ratio for result in results] == [None, None, ratio]


@pytest.mark.long
def test_drain_stays_within_its_budget_of_round_trips_commits_and_row_versions(jobqueue_database_url: str) -> None:
    report = run_benchmarks(jobqueue_database_url, "--jobs", "2000", "--scenario", "drain")

    [drained] = [result for result in report["results"] if result["case"] == "async handler"]
    assert drained["jobs"] == 2000
    assert drained["per_job"]["round_trips"] <= 0.2
    assert drained["per_job"]["commits"] <= 0.05
    # Two updates a job; the worker's own row is what little there is above that.
    assert 2 <= drained["per_job"]["row_versions"] <= 2.05
    assert drained["per_job"]["dead_tuples"] <= 2.05


def test_the_scenarios_of_the_table_and_of_its_targets_exist() -> None:
    from benchmarks import table, targets
    from benchmarks.scenarios import all_scenarios

    class Recorder(targets.Figures):
        def case(self, scenario: str, case: str) -> None:
            looked_up.add(scenario)

    looked_up: set[str] = set()
    assert [target.is_met for target in targets._all(Recorder({"results": []}))].count(True) == 0
    measured = {name for part in table.PARTS for name in part.scenarios}
    assert measured - {scenario.name for scenario in all_scenarios()} == set()
    assert looked_up - measured <= {"pipeline write", "pipeline read"}  # of a separate run


def test_the_page_has_the_tables_of_the_results_that_are_kept() -> None:
    from benchmarks import markdown

    page = (ROOT / "docs/benchmarks.md").read_text()
    document = json.loads((ROOT / "benchmarks/results.json").read_text())
    assert page == markdown.into_page(page, markdown.write_summary(document))


def test_the_page_has_a_row_of_each_system_that_was_measured() -> None:
    from benchmarks import markdown

    document = json.loads((ROOT / "benchmarks/results.json").read_text())
    template = next(system for system in document["systems"] if system["missing"] is None)
    measured, lacking = (
        template | {"name": name, "version": "1.2", "missing": why}
        for name, why in (("new", None), ("absent", "no Node.js"))
    )
    document["systems"] += [measured, lacking]
    drain = next(result for result in document["results"] if result["scenario"] == "drain beside peers")
    document["results"].append(drain | {"case": "new", "rate": {"median": 7, "min": 6, "max": 8}, "ratio": 0.5})

    summary = markdown.write_summary(document)
    assert "| new 1.2 | 7 (6-8) | 2.0 |" in summary
    assert "absent" not in summary
    assert "- absent 1.2: no Node.js" in markdown.write(document)


def test_every_system_has_an_adapter_and_exact_versions() -> None:
    from benchmarks.peers import environments
    from benchmarks.peers.catalogue import STEPPERS, SYSTEMS

    for system in (*SYSTEMS, *STEPPERS):
        assert environments.script(system).is_file()
        assert environments.release(system)
        if system.environment is not None:
            requirements = (ROOT / f"benchmarks/peers/{system.environment}.txt").read_text().splitlines()
            separator = "@" if system.is_node else "=="
            assert [line for line in requirements if not re.fullmatch(rf"[\w.-]+{separator}\d[\w.]*", line)] == []


def test_a_system_whose_programs_are_missing_is_named_and_the_others_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.peers import environments
    from benchmarks.peers.catalogue import OURS, PEERS

    [bullmq] = [system for system in PEERS if system.is_node]
    [other] = [system for system in PEERS if system.name == "awa"]
    monkeypatch.setenv("SA_JOBQUEUE_BENCHMARK_PEERS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(environments, "SYSTEMS", (OURS, bullmq, other))
    monkeypatch.setattr(environments, "STEPPERS", ())
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(environments, "_run", lambda *command: commands.append(command))

    lacking = "nodejs is not installed (Debian: apt-get install nodejs)"
    assert dict(environments.install()) == {"bullmq": lacking, "awa": None}
    assert [command[-1].rpartition("/")[2] for command in commands] == ["awa", "awa.txt"]
    assert environments.why_not(bullmq) == lacking
    assert environments.interpreter_version(bullmq) is None
    assert [system.name for system in environments.installed()] == [OURS.name]


@pytest.mark.parametrize(("line", "problem"), [(-1, "log of it"), (1, "no such version"), (9, "log of it")])
def test_the_line_that_states_a_problem_of_an_installation_is_shown(line: int, problem: str) -> None:
    from benchmarks.peers import environments

    failing = "import sys; sys.exit('code 7\\nno such version\\nlog of it')"
    assert environments._run(sys.executable, "-c", failing, line=line) == problem
    assert environments._run(sys.executable, "-c", "import sys; sys.exit(3)", line=line) == "exit status 3"
    assert environments._run(sys.executable, "-c", "", line=line) is None


def test_a_benchmark_run_replaces_the_previous_results_in_the_page() -> None:
    from benchmarks import markdown

    page = (ROOT / "docs/benchmarks.md").read_text()
    first = markdown.into_page(page, "| run 1 |\n")
    assert "| run 1 |" in first
    assert "### Beside other systems" not in first
    assert markdown.into_page(first, "| run 2 |") == first.replace("| run 1 |", "| run 2 |")
    with pytest.raises(ValueError, match="measured"):
        markdown.into_page("a page without a place for it", "| run 1 |")
