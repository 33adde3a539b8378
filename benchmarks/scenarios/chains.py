"""Chains and blockers: what going on, waiting and being waited for add to a job, and that it stays linear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy.orm import Session

from benchmarks import pgbench, rows, workers
from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from sa_jobqueue import AttemptContext, Continuation, Job, JobQueue, enqueue_many
from sa_jobqueue.registry.handlers import Handler

_PLAIN = "plain jobs"


def scenario() -> Scenario:
    """Return the cases."""
    plain = Comparison(case=_PLAIN)
    queue, no_op, twice = _queue()

    def drain(place: Place, watch: Stopwatch, jobs: int) -> int:
        return workers.drain(place, watch, jobs, queue, concurrency=pgbench.BATCH)

    def one_more(place: Place, watch: Stopwatch, jobs: int) -> int:
        return drain(place, watch, jobs + 1) - 1  # the one that they wait for, or that waits for them

    def enqueued(place: Place, jobs: int) -> None:
        _enqueue(place, [no_op.job(rows.payload(number)) for number in range(jobs)])

    def chained(place: Place, jobs: int) -> None:
        _enqueue(place, [twice.job(rows.payload(number)) for number in range(jobs // 2)])

    return Scenario(
        name="chains",
        says="jobs that do nothing, drained by one worker: alone, two to a chain, all before one, all after one",
        cases=(
            Case(name=_PLAIN, run=drain, prepare=enqueued),
            Case(name="two jobs a chain", run=drain, prepare=chained, against=plain),
            Case(name="enqueue a fan-in", run=_enqueueing(lambda jobs: _fan_in(no_op, jobs)), against=plain),
            Case(name="fan-in", run=one_more, prepare=_prepared(lambda jobs: _fan_in(no_op, jobs)), against=plain),
            Case(name="fan-in, a tenth", run=_tenth(one_more), prepare=_tenth_prepared(lambda jobs: _fan_in(no_op, jobs))),
            Case(name="enqueue a fan-out", run=_enqueueing(lambda jobs: _fan_out(no_op, jobs)), against=plain),
            Case(name="fan-out", run=one_more, prepare=_prepared(lambda jobs: _fan_out(no_op, jobs)), against=plain),
            Case(name="fan-out, a tenth", run=_tenth(one_more), prepare=_tenth_prepared(lambda jobs: _fan_out(no_op, jobs))),
        ),
    )


def _queue() -> tuple[JobQueue, Handler[Any, Any, Job], Handler[Any, Any, Job]]:
    queue = JobQueue()

    @queue.handler(rows.JOB_TYPE)
    async def no_op(order: Any) -> None:
        return None

    @queue.handler("twice")
    async def twice(order: Any, attempt: AttemptContext) -> Continuation[None]:
        return attempt.continue_with(no_op, order)

    return queue, no_op, twice


def _fan_in(no_op: Handler[Any, Any, Job], jobs: int) -> list[Job]:
    blockers = [no_op.job(rows.payload(number)) for number in range(jobs)]
    return [*blockers, no_op.job(None, blockers=blockers)]


def _fan_out(no_op: Handler[Any, Any, Job], jobs: int) -> list[Job]:
    first = no_op.job(None)
    return [first, *(no_op.job(rows.payload(number), blockers=[first]) for number in range(jobs))]


def _enqueue(place: Place, jobs: list[Job]) -> None:
    place.clear()
    with Session(place.engine()) as session, session.begin():
        enqueue_many(session, jobs)
    place.run("VACUUM job", "VACUUM job_blocker")


def _prepared(make: Callable[[int], list[Job]]) -> Callable[[Place, int], None]:
    return lambda place, jobs: _enqueue(place, make(jobs))


def _tenth_prepared(make: Callable[[int], list[Job]]) -> Callable[[Place, int], None]:
    return lambda place, jobs: _enqueue(place, make(max(1, jobs // 10)))


def _tenth(run: Callable[[Place, Stopwatch, int], int]) -> Callable[[Place, Stopwatch, int], int]:
    return lambda place, watch, jobs: run(place, watch, max(1, jobs // 10))


def _enqueueing(make: Callable[[int], list[Job]]) -> Callable[[Place, Stopwatch, int], int]:
    def run(place: Place, watch: Stopwatch, jobs: int) -> int:
        made = make(jobs)
        with Session(place.engine()) as session:
            session.connection()
            with watch:
                enqueue_many(session, made)
                session.commit()
        return jobs

    return run
