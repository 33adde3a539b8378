"""A trace from one process to another: this one enqueues, a worker process runs, and both export what they saw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import format_span_id, format_trace_id
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import Job, JobStatus, enqueue_many
from tests.fixtures.jobs import Jobs
from tests.fixtures.programs import Programs
from tests.fixtures.workers import PATIENCE, wait_until
from tests.telemetry.spans import Telemetry, id_of

APPLICATION = """
import logging
from datetime import timedelta
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from sa_jobqueue import Backoff, JobQueue

jobs = JobQueue()
log = logging.getLogger("app")
file = open("spans.jsonl", "a", buffering=1)
exporter = ConsoleSpanExporter(out=file, formatter=lambda span: span.to_json(indent=None) + "\\n")
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)

@jobs.handler("render")
def render(page: int):
    with trace.get_tracer("app").start_as_current_span("draw"):
        log.info("drawing page %d", page)

@jobs.handler("flaky", retry=Backoff(base=timedelta(microseconds=1)))
async def flaky(payload: None, attempt):
    log.warning("trying")
    if attempt.attempt == 1:
        raise ValueError("no route")

@jobs.handler("apart", isolation="process")
async def apart(payload: None):
    with trace.get_tracer("app").start_as_current_span("in a child"):
        log.info("apart")
""".replace("attempt):", "attempt: AttemptContext):").replace("import Backoff", "import AttemptContext, Backoff")

_NAMES = ("process render", "draw", "process flaky", "process apart", "in a child")


@pytest.mark.long
def test_a_jobs_trace_continues_in_the_worker_process_and_its_logs(
    database_url: str, sessions: sessionmaker[Session], jobs: Jobs, telemetry: Telemetry, programs: Programs, tmp_path: Path
) -> None:
    with sessions.begin() as session, telemetry.tracer.start_as_current_span("request"):
        pages = enqueue_many(session, [Job("render", number) for number in range(3)])
        session.add(flaky := Job("flaky"))
        session.add(apart := Job("apart"))
        flaky_id, apart_id = flaky.id, apart.id
    (tmp_path / "app.py").write_text(APPLICATION)
    options = ["--opentelemetry", "--log-format", "json", "--capture-logs", "5", "--poll-interval", "0.1s"]
    words = ("worker", "app:jobs", *options)
    log, env = tmp_path / "log", {"SA_JOBQUEUE_URL": database_url}
    worker = programs.start("-m", "sa_jobqueue.cli", *words, cwd=tmp_path, env=env, log=log)
    try:
        for job_id in (
            *pages,
            flaky_id,
            apart_id,
        ):  # each in its time: two interpreters start, on a machine that may be busy
            wait_until(lambda job_id=job_id: jobs.status(job_id) is JobStatus.COMPLETED)  # type: ignore[misc]
    finally:
        worker.terminate()
        worker.wait(PATIENCE)
    logged = log.read_text()
    assert worker.returncode == 0, logged
    spans: list[dict[str, Any]] = [json.loads(line) for line in (tmp_path / "spans.jsonl").read_text().splitlines()]
    spans_by_name = {name: [span for span in spans if span["name"] == name] for name in _NAMES}
    assert [len(named_spans) for named_spans in spans_by_name.values()] == [3, 3, 2, 1, 1]
    enqueued = telemetry.span("enqueue render")
    request = telemetry.span("request").get_span_context()
    assert request is not None
    for span in spans:  # one trace, over both processes
        assert span["context"]["trace_id"] == f"0x{format_trace_id(request.trace_id)}"
    attempts = {span["context"]["span_id"] for span in spans_by_name["process render"]}
    assert {span["parent_id"] for span in spans_by_name["process render"]} == {f"0x{format_span_id(id_of(enqueued))}"}
    assert {span["parent_id"] for span in spans_by_name["draw"]} == attempts
    # Also in a process of the handler's own.
    ((apart_attempt,), (inside,)) = (spans_by_name["process apart"], spans_by_name["in a child"])
    assert inside["parent_id"] == apart_attempt["context"]["span_id"]
    failed, completed = sorted(spans_by_name["process flaky"], key=lambda span: str(span["start_time"]))
    assert completed["links"][-1]["context"]["span_id"] == failed["context"]["span_id"]
    # The log: each line is JSON, those of handlers name their job, and a failed attempt has kept its own.
    lines = [json.loads(line) for line in logged.splitlines()]
    drawn = {line["job_id"] for line in lines if line["message"].startswith("drawing")}
    assert drawn == {str(page) for page in pages}
    assert [line["job_id"] for line in lines if line["message"] == "apart"] == [str(apart_id)]
    retried = next(line for line in lines if line.get("event") == "JobRescheduled")
    assert (retried["job_id"], retried["job_outcome"], retried["level"]) == (str(flaky_id), "failed", "warning")
    (attempt,) = jobs.attempts(flaky_id)
    assert [line.partition(" ")[2] for line in attempt["error"]["log"]] == ["WARNING app: trying"]
    assert failed["context"]["span_id"].removeprefix("0x") in attempt["error"]["trace_context"]
