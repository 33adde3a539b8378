"""`import sa_jobqueue` needs SQLAlchemy and psycopg and loads nothing else: no extra, no tool, no test helper."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True, timeout=240
    )
    return set(json.loads(run.stdout.splitlines()[-1]))


@pytest.mark.parametrize("code", ["import sa_jobqueue", "from sa_jobqueue import Job, JobQueue, Worker, aio; JobQueue()"])
def test_importing_the_package_loads_no_heavy_dependency(code: str) -> None:
    loaded = loaded_by(code)
    assert {"sa_jobqueue", "sqlalchemy", "psycopg"} <= loaded
    assert not loaded & set(HEAVY)


def test_plain_payloads_need_no_pydantic() -> None:
    code = """
from typing import Any
from sa_jobqueue import JobQueue
jobs = JobQueue()
@jobs.handler("a")
def a(order: dict[str, Any]) -> None: ...
@jobs.handler("b")
def b(order): ...
a.job({"n": 1}); b.job([1])
"""
    assert "pydantic" not in loaded_by(code)
    assert "pydantic" in loaded_by(code.replace("dict[str, Any]", "dict[str, int]"))
