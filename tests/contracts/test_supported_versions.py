"""The supported versions are the same wherever they are stated, and each is tested by a script that CI runs."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from tests.contracts.packages import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
BOUNDS = dict(re.findall(r"^([a-z]+)[^>]*>=([\d.]+)", one)[0] for one in PROJECT["dependencies"])


@pytest.mark.parametrize("page", ["README.md", "docs/guides/add-to-your-application.md"])
def test_docs_state_the_version_bounds_of_the_package(page: str) -> None:
    text = (ROOT / page).read_text()
    for version in (PYTHONS[0], PYTHONS[-1], BOUNDS["sqlalchemy"], "15 to 18"):
        assert version in text, version
    assert "3.14 is not tested" in text
    if page != "README.md":
        assert f"{BOUNDS['alembic']} and newer" in text
        assert f"{BOUNDS['psycopg']} and newer" in text
        assert "| {pydantic}, {click}, {rich}, {cronsim}, {packaging} and newer |".format_map(BOUNDS) in text


def test_every_supported_python_is_tested() -> None:
    assert f">={PYTHONS[0]}" == PROJECT["requires-python"]
    script = (ROOT / "scripts/matrix").read_text()
    (versions,) = re.findall(r"set -- (.+)", script)
    assert versions.split() == [*PYTHONS[1:], "3.14", "sqlalchemy2.0"]
    assert f"--python {PYTHONS[0]}" in (ROOT / "scripts/lowest").read_text()
    commands = (ROOT / ".ci/run").read_text()
    assert "\nscripts/matrix\n" in commands
    assert "\nscripts/lowest\n" in commands


def test_the_workflow_runs_what_ci_runs() -> None:
    pattern = r'^(?:python -m pip install .*&& )?((?:scripts/|pytest)[^"\n]*)'
    commands = re.findall(pattern, (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert len(commands) == 7
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    for command in commands:
        if command != "scripts/matrix":  # the workflow runs the whole suite with each version instead
            assert f"- run: {command.strip()}" in workflow, command
    images = re.findall(r'image: "python:(3\.\d+)-\w+", sqlalchemy: "([\d.]+)"', workflow)
    assert {python for python, _ in images} == set(PYTHONS)
    assert {sqlalchemy for _, sqlalchemy in images} == {"2.0", "2.1"}
    assert sorted(re.findall(r'postgresql: "(\d+)"', workflow)) == ["15", "16", "17", "18"]


def test_scripts_name_tests_that_exist() -> None:
    for script in ("lowest", "matrix", "package", "airflow", "mutants"):
        named = re.findall(r"tests/[\w/]+(?:\.py)?", (ROOT / "scripts" / script).read_text())
        assert [path for path in named if not (ROOT / path).exists()] == [], script
