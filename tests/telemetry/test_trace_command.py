"""`sa-jobqueue trace`: a chain's attempts as a tree, from the queue's own rows."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, delete
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import AttemptContext, Backoff, JobQueue
from sa_jobqueue.models import Job
from tests.fixtures.commands import Run
from tests.fixtures.workers import drain
from tests.telemetry.spans import Telemetry

pytestmark = pytest.mark.slow


async def test_trace_prints_a_chain_with_retries_and_blockers_as_one_tree(
    sessions: sessionmaker[Session], engine: Engine, run: Run, telemetry: Telemetry
) -> None:
    queue = JobQueue()

    @queue.handler("scan")
    async def scan(page: int) -> int:
        return page

    @queue.handler("print")
    async def print_(payload: None) -> None: ...

    @queue.handler("bind", retry=Backoff(base=timedelta(microseconds=1)))
    async def bind(payload: None, ctx: AttemptContext) -> Any:
        if ctx.attempt == 1:
            raise ValueError("\x1b[31mno glue")
        return ctx.continue_with(print_, None)

    with sessions.begin() as session, telemetry.tracer.start_as_current_span("request"):
        session.add(job := bind.job(None, blockers=[scan.job(1), scan.job(2)]))
        chain_id = job.id
    for _ in range(2):
        await drain(queue, engine)

    tree = run("trace", chain_id).stdout
    shape = re.sub(
        r" on tester:\w+", "", re.sub(r"[+\d]+\.\d+ s", "T", re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}", "ID", tree))
    )
    assert [line.strip(" │├└─") for line in shape.splitlines()] == [
        "chain bind ID completed in T",
        "bind ID completed at T",
        "trace ID",
        "waited for 2",
        *["chain scan ID completed at T in T", "scan ID completed at T", "trace ID", "attempt 1 completed at T in T"] * 2,
        "attempt 1 failed at T in T: ValueError: \\x1b[31mno glue",
        "attempt 2 completed at T in T",
        "print ID completed at T",
        "attempt 1 completed at T in T",
    ]
    spans = json.loads(run("trace", chain_id, "--json").stdout)
    first, last = spans["jobs"]
    assert [attempt["outcome"] for attempt in first["attempts"]] == ["failed", "completed"]
    assert [chain["jobs"][0]["type_name"] for chain in first["waited_for"]] == ["scan", "scan"]
    assert last["attempts"][0]["worker_id"].startswith("tester:")
    assert "waited for" not in run("trace", chain_id, "--depth", 0).stdout
    assert "no such" in run("trace", uuid4(), status=1).stderr
    assert "is not a UUID" in run("trace", "nonsense", status=2).stderr
    with Session(engine) as session, session.begin():
        session.execute(delete(Job.Attempt))
    assert "failed" not in run("trace", chain_id).stdout  # what retention has taken is not made up
