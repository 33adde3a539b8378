"""The supported versions are the same wherever they are stated, and each is tested by a script that CI runs."""

from __future__ import annotations

import re
import subprocess
import tomllib
from typing import Any

import pytest

from tests.contracts.packages import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
BOUNDS = dict(re.findall(r"^([a-z]+)[^>]*>=([\d.]+)", requirement)[0] for requirement in PROJECT["dependencies"])


@pytest.mark.parametrize("page", ["README.md", "docs/guides/add-to-your-application.md"])
def test_docs_state_the_version_bounds_of_the_package(page: str) -> None:
    text = (ROOT / page).read_text()
    for version in (PYTHONS[0], PYTHONS[-1], BOUNDS["sqlalchemy"], "15 to 18"):
        assert version in text, version
    if page != "README.md":
        assert f"{BOUNDS['alembic']} and newer" in text
        assert f"{BOUNDS['psycopg']} and newer" in text
        assert "| {pydantic}, {click}, {rich}, {cronsim}, {packaging} and newer |".format_map(BOUNDS) in text


def test_every_supported_python_is_tested() -> None:
    assert f">={PYTHONS[0]}" == PROJECT["requires-python"]
    assert f"--python {PYTHONS[0]}" in (ROOT / "scripts/lowest").read_text()
    commands = (ROOT / ".ci/run").read_text()
    assert '\npytest -m "not long"\n' in commands
    assert '"$(scripts/find_python newest)" -m venv' in commands
    assert "\nscripts/matrix\n" in commands
    assert "\nscripts/lowest\n" in commands


@pytest.mark.slow
def test_the_scripts_find_the_supported_pythons() -> None:
    def find(version: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([ROOT / "scripts/find_python", version], capture_output=True, text=True, check=False)

    assert find("supported").stdout.split() == PYTHONS
    installed = [path for version in PYTHONS if (path := find(version).stdout)]
    newest = find("newest")
    assert (newest.stdout, newest.returncode) == (installed[-1], 0)
    assert find("3.99").returncode == 1


def test_the_matrix_selects_by_marker() -> None:
    script = (ROOT / "scripts/matrix").read_text()
    assert '-m "every_python and not long"' in script
    assert "tests/" not in script
    for folder in ("attempts", "isolation", "steps", "handlers"):
        for path in (ROOT / "tests" / folder).glob("test_*.py"):
            assert "pytest.mark.every_python" in path.read_text(), path


def test_each_released_server_is_run_every_night_or_with_each_change() -> None:
    nightly = (ROOT / ".github/workflows/nightly.yml").read_text()
    releases = (ROOT / "contributing/releasing.md").read_text()
    for command in (
        "pytest -m long -n 2 --timeout 600",
        "scripts/python 3.14",
        *(f"scripts/postgresql {release}" for release in (16, 17, 19)),
    ):
        assert f"command: {command} }}" in nightly
        assert f"| `{command}` |" in releases


def test_the_workflow_runs_what_ci_runs() -> None:
    pattern = r'^(?:python -m pip install .*&& )?(pytest -m "not long"|(?:scripts/|pytest)[^"\n]*)'
    commands = re.findall(pattern, (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert len(commands) == 6
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    for command in commands:
        if command != "scripts/matrix":  # the workflow runs the whole suite with each version instead
            assert f"- run: {command.strip()}" in workflow, command
    images = re.findall(r'image: "python:(3\.\d+)-\w+", sqlalchemy: "([\d.]+)"', workflow)
    assert {python for python, _ in images} == set(PYTHONS)
    assert {sqlalchemy for _, sqlalchemy in images} == {"2.0", "2.1"}
    assert set(re.findall(r'postgresql: "(\d+)"', workflow)) == {"15", "16", "17", "18"}


def test_scripts_name_tests_that_exist() -> None:
    for script in ("lowest", "matrix", "package", "airflow", "mutants"):
        test_paths = re.findall(r"tests/[\w/]+(?:\.py)?", (ROOT / "scripts" / script).read_text())
        assert [path for path in test_paths if not (ROOT / path).exists()] == [], script
