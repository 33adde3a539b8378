"""Every example runs as a user would run it, on an empty database, and prints what its last comment says."""

from __future__ import annotations

import importlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from sa_jobqueue.db.urls import URL_VARIABLE
from tests.fixtures.parts import needs
from tests.fixtures.programs import PYTHON, Ended, Programs
from tests.fixtures.variants import variants

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path for path in EXAMPLES.rglob("*.py") if "# Output:" in path.read_text())
REPORTS = [EXAMPLES / "build_graph.py", EXAMPLES / "flights" / "walkthrough.py"]
"""Examples at real size: what they print is measured, and depends on the interpreter."""
LONG = {
    *("approval.py", "fastapi_app/walkthrough.py", "flask_app/walkthrough.py", "flask_sqlalchemy_app.py", "llm_calls.py"),
    "long_job.py",
    *("many_customers.py", "ordered_events.py", "outbox_to_kafka.py", "processing_files.py", "rate_limited_api.py"),
    *("sending_email.py", "sentry_and_structlog.py", "two_queues.py", "webhooks.py", "worker_in_fastapi.py"),
    "worker_in_litestar.py",
}
"""Those that take longest are left to the long run."""
NEEDS = {"sending_email.py": "aiosmtpd", "outbox_to_kafka.py": "confluent_kafka"}
"""Packages that an example alone needs; without them it is skipped."""
APPLICATIONS = sorted(path.parent for path in EXAMPLES.glob("*/alembic.ini"))


def shown(script: Path) -> str:
    """Return an example's path among the examples."""
    return str(script.relative_to(EXAMPLES))


def run(*arguments: str, url: str, cwd: Path, timeout_seconds: int = 50, errors: list[str] | None = None) -> str:
    """Run Python with these arguments, its warnings errors; return its output, and add the lines of its errors."""
    process = subprocess.run(
        [*PYTHON, *arguments],
        cwd=cwd,
        env=os.environ | {URL_VARIABLE: url},
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    if errors is not None:
        errors += process.stderr.splitlines()
    return printed(Ended(process.returncode, process.stdout, process.stderr))


def printed(ended: Ended) -> str:
    """Return the output of a program that succeeded."""
    assert ended.code == 0, ended.stdout + ended.stderr
    # Errors of handlers are logged; these end no program, and would not be noticed.
    for unseen in ("Exception ignored", "never retrieved", "never awaited", "Exception during reset", "Warning"):
        assert unseen not in ended.stderr, ended.stderr
    return ended.stdout


def promised_output(script: Path) -> str:
    """Return the output that the last comment of an example promises."""
    _, _, comment = script.read_text().rpartition("\n# Output:\n")
    return "".join(f"{line.removeprefix('#').removeprefix(' ')}\n" for line in comment.splitlines())


def test_every_example_is_listed_as_a_script_or_report() -> None:
    entries = [
        path / "walkthrough.py" if path.is_dir() else path
        for path in EXAMPLES.iterdir()
        if path.name[0] not in "._" and path.name not in {"deploy", "orchestrators"}  # which have tests of their own
    ]
    assert sorted(entries) == sorted(SCRIPTS + REPORTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    variants(SCRIPTS, default=[script for script in SCRIPTS if shown(script) not in LONG], id=shown),
)
def test_an_example_prints_its_last_comment(
    script: Path, empty_database_url: str, programs: Programs, tmp_path: Path
) -> None:
    if script.name in NEEDS:
        needs(NEEDS[script.name])
    env = {URL_VARIABLE: empty_database_url}
    ended = programs.run(script, cwd=EXAMPLES.parent, env=env, into=tmp_path, timeout_seconds=50)
    assert printed(ended) == promised_output(script)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "code", "expected_stderr"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("import warnings; warnings.warn('x')", 1, "UserWarning: x"),
        ("import nothing_", 1, "No"),
    ],
)
def test_the_example_runner_detects_a_failing_program(
    program: str, code: int, expected_stderr: str, programs: Programs, tmp_path: Path
) -> None:
    (tmp_path / "fails.py").write_text(program)
    ended = programs.run(tmp_path / "fails.py", cwd=tmp_path, env={}, into=tmp_path, timeout_seconds=50)
    assert ended.code == code
    assert expected_stderr in ended.stderr


@pytest.mark.long
def test_the_build_graph_example_builds_in_order_and_detects_violations(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = run(str(REPORTS[0]), "--limit", "100", url=empty_database_url, cwd=EXAMPLES.parent)
    assert "modules        100\n" in output
    assert "verified       every module was built once, none before all it imports had completed" in output
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("build_graph")
    graph = example.untangle(example.Library().graph(100)).graph
    (last,) = execute(empty_database_url, "SELECT id FROM build_job WHERE type_name = 'link'")
    engine = create_engine(empty_database_url)
    assert example.faults(engine, graph, last) == []
    execute(empty_database_url, "UPDATE build_job SET started_at = created_at WHERE type_name = 'link'")
    (early,) = example.faults(engine, graph, last)
    assert "jobs were to wait for another" in early
    execute(empty_database_url, "INSERT INTO built (name, job_id, bytecode_bytes) SELECT name, job_id, 1 FROM built LIMIT 1")
    _, twice, other_sum = example.faults(engine, graph, last)
    assert "were to be built once: 100 were, 101 times" in twice
    assert "the last job received" in other_sum
    engine.dispose()


@pytest.mark.long
@pytest.mark.parametrize("application", APPLICATIONS, ids=lambda application: application.name)
def test_an_example_applications_migrations_are_complete_and_reversible(application: Path, empty_database_url: str) -> None:
    def alembic(*command: str) -> str:
        return run("-m", "alembic", *command, url=empty_database_url, cwd=application)

    alembic("upgrade", "head")
    assert "No new upgrade operations detected" in alembic("check")
    alembic("downgrade", "base")
    assert tables(empty_database_url) == {"alembic_version"}
    assert "CREATE TABLE job (" in alembic("upgrade", "head", "--sql")


def execute(url: str, statement: str) -> list[Any]:
    """Run one statement in a transaction of its own; return the first column of its rows."""
    engine = create_engine(url)
    with engine.begin() as connection:
        result = connection.execute(text(statement.replace(":", "\\:")))
        values = list(result.scalars()) if result.returns_rows else []
    engine.dispose()
    return values


def tables(url: str) -> set[str]:
    return set(execute(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"))
