"""Your application's PostgreSQL as its job queue.

    from sa_jobqueue import Job, JobQueue

    jobs = JobQueue()

    @jobs.handler("send_receipt")
    def send_receipt(order: OrderPaid, session: Session) -> None: ...

    with Session(engine) as session, session.begin():
        session.add(send_receipt.job(OrderPaid(order_id=7)))

A job is an ORM object: it exists if and only if the caller's transaction commits. `Worker` runs jobs; a handler's writes
and its completion are one commit. A job may be run more than once, its committed effects happen once.
"""

from sa_jobqueue.context import AttemptContext, Blockers, Continuation, current_attempt
from sa_jobqueue.errors import Cancel, Discard, JobQueueError, Retry, Snooze
from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.operations import (
    Deduplicate,
    cancel_jobs,
    complete_job,
    enqueue,
    enqueue_many,
    enqueue_payloads,
    get_chain,
    get_job,
    list_jobs,
)
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.registry.batches import BatchFailed, BatchItem
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.registry.schedules import Schedule
from sa_jobqueue.types import ChainResult, Enqueued, JobStatus
from sa_jobqueue.version import __version__
from sa_jobqueue.waiting import await_chain, wait_chain
from sa_jobqueue.worker import Worker, WorkerOptions

__all__ = [
    "AttemptContext",
    "Backoff",
    "BatchFailed",
    "BatchItem",
    "Blockers",
    "Cancel",
    "ChainResult",
    "Continuation",
    "Deduplicate",
    "Discard",
    "Enqueued",
    "Handler",
    "Job",
    "JobMixin",
    "JobQueue",
    "JobQueueError",
    "JobStatus",
    "Retry",
    "Schedule",
    "Snooze",
    "Worker",
    "WorkerOptions",
    "__version__",
    "await_chain",
    "cancel_jobs",
    "complete_job",
    "current_attempt",
    "enqueue",
    "enqueue_many",
    "enqueue_payloads",
    "get_chain",
    "get_job",
    "list_jobs",
    "wait_chain",
]
