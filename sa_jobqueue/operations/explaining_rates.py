"""For `explain_job`: the rate limit that delays a job, and when the job may start."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session

from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations.spans import span
from sa_jobqueue.policies.fairness import whole
from sa_jobqueue.policies.rates import Rate, RateAlgorithm
from sa_jobqueue.statements import explaining


def held_by_rate(session: Session, job: Any, model: type[JobMixin[Any]]) -> tuple[str, dict[str, Any]] | None:
    """Describe the rate limit of the queue, fairness key or type that delays a job; None if there is no such limit."""
    weight = max(job.rate_cost or 1, 1)
    asked = {"queues": [job.queue, whole(job.queue)], "type_name": job.type_name}
    for row in session.execute(explaining.rates(model), asked):
        rate = Rate.of(row)
        if rate is None or rate.fitting([weight]):
            continue
        wait = rate.wait(weight)
        evidence = {"per_second": rate.per_second, "next_start": wait, "algorithm": rate.algorithm, "weight": weight}
        what = "no more jobs by its rate limit" if weight == 1 else f"no jobs of rate_cost {weight:,} by its rate limit"
        if rate.algorithm is RateAlgorithm.SLIDING_WINDOW:
            what += f" of {rate.limit:,} in any {span(rate.period)}"
        todo = f"sa-jobqueue {row.what}s set {row.name} --rate-limit"
        return f"its {row.what} {row.name!r} starts {what}; the next in {span(wait)}: {todo}", evidence
    return None


def held_by_a_part(
    session: Session, job: Any, model: type[JobMixin[Any]], *, workers: int
) -> tuple[str, dict[str, Any]] | None:
    """Describe the rate limit that is divided among workers, if there is one; only the workers know their state."""
    asked = {"queues": [job.queue, whole(job.queue)], "type_name": job.type_name}
    for row in session.execute(explaining.rates(model), asked):
        rate = Rate.of(row)
        if rate is not None and rate.algorithm is RateAlgorithm.LOCAL_TOKEN_BUCKET:
            part = rate.divided(workers)
            each = timedelta(seconds=max(job.rate_cost or 1, 1) / part.per_second)
            evidence = {"per_second": rate.per_second, "next_start": each, "algorithm": rate.algorithm, "workers": workers}
            limit = f"the rate limit of its {row.what} {row.name!r}"
            starts = f"{limit} lets each of {workers:,} workers start one every {span(each)}"
            return f"{starts}: sa-jobqueue {row.what}s set {row.name} --rate-limit", evidence
    return None
