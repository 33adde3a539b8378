"""The job in every line that structlog writes during an attempt.

    bind_jobs(jobs)
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, ...])

A registry that is included in another one needs its own call.
"""

from __future__ import annotations

from typing import Any

from structlog.contextvars import bound_contextvars

from sa_jobqueue.context import AttemptContext
from sa_jobqueue.registry import JobQueue, Proceed

__all__ = ["bind_jobs"]


def bind_jobs(jobs: JobQueue[Any]) -> None:
    """Bind `job_id`, `job_type`, `job_queue`, `job_attempt` and `worker_id` around every attempt of the handlers of `jobs`.

    Handlers, sync and async, and what they call see them through `structlog.contextvars.merge_contextvars`.
    """

    @jobs.middleware
    async def bind_job(attempt: AttemptContext, proceed: Proceed) -> None:
        job = attempt.job
        names = {"job_id": str(job.id), "job_type": job.type_name, "job_queue": job.queue, "job_attempt": job.attempt}
        with bound_contextvars(**names, worker_id=attempt.worker_id):
            await proceed()
