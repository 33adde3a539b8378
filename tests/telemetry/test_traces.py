"""Spans of enqueued jobs and of attempts, as OpenTelemetry's own SDK exports them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import (
    AttemptContext,
    Backoff,
    Blockers,
    Deduplicate,
    Job,
    JobQueue,
    Snooze,
    Worker,
    cancel_jobs,
    enqueue,
    enqueue_many,
)
from sa_jobqueue.context import current_attempt
from sa_jobqueue.errors import InvalidPayloadError
from tests.fixtures.jobs import Jobs, foreign
from tests.fixtures.transactions import call
from tests.fixtures.workers import PATIENCE, quick
from tests.telemetry.spans import Telemetry, id_of, is_child, links, written

AT_ONCE = Backoff(base=timedelta(microseconds=1))


async def work(jobs: JobQueue[Any], engine: Engine, telemetry: Telemetry) -> Worker:
    """Run a watched worker until nothing is due."""
    worker = Worker(jobs, engine, options=quick())
    telemetry.watch(worker, jobs)
    await asyncio.wait_for(worker.run_until_idle(), PATIENCE)
    return worker


def test_an_enqueue_span_is_emitted_at_commit_and_stored_in_the_row(
    sessions: sessionmaker[Session], jobs: Jobs, telemetry: Telemetry
) -> None:
    with sessions() as session, telemetry.tracer.start_as_current_span("request"):
        session.add(job := Job("mail", queue="fast"))
        session.flush()
        assert telemetry.spans() == []  # nothing is committed yet
        session.commit()
        job_id = job.id
    request, span = telemetry.span("request"), telemetry.span("enqueue mail")
    assert is_child(span, request)
    assert span.kind is SpanKind.PRODUCER
    assert dict(span.attributes or {}) == {
        "messaging.system": "sa_jobqueue",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "fast",
        "messaging.message.id": str(job_id),
        "messaging.message.conversation_id": str(job_id),
        "messaging.sa_jobqueue.job.type": "mail",
    }
    row = jobs.get(job_id)
    assert row["trace_context"] == row["chain_trace_context"] == written(span)


def test_a_rolled_back_enqueue_emits_no_span(sessions: sessionmaker[Session], telemetry: Telemetry) -> None:
    with sessions() as session, telemetry.tracer.start_as_current_span("request"):
        session.add(job := Job("undone"))
        session.flush()
        session.rollback()
        with session.begin_nested() as savepoint:
            session.add(Job("undone"))
            session.flush()
            savepoint.rollback()
        session.add(job)  # once more, and now it stays
        enqueue_many(session, [Job("kept"), Job("kept")])
        enqueue(session, Job("keyed"), deduplicate=Deduplicate("one"))
        enqueue(session, Job("keyed"), deduplicate=Deduplicate("one"))  # found, so not made
        session.commit()
    request = telemetry.span("request")
    spans = telemetry.spans()
    assert sorted(span.name for span in spans) == ["enqueue kept", "enqueue keyed", "enqueue undone", "request"]
    assert all(is_child(span, request) for span in spans if span is not request)


def test_a_bulk_enqueue_emits_one_span_per_creating_context(
    sessions: sessionmaker[Session], jobs: Jobs, telemetry: Telemetry
) -> None:
    with sessions.begin() as session:
        with telemetry.tracer.start_as_current_span("import"):
            many = [Job("row") for _ in range(500)]
        many += [Job("row", trace_context=None), Job("row")]
        ids = enqueue_many(session, many)
    within, alone = telemetry.spans("enqueue row")
    if within.parent is None:
        within, alone = alone, within
    assert (within.attributes or {})["messaging.batch.message_count"] == 500
    assert (alone.attributes or {})["messaging.message.id"] == str(ids[-1])
    assert [jobs.get(job_id)["trace_context"] for job_id in (ids[0], ids[499])] == [written(within)] * 2
    assert jobs.get(ids[500])["trace_context"] is None  # given, so kept
    assert jobs.get(ids[501])["trace_context"] == written(alone)


def test_a_copy_emits_one_span_with_its_row_count_unless_rolled_back(
    sessions: sessionmaker[Session], telemetry: Telemetry
) -> None:
    queue = JobQueue()

    @queue.handler("row", queue="bulk")
    def row(payload: int) -> None: ...

    with sessions() as session:
        with telemetry.tracer.start_as_current_span("import"):
            row.enqueue_many(session, range(500))
            assert row.enqueue_many(session, []) == 0
            with session.begin_nested() as savepoint:
                row.enqueue_many(session, range(7))
                savepoint.rollback()
            with pytest.raises(InvalidPayloadError), session.begin_nested():
                row.enqueue_many(session, cast("list[int]", ["none of them"]))
        assert telemetry.spans("enqueue row") == []
        session.commit()
        assert row.enqueue_many(session, [500], trace_context=None) == 1
        session.commit()
    within, span = telemetry.span("import"), telemetry.span("enqueue row")
    assert is_child(span, within)
    assert span.kind is SpanKind.PRODUCER
    attributes = dict(span.attributes or {})
    assert (attributes["messaging.batch.message_count"], attributes["messaging.destination.name"]) == (500, "bulk")
    assert "messaging.message.id" not in attributes
    with sessions() as session:
        rows = session.execute(select(Job.input, Job.trace_context, Job.chain_trace_context)).all()
    assert {tuple(row) for row in rows} == {(number, written(span), written(span)) for number in range(500)} | {
        (500, None, None)
    }
    sent = [point.value for (name, _), point in telemetry.points().items() if name == "messaging.client.sent.messages"]
    assert sent == [500]


async def test_handler_spans_are_children_of_the_attempt_which_is_a_child_of_the_enqueue(
    sessions: sessionmaker[Session], engine: Engine, telemetry: Telemetry
) -> None:
    queue = JobQueue()
    span_ids: list[int] = []

    @queue.middleware
    async def around(attempt: AttemptContext, proceed: Any) -> None:
        with telemetry.tracer.start_as_current_span("middleware"):
            await proceed()

    @queue.handler("async")
    async def asynchronous(payload: None) -> None:
        with telemetry.tracer.start_as_current_span("inside async"):
            await asyncio.sleep(0)

    @queue.handler("thread")
    def threaded(payload: None, session: Session) -> None:
        with telemetry.tracer.start_as_current_span("inside thread"):
            attempt = current_attempt()
            assert attempt is not None
            span_ids.append(attempt.attempt)

    with sessions.begin() as session, telemetry.tracer.start_as_current_span("request"):
        session.add_all([asynchronous.job(None), threaded.job(None)])
    with telemetry.tracer.start_as_current_span("whoever runs the worker"):
        await work(queue, engine, telemetry)
    for name in ("async", "thread"):
        enqueued, attempt, inside = (telemetry.span(f"{word} {name}") for word in ("enqueue", "process", "inside"))
        middle = next(span for span in telemetry.spans("middleware") if is_child(inside, span))
        assert is_child(attempt, enqueued)
        assert is_child(middle, attempt)
        assert attempt.kind is SpanKind.CONSUMER
        assert attempt.status.status_code is StatusCode.UNSET
        assert links(attempt) == {"creation": [id_of(enqueued)]}
        attributes = dict(attempt.attributes or {})
        assert attributes["messaging.operation.type"] == "process"
        assert attributes["messaging.sa_jobqueue.job.attempt"] == 1
        assert attributes["messaging.sa_jobqueue.job.outcome"] == "completed"
        assert str(attributes["messaging.client.id"]).startswith("tester:")
    assert span_ids == [1]
    assert current_attempt() is None
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.slow
async def test_attempts_of_a_chain_with_retries_continuations_and_blockers_are_linked(
    sessions: sessionmaker[Session], engine: Engine, jobs: Jobs, telemetry: Telemetry
) -> None:
    queue = JobQueue()

    @queue.handler("last")
    async def last(payload: None) -> int:
        return 3

    @queue.handler("flaky", retry=AT_ONCE)
    async def flaky(payload: None, ctx: AttemptContext) -> Any:
        if ctx.attempt == 1:
            raise ValueError("no route")
        if ctx.attempt == 2:
            raise Snooze(AT_ONCE.base)
        return ctx.continue_with(last, None)

    @queue.handler("join")
    async def join(payload: None, blockers: Blockers[list[int]]) -> None: ...

    with sessions.begin() as session:
        first = flaky.job(None)
        session.add(waiting := join.job(None, blockers=[first]))
        first_id, join_id = first.id, waiting.id
    for _ in range(3):  # a retry is due a moment later, which an idle worker does not wait for
        await work(queue, engine, telemetry)
    enqueued, joining = telemetry.span("enqueue flaky"), telemetry.span("enqueue join")
    failed, snoozed, continued = telemetry.spans("process flaky")
    assert all(is_child(span, enqueued) for span in (failed, snoozed, continued))
    assert [(span.attributes or {})["messaging.sa_jobqueue.job.outcome"] for span in (failed, snoozed, continued)] == [
        "failed",
        "snoozed",
        "completed",
    ]
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "ValueError"
    (event,) = failed.events
    assert (event.attributes or {})["exception.message"] == "no route"
    assert "test_traces.py" in str((event.attributes or {})["exception.stacktrace"])
    assert snoozed.status.status_code is StatusCode.UNSET
    # What went wrong is found from the row, and the next attempt is linked to it, on any worker.
    (attempt, _) = jobs.attempts(first_id)
    assert attempt["error"]["trace_context"] == written(failed)
    assert links(continued) == {"creation": [id_of(enqueued)], "failed_attempt": [id_of(failed)]}
    # A continuation runs within the attempt that it continues, and is linked to where its chain began.
    following = telemetry.span("process last")
    assert is_child(following, continued)
    assert links(following) == {"creation": [id_of(continued)], "chain": [id_of(enqueued)]}
    # Fan-in: the waiting job is linked to what it waited for, where it was enqueued and where it ran.
    assert links(joining) == {"blocker": [id_of(enqueued)]}
    joined = telemetry.span("process join")
    assert is_child(joined, joining)
    assert links(joined) == {"creation": [id_of(joining)], "blocker": [id_of(enqueued)]}
    assert jobs.get(join_id)["trace_context"] == written(joining)


async def test_the_span_of_a_lost_or_dead_attempt_records_its_outcome(
    sessions: sessionmaker[Session], engine: Engine, telemetry: Telemetry
) -> None:
    queue = JobQueue()

    @queue.handler("taken")
    async def taken(payload: None, ctx: AttemptContext, session: AsyncSession) -> None:
        call(engine, cancel_jobs, [ctx.job.id])

    @queue.handler("hopeless", max_attempts=1)
    def hopeless(payload: int) -> None:
        raise KeyError("x")

    with sessions.begin() as session:
        session.add_all([taken.job(None), hopeless.job(1), foreign("hopeless", "no number", max_attempts=5)])
    await work(queue, engine, telemetry)
    attributes = dict(telemetry.span("process taken").attributes or {})
    assert (attributes["messaging.sa_jobqueue.job.outcome"], attributes["error.type"]) == ("lost", "lost")
    assert telemetry.span("process taken").status.status_code is StatusCode.ERROR
    died = [dict(span.attributes or {}) for span in telemetry.spans("process hopeless")]
    assert {attributes["messaging.sa_jobqueue.job.outcome"] for attributes in died} == {"died"}
    assert {attributes["messaging.sa_jobqueue.job.dead_reason"] for attributes in died} == {"exhausted", "invalid_input"}


async def test_an_unsampled_trace_is_propagated_and_not_exported(
    sessions: sessionmaker[Session], engine: Engine, jobs: Jobs
) -> None:
    telemetry = Telemetry(ParentBased(ALWAYS_OFF))
    queue = JobQueue()
    samplings: list[bool] = []

    @queue.handler("quiet", retry=AT_ONCE)
    async def quiet(payload: None, ctx: AttemptContext) -> None:
        span = trace.get_current_span()
        samplings.append(span.get_span_context().is_valid and not span.is_recording())
        raise ValueError

    try:
        with sessions.begin() as session:
            session.add(job := quiet.job(None))
            job_id = job.id
        await work(queue, engine, telemetry)
    finally:
        telemetry.close()
    assert int(jobs.get(job_id)["trace_context"].rpartition("-")[2], 16) & 1 == 0
    assert samplings
    assert all(samplings)
    assert telemetry.spans() == []
    assert "trace_context" not in jobs.attempts(job_id)[0]["error"]


@pytest.mark.slow
@pytest.mark.parametrize("trace_context", ["", "no traceparent", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
async def test_a_job_with_an_invalid_trace_context_runs(
    trace_context: str, jobs: Jobs, engine: Engine, telemetry: Telemetry
) -> None:
    queue = JobQueue()

    @queue.handler("test")
    async def run(payload: Any) -> None: ...

    job_id = jobs.add(trace_context=trace_context, chain_trace_context="x")
    await work(queue, engine, telemetry)
    assert jobs.get(job_id)["status"] == "completed"
    assert telemetry.span("process test").parent is None


async def test_a_span_of_each_step_is_a_child_of_the_attempts_span(engine: Engine, telemetry: Telemetry) -> None:
    jobs: JobQueue[Any] = JobQueue()

    @jobs.handler("answer")
    def answer(payload: str, ctx: AttemptContext) -> None:
        ctx.step("draft", str, payload, key=7)
        with ctx.transaction("charge"):
            pass

    call(engine, answer.enqueue, "x")
    await work(jobs, engine, telemetry)
    attempt = telemetry.span("process answer")
    draft, charge = telemetry.span("step draft"), telemetry.span("step charge")
    assert is_child(draft, attempt)
    assert is_child(charge, attempt)
    assert dict(draft.attributes or {}) == {
        "messaging.sa_jobqueue.step.name": "draft",
        "messaging.sa_jobqueue.step.kind": "step",
        "messaging.sa_jobqueue.step.key": "7",
    }
    assert (draft.start_time or 0) <= (draft.end_time or 0)
