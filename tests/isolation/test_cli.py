"""Isolation and memory limits of `sa-jobqueue worker`: a child ends with its worker, and a worker that grew is replaced."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine

from sa_jobqueue import Backoff
from sa_jobqueue.cli import _supervisor, main
from sa_jobqueue.cli._serving import SUCCESSOR
from sa_jobqueue.cli._supervisor import Supervisor
from tests.fixtures import isolated
from tests.fixtures import workers as fixtures
from tests.fixtures.commands import StartWorker, workers
from tests.fixtures.jobs import enqueue
from tests.fixtures.workers import is_running, wait_until

pytestmark = pytest.mark.every_python

ROOT = str(Path(__file__).parents[2])


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixtures, "PATIENCE", 60.0)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child that never returns to Python is not killed")
def test_a_killed_workers_child_process_dies_with_it(
    start_worker: StartWorker,
    engine: Engine,
    tmp_path: Path,
) -> None:
    enqueue(engine, isolated.spins.job(str(tmp_path / "pid")))
    worker = start_worker(registry="tests.fixtures.isolated:jobs", PYTHONPATH=ROOT)
    wait_until((tmp_path / "pid").exists, description="the handler")
    child = int((tmp_path / "pid").read_text())
    assert int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1]) == worker.pid
    worker.kill()
    wait_until(lambda: not is_running(child), description="the child's end")


def test_a_worker_over_its_memory_limit_drains_and_exits_to_be_replaced(
    start_worker: StartWorker,
    engine: Engine,
    tmp_path: Path,
) -> None:
    assert start_worker("--max-memory", "64M").wait(fixtures.PATIENCE) == SUCCESSOR
    assert "more than its limit of 64 MiB; it drains and stops" in (tmp_path / "0.log").read_text()
    assert workers(engine) == {}
    for size, words in {
        "63M": "--max-memory: must be a whole number from",
        "much": "'much' is not a size such as 800M or 1.5G",
    }.items():
        refused = CliRunner().invoke(main, ["worker", "sa_jobqueue.cli.demo.app:jobs", "--max-memory", size])
        assert (refused.exit_code, words in refused.output) == (2, True)


async def test_the_supervisor_restarts_a_worker_over_its_memory_limit_without_backoff(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_supervisor, "STARTED_AFTER", timedelta(0))
    monkeypatch.setattr(_supervisor, "RESTART", Backoff(base=timedelta(hours=1), cap=timedelta(hours=1), jitter=False))
    script = f"import os, sys; n = len(os.listdir({str(tmp_path)!r})); open({str(tmp_path)!r} + f'/{{n}}', 'w'); "
    command = [sys.executable, "-S", "-c", script + f"sys.exit({SUCCESSOR} if n < 8 else 0)"]
    assert await Supervisor([command], os.environ).run() == 0
    assert len(os.listdir(tmp_path)) == 9  # noqa: PTH208
