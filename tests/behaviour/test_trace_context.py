"""The columns of trace context: of a job, its chain and its blockers, by the spans that were current."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Tracer
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import AttemptContext, Job, JobQueue, enqueue_many
from sa_jobqueue.tracing import current_traceparent
from tests.fixtures.jobs import Jobs
from tests.fixtures.workers import drain


@pytest.fixture
def tracer() -> Iterator[Tracer]:
    """Give a tracer of a separate provider."""
    provider = TracerProvider()
    yield provider.get_tracer("test")
    provider.shutdown()


def columns(jobs: Jobs, job_id: Any) -> tuple[str | None, str | None]:
    row = jobs.get(job_id)
    return row["trace_context"], row["chain_trace_context"]


def test_every_way_of_enqueueing_stores_the_trace_context(
    sessions: sessionmaker[Session], jobs: Jobs, tracer: Tracer
) -> None:
    with sessions.begin() as session:
        with tracer.start_as_current_span("request"):
            traced = current_traceparent()
            session.add(added := Job("test"))
            many = [Job("test"), Job("test")]
        many.append(Job("test"))  # made outside, enqueued by the same call
        ids = [added.id, *enqueue_many(session, many)]
    assert [columns(jobs, job_id) for job_id in ids] == [(traced, traced)] * 3 + [(None, None)]


async def test_a_continuation_has_its_own_trace_context_and_its_chains(engine: Engine, jobs: Jobs, tracer: Tracer) -> None:
    queue = JobQueue()
    contexts: dict[str, str | None] = {}

    @queue.handler("last")
    async def last(payload: int) -> None: ...

    @queue.handler("first")
    async def first(payload: int, ctx: AttemptContext) -> Any:
        with tracer.start_as_current_span("attempt"):
            contexts["attempt"] = current_traceparent()
            return ctx.continue_with(last, payload)

    with Session(engine) as session, session.begin():
        with tracer.start_as_current_span("request"):
            contexts["request"] = current_traceparent()
            session.add(traced := first.job(1))
        session.add(untraced := first.job(2))
        roots = [traced.id, untraced.id]
    await drain(queue, engine)
    with Session(engine) as session:
        following = {job.chain_id: job.id for job in session.scalars(select(Job).where(Job.chain_index == 1))}
    assert columns(jobs, following[roots[0]])[1] == contexts["request"]
    assert columns(jobs, following[roots[1]]) == (contexts["attempt"], None)
    assert columns(jobs, roots[0]) == (contexts["request"], contexts["request"])
