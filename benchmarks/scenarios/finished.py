"""The cost of a claim, an enqueue, a listing and a prune beside a thousandth, a tenth and all of `--jobs` finished ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from benchmarks import claiming, rows
from benchmarks.harness import Case, Comparison, Scenario, percentile
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from benchmarks.statements import counting
from sa_jobqueue import JobQueue, JobStatus
from sa_jobqueue.operations import JobFilter, list_jobs
from sa_jobqueue.operations.pruning import PruneCursor, prune
from sa_jobqueue.policies.retention import Retention, RetentionRules

_PENDING: Final = 1_000
_MEASURED: Final = 15
_UNMEASURED: Final = 6
"""Calls of each kind before those measured: they compile the statement, and the driver prepares it."""
_PAGES: Final = (
    "SELECT coalesce(sum(shared_blks_hit + shared_blks_read), 0) FROM pg_stat_statements"
    " WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_FILL: Final = """
    INSERT INTO job (id, type_name, chain_id, chain_type_name, queue, priority, max_attempts, input_version, input, output,
                     status, attempt, created_at, scheduled_at,
                     started_at, completed_at, chain_completed_at, completed_by)
    SELECT id, :type, id, :type, 'default', 0, 20, 1,
           jsonb_build_object('number', n, 'order_id', 'order-' || n), 'null', 'completed', 1,
           at, at, at, at, at, 'benchmark'
    FROM (SELECT n, now() - interval '60 days' * (1 - n::float8 / :jobs) AS at,
                 (lpad(to_hex(n), 12, '0') || '7000' || '8000' || lpad(to_hex(n), 12, '0'))::uuid AS id
          FROM generate_series(1, :jobs) AS n) AS made
"""
"""Ids that grow with time, as those of UUIDv7 do; all of them below those of the jobs that are enqueued later."""

_queue = JobQueue()


@_queue.handler(rows.JOB_TYPE)
def _no_op(payload: dict[str, Any]) -> None: ...


def scenario() -> Scenario:
    """Return the cases."""
    first = Comparison(case="a thousandth", figure="p50_ms")
    options: dict[str, Any] = {"run": _run, "rated": False, "most": 100_000_000, "most_rounds": 1}
    return Scenario(
        name="finished jobs",
        says="with that part of --jobs finished and 1,000 pending: claims of one job (p50_ms, buffers), a job enqueued, the "
        "newest 50 listed, dead ones searched for, 500 chains pruned; ms and pages of a call, without its commit",
        cases=(
            Case(name="a thousandth", prepare=_fill(1000), **options),
            Case(name="a tenth", prepare=_fill(10), against=first, **options),
            Case(name="all", prepare=_fill(1), against=first, **options),
        ),
        jobs=1_000_000,
    )


def _fill(divisor: int) -> Callable[[Place, int], None]:
    def fill(place: Place, jobs: int) -> None:
        finished = max(jobs // divisor, 1)
        place.clear()
        with place.engine().begin() as connection:
            # Without the guards and foreign keys of rows that change: the rows are those that changes would leave.
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
            connection.execute(text(_FILL), {"type": rows.JOB_TYPE, "jobs": finished})
        with place.begin() as connection:
            rows.copy(connection, _PENDING)
        place.run("VACUUM ANALYZE job")
        place.checkpoint()

    return fill


def _run(place: Place, watch: Stopwatch, jobs: int) -> int:
    claims = claiming.claim_one_at_a_time(place, watch)
    engine = place.engine(size=1)
    with counting(place) as statements, Session(engine) as session:

        def measure(name: str, call: Callable[[int], object]) -> None:
            waits: list[float] = []
            pages = 0.0
            for number in range(_UNMEASURED + _MEASURED):
                if number == _UNMEASURED and statements is not None:
                    pages = float(statements.scalar(_PAGES))
                began = time.perf_counter()
                call(number)
                waits.append((time.perf_counter() - began) * 1000)
                session.commit()
            watch.figures[f"{name}_ms"] = percentile(waits[_UNMEASURED:], 50)
            if statements is not None:
                watch.figures[f"{name}_buffers"] = (float(statements.scalar(_PAGES)) - pages) / _MEASURED

        cursor: PruneCursor | None = None

        def prune_next(_: int) -> None:
            nonlocal cursor
            cursor = prune(session, rules, cursor=cursor).next

        measure("enqueue", lambda number: _no_op.enqueue(session, rows.payload(number)))
        measure("list", lambda _: list_jobs(session))
        measure("list_dead", lambda _: list_jobs(session, where=JobFilter(statuses=[JobStatus.DEAD])))
        rules = RetentionRules(default=Retention(completed=timedelta(days=1)))
        measure("prune", prune_next)
    engine.dispose()
    return claims
