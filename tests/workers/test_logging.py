"""A worker made in Python logs its start, one line per attempt, and the traceback of failed ones."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import Engine

from sa_jobqueue import JobQueue, Worker
from sa_jobqueue.db.connections import OWN_CONNECTIONS
from tests.fixtures.jobs import enqueue
from tests.fixtures.workers import quick


async def test_a_worker_created_in_python_logs_its_start_and_each_attempt(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sa_jobqueue.worker")
    jobs = JobQueue()

    @jobs.handler("send", max_attempts=1)
    def send(fails: bool) -> None:
        if fails:
            raise LookupError("no such order")

    enqueue(engine, send.job(False), send.job(True))
    await Worker(jobs, engine, options=quick()).run_until_idle()
    started = next(message for message in caplog.messages if " started " in message)
    assert "queues=default concurrency=10 handlers=send database=postgresql" in started
    assert started.endswith(f"schema_version=1 max_connections={OWN_CONNECTIONS + 10}")
    assert sum("completed in" in message for message in caplog.messages) == 1
    assert "in send\n" in caplog.text
    assert "LookupError: no such order" in caplog.text
    password = engine.url.password
    assert password is None or password not in started
