"""`import sa_jobqueue` needs SQLAlchemy and psycopg and loads nothing else: no extra, no tool, no test helper."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.every_python]

HEAVY = (
    "pydantic",
    "pydantic_core",
    "alembic",
    "click",
    "rich",
    "pyspark",
    "pytest",
    "docker",
    "testcontainers",
    "fastapi",
    "opentelemetry",
    "prometheus_client",
    "starlette",
    "litestar",
    "flask",
    "sentry_sdk",
    "structlog",
)


def loaded_by(code: str) -> set[str]:
    """Return the top-level packages that a fresh interpreter has loaded after `code`."""
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False, timeout=240
    )
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout.splitlines()[-1]))


def test_importing_the_package_loads_no_heavy_dependency() -> None:
    loaded = loaded_by("import sa_jobqueue; from sa_jobqueue import Job, JobQueue, Worker, aio; JobQueue()")
    assert {"sa_jobqueue", "sqlalchemy", "psycopg"} <= loaded
    assert not loaded & set(HEAVY)


def test_only_typed_payloads_load_pydantic() -> None:
    loaded_by("""
import sys
from typing import Any
from sa_jobqueue import JobQueue
jobs = JobQueue()
@jobs.handler("a")
def a(order: dict[str, Any]) -> None: ...
@jobs.handler("b")
def b(order): ...
a.job({"n": 1}); b.job([1])
assert "pydantic" not in sys.modules

@jobs.handler("c")
def c(order: dict[str, int]) -> None: ...
c.job({"n": 1})
assert "pydantic" in sys.modules
""")
