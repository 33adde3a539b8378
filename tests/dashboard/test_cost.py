"""What each page reads: bounded, however many jobs there are. SA_JOBQUEUE_DASHBOARD_JOBS sets another number than 20,000."""

from __future__ import annotations

import gzip
import os
import time
from typing import Any

import pytest
from sqlalchemy import Engine, event, select

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.dashboard import Source, dashboard
from tests.dashboard.conftest import Client, everyone
from tests.dashboard.large import fill
from tests.dashboard.pages import buffers
from tests.fixtures.database import own_database

pytestmark = [pytest.mark.slow, own_database]

JOBS = int(os.environ.get("SA_JOBQUEUE_DASHBOARD_JOBS", "20000"))
BUFFERS = 12_000
"""Of a page: 10,000 entries of an index at 0.8 buffers each, and the reads for its rows."""
COMPRESSED = 20_000
"""Bytes of a page as a proxy sends it."""


def test_no_page_reads_more_buffers_than_its_bound(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one search; a filter that no index serves is searched on for a quarter of a second."""
    monkeypatch.setattr("sa_jobqueue.dashboard.screens.jobs.SEARCH_SECONDS", 0)
    monkeypatch.setattr("sa_jobqueue.dashboard.screens.chains.SEARCH_SECONDS", 0)
    fill(engine, JOBS)
    with engine.connect() as connection:
        job = Job.__table__.c
        dead, pending, chain = (
            connection.execute(select(job.id).where(condition).limit(1)).scalar_one()
            for condition in (job.status == JobStatus.DEAD, job.status == JobStatus.PENDING, job.type_name == "step")
        )
    source = Source(name="queue", engine=engine)
    client = Client(dashboard([source], authorize=everyone))
    began = time.perf_counter()
    source.sampler.sample()
    source.recorded.sample()
    report = time.perf_counter() - began
    # Statements of a report that is measured beside a page would be counted as the page's.
    monkeypatch.setattr("sa_jobqueue.dashboard.sampler.Sampler._is_due", lambda sampler: sampler.last is None)
    statements: list[tuple[str, Any]] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append((arguments[2], arguments[3])))
    figures: dict[str, tuple[int, float]] = {}
    for path in (
        "overview",
        "jobs",
        "jobs?status=pending",
        "jobs?status=running",
        "jobs?type=none",
        "jobs?status=pending&order=oldest&queue=queue3",
        'jobs?input={"n": 7}',
        f"jobs?id={dead}",
        f"jobs?chain={chain}",
        f"job?id={dead}",
        f"job?id={pending}",
        f"job?id={chain}",
        "dead-letters?type=none",
        "dead-letters?fingerprint=f1",
        "queues",
        "queue?name=queue0",
        "queue?name=queue0&fairness_key=key15",
        "fairness-keys",
        "fairness-keys?queue=queue0&key=key7",
        "job-types",
        "job-type?name=type3",
        "limits",
        "chains",
        f"chain?id={chain}",
        "schedules",
        "events",
        "events?name=approved:7",
        "workers",
        "storage",
        "audit",
    ):
        statements.clear()
        began = time.perf_counter()
        page = client.page(f"/queue/{path}")
        took = time.perf_counter() - began
        assert len(page) < 200_000
        assert len(gzip.compress(page.encode())) < COMPRESSED, path
        figures[path] = (buffers(engine, list(statements)), took)
    print(f"\n{JOBS:,} jobs; the report took {report:.2f} s")  # shown by pytest -s
    for path, (read, took) in figures.items():
        print(f"{path:60} {read:7,} buffers {took * 1000:6.0f} ms")
    assert {path: read for path, (read, _) in figures.items() if read > BUFFERS} == {}
    assert figures["overview"][0] == 0  # the report is shared
