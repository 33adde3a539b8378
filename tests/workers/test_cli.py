"""`sa-jobqueue workers`: who there is, and asking them to drain."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from sqlalchemy import Engine, text

from sa_jobqueue import JobQueue, JobStatus, Worker
from tests.fixtures.commands import Run, document, run
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.workers import PATIENCE, quick, wait_until

__all__ = ["run"]  # a fixture


def test_workers_list_shows_registered_workers(run: Run, jobs: Jobs) -> None:
    jobs.add_worker(WORKER, silent_for=30, queues=["mail", "default"])
    jobs.add(JobStatus.RUNNING)
    (worker,) = document(run("workers", "list", "--json"))["workers"]
    assert (worker["id"], worker["running"], worker["state"], worker["queues"]) == (
        WORKER,
        1,
        "running",
        ["mail", "default"],
    )
    assert worker["silent_for"] >= 30
    table = run("workers", "list", "--name", "tester*", "--queue", "mail").stdout
    assert "1 worker" in table
    assert "mail, default" in table
    assert document(run("workers", "list", "--json", "--name", "nobody")) == {"workers": []}


def test_workers_drain_asks_only_the_selected_workers(run: Run, jobs: Jobs, engine: Engine) -> None:
    for worker_id in ("a-1", "a-2", "b-1"):
        jobs.add_worker(worker_id)

    def asked() -> list[str]:
        with engine.connect() as connection:
            rows = connection.execute(text("SELECT id FROM worker WHERE drain_requested_at IS NOT NULL ORDER BY id"))
            return list(rows.scalars())

    for arguments in ([], ["--all", "a-1"], ["--all", "--name", "a-*"]):
        run("workers", "drain", *arguments, status=2)
    assert document(run("workers", "drain", "--all", "--dry-run", "--json")) == {"would_drain": ["a-1", "a-2", "b-1"]}
    assert asked() == []
    assert document(run("workers", "drain", "--name", "a-*", "--json")) == {"asked_to_drain": ["a-1", "a-2"]}
    assert asked() == ["a-1", "a-2"]
    result = run("workers", "drain", "b-1", "--wait", "0", status=1)
    assert "b-1 has not stopped" in result.stderr
    assert asked() == ["a-1", "a-2", "b-1"]


def test_workers_drain_waits_until_the_workers_have_stopped(run: Run, engine: Engine) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("noop")
    def noop(payload: None) -> None: ...

    worker = Worker(queue, engine, options=quick())
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()

    def is_registered() -> bool:
        return len(document(run("workers", "list", "--json"))["workers"]) == 1

    wait_until(is_registered, description="the worker is there")
    result = document(run("workers", "drain", worker.id, "--wait", f"{PATIENCE}s", "--json"))
    assert result == {"asked_to_drain": [worker.id], "still_there": []}
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_workers_without_a_heartbeat_are_listed_first_as_silent(run: Run, jobs: Jobs) -> None:
    jobs.add_worker("alive:1", concurrency=4)
    jobs.add_worker("gone:1", silent_for=3 * 3600 + 600)
    listed = run("workers", "list").stdout
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in listed.splitlines() if line.startswith("│")]
    assert [row[:2] for row in rows] == [["gone:1", "silent"], ["alive:1", "running"]]
    assert rows[0][2].startswith("3 h 1")
    assert rows[1][3] == "0/4"
    assert "silent" not in run("workers", "list", "--heartbeat-timeout", "5h").stdout
