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

from sa_jobqueue.context import AttemptContext, ClaimedJob
from sa_jobqueue.errors import Cancel, Discard, JobQueueError, Retry, Snooze
from sa_jobqueue.handlers import Handler, JobQueue
from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.operations import (
    DeadLetterFilter,
    Deduplicate,
    JobFilter,
    after_commit,
    cancel_chains,
    cancel_jobs,
    delete_chains,
    dismiss_dead_letters,
    enqueue,
    enqueue_many,
    enqueue_unique,
    get_job,
    group_dead_letters,
    list_attempts,
    list_dead_letters,
    list_jobs,
    redrive_dead_letters,
    reschedule_jobs,
    trigger_jobs,
)
from sa_jobqueue.retry import Backoff, RetryPolicy
from sa_jobqueue.types import AttemptOutcome, DeadReason, JobId, JobStatus, Resolution
from sa_jobqueue.version import __version__
from sa_jobqueue.worker import Worker, WorkerOptions

__all__ = [
    "AttemptContext",
    "AttemptOutcome",
    "Backoff",
    "Cancel",
    "ClaimedJob",
    "DeadLetterFilter",
    "DeadReason",
    "Deduplicate",
    "Discard",
    "Handler",
    "Job",
    "JobFilter",
    "JobId",
    "JobMixin",
    "JobQueue",
    "JobQueueError",
    "JobStatus",
    "Resolution",
    "Retry",
    "RetryPolicy",
    "Snooze",
    "Worker",
    "WorkerOptions",
    "__version__",
    "after_commit",
    "cancel_chains",
    "cancel_jobs",
    "delete_chains",
    "dismiss_dead_letters",
    "enqueue",
    "enqueue_many",
    "enqueue_unique",
    "get_job",
    "group_dead_letters",
    "list_attempts",
    "list_dead_letters",
    "list_jobs",
    "redrive_dead_letters",
    "reschedule_jobs",
    "trigger_jobs",
]
